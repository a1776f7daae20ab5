//! Mixtures of experts.

use super::{Contribution, Linear, Mlp};
use crate::loader::Part;
use crate::{Forward, Loader, ModelError};
use paceline_device::{
    Activation, Backend, DeviceError, Experts, Mixture, MoeRouting, ResidualNorm, RouteScores, Router,
    Scratch,
};

/// More experts in a layer are damage, not models.
const MAX_EXPERTS: usize = 1 << 12;

/// How router logits become weights.
#[derive(Clone, Debug, PartialEq)]
pub enum RouterKind {
    /// Softmax over all experts, weights optionally made to sum to one.
    Softmax {
        /// Divide by the sum of the chosen.
        renormalise: bool,
    },
    /// Sigmoid with a correction for the choice, limited to groups.
    Sigmoid {
        /// Groups of experts.
        groups: usize,
        /// Groups that may be chosen from.
        kept_groups: usize,
        /// Divide by the sum of the chosen.
        renormalise: bool,
        /// Multiplies the weights.
        scale: f32,
    },
}

/// How the expert matrices are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertLayout {
    /// `{prefix}.experts.{e}.gate_proj` and so on; or `{prefix}.experts.gate_up_proj` and `down_proj` as stacks,
    /// or (GGUF) three stacks. Whatever the file has.
    GateUpDown,
    /// `{prefix}.input_linear` and `output_linear` as stacks.
    InputOutput,
    /// `{prefix}.experts.{e}.up_proj` and `down_proj`, or the same two as stacks; not gated, squared ReLU.
    UpDown,
}

/// Shape and options of a mixture.
#[derive(Clone, Debug)]
pub struct MoeConfig {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of an expert.
    pub width: usize,
    /// Experts of the layer; each token row runs a few of them.
    pub experts: usize,
    /// Experts per token.
    pub chosen: usize,
    /// How scores become the weights of the chosen experts.
    pub router: RouterKind,
    /// Name of the router's matrix below the prefix.
    pub router_name: &'static str,
    /// Where the expert matrices are.
    pub layout: ExpertLayout,
}

impl MoeConfig {
    fn check(&self) -> Result<(), ModelError> {
        let Self {
            hidden,
            width,
            experts,
            chosen,
            ..
        } = *self;
        if experts > MAX_EXPERTS {
            let why = format!("{experts} is above {MAX_EXPERTS}");
            return Err(ModelError::config("num_experts", why));
        }
        // Experts may be stored as one stack, whose rows are numbered in 32 bits.
        let rows = hidden.max(2 * width).checked_mul(experts);
        if rows.is_none_or(|rows| u32::try_from(rows).is_err()) {
            let why = format!("{experts} experts of {width} are too many rows");
            return Err(ModelError::config("moe_intermediate_size", why));
        }
        let mut available = experts;
        if let RouterKind::Sigmoid {
            groups, kept_groups, ..
        } = self.router
        {
            if kept_groups > groups {
                let why = format!("{kept_groups} groups of {groups}");
                return Err(ModelError::config("topk_group", why));
            }
            available = experts / groups * kept_groups;
        }
        if chosen > available {
            let why = format!("{chosen} experts per token of {available} experts");
            return Err(ModelError::config("num_experts_per_tok", why));
        }
        Ok(())
    }
}

/// What every token passes through beside the experts that it chooses.
pub enum SharedExpert<B: Backend> {
    /// Nothing.
    None,
    /// A layer, added as it is.
    Whole(Mlp<B>),
    /// `{prefix}.shared_expert`, an expert of this width; the sigmoid of the one output of `{prefix}.shared_expert_gate`
    /// multiplies what it adds.
    Gated {
        /// Width of the expert.
        width: usize,
    },
}

/// A shared expert that is not one of the others.
struct Beside<B: Backend> {
    mlp: Mlp<B>,
    gate: Option<Linear<B>>,
}

/// A routed mixture with an optional shared expert.
pub struct Moe<B: Backend> {
    config: MoeConfig,
    router: Linear<B>,
    correction: Option<B::Buffer<f32>>,
    experts: B::Experts,
    activation: Activation,
    /// Whether the last expert is a shared one, and the last output of the router its gate.
    joined: bool,
    beside: Option<Beside<B>>,
}

