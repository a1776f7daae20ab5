//! Bamba: Mamba2 layers, a few of them attention, each followed by a gated feed-forward.

use super::builder::{Builder, Frame};
use crate::config::{divides, width};
use crate::layers::{BlockOp, Mamba2Config, Mamba2Norm, Mlp, NormKind};
use crate::{Config, Decoder, Loader, ModelError};
use paceline_device::{Backend, GateOrder};

pub(crate) fn build<B: Backend>(
    loader: &Loader<'_, B>,
    config: &Config<'_>,
) -> Result<Decoder<B>, ModelError> {
    let mut builder = Builder::new(loader, config, NormKind::Plain, "rms_norm_eps")?;
    builder.expect_silu()?;
    let layers = config.layers()?;
    let attention = builder.attention_config()?;
    let mamba = mamba_config(&builder)?;
    let rope = builder.rope(attention.head_dim)?;
    let attention_layers = config.indices("attn_layer_indices")?.unwrap_or_default();
    for layer in 0..layers {
        let prefix = format!("model.layers.{layer}");
        let mixer = if attention_layers.contains(&layer) {
            BlockOp::Attention(builder.attention(&format!("{prefix}.self_attn"), attention)?)
        } else {
            BlockOp::Mamba2(builder.mamba2(&format!("{prefix}.mamba"), mamba.clone())?)
        };
        builder.push(&format!("{prefix}.input_layernorm"), mixer)?;
        let shape = (builder.hidden, config.count("intermediate_size")?);
        let mlp = Mlp::gated(loader, &format!("{prefix}.feed_forward"), shape)?;
        builder.push(&format!("{prefix}.pre_ff_layernorm"), BlockOp::Mlp(mlp))?;
    }
    let blocks = builder.take_blocks();
    let frame = Frame {
        architecture: "bamba",
        embedding: "model.embed_tokens",
        norm: "model.final_layernorm",
        layers,
        rope: Some(rope),
        embedding_scale: 1.0,
        residual_scale: 1.0,
        logit_scale: 1.0,
    };
    builder.finish(frame, blocks)
}

/// The `mamba_*` fields that Bamba, Granite-4-H and Falcon-H1 share; the norm is Bamba's, over the whole row.
pub(crate) fn mamba_config<B: Backend>(builder: &Builder<'_, B>) -> Result<Mamba2Config, ModelError> {
    let config = builder.config;
    let heads = config.count("mamba_n_heads")?;
    let expanded = width(
        "mamba_expand",
        builder.hidden,
        config.count_or("mamba_expand", 2)?,
    )?;
    let head_dim = match config.get("mamba_d_head") {
        None => divides("mamba_n_heads", expanded, heads)?,
        Some(value) if value == "auto" => divides("mamba_n_heads", expanded, heads)?,
        Some(_) => config.count("mamba_d_head")?,
    };
    let inner = width("mamba_d_head", heads, head_dim)?;
    let (state, groups) = (
        config.count("mamba_d_state")?,
        config.count_or("mamba_n_groups", 1)?,
    );
    divides("mamba_n_groups", heads, groups)?;
    width("mamba_d_state", groups, state)?;
    let bias = config.flag_or("mamba_proj_bias", false)?;
    let norm = Mamba2Norm {
        group: inner,
        order: GateOrder::GateThenNorm,
        eps: builder.eps,
    };
    Ok(Mamba2Config {
        hidden: builder.hidden,
        heads,
        head_dim,
        state,
        groups,
        conv_width: config.taps("mamba_d_conv")?,
        conv_bias: config.flag_or("mamba_conv_bias", true)?,
        input_bias: bias,
        output_bias: bias,
        norm: Some(norm),
        dt_limits: config.limits_or("time_step_limit", (0.0, f32::INFINITY))?,
    })
}
