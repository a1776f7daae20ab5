//! Falcon-H1: attention and Mamba2 side by side in every layer, with maximal-update multipliers.

use super::bamba::mamba_config;
use super::builder::{Builder, Frame};
use crate::layers::{AttentionScales, BlockOp, Mamba2Config, Mamba2Norm, Mlp, NormKind};
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
    let mamba = falcon_mamba(&builder)?;
    let rope = builder.rope(attention.head_dim)?;
    let multipliers = Multipliers::read(config)?;
    for layer in 0..layers {
        let prefix = format!("model.layers.{layer}");
        let mut attention = builder.attention(&format!("{prefix}.self_attn"), attention)?;
        attention.set_scales(loader, &multipliers.attention)?;
        let mut mamba = builder.mamba2(&format!("{prefix}.mamba"), mamba.clone())?;
        mamba.set_scales(loader, multipliers.mamba)?;
        let mixer = BlockOp::AttentionAndMamba2(attention, mamba);
        builder.push(&format!("{prefix}.input_layernorm"), mixer)?;
        let shape = (builder.hidden, config.count("intermediate_size")?);
        let mut mlp = Mlp::gated(loader, &format!("{prefix}.feed_forward"), shape)?;
        mlp.set_scales(loader, multipliers.gate, multipliers.down)?;
        builder.push(&format!("{prefix}.pre_ff_layernorm"), BlockOp::Mlp(mlp))?;
    }
    let blocks = builder.take_blocks();
    let frame = Frame {
        architecture: "falcon_h1",
        embedding: "model.embed_tokens",
        norm: "model.final_layernorm",
        layers,
        rope: Some(rope),
        embedding_scale: config.number_or("embedding_multiplier", 1.0)?,
        residual_scale: 1.0,
        logit_scale: config.number_or("lm_head_multiplier", 1.0)?,
    };
    builder.finish(frame, blocks)
}

struct Multipliers {
    attention: AttentionScales,
    /// Input, the five kinds of projection outputs, output.
    mamba: (f32, [f32; 5], f32),
    gate: f32,
    down: f32,
}

impl Multipliers {
    fn read(config: &Config<'_>) -> Result<Self, ModelError> {
        let one = |field| config.number_or(field, 1.0);
        let kinds = config.numbers_or("ssm_multipliers", 5, 1.0)?;
        let feed_forward = config.numbers_or("mlp_multipliers", 2, 1.0)?;
        Ok(Self {
            attention: AttentionScales {
                input: one("attention_in_multiplier")?,
                key: one("key_multiplier")?,
                output: one("attention_out_multiplier")?,
            },
            mamba: (
                one("ssm_in_multiplier")?,
                std::array::from_fn(|kind| kinds[kind]),
                one("ssm_out_multiplier")?,
            ),
            gate: feed_forward[0],
            down: feed_forward[1],
        })
    }
}

/// As Bamba's, but the inner width is given and the norm is optional and by groups.
fn falcon_mamba<B: Backend>(builder: &Builder<'_, B>) -> Result<Mamba2Config, ModelError> {
    let config = builder.config;
    let mut mamba = mamba_config(builder)?;
    let inner = mamba.heads * mamba.head_dim;
    let given = config.count_or("mamba_d_ssm", inner)?;
    if given != inner {
        let why = format!("{given} is not {} heads of {}", mamba.heads, mamba.head_dim);
        return Err(ModelError::config("mamba_d_ssm", why));
    }
    mamba.output_bias = config.flag_or("projectors_bias", false)?;
    let group = crate::config::divides("mamba_n_groups", inner, mamba.groups)?;
    let norm_first = config.flag_or("mamba_norm_before_gate", true)?;
    let order = if norm_first {
        GateOrder::NormThenGate
    } else {
        GateOrder::GateThenNorm
    };
    let normed = config.flag_or("mamba_rms_norm", false)?;
    mamba.norm = normed.then_some(Mamba2Norm {
        group,
        order,
        eps: builder.eps,
    });
    Ok(mamba)
}