impl<B: Backend> Moe<B> {
    /// Loads the router and experts below `prefix`. A gated shared expert of their shape and type becomes one of them.
    pub fn load(
        loader: &Loader<'_, B>,
        prefix: &str,
        config: MoeConfig,
        shared: SharedExpert<B>,
    ) -> Result<Self, ModelError> {
        config.check()?;
        let joined = joins(loader, prefix, &config, &shared)?;
        let router_name = format!("{prefix}.{}", config.router_name);
        let router_part = |name: String, rows| Part::whole(name, rows, config.hidden).of_router();
        let mut routers = vec![router_part(format!("{router_name}.weight"), config.experts)];
        if joined {
            routers.push(router_part(format!("{prefix}.{SHARED_GATE}.weight"), 1));
        }
        let router = Linear::stack(loader, &routers, config.experts + usize::from(joined))?;
        let correction = match config.router {
            RouterKind::Softmax { .. } => None,
            RouterKind::Sigmoid { .. } => Some(loader.buffer(
                &format!("{router_name}.e_score_correction_bias"),
                &[config.experts],
            )?),
        };
        let activation = match config.layout {
            ExpertLayout::UpDown => Activation::ReluSquared,
            _ => Activation::SiluGated { gate_scale: 1.0 },
        };
        let (mut up, mut down) = (Vec::new(), Vec::new());
        let chosen_parts = (0..config.experts).map(|expert| expert_parts(loader, prefix, &config, expert));
        for (up_parts, down_part) in chosen_parts.chain(joined.then(|| shared_parts(prefix, &config))) {
            up.push(match activation {
                Activation::SiluGated { .. } => loader.gated_weight(&up_parts)?,
                Activation::ReluSquared => loader.weight(&up_parts)?,
            });
            down.push(loader.weight(&[down_part])?);
        }
        Ok(Self {
            router,
            correction,
            experts: loader.backend().experts(up, down)?,
            activation,
            joined,
            beside: Beside::load(loader, prefix, config.hidden, shared, joined)?,
            config,
        })
    }

    /// Experts and experts per token.
    pub fn counts(&self) -> (usize, usize) {
        (self.config.experts, self.config.chosen)
    }

    /// Experts that a token runs, a joined one among them.
    fn run_by_each(&self) -> usize {
        self.config.chosen + usize::from(self.joined)
    }

    /// Columns of its widest tensor; the experts' own are as wide as those of a token together.
    pub fn width(&self) -> usize {
        let experts = self.run_by_each() * self.config.width * self.activation.fan_in();
        let beside = self.beside.as_ref().map_or(0, |beside| beside.mlp.width());
        experts.max(beside).max(self.router.outputs())
    }

    /// What the mixture adds to the residual stream.
    pub fn run(&self, cx: &Forward<'_, B>, x: &B::Tensor) -> Result<Contribution<'_, B>, DeviceError> {
        let Some(beside) = &self.beside else {
            return Ok(Contribution::Mixture(x.clone(), self));
        };
        let mut out = self.value(cx, x)?;
        let y = beside.mlp.run(cx, x)?.value(cx)?;
        let gate = beside.gate.as_ref().map(|gate| gate.run(cx, x)).transpose()?;
        cx.backend.add(&mut out, &y, 1.0, gate.as_deref());
        Ok(Contribution::Value(out))
    }

    /// The output of the experts for each token.
    pub fn value(&self, cx: &Forward<'_, B>, x: &B::Tensor) -> Result<Scratch<B>, DeviceError> {
        let logits = self.router.run(cx, x)?;
        let (mut routing, _weights) = self.routing(cx)?;
        cx.backend.route(Router {
            logits: &logits,
            scores: self.scores(),
            shared: self.joined,
            out: &mut routing,
        });
        let mut out = cx.tokens(self.config.hidden)?;
        cx.backend.run_experts(Experts {
            x,
            routing: &routing,
            experts: &self.experts,
            activation: self.activation,
            out: &mut out,
        });
        Ok(out)
    }

    /// The same, added to the residual stream, and the norm behind that.
    pub fn add_and_norm(
        &self,
        cx: &Forward<'_, B>,
        x: &B::Tensor,
        norm: ResidualNorm<'_, B>,
    ) -> Result<(), DeviceError> {
        let mut logits = cx.tokens(self.router.outputs())?;
        let (mut routing, _weights) = self.routing(cx)?;
        let mut out = cx.tokens(self.config.hidden)?;
        let mixture = Mixture {
            router: self.router.product(x, &mut logits),
            scores: self.scores(),
            shared: self.joined,
            routing: &mut routing,
            experts: &self.experts,
            activation: self.activation,
            out: &mut out,
        };
        cx.backend.mix_experts(mixture, norm);
        Ok(())
    }

    /// Room for the choice, and what keeps it.
    fn routing(&self, cx: &Forward<'_, B>) -> Result<(MoeRouting<B>, Scratch<B>), DeviceError> {
        let chosen = self.run_by_each();
        let weights = cx.tokens(chosen)?;
        let routing = MoeRouting {
            ids: cx.expert_ids(chosen)?,
            weights: weights.clone(),
            chosen,
        };
        Ok((routing, weights))
    }

    fn scores(&self) -> RouteScores<'_, B> {
        match (&self.config.router, &self.correction) {
            (
                RouterKind::Sigmoid {
                    groups,
                    kept_groups,
                    renormalise,
                    scale,
                },
                Some(bias),
            ) => RouteScores::Sigmoid {
                bias,
                groups: *groups,
                kept_groups: *kept_groups,
                renormalise: *renormalise,
                scale: *scale,
            },
            (RouterKind::Softmax { renormalise } | RouterKind::Sigmoid { renormalise, .. }, _) => {
                RouteScores::Softmax {
                    renormalise: *renormalise,
                }
            }
        }
    }
}

