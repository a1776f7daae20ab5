//! RMS norms.

use super::Moe;
use crate::{Forward, Loader, ModelError};
use paceline_device::{Backend, DeviceError, Product, ResidualNorm};

/// How a norm's weight is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// The factor itself.
    Plain,
    /// The factor less one. GGUF files store the factor itself here too.
    ZeroCentred,
}

impl NormKind {
    /// The factors of a norm, as the device multiplies by them.
    pub(crate) fn load<B: Backend>(
        self,
        loader: &Loader<'_, B>,
        name: &str,
        len: usize,
    ) -> Result<B::Buffer<f32>, ModelError> {
        let mut weight = loader.vector(name, &[len])?;
        if self == Self::ZeroCentred && loader.gguf().is_none() {
            for value in &mut weight {
                *value += 1.0;
            }
        }
        loader.upload(&weight)
    }
}

/// An RMS norm over the whole row.
pub struct Norm<B: Backend> {
    weight: B::Buffer<f32>,
    eps: f32,
}

impl<B: Backend> Norm<B> {
    /// The norm stored under `name` (without `.weight`).
    pub fn load(
        loader: &Loader<'_, B>,
        name: &str,
        len: usize,
        (kind, eps): (NormKind, f32),
    ) -> Result<Self, ModelError> {
        Ok(Self {
            weight: kind.load(loader, &format!("{name}.weight"), len)?,
            eps,
        })
    }

    /// `out = norm(x)`.
    pub fn run(&self, cx: &Forward<'_, B>, x: &B::Tensor, out: &mut B::Tensor) {
        cx.backend.rms_norm(x, &self.weight, self.eps, out);
    }

    /// `residual += product · scale; out = norm(residual)`.
    pub fn run_after_product(
        &self,
        cx: &Forward<'_, B>,
        residual: &mut B::Tensor,
        (product, scale): (Product<'_, B>, f32),
        out: &mut B::Tensor,
    ) {
        cx.backend
            .linear_add_norm(product, self.behind(residual, scale, out));
    }

    /// `residual += delta · scale; out = norm(residual)`.
    pub fn run_after_add(
        &self,
        cx: &Forward<'_, B>,
        residual: &mut B::Tensor,
        (delta, scale): (&B::Tensor, f32),
        out: &mut B::Tensor,
    ) {
        cx.backend.add_rms_norm(delta, self.behind(residual, scale, out));
    }

    /// `residual += mixture · scale; out = norm(residual)`; `out` may be the mixture's input.
    pub fn run_after_mixture(
        &self,
        cx: &Forward<'_, B>,
        residual: &mut B::Tensor,
        (moe, x, scale): (&Moe<B>, &B::Tensor, f32),
        out: &mut B::Tensor,
    ) -> Result<(), DeviceError> {
        moe.add_and_norm(cx, x, self.behind(residual, scale, out))
    }

    fn behind<'a>(
        &'a self,
        residual: &'a mut B::Tensor,
        scale: f32,
        out: &'a mut B::Tensor,
    ) -> ResidualNorm<'a, B> {
        ResidualNorm {
            residual,
            scale,
            weight: &self.weight,
            eps: self.eps,
            out,
        }
    }
}
