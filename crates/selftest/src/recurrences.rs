//! Convolutions, the gated delta rule, state spaces, and the wide operations that hold all of a layer.

use crate::attention::RightOnly;
use crate::compare::{Limit, Output};
use crate::judge::{Case, Judge};
use crate::rig::{Rig, within};
use crate::sequence::{Cut, Session, Texts};
use paceline_device::{Backend, CausalConv, DeltaRule, DeviceError, HeadMap, StateShape, StateSpace};

/// Other sums and exponentials, over states that have seen some hundred tokens.
const TOLERANCE: f64 = 3e-5;
/// The norm behind a recurrence enlarges what is left where sums cancel in all heads of a group.
const NORMED_TOLERANCE: f64 = 3e-4;

pub(crate) fn judge<B: Backend>(judge: &mut Judge<'_, B>) {
    let mut layers = Vec::new();
    for (channels, width, bias) in [(300, 4, true), (128, 2, false), (64, 3, true), (8192, 4, false)] {
        layers.push(Layer::Conv {
            channels,
            width,
            bias,
        });
    }
    for dims in DELTA {
        for head_map in [HeadMap::Grouped, HeadMap::Tiled] {
            layers.push(Layer::Delta { dims, head_map });
        }
        for projected in [false, true] {
            layers.push(Layer::MixDelta { dims, projected });
        }
    }
    for dims in SPACE {
        layers.push(Layer::Space { dims });
        layers.push(Layer::MixSpace { dims });
    }
    for layer in layers {
        let (operation, name) = (layer.operation(), layer.name());
        let tolerance = match layer {
            Layer::MixDelta { .. } | Layer::MixSpace { .. } => NORMED_TOLERANCE,
            _ => TOLERANCE,
        };
        let limit = within(tolerance, judge.elements().activations);
        let brief = layer.is_large() && !judge.is_whole();
        // Enough requests for a GPU to have more states than multiprocessors: it has other kernels then.
        let lengths = if brief {
            vec![37, 9, 18]
        } else {
            vec![70, 9, 140, 2]
        };
        let mixer = |cut, drafts| Recurrence {
            layer,
            limit,
            texts: Texts {
                lengths: lengths.clone(),
                drafts,
                block_size: 16,
                cut,
            },
        };
        for (seed, drafts) in [(0, 0), (1, 3), (2, 15)] {
            let case = format!("{name}, up to {drafts} drafts");
            judge.compare(operation, &case, &mixer(Cut::Mixed(seed), drafts));
        }
        let cuts = [
            Cut::Alone(1),
            Cut::Alone(usize::MAX),
            Cut::Mixed(1),
            Cut::Mixed(2),
            Cut::Mixed(3),
            Cut::Alone(7),
        ];
        let variants = cuts.into_iter().take(if brief { 3 } else { cuts.len() });
        let variants = variants.map(|cut| (cut.name(), RightOnly(mixer(cut, 5))));
        judge.law(operation, &name, variants);
    }
}

/// Heads, keys that they share, rows and columns of a state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dims {
    pub(crate) heads: usize,
    pub(crate) groups: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

impl Dims {
    const fn new(heads: usize, groups: usize, rows: usize, columns: usize) -> Self {
        Self {
            heads,
            groups,
            rows,
            columns,
        }
    }

    pub(crate) fn keys(self) -> usize {
        self.groups * self.rows
    }

    pub(crate) fn values(self) -> usize {
        self.heads * self.columns
    }

    /// Channels of the convolution in front.
    pub(crate) fn channels(self) -> usize {
        2 * self.keys() + self.values()
    }

    fn name(self) -> String {
        let Self {
            heads,
            groups,
            rows,
            columns,
        } = self;
        format!("{heads} heads in {groups} groups, [{rows}, {columns}]")
    }
}

/// The reference models' and Qwen3.5-4B's.
const DELTA: [Dims; 2] = [Dims::new(4, 2, 16, 16), Dims::new(32, 16, 128, 128)];
/// The reference models', Nemotron-H's, and few heads of other shapes, as in Granite-4.0-H and Falcon-H1.
const SPACE: [Dims; 6] = [
    Dims::new(8, 1, 16, 16),
    Dims::new(8, 2, 16, 16),
    Dims::new(128, 8, 128, 64),
    Dims::new(6, 1, 128, 128),
    Dims::new(8, 2, 128, 32),
    Dims::new(6, 1, 256, 64),
];

#[derive(Clone, Copy, Debug)]
pub(crate) enum Layer {
    Conv {
        channels: usize,
        width: usize,
        bias: bool,
    },
    Delta {
        dims: Dims,
        head_map: HeadMap,
    },
    Space {
        dims: Dims,
    },
    /// `projected`: behind the product whose outputs it reads.
    MixDelta {
        dims: Dims,
        projected: bool,
    },
    MixSpace {
        dims: Dims,
    },
}

