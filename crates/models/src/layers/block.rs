//! Residual blocks: `x += scale · op(norm(x))`.

use super::{Attention, DeltaNet, Linear, Mamba2, Mlp, Moe, Norm};
use crate::Forward;
use paceline_device::{Backend, DeviceError, Scratch};

/// What a block adds to the residual stream.
pub enum Contribution<'a, B: Backend> {
    /// A product that is yet to be made: most blocks end with one, and a device may make it as part of the addition.
    Product(Scratch<B>, &'a Linear<B>),
    /// A mixture of experts of an input, yet to be made too.
    Mixture(B::Tensor, &'a Moe<B>),
    /// A value.
    Value(Scratch<B>),
}

impl<B: Backend> Contribution<'_, B> {
    /// Its value.
    pub fn value(self, cx: &Forward<'_, B>) -> Result<Scratch<B>, DeviceError> {
        match self {
            Self::Product(x, linear) => linear.run(cx, &x),
            Self::Mixture(x, moe) => moe.value(cx, &x),
            Self::Value(value) => Ok(value),
        }
    }
}

/// What a block computes.
pub enum BlockOp<B: Backend> {
    /// Softmax attention.
    Attention(Attention<B>),
    /// Gated DeltaNet.
    DeltaNet(DeltaNet<B>),
    /// Mamba2.
    Mamba2(Mamba2<B>),
    /// Attention and Mamba2 on the same input, added.
    AttentionAndMamba2(Attention<B>, Mamba2<B>),
    /// Dense feed-forward.
    Mlp(Mlp<B>),
    /// Mixture of experts.
    Moe(Moe<B>),
}

impl<B: Backend> BlockOp<B> {
    /// Columns of its widest tensor.
    pub fn width(&self) -> usize {
        match self {
            Self::Attention(layer) => layer.width(),
            Self::DeltaNet(layer) => layer.width(),
            Self::Mamba2(layer) => layer.width(),
            Self::AttentionAndMamba2(attention, mamba) => attention.width() + mamba.width(),
            Self::Mlp(layer) => layer.width(),
            Self::Moe(layer) => layer.width(),
        }
    }

    /// The block's contribution to the residual stream.
    pub fn run(&self, cx: &Forward<'_, B>, x: &B::Tensor) -> Result<Contribution<'_, B>, DeviceError> {
        match self {
            Self::Attention(layer) => layer.run(cx, x),
            Self::DeltaNet(layer) => layer.run(cx, x),
            Self::Mamba2(layer) => layer.run(cx, x),
            Self::AttentionAndMamba2(attention, mamba) => {
                let mut out = mamba.run(cx, x)?.value(cx)?;
                let mixed = attention.run(cx, x)?.value(cx)?;
                cx.backend.add(&mut out, &mixed, 1.0, None);
                Ok(Contribution::Value(out))
            }
            Self::Mlp(layer) => layer.run(cx, x),
            Self::Moe(layer) => layer.run(cx, x),
        }
    }
}

/// A norm and what it feeds.
pub struct Block<B: Backend> {
    /// Before the operation.
    pub norm: Norm<B>,
    /// The operation.
    pub op: BlockOp<B>,
}
