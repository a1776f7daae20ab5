//! Nemotron-H: each layer is one thing behind one norm: Mamba2, attention, feed-forward or experts.

use super::builder::{Builder, Frame};
use crate::config::{divides, width};
use crate::layers::{
    BlockOp, ExpertLayout, Mamba2Config, Mamba2Norm, Mlp, Moe, MoeConfig, NormKind, RouterKind, SharedExpert,
};
use crate::{Config, Decoder, Loader, ModelError};
use paceline_device::{Backend, GateOrder};

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Mamba,
    Attention,
    FeedForward,
    Experts,
}

pub(crate) fn build<B: Backend>(
    loader: &Loader<'_, B>,
    config: &Config<'_>,
) -> Result<Decoder<B>, ModelError> {
    let mut builder = Builder::new(loader, config, NormKind::Plain, "layer_norm_epsilon")?;
    let kinds = layer_kinds(config)?;
    let layers = config.get("num_hidden_layers").map(|_| config.layers());
    let layers = layers.transpose()?.unwrap_or(kinds.len());
    if kinds.len() != layers || kinds.is_empty() {
        let why = format!("{} entries for {layers} layers", kinds.len());
        return Err(ModelError::config("layers_block_type", why));
    }
    for (layer, kind) in kinds.iter().enumerate() {
        let prefix = format!("backbone.layers.{layer}");
        let mixer = format!("{prefix}.mixer");
        let op = match kind {
            Kind::Mamba => BlockOp::Mamba2(builder.mamba2(&mixer, mamba_config(&builder)?)?),
            Kind::Attention => {
                let mut attention = builder.attention_config()?;
                attention.rotary = false;
                BlockOp::Attention(builder.attention(&mixer, attention)?)
            }
            Kind::FeedForward => {
                let shape = (builder.hidden, config.count("intermediate_size")?);
                BlockOp::Mlp(Mlp::relu_squared(
                    loader,
                    &mixer,
                    shape,
                    config.flag_or("mlp_bias", false)?,
                )?)
            }
            Kind::Experts => BlockOp::Moe(experts(&builder, &mixer)?),
        };
        builder.push(&format!("{prefix}.norm"), op)?;
    }
    let blocks = builder.take_blocks();
    let frame = Frame {
        architecture: "nemotron_h",
        embedding: "backbone.embeddings",
        norm: "backbone.norm_f",
        layers: kinds.len(),
        rope: None,
        embedding_scale: 1.0,
        residual_scale: 1.0,
        logit_scale: 1.0,
    };
    builder.finish(frame, blocks)
}

/// From the list of names, or from the older pattern of one letter per layer.
fn layer_kinds(config: &Config<'_>) -> Result<Vec<Kind>, ModelError> {
    if let Some(names) = config.texts("layers_block_type")? {
        let kind = |name: &str| match name {
            "linear_attention" | "mamba" => Ok(Kind::Mamba),
            "full_attention" | "attention" => Ok(Kind::Attention),
            "mlp" => Ok(Kind::FeedForward),
            "moe" => Ok(Kind::Experts),
            other => Err(ModelError::config(
                "layers_block_type",
                format!("unknown layer type `{other}`"),
            )),
        };
        return names.into_iter().map(kind).collect();
    }
    let pattern = config.text("hybrid_override_pattern")?;
    let pattern = pattern.ok_or_else(|| ModelError::config("layers_block_type", "missing"))?;
    let kind = |letter: char| match letter {
        'M' => Ok(Kind::Mamba),
        '*' => Ok(Kind::Attention),
        '-' => Ok(Kind::FeedForward),
        'E' => Ok(Kind::Experts),
        other => Err(ModelError::config(
            "hybrid_override_pattern",
            format!("unknown layer letter `{other}`"),
        )),
    };
    pattern.chars().map(kind).collect()
}

fn mamba_config<B: Backend>(builder: &Builder<'_, B>) -> Result<Mamba2Config, ModelError> {
    let config = builder.config;
    let heads = config.count("mamba_num_heads")?;
    let head_dim = config.count("mamba_head_dim")?;
    let groups = config.count("n_groups")?;
    let state = config.count("ssm_state_size")?;
    divides("n_groups", heads, groups)?;
    width("ssm_state_size", groups, state)?;
    let group = width("mamba_head_dim", heads, head_dim)? / groups;
    let bias = config.flag_or("mamba_proj_bias", config.flag_or("use_bias", false)?)?;
    Ok(Mamba2Config {
        hidden: builder.hidden,
        heads,
        head_dim,
        state,
        groups,
        conv_width: config.taps("conv_kernel")?,
        conv_bias: config.flag_or("use_conv_bias", true)?,
        input_bias: bias,
        output_bias: bias,
        norm: Some(Mamba2Norm {
            group,
            order: GateOrder::GateThenNorm,
            eps: builder.eps,
        }),
        // The reference bounds the step from below by `time_step_min` and ignores `time_step_limit`.
        dt_limits: (config.number_or("time_step_min", 0.001)?, f32::INFINITY),
    })
}

fn experts<B: Backend>(builder: &Builder<'_, B>, prefix: &str) -> Result<Moe<B>, ModelError> {
    let (loader, config, hidden) = (builder.loader, builder.config, builder.hidden);
    if config.get("moe_latent_size").is_some() {
        return Err(ModelError::config(
            "moe_latent_size",
            "experts in a latent space are not supported",
        ));
    }
    let experts = config.count("n_routed_experts")?;
    let groups = config.count_or("n_group", 1)?;
    divides("n_group", experts, groups)?;
    let moe = MoeConfig {
        hidden,
        width: config.count("moe_intermediate_size")?,
        experts,
        chosen: config.count("num_experts_per_tok")?,
        router: RouterKind::Sigmoid {
            groups,
            kept_groups: config.count_or("topk_group", 1)?,
            renormalise: config.flag_or("norm_topk_prob", true)?,
            scale: config.number_or("routed_scaling_factor", 1.0)?,
        },
        router_name: "gate",
        layout: ExpertLayout::UpDown,
    };
    let shared_width = config.count("moe_shared_expert_intermediate_size")?;
    let biased = config.flag_or("mlp_bias", false)?;
    let shared_prefix = format!("{prefix}.shared_experts");
    let mlp = Mlp::relu_squared(loader, &shared_prefix, (hidden, shared_width), biased)?;
    Moe::load(loader, prefix, moe, SharedExpert::Whole(mlp))
}