impl Layer {
    fn operation(self) -> &'static str {
        match self {
            Self::Conv { .. } => "causal_conv",
            Self::Delta { .. } => "delta_rule",
            Self::Space { .. } => "state_space",
            Self::MixDelta { projected: false, .. } => "mix_delta",
            Self::MixDelta { projected: true, .. } => "linear_mix_delta",
            Self::MixSpace { .. } => "mix_state_space",
        }
    }

    /// Takes a CPU long.
    fn is_large(self) -> bool {
        match self {
            Self::Conv { channels, .. } => channels > 512,
            Self::Delta { dims, .. }
            | Self::Space { dims }
            | Self::MixDelta { dims, .. }
            | Self::MixSpace { dims } => dims.values() > 512,
        }
    }

    fn name(self) -> String {
        match self {
            Self::Conv {
                channels,
                width,
                bias,
            } => format!("{channels} channels, {width} taps, bias {bias}"),
            Self::Delta { dims, head_map } => format!("{}, {head_map:?}", dims.name()),
            Self::Space { dims } | Self::MixDelta { dims, .. } | Self::MixSpace { dims } => dims.name(),
        }
    }

    pub(crate) fn shape(self, texts: &Texts) -> StateShape {
        let (conv_channels, conv_width, dims) = match self {
            Self::Conv { channels, width, .. } => (channels, width, Dims::new(0, 0, 0, 0)),
            Self::Delta { dims, .. } | Self::Space { dims } => (0, 1, dims),
            Self::MixDelta { dims, .. } | Self::MixSpace { dims } => (dims.channels(), 4, dims),
        };
        StateShape {
            slots: texts.slots(),
            conv_channels,
            conv_width,
            heads: dims.heads,
            groups: dims.groups,
            rows: dims.rows,
            columns: dims.columns,
            drafts: texts.drafts,
            snapshots: texts.snapshots(),
        }
    }
}

/// A layer over some texts.
pub(crate) struct Recurrence {
    pub(crate) layer: Layer,
    pub(crate) texts: Texts,
    pub(crate) limit: Limit,
}

impl Case for Recurrence {
    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<Vec<Output>, DeviceError> {
        match self.layer {
            Layer::Conv { channels, bias, .. } => self.conv(rig, channels, bias),
            Layer::Delta { dims, head_map } => self.delta(rig, dims, head_map),
            Layer::Space { dims } => self.space(rig, dims),
            Layer::MixDelta { dims, projected } => self.mix_delta(rig, dims, projected),
            Layer::MixSpace { dims } => self.mix_space(rig, dims),
        }
    }
}

/// Numbers per head: decays are negative.
pub(crate) fn decay<B: Backend>(rig: &Rig<'_, B>, heads: usize) -> Result<B::Buffer<f32>, DeviceError> {
    let numbers = rig.random("decay").numbers(heads, 1.0);
    let decay: Vec<f32> = numbers.iter().map(|x| -x.exp()).collect();
    rig.device.buffer_from(&decay)
}

impl Recurrence {
    fn conv<B: Backend>(
        &self,
        rig: &Rig<'_, B>,
        channels: usize,
        bias: bool,
    ) -> Result<Vec<Output>, DeviceError> {
        let session = Session::new(rig, &self.texts, (channels, 2.0))?;
        let shape = self.layer.shape(&self.texts);
        let cache = rig.device.state_cache(shape)?;
        let weight = rig.buffer("taps", channels * shape.conv_width, 1.0)?;
        let bias = if bias {
            Some(rig.buffer("bias", channels, 1.0)?)
        } else {
            None
        };
        let out = rig.device.tensor(&session.tables.tokens, channels)?;
        let program = rig.program(|device| {
            session.fill(device);
            device.causal_conv(CausalConv {
                x: &session.x,
                weight: &weight,
                bias: bias.as_ref(),
                cache: &cache,
                out: &mut out.clone(),
                step: &session.tables,
            });
        });
        session.run(&program, &out, self.limit)
    }

    fn delta<B: Backend>(
        &self,
        rig: &Rig<'_, B>,
        dims: Dims,
        head_map: HeadMap,
    ) -> Result<Vec<Output>, DeviceError> {
        let (keys, values, heads) = (dims.keys(), dims.values(), dims.heads);
        let session = Session::new(rig, &self.texts, (2 * keys + values + 2 * heads, 2.0))?;
        let [q, k, v, a, b] = session.columns([keys, keys, values, heads, heads]);
        let cache = rig.device.state_cache(self.layer.shape(&self.texts))?;
        let (decay, dt_bias) = (decay(rig, heads)?, rig.buffer("dt bias", heads, 1.0)?);
        let out = rig.device.tensor(&session.tables.tokens, values)?;
        let program = rig.program(|device| {
            session.fill(device);
            device.delta_rule(DeltaRule {
                q: &q,
                k: &k,
                v: &v,
                a: &a,
                b: &b,
                decay: &decay,
                dt_bias: &dt_bias,
                head_map,
                cache: &cache,
                out: &mut out.clone(),
                step: &session.tables,
            });
        });
        session.run(&program, &out, self.limit)
    }

    fn space<B: Backend>(&self, rig: &Rig<'_, B>, dims: Dims) -> Result<Vec<Output>, DeviceError> {
        let (keys, values, heads) = (dims.keys(), dims.values(), dims.heads);
        let session = Session::new(rig, &self.texts, (values + 2 * keys + heads, 1.5))?;
        let [x, b, c, dt] = session.columns([values, keys, keys, heads]);
        let cache = rig.device.state_cache(self.layer.shape(&self.texts))?;
        let (decay, skip) = (decay(rig, heads)?, rig.buffer("skip", heads, 1.0)?);
        let dt_bias = rig.buffer("dt bias", heads, 1.0)?;
        let out = rig.device.tensor(&session.tables.tokens, values)?;
        let program = rig.program(|device| {
            session.fill(device);
            device.state_space(StateSpace {
                x: &x,
                b: &b,
                c: &c,
                dt: &dt,
                decay: &decay,
                skip: &skip,
                dt_bias: &dt_bias,
                dt_limits: (0.2, 1.5),
                cache: &cache,
                out: &mut out.clone(),
                step: &session.tables,
            });
        });
        session.run(&program, &out, self.limit)
    }
}
