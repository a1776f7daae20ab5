//! Which architectures there are, and how a checkpoint finds its own.

use crate::arch::{
    bamba, falcon_h1, granite_h, llama, nemotron_h, qwen2, qwen3, qwen3_5, qwen3_moe, qwen3_next,
};
use crate::eight_bits::EightBitModules;
use crate::loader::{AssumedTypes, WeightTypes};
use crate::{Config, Decoder, Eagle3, Loader, ModelError, gguf};
use paceline_device::Backend;
use paceline_types::DType;
use paceline_weights::{Checkpoint, Format};
use serde_json::Value;

type Build<B> = fn(&Loader<'_, B>, &Config<'_>) -> Result<Decoder<B>, ModelError>;

/// One supported architecture.
pub struct ArchitectureRow<B: Backend> {
    /// Class names in `architectures`.
    pub classes: &'static [&'static str],
    /// Values of `model_type`.
    pub model_types: &'static [&'static str],
    build: Build<B>,
}

/// Every supported architecture, one row each.
fn rows<B: Backend>() -> [ArchitectureRow<B>; 11] {
    let row = |classes, model_types, build: Build<B>| ArchitectureRow {
        classes,
        model_types,
        build,
    };
    [
        row(&["LlamaForCausalLM"], &["llama"], llama::build),
        row(&["Qwen2ForCausalLM"], &["qwen2"], qwen2::build),
        row(&["Qwen3ForCausalLM"], &["qwen3"], qwen3::build),
        row(&["Qwen3MoeForCausalLM"], &["qwen3_moe"], qwen3_moe::build),
        row(
            &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
            &["qwen3_5_text", "qwen3_5"],
            qwen3_5::build,
        ),
        row(
            &["Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"],
            &["qwen3_5_moe_text", "qwen3_5_moe"],
            qwen3_5::build_moe,
        ),
        row(&["Qwen3NextForCausalLM"], &["qwen3_next"], qwen3_next::build),
        row(
            &["GraniteMoeHybridForCausalLM"],
            &["granitemoehybrid"],
            granite_h::build,
        ),
        row(&["NemotronHForCausalLM"], &["nemotron_h"], nemotron_h::build),
        row(&["FalconH1ForCausalLM"], &["falcon_h1"], falcon_h1::build),
        row(&["BambaForCausalLM"], &["bamba"], bamba::build),
    ]
}

/// The class names of all supported architectures.
pub fn architecture_names() -> Vec<&'static str> {
    rows::<paceline_device::Recorder>()
        .iter()
        .flat_map(|row| row.classes)
        .copied()
        .collect()
}

/// Builds a checkpoint's model on a device. `types` converts its matrices: all of them to a floating-point type, or
/// floating-point ones of products to a quantised type, where embeddings and the head become Q8_0 and routers stay; and
/// those that draft.
/// `progress` is told the bytes of each tensor as it is loaded.
pub fn load<B: Backend>(
    backend: &B,
    checkpoint: &Checkpoint,
    types: impl Into<WeightTypes>,
    progress: &dyn Fn(u64),
) -> Result<Decoder<B>, ModelError> {
    let (config, names) = configuration(checkpoint)?;
    let loader = Loader::stored(backend, checkpoint, names, types.into(), progress);
    let mut model = build(&config, &loader)?;
    if let Some(eos) = checkpoint
        .generation_config()
        .and_then(|config| config.get("eos_token_id"))
    {
        let tokens = crate::arch::token_list(eos);
        model.dims.eos = tokens.ok_or_else(|| {
            ModelError::config(
                "eos_token_id",
                format!("{eos} in generation_config.json is not a token"),
            )
        })?;
    }
    Ok(model)
}

/// Builds the model of a Hugging Face configuration without weights, on a device that owns no memory.
pub fn load_config_only<B: Backend>(backend: &B, config: &Value) -> Result<Decoder<B>, ModelError> {
    build(config, &Loader::config_only(backend, assumed_types(config)?))
}

/// Builds the model of a Hugging Face configuration with weights that are made up, the same in every run, and
/// converted like those of [`load`].
pub fn load_random<B: Backend>(
    backend: &B,
    config: &Value,
    types: impl Into<WeightTypes>,
    progress: &dyn Fn(u64),
) -> Result<Decoder<B>, ModelError> {
    build(
        config,
        &Loader::random(backend, assumed_types(config)?, types.into(), progress),
    )
}

fn assumed_types(config: &Value) -> Result<AssumedTypes, ModelError> {
    Ok(AssumedTypes {
        plain: stored_type(config),
        eight_bits: EightBitModules::of(config)?,
    })
}

/// The type that a configuration says its weights have, but for those of 8-bit floats.
pub fn stored_type(config: &Value) -> DType {
    let text = Config::new(config);
    match text
        .get_any("dtype")
        .or_else(|| text.get_any("torch_dtype"))
        .and_then(Value::as_str)
    {
        Some("float32") => DType::F32,
        Some("float16") => DType::F16,
        _ => DType::BF16,
    }
}

fn configuration(checkpoint: &Checkpoint) -> Result<(Value, Option<gguf::GgufNames>), ModelError> {
    match (checkpoint.format(), checkpoint.gguf(), checkpoint.config()) {
        (Format::Gguf, Some(metadata), _) => {
            let (config, names) = gguf::translate(checkpoint, metadata)?;
            Ok((config, Some(names)))
        }
        (_, _, Some(config)) => Ok((config.clone(), None)),
        _ => Err(ModelError::config("config.json", "missing")),
    }
}

fn build<B: Backend>(config: &Value, loader: &Loader<'_, B>) -> Result<Decoder<B>, ModelError> {
    let class = config
        .get("architectures")
        .and_then(|list| list.get(0))
        .and_then(Value::as_str);
    let model_type = config.get("model_type").and_then(Value::as_str);
    if Eagle3::<B>::recognises(config) {
        return Err(ModelError::LoneDraftHead {
            name: class.unwrap_or("this").to_owned(),
        });
    }
    let rows = rows::<B>();
    let by_class = rows
        .iter()
        .find(|row| class.is_some_and(|class| row.classes.contains(&class)));
    let by_type = || {
        rows.iter()
            .find(|row| model_type.is_some_and(|kind| row.model_types.contains(&kind)))
    };
    let Some(row) = by_class.or_else(by_type) else {
        let name = class
            .or(model_type)
            .unwrap_or("(neither `architectures` nor `model_type` is given)");
        let known = architecture_names().join(", ");
        return Err(ModelError::UnknownArchitecture {
            name: name.to_owned(),
            known,
        });
    };
    (row.build)(loader, &Config::new(config))
}
