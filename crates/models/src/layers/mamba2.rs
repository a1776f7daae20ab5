//! Mamba2 state space layers.

use super::{Contribution, Linear};
use crate::{Forward, Loader, ModelError};
use paceline_device::{Backend, CausalConv, DeviceError, GateOrder, GatedNorm, StateShape, StateSpace};

/// The norm between the recurrence and the output projection.
#[derive(Clone, Copy, Debug)]
pub struct Mamba2Norm {
    /// Columns normalised together.
    pub group: usize,
    /// Order of gate and norm.
    pub order: GateOrder,
    /// Added to the mean square.
    pub eps: f32,
}

/// Shape and options of a Mamba2 layer.
#[derive(Clone, Debug)]
pub struct Mamba2Config {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Heads, each with a state of its own.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// State elements per head element.
    pub state: usize,
    /// Groups of heads that share `B` and `C`.
    pub groups: usize,
    /// Taps of the convolution.
    pub conv_width: usize,
    /// The convolution has a bias.
    pub conv_bias: bool,
    /// The input projection has a bias.
    pub input_bias: bool,
    /// The output projection has a bias.
    pub output_bias: bool,
    /// `None`: the gate alone.
    pub norm: Option<Mamba2Norm>,
    /// Bounds of the time step.
    pub dt_limits: (f32, f32),
}

impl Mamba2Config {
    fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    fn group_width(&self) -> usize {
        self.groups * self.state
    }

    fn conv_channels(&self) -> usize {
        self.inner() + 2 * self.group_width()
    }

    /// The state this layer keeps per request.
    pub fn state_shape(&self, slots: usize) -> StateShape {
        StateShape {
            slots,
            conv_channels: self.conv_channels(),
            conv_width: self.conv_width,
            heads: self.heads,
            groups: self.groups,
            rows: self.state,
            columns: self.head_dim,
            drafts: 0,
            snapshots: 0,
        }
    }
}

/// A Mamba2 layer. The input projection gives gate, `x`, `B`, `C` and `dt` side by side.
pub struct Mamba2<B: Backend> {
    config: Mamba2Config,
    input: Linear<B>,
    conv: B::Buffer<f32>,
    conv_bias: Option<B::Buffer<f32>>,
    decay: B::Buffer<f32>,
    skip: B::Buffer<f32>,
    dt_bias: B::Buffer<f32>,
    norm: Option<B::Buffer<f32>>,
    output: Linear<B>,
    cache: usize,
}

impl<B: Backend> Mamba2<B> {
    /// Loads the layer below `prefix`. `cache` is its index among the recurrent layers.
    pub fn load(
        loader: &Loader<'_, B>,
        prefix: &str,
        config: Mamba2Config,
        cache: usize,
    ) -> Result<Self, ModelError> {
        let (inner, channels, heads) = (config.inner(), config.conv_channels(), config.heads);
        let input_shape = (inner + channels + heads, config.hidden);
        let name = |tensor: &str| format!("{prefix}.{tensor}");
        let optional = |wanted: bool, tensor: &str, len: usize| {
            wanted.then(|| loader.buffer(&name(tensor), &[len])).transpose()
        };
        Ok(Self {
            input: Linear::load_with_bias(loader, &name("in_proj"), input_shape, config.input_bias)?,
            conv: loader.buffer(&name("conv1d.weight"), &[channels, 1, config.conv_width])?,
            conv_bias: optional(config.conv_bias, "conv1d.bias", channels)?,
            decay: loader.decay(&name("A_log"), heads)?,
            skip: loader.buffer(&name("D"), &[heads])?,
            dt_bias: loader.buffer(&name("dt_bias"), &[heads])?,
            norm: optional(config.norm.is_some(), "norm.weight", inner)?,
            output: Linear::load_with_bias(
                loader,
                &name("out_proj"),
                (config.hidden, inner),
                config.output_bias,
            )?,
            config,
            cache,
        })
    }

    /// Multiplies the input by `input`, the five kinds of projection outputs (gate, `x`, `B`, `C`, `dt`) by
    /// `kinds`, and the layer's output by `output`.
    pub fn set_scales(
        &mut self,
        loader: &Loader<'_, B>,
        (input, kinds, output): (f32, [f32; 5], f32),
    ) -> Result<(), ModelError> {
        let group_width = self.config.group_width();
        let widths = [
            self.config.inner(),
            self.config.inner(),
            group_width,
            group_width,
            self.config.heads,
        ];
        let columns: Vec<f32> = widths
            .iter()
            .zip(kinds)
            .flat_map(|(width, kind)| vec![input * kind; *width])
            .collect();
        self.input.set_scale(loader, &columns)?;
        self.output.set_uniform_scale(loader, output)
    }

    /// Columns of its widest tensor.
    pub fn width(&self) -> usize {
        self.input.outputs()
    }

    /// Shape and options.
    pub fn config(&self) -> &Mamba2Config {
        &self.config
    }

    /// Mixes the step's tokens into their requests' states.
    pub fn run(&self, cx: &Forward<'_, B>, x: &B::Tensor) -> Result<Contribution<'_, B>, DeviceError> {
        let config = &self.config;
        let (inner, group_width) = (config.inner(), config.group_width());
        let channels = config.conv_channels();
        let backend = cx.backend;
        let cache = &cx.caches.states[self.cache];

        let projected = self.input.run(cx, x)?;
        let mut mixed = cx.tokens(channels)?;
        let [conv_input, dt, gate] = [
            inner..inner + channels,
            inner + channels..self.input.outputs(),
            0..inner,
        ]
        .map(|range| backend.columns(&projected, range));
        let [value, b, c] = [
            0..inner,
            inner..inner + group_width,
            inner + group_width..channels,
        ]
        .map(|range| backend.columns(&mixed, range));
        let conv: CausalConv<'_, B> = CausalConv {
            x: &conv_input,
            weight: &self.conv,
            bias: self.conv_bias.as_ref(),
            cache,
            out: &mut mixed,
            step: cx.step,
        };
        let mut out = cx.tokens(inner)?;
        let values = backend.columns(&out, 0..inner);
        let recurrence: StateSpace<'_, B> = StateSpace {
            x: &value,
            b: &b,
            c: &c,
            dt: &dt,
            decay: &self.decay,
            skip: &self.skip,
            dt_bias: &self.dt_bias,
            dt_limits: config.dt_limits,
            cache,
            out: &mut out,
            step: cx.step,
        };
        let mut gated = cx.tokens(inner)?;
        let (group, order, eps) = config.norm.map_or((inner, GateOrder::GateThenNorm, 0.0), |n| {
            (n.group, n.order, n.eps)
        });
        let norm: GatedNorm<'_, B> = GatedNorm {
            x: &values,
            gate: &gate,
            weight: self.norm.as_ref(),
            group,
            order,
            eps,
            out: &mut gated,
        };
        backend.mix_state_space(conv, recurrence, norm);
        Ok(Contribution::Product(gated, &self.output))
    }
}