/// The gate of a shared expert, below the prefix.
const SHARED_GATE: &str = "shared_expert_gate";

impl<B: Backend> Beside<B> {
    fn load(
        loader: &Loader<'_, B>,
        prefix: &str,
        hidden: usize,
        shared: SharedExpert<B>,
        joined: bool,
    ) -> Result<Option<Self>, ModelError> {
        Ok(match shared {
            SharedExpert::Whole(mlp) => Some(Self { mlp, gate: None }),
            SharedExpert::Gated { width } if !joined => {
                let gate = format!("{prefix}.{SHARED_GATE}");
                Some(Self {
                    mlp: Mlp::gated(loader, &format!("{prefix}.shared_expert"), (hidden, width))?,
                    gate: Some(Linear::load_router(loader, &gate, 1, hidden)?),
                })
            }
            SharedExpert::Gated { .. } | SharedExpert::None => None,
        })
    }
}

/// Whether a shared expert can be one of the others: they are of one shape and stored in one type, or all quantised.
fn joins<B: Backend>(
    loader: &Loader<'_, B>,
    prefix: &str,
    config: &MoeConfig,
    shared: &SharedExpert<B>,
) -> Result<bool, ModelError> {
    let SharedExpert::Gated { width } = shared else {
        return Ok(false);
    };
    if *width != config.width || config.layout != ExpertLayout::GateUpDown {
        return Ok(false);
    }
    let (own_up, own_down) = shared_parts(prefix, config);
    let (up, down) = expert_parts(loader, prefix, config, 0);
    let pairs = own_up.iter().map(|own| (own, &up[0])).chain([(&own_down, &down)]);
    for (own, other) in pairs {
        let types = [loader.stored_type(own)?, loader.stored_type(other)?];
        if types[0] != types[1] && !types.iter().all(|dtype| dtype.is_quantised()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Where the matrices of a shared expert are, as [`expert_parts`].
fn shared_parts(prefix: &str, config: &MoeConfig) -> (Vec<Part>, Part) {
    let MoeConfig { hidden, width, .. } = *config;
    let part = |name: &str, rows, columns| {
        Part::whole(format!("{prefix}.shared_expert.{name}.weight"), rows, columns)
    };
    (
        vec![part("gate_proj", width, hidden), part("up_proj", width, hidden)],
        part("down_proj", hidden, width),
    )
}

/// Where one expert's matrices are: the parts of its first matrix, and its second.
fn expert_parts<B: Backend>(
    loader: &Loader<'_, B>,
    prefix: &str,
    config: &MoeConfig,
    expert: usize,
) -> (Vec<Part>, Part) {
    let MoeConfig {
        hidden,
        width,
        experts,
        ..
    } = *config;
    let stack =
        |name: &str, rows, columns| Part::slice(format!("{prefix}.{name}"), [experts, rows, columns], expert);
    let single = |name: &str, rows, columns| {
        Part::whole(format!("{prefix}.experts.{expert}.{name}.weight"), rows, columns)
    };
    let has = |name: &str| loader.has(&format!("{prefix}.{name}"), false);
    match config.layout {
        ExpertLayout::InputOutput => (
            vec![stack("input_linear.weight", 2 * width, hidden)],
            stack("output_linear.weight", hidden, width),
        ),
        ExpertLayout::UpDown if has("experts.up_proj") => (
            vec![stack("experts.up_proj", width, hidden)],
            stack("experts.down_proj", hidden, width),
        ),
        ExpertLayout::UpDown => (
            vec![single("up_proj", width, hidden)],
            single("down_proj", hidden, width),
        ),
        ExpertLayout::GateUpDown if has("experts.gate_up_proj") => (
            vec![stack("experts.gate_up_proj", 2 * width, hidden)],
            stack("experts.down_proj", hidden, width),
        ),
        ExpertLayout::GateUpDown if has("experts.gate_proj") => (
            vec![
                stack("experts.gate_proj", width, hidden),
                stack("experts.up_proj", width, hidden),
            ],
            stack("experts.down_proj", hidden, width),
        ),
        ExpertLayout::GateUpDown => (
            vec![
                single("gate_proj", width, hidden),
                single("up_proj", width, hidden),
            ],
            single("down_proj", hidden, width),
        ),
    }
}
