//! What Qwen3.5 and Qwen3-Next share: Gated DeltaNet layers, every fourth one gated attention, and a draft head.

use super::builder::{Builder, Frame, attention_layers};
use super::transformer::is_sparse;
use crate::layers::{
    Attention, AttentionConfig, BlockOp, DeltaNetConfig, ExpertLayout, Mlp, Moe, MoeConfig, NormKind,
    RouterKind, SharedExpert,
};
use crate::mtp::Mtp;
use crate::{Config, Decoder, Loader, ModelError};
use paceline_device::Backend;

/// What the members of the family differ in.
pub(crate) struct Family {
    pub(crate) architecture: &'static str,
    /// DeltaNet projections are stored grouped by key head.
    pub(crate) grouped_projections: bool,
    /// Feed-forward layers are mixtures.
    pub(crate) experts: bool,
    /// Expert weights sum to one whatever the configuration says.
    pub(crate) always_renormalise: bool,
    /// The draft head is there unless the configuration says otherwise.
    pub(crate) draft_head: bool,
}

pub(crate) fn build<B: Backend>(
    loader: &Loader<'_, B>,
    config: &Config<'_>,
    family: &Family,
) -> Result<Decoder<B>, ModelError> {
    let mut builder = Builder::new(loader, config, NormKind::ZeroCentred, "rms_norm_eps")?;
    builder.expect_silu()?;
    let mut attention = builder.attention_config()?;
    attention.gated = true;
    attention.head_norms = Some((NormKind::ZeroCentred, builder.eps));
    if attention.qkv_bias {
        return Err(ModelError::config(
            "attention_bias",
            "no model of this family has biases",
        ));
    }
    let delta_net = DeltaNetConfig::read(config, builder.eps, family.grouped_projections)?;
    let rope = builder.rope(attention.head_dim)?;
    let kinds = layer_kinds(config)?;
    let root = root(loader);
    for (layer, full_attention) in kinds.iter().enumerate() {
        let prefix = format!("{root}.layers.{layer}");
        let mixer = if *full_attention {
            BlockOp::Attention(builder.attention(&format!("{prefix}.self_attn"), attention)?)
        } else {
            BlockOp::DeltaNet(builder.delta_net(&format!("{prefix}.linear_attn"), delta_net)?)
        };
        builder.push(&format!("{prefix}.input_layernorm"), mixer)?;
        let sparse = family.experts && is_sparse(config, layer)?;
        let feed_forward = feed_forward(&builder, &format!("{prefix}.mlp"), family, sparse)?;
        builder.push(&format!("{prefix}.post_attention_layernorm"), feed_forward)?;
    }
    let blocks = builder.take_blocks();
    let (embedding, norm) = (format!("{root}.embed_tokens"), format!("{root}.norm"));
    let mut mtp = draft_head(&mut builder, attention, family)?;
    if let Some(mtp) = &mut mtp {
        mtp.output = builder.draft_output(&embedding)?;
    }
    let frame = Frame {
        architecture: family.architecture,
        embedding: &embedding,
        norm: &norm,
        layers: kinds.len(),
        rope: Some(rope),
        embedding_scale: 1.0,
        residual_scale: 1.0,
        logit_scale: 1.0,
    };
    let mut model = builder.finish(frame, blocks)?;
    model.mtp = mtp;
    Ok(model)
}

/// Multimodal checkpoints keep the text model one level deeper.
fn root<B: Backend>(loader: &Loader<'_, B>) -> &'static str {
    if loader.has("model.language_model.embed_tokens.weight", false) {
        "model.language_model"
    } else {
        "model"
    }
}

/// Per layer, whether it is full attention.
fn layer_kinds(config: &Config<'_>) -> Result<Vec<bool>, ModelError> {
    if let Some(kinds) = attention_layers(config, "layer_types")? {
        return Ok(kinds);
    }
    let every = config.count_or("full_attention_interval", 4)?;
    Ok((1..=config.layers()?)
        .map(|layer| layer.is_multiple_of(every))
        .collect())
}

fn feed_forward<B: Backend>(
    builder: &Builder<'_, B>,
    prefix: &str,
    family: &Family,
    sparse: bool,
) -> Result<BlockOp<B>, ModelError> {
    let (loader, config, hidden) = (builder.loader, builder.config, builder.hidden);
    if !sparse {
        let shape = (hidden, config.count("intermediate_size")?);
        return Ok(BlockOp::Mlp(Mlp::gated(loader, prefix, shape)?));
    }
    let renormalise = family.always_renormalise || config.flag_or("norm_topk_prob", true)?;
    let moe = MoeConfig {
        hidden,
        width: config.count("moe_intermediate_size")?,
        experts: config.count_either("num_experts", "num_local_experts")?,
        chosen: config.count("num_experts_per_tok")?,
        router: RouterKind::Softmax { renormalise },
        router_name: "gate",
        layout: ExpertLayout::GateUpDown,
    };
    let shared_width = config.count("shared_expert_intermediate_size")?;
    let shared = SharedExpert::Gated { width: shared_width };
    Ok(BlockOp::Moe(Moe::load(loader, prefix, moe, shared)?))
}

/// The head is one more full-attention layer, with a cache of its own. Some checkpoints leave it out.
fn draft_head<B: Backend>(
    builder: &mut Builder<'_, B>,
    attention: AttentionConfig,
    family: &Family,
) -> Result<Option<Mtp<B>>, ModelError> {
    let count = builder
        .config
        .size_or("mtp_num_hidden_layers", usize::from(family.draft_head))?;
    if !builder.loader.has("mtp.fc.weight", count > 0) {
        return Ok(None);
    }
    let mixer = Attention::load(builder.loader, "mtp.layers.0.self_attn", attention, 0)?;
    builder.push("mtp.layers.0.input_layernorm", BlockOp::Attention(mixer))?;
    let feed_forward = feed_forward(builder, "mtp.layers.0.mlp", family, family.experts)?;
    builder.push("mtp.layers.0.post_attention_layernorm", feed_forward)?;
    let blocks = builder.take_blocks();
    Mtp::load(builder.loader, builder.hidden, builder.eps, blocks).map(Some)
}
