//! Mixtures of experts.

use super::{Linear, Mlp};
use crate::loader::Part;
use crate::{Forward, Loader, ModelError};
use paceline_device::{Activation, Backend, DeviceError, Experts, MoeRouting, RouteScores, Router, Scratch};

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

/// An expert that every token passes through.
pub struct SharedExpert<B: Backend> {
    /// Its matrices.
    pub mlp: Mlp<B>,
    /// One logit per token whose sigmoid multiplies the output.
    pub gate: Option<Linear<B>>,
}

/// A routed mixture with an optional shared expert.
pub struct Moe<B: Backend> {
    config: MoeConfig,
    router: Linear<B>,
    correction: Option<B::Buffer<f32>>,
    experts: B::Experts,
    activation: Activation,
    shared: Option<SharedExpert<B>>,
}

impl<B: Backend> Moe<B> {
    /// Loads the router and experts below `prefix`.
    pub fn load(
        loader: &Loader<'_, B>,
        prefix: &str,
        config: MoeConfig,
        shared: Option<SharedExpert<B>>,
    ) -> Result<Self, ModelError> {
        config.check()?;
        let router_name = format!("{prefix}.{}", config.router_name);
        let router = Linear::load_router(loader, &router_name, config.experts, config.hidden)?;
        let correction = match config.router {
            RouterKind::Softmax { .. } => None,
            RouterKind::Sigmoid { .. } => Some(loader.buffer(
                &format!("{router_name}.e_score_correction_bias"),
                &[config.experts],
            )?),
        };
        let (mut up, mut down) = (Vec::new(), Vec::new());
        for expert in 0..config.experts {
            let (up_parts, down_part) = expert_parts(loader, prefix, &config, expert);
            up.push(loader.weight(&up_parts)?);
            down.push(loader.weight(&[down_part])?);
        }
        let activation = match config.layout {
            ExpertLayout::UpDown => Activation::ReluSquared,
            _ => Activation::SiluGated { gate_scale: 1.0 },
        };
        let experts = loader.backend().experts(up, down)?;
        Ok(Self {
            config,
            router,
            correction,
            experts,
            activation,
            shared,
        })
    }

    /// Experts and experts per token.
    pub fn counts(&self) -> (usize, usize) {
        (self.config.experts, self.config.chosen)
    }

    /// Columns of its widest tensor; the experts' own are as wide as the chosen ones together.
    pub fn width(&self) -> usize {
        let experts = self.config.chosen * self.config.width * self.activation.fan_in();
        let shared = self.shared.as_ref().map_or(0, |shared| shared.mlp.width());
        experts.max(shared).max(self.config.experts)
    }

    /// The mixture's output for each token.
    pub fn run(&self, cx: &Forward<'_, B>, x: &B::Tensor) -> Result<Scratch<B>, DeviceError> {
        let logits = self.router.run(cx, x)?;
        let weights = cx.tokens(self.config.chosen)?;
        let ids = cx.expert_ids(self.config.chosen)?;
        let mut routing = MoeRouting {
            ids,
            weights: weights.clone(),
            chosen: self.config.chosen,
        };
        cx.backend.route(Router {
            logits: &logits,
            scores: self.scores(),
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
        if let Some(shared) = &self.shared {
            let y = shared.mlp.run(cx, x)?.value(cx)?;
            let gate = shared.gate.as_ref().map(|gate| gate.run(cx, x)).transpose()?;
            cx.backend.add(&mut out, &y, 1.0, gate.as_deref());
        }
        Ok(out)
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
