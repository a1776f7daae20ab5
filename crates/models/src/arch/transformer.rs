//! The plain transformer that Llama, Qwen2, Qwen3 and Qwen3-MoE share.

use super::builder::{Builder, Frame, attention_layers};
use crate::layers::{BlockOp, ExpertLayout, Mlp, Moe, MoeConfig, NormKind, RouterKind, SharedExpert};
use crate::{Config, Decoder, Loader, ModelError};
use paceline_device::Backend;

/// What the members of the family differ in.
pub(crate) struct Family {
    pub(crate) architecture: &'static str,
    /// Queries, keys and values always have biases, the output never.
    pub(crate) qkv_bias: bool,
    /// Query and key heads are normed.
    pub(crate) head_norms: bool,
    /// Feed-forward layers are mixtures unless the configuration says otherwise.
    pub(crate) experts: bool,
}

pub(crate) fn build<B: Backend>(
    loader: &Loader<'_, B>,
    config: &Config<'_>,
    family: &Family,
) -> Result<Decoder<B>, ModelError> {
    let mut builder = Builder::new(loader, config, NormKind::Plain, "rms_norm_eps")?;
    builder.expect_silu()?;
    if config.flag_or("use_sliding_window", false)? {
        return Err(ModelError::config(
            "use_sliding_window",
            "sliding-window attention is not supported",
        ));
    }
    let layers = config.layers()?;
    let kinds = attention_layers(config, "layer_types")?.unwrap_or_default();
    if kinds.iter().any(|is_attention| !is_attention) {
        return Err(ModelError::config(
            "layer_types",
            "every layer of this architecture is full attention",
        ));
    }
    let mut attention = builder.attention_config()?;
    if family.qkv_bias {
        (attention.qkv_bias, attention.output_bias) = (true, false);
    }
    attention.head_norms = family.head_norms.then_some((NormKind::Plain, builder.eps));
    let rope = builder.rope(attention.head_dim)?;
    for layer in 0..layers {
        let prefix = format!("model.layers.{layer}");
        let mixer = builder.attention(&format!("{prefix}.self_attn"), attention)?;
        builder.push(&format!("{prefix}.input_layernorm"), BlockOp::Attention(mixer))?;
        let feed_forward = feed_forward(&builder, &format!("{prefix}.mlp"), family, layer)?;
        builder.push(&format!("{prefix}.post_attention_layernorm"), feed_forward)?;
    }
    let blocks = builder.take_blocks();
    let frame = Frame {
        architecture: family.architecture,
        embedding: "model.embed_tokens",
        norm: "model.norm",
        layers,
        rope: Some(rope),
        embedding_scale: 1.0,
        residual_scale: 1.0,
        logit_scale: 1.0,
    };
    builder.finish(frame, blocks)
}

fn feed_forward<B: Backend>(
    builder: &Builder<'_, B>,
    prefix: &str,
    family: &Family,
    layer: usize,
) -> Result<BlockOp<B>, ModelError> {
    let (loader, config, hidden) = (builder.loader, builder.config, builder.hidden);
    if !family.experts || !is_sparse(config, layer)? {
        let mut mlp = Mlp::gated(loader, prefix, (hidden, config.count("intermediate_size")?))?;
        if config.flag_or("mlp_bias", false)? {
            mlp.load_gated_bias(loader, prefix, hidden)?;
        }
        return Ok(BlockOp::Mlp(mlp));
    }
    let moe = MoeConfig {
        hidden,
        width: config.count("moe_intermediate_size")?,
        experts: config.count_either("num_experts", "num_local_experts")?,
        chosen: config.count("num_experts_per_tok")?,
        router: RouterKind::Softmax {
            renormalise: config.flag_or("norm_topk_prob", false)?,
        },
        router_name: "gate",
        layout: ExpertLayout::GateUpDown,
    };
    Ok(BlockOp::Moe(Moe::load(loader, prefix, moe, SharedExpert::None)?))
}

/// Whether a layer of a mixture model is a mixture.
pub(crate) fn is_sparse(config: &Config<'_>, layer: usize) -> Result<bool, ModelError> {
    let dense = config.indices("mlp_only_layers")?.unwrap_or_default();
    let every = config.count_or("decoder_sparse_step", 1)?;
    Ok(!dense.contains(&layer) && (layer + 1).is_multiple_of(every))
}
