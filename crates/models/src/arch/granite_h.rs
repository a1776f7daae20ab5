//! Granite-4-H: Mamba2 layers with some attention, then a shared feed-forward and optionally experts.

use super::bamba::mamba_config;
use super::builder::{Builder, Frame, attention_layers};
use crate::layers::{BlockOp, ExpertLayout, Mlp, Moe, MoeConfig, NormKind, RouterKind, SharedExpert};
use crate::{Config, Decoder, Loader, ModelError};
use paceline_device::Backend;

pub(crate) fn build<B: Backend>(
    loader: &Loader<'_, B>,
    config: &Config<'_>,
) -> Result<Decoder<B>, ModelError> {
    let mut builder = Builder::new(loader, config, NormKind::Plain, "rms_norm_eps")?;
    builder.expect_silu()?;
    let mut attention = builder.attention_config()?;
    attention.rotary = config
        .text("position_embedding_type")?
        .is_some_and(|kind| kind == "rope");
    attention.scale = config.number_or("attention_multiplier", attention.scale)?;
    let rope = attention
        .rotary
        .then(|| builder.rope(attention.head_dim))
        .transpose()?;
    let mamba = mamba_config(&builder)?;
    let kinds = match attention_layers(config, "layer_types")? {
        Some(kinds) => kinds,
        None => attention_layers(config, "layers_block_type")?
            .ok_or_else(|| ModelError::config("layer_types", "missing"))?,
    };
    for (layer, is_attention) in kinds.iter().enumerate() {
        let prefix = format!("model.layers.{layer}");
        let mixer = if *is_attention {
            BlockOp::Attention(builder.attention(&format!("{prefix}.self_attn"), attention)?)
        } else {
            BlockOp::Mamba2(builder.mamba2(&format!("{prefix}.mamba"), mamba.clone())?)
        };
        builder.push(&format!("{prefix}.input_layernorm"), mixer)?;
        let feed_forward = feed_forward(&builder, &prefix)?;
        builder.push(&format!("{prefix}.post_attention_layernorm"), feed_forward)?;
    }
    let blocks = builder.take_blocks();
    let frame = Frame {
        architecture: "granite_h",
        embedding: "model.embed_tokens",
        norm: "model.norm",
        layers: kinds.len(),
        rope,
        embedding_scale: config.number_or("embedding_multiplier", 1.0)?,
        residual_scale: config.number_or("residual_multiplier", 1.0)?,
        logit_scale: logit_scale(config)?,
    };
    builder.finish(frame, blocks)
}

/// Logits are divided by the field.
fn logit_scale(config: &Config<'_>) -> Result<f32, ModelError> {
    let scale = 1.0 / config.number_or("logits_scaling", 1.0)?;
    if scale.is_finite() {
        Ok(scale)
    } else {
        Err(ModelError::config(
            "logits_scaling",
            "nothing can be divided by it",
        ))
    }
}

fn feed_forward<B: Backend>(builder: &Builder<'_, B>, prefix: &str) -> Result<BlockOp<B>, ModelError> {
    let (loader, config, hidden) = (builder.loader, builder.config, builder.hidden);
    let shared_width = config.count("shared_intermediate_size")?;
    let shared = Mlp::fused(loader, &format!("{prefix}.shared_mlp"), (hidden, shared_width))?;
    let experts = config.size_or("num_local_experts", 0)?;
    if experts == 0 {
        return Ok(BlockOp::Mlp(shared));
    }
    let moe = MoeConfig {
        hidden,
        width: config.count("intermediate_size")?,
        experts,
        chosen: config.count("num_experts_per_tok")?,
        // A softmax over the chosen logits is the softmax over all of them, renormalised.
        router: RouterKind::Softmax { renormalise: true },
        router_name: "router.layer",
        layout: ExpertLayout::InputOutput,
    };
    let prefix = format!("{prefix}.block_sparse_moe");
    let moe = Moe::load(loader, &prefix, moe, SharedExpert::Whole(shared))?;
    Ok(BlockOp::Moe(moe))
}
