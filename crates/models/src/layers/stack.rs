//! Residual blocks one after another.

use super::{Block, Contribution, Norm};
use crate::Forward;
use paceline_device::{Backend, DeviceError, Scratch};

/// Residual blocks and the norm behind the last.
pub struct Stack<'a, B: Backend> {
    /// Width of the residual stream.
    pub width: usize,
    /// The blocks in order.
    pub blocks: &'a [Block<B>],
    /// Multiplies each block's contribution.
    pub scale: f32,
    /// After the last block.
    pub norm: &'a Norm<B>,
}

impl<'a, B: Backend> Stack<'a, B> {
    /// Runs the blocks over `residual` and returns it normed; `residual` is left as the last block leaves it.
    ///
    /// `pending` is a contribution to it that has yet to be added. `visit` sees the stream at the input of each
    /// block, with the block's index, and at the end with the number of blocks; it may enqueue reads of it. The
    /// angles of `cx` serve all blocks and are given back.
    pub fn run(
        &self,
        cx: &mut Forward<'_, B>,
        residual: &mut B::Tensor,
        mut pending: Option<Contribution<'a, B>>,
        visit: impl Fn(&Forward<'_, B>, usize, &B::Tensor),
    ) -> Result<Scratch<B>, DeviceError> {
        let mut normed = cx.tokens(self.width)?;
        for (index, block) in self.blocks.iter().enumerate() {
            self.enter(cx, &block.norm, residual, pending.take(), &mut normed)?;
            visit(cx, index, residual);
            pending = Some(block.op.run(cx, &normed)?);
        }
        self.enter(cx, self.norm, residual, pending, &mut normed)?;
        visit(cx, self.blocks.len(), residual);
        cx.angles = None;
        Ok(normed)
    }

    /// Adds what the block before has contributed, and norms.
    fn enter(
        &self,
        cx: &Forward<'_, B>,
        norm: &Norm<B>,
        residual: &mut B::Tensor,
        pending: Option<Contribution<'_, B>>,
        normed: &mut B::Tensor,
    ) -> Result<(), DeviceError> {
        match pending {
            Some(Contribution::Product(x, linear)) => {
                let mut delta = cx.tokens(self.width)?;
                let product = linear.product(&x, &mut delta);
                norm.run_after_product(cx, residual, (product, self.scale), normed);
            }
            Some(Contribution::Mixture(x, moe)) => {
                norm.run_after_mixture(cx, residual, (moe, &x, self.scale), normed)?;
            }
            Some(Contribution::Value(delta)) => {
                norm.run_after_add(cx, residual, (&delta, self.scale), normed);
            }
            None => norm.run(cx, residual, normed),
        }
        Ok(())
    }
}
