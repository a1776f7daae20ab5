//! Dense feed-forward layers.

use super::{Contribution, Linear};
use crate::loader::Part;
use crate::{Forward, Loader, ModelError};
use paceline_device::{Activation, Backend, DeviceError};

/// Up, activation, down. A gated layer's gate and up projections are one matrix.
pub struct Mlp<B: Backend> {
    up: Linear<B>,
    activation: Activation,
    down: Linear<B>,
    width: usize,
}

impl<B: Backend> Mlp<B> {
    /// `{prefix}.gate_proj`, `up_proj`, `down_proj` with SiLU.
    pub fn gated(
        loader: &Loader<'_, B>,
        prefix: &str,
        (hidden, width): (usize, usize),
    ) -> Result<Self, ModelError> {
        let parts = [
            Part::whole(format!("{prefix}.gate_proj.weight"), width, hidden),
            Part::whole(format!("{prefix}.up_proj.weight"), width, hidden),
        ];
        let up = Linear::gated(loader, &parts, 2 * width)?;
        let down = Linear::load(loader, &format!("{prefix}.down_proj"), hidden, width)?;
        Ok(Self {
            up,
            activation: Activation::SiluGated { gate_scale: 1.0 },
            down,
            width,
        })
    }

    /// Gate and up stored as one matrix: `{prefix}.input_linear`, `output_linear`.
    pub fn fused(
        loader: &Loader<'_, B>,
        prefix: &str,
        (hidden, width): (usize, usize),
    ) -> Result<Self, ModelError> {
        let part = Part::whole(format!("{prefix}.input_linear.weight"), 2 * width, hidden);
        let up = Linear::gated(loader, &[part], 2 * width)?;
        let down = Linear::load(loader, &format!("{prefix}.output_linear"), hidden, width)?;
        Ok(Self {
            up,
            activation: Activation::SiluGated { gate_scale: 1.0 },
            down,
            width,
        })
    }

    /// `{prefix}.up_proj`, `down_proj` with a squared ReLU, optionally with biases.
    pub fn relu_squared(
        loader: &Loader<'_, B>,
        prefix: &str,
        (hidden, width): (usize, usize),
        biased: bool,
    ) -> Result<Self, ModelError> {
        let up = Linear::load_with_bias(loader, &format!("{prefix}.up_proj"), (width, hidden), biased)?;
        let down = Linear::load_with_bias(loader, &format!("{prefix}.down_proj"), (hidden, width), biased)?;
        Ok(Self {
            up,
            activation: Activation::ReluSquared,
            down,
            width,
        })
    }

    /// Biases of a gated layer: `gate_proj`, `up_proj` and `down_proj` beside the weights.
    pub fn load_gated_bias(
        &mut self,
        loader: &Loader<'_, B>,
        prefix: &str,
        hidden: usize,
    ) -> Result<(), ModelError> {
        let mut bias = loader.vector(&format!("{prefix}.gate_proj.bias"), &[self.width])?;
        bias.extend(loader.vector(&format!("{prefix}.up_proj.bias"), &[self.width])?);
        self.up.set_bias(loader, &bias)?;
        let down = loader.vector(&format!("{prefix}.down_proj.bias"), &[hidden])?;
        self.down.set_bias(loader, &down)
    }

    /// Multiplies the gate (before its activation) and the output by constants.
    pub fn set_scales(&mut self, loader: &Loader<'_, B>, gate: f32, down: f32) -> Result<(), ModelError> {
        self.activation = Activation::SiluGated { gate_scale: gate };
        self.down.set_uniform_scale(loader, down)
    }

    /// Columns of its widest tensor.
    pub fn width(&self) -> usize {
        self.up.outputs()
    }

    /// The feed-forward output of each token.
    pub fn run(&self, cx: &Forward<'_, B>, x: &B::Tensor) -> Result<Contribution<'_, B>, DeviceError> {
        let mut up = cx.tokens(self.up.outputs())?;
        let mut active = cx.tokens(self.width)?;
        cx.backend
            .linear_activate(self.up.product(x, &mut up), self.activation, &mut active);
        Ok(Contribution::Product(active, &self.down))
    }
}
