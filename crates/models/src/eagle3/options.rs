//! The configuration of an EAGLE-3 head.

use crate::{Config, Decoder, ModelDims, ModelError};
use paceline_device::Backend;
use serde_json::Value;

/// What `architectures` calls such heads.
const CLASSES: [&str; 5] = [
    "LlamaForCausalLMEagle3",
    "Eagle3LlamaForCausalLM",
    "Eagle3Qwen3ForCausalLM",
    "Eagle3Speculator",
    "Eagle3DraftModel",
];

/// Where the layers are named whose inputs the head starts from.
const TAPS: &str = "eagle_aux_hidden_state_layer_ids";

/// Whether this is the configuration of an EAGLE-3 head. The first ones call themselves Llama models and can be told
/// by their draft vocabulary.
pub(super) fn recognises(config: &Value) -> bool {
    let class = config.get("architectures").and_then(|list| list.get(0));
    let class = class.and_then(Value::as_str).unwrap_or_default();
    let speculator = config.get("speculators_model_type").and_then(Value::as_str);
    let vocabulary = config.get("draft_vocab_size").filter(|value| !value.is_null());
    CLASSES.contains(&class) || speculator == Some("eagle3") || vocabulary.is_some()
}

/// The configuration with everything at its top level. Speculators files keep what describes the layer one level
/// deeper, and norm before the residual unless told otherwise.
pub(super) fn flat(config: &Value) -> Value {
    let mut flat = config.clone();
    let layer = config.get("transformer_layer_config").and_then(Value::as_object);
    if let (Some(fields), Some(layer)) = (flat.as_object_mut(), layer) {
        for (name, value) in layer {
            if name != "architectures" {
                fields.insert(name.clone(), value.clone());
            }
        }
        fields.entry("norm_before_residual").or_insert(Value::Bool(true));
    }
    flat
}

/// What is there to choose, checked against the model that the head is for.
pub(super) struct Options {
    /// Layers of the model whose inputs it starts from.
    pub(super) taps: Vec<usize>,
    /// The residual stream starts from the normed state.
    pub(super) norm_before_residual: bool,
    /// The state after the final norm is carried on.
    pub(super) norm_output: bool,
    /// Tokens it can draft.
    pub(super) vocabulary: usize,
    /// Decoder layers.
    pub(super) layers: usize,
}

impl Options {
    pub(super) fn read<B: Backend>(config: &Config<'_>, target: &Decoder<B>) -> Result<Self, ModelError> {
        let dims = &target.dims;
        let uses_states = config
            .get("eagle_config")
            .and_then(|part| part.get("use_aux_hidden_state"));
        if uses_states == Some(&Value::Bool(false)) {
            return Err(ModelError::config(
                "use_aux_hidden_state",
                "heads that do not start from the states of layers are not supported",
            ));
        }
        expect(
            "vocab_size",
            config.vocabulary()?,
            "a vocabulary",
            dims.vocabulary,
        )?;
        let from = config.count_or("target_hidden_size", config.count("hidden_size")?)?;
        expect("target_hidden_size", from, "states", dims.hidden)?;
        let vocabulary = config.count_or("draft_vocab_size", dims.vocabulary)?;
        if vocabulary > dims.vocabulary {
            let why = format!(
                "{vocabulary} is more than the {} tokens of the model",
                dims.vocabulary
            );
            return Err(ModelError::config("draft_vocab_size", why));
        }
        Ok(Self {
            taps: taps(config, dims)?,
            norm_before_residual: config.flag_or("norm_before_residual", false)?,
            norm_output: config.flag_or("norm_output", false)?,
            vocabulary,
            layers: config.count_or("num_hidden_layers", 1)?,
        })
    }
}

fn expect(field: &str, found: usize, what: &str, of_model: usize) -> Result<(), ModelError> {
    if found == of_model {
        return Ok(());
    }
    let why = format!("the head is for {what} of {found}, the model has {what} of {of_model}");
    Err(ModelError::config(field, why))
}

/// Layers near the start, in the middle and near the end, unless the configuration names others.
fn taps(config: &Config<'_>, dims: &ModelDims) -> Result<Vec<usize>, ModelError> {
    let layers = dims.layers;
    let inner = config.get("eagle_config").map(Config::new);
    let given = match config.indices(TAPS)? {
        Some(list) => Some(list),
        None => inner.map_or(Ok(None), |part| part.indices(TAPS))?,
    };
    let taps = match given {
        Some(list) => list,
        None if layers >= 3 => vec![2, layers / 2, layers - 3],
        None => {
            let why = format!("missing, and a model of {layers} layers has no default");
            return Err(ModelError::config(TAPS, why));
        }
    };
    match taps.iter().find(|layer| **layer > layers) {
        _ if taps.is_empty() || taps.len() > MAX_TAPS => {
            let why = format!("{} layers are not within 1..={MAX_TAPS}", taps.len());
            Err(ModelError::config(TAPS, why))
        }
        Some(layer) => {
            let why = format!("there is no layer {layer} in a model of {layers}");
            Err(ModelError::config(TAPS, why))
        }
        None => Ok(taps),
    }
}

/// More are damage.
const MAX_TAPS: usize = 16;
