//! GGUF files: their metadata as a Hugging Face configuration, their tensor names, their conventions.
//!
//! Architectures are written against Hugging Face names. What differs in GGUF is undone in three places: names
//! here, values in the loader (norms already have their one added, decay rates are ready made), and row orders
//! in the layers (see [`GgufNames::pairs_are_neighbours`] and [`GgufNames::value_head_map`]).

use crate::ModelError;
use paceline_device::HeadMap;
use paceline_weights::{Checkpoint, GgufMetadata};
use serde_json::{Map, Value, json};

/// A GGUF architecture name and the Hugging Face model type it stands for.
const ARCHITECTURES: [(&str, &str); 7] = [
    ("llama", "llama"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("qwen3moe", "qwen3_moe"),
    ("qwen3next", "qwen3_next"),
    ("qwen35", "qwen3_5"),
    ("qwen35moe", "qwen3_5_moe"),
];

/// Modules of a layer, Hugging Face name first.
const MODULES: [(&str, &str); 33] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"),
    ("mlp.experts.gate_proj", "ffn_gate_exps.weight"),
    ("mlp.experts.up_proj", "ffn_up_exps.weight"),
    ("mlp.experts.down_proj", "ffn_down_exps.weight"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    ("linear_attn.in_proj_qkv", "attn_qkv"),
    ("linear_attn.in_proj_z", "attn_gate"),
    ("linear_attn.in_proj_b", "ssm_beta"),
    ("linear_attn.in_proj_a", "ssm_alpha"),
    ("linear_attn.in_proj_ba", "ssm_ba"),
    ("linear_attn.in_proj_qkvz", "ssm_in"),
    ("linear_attn.conv1d", "ssm_conv1d"),
    ("linear_attn.A_log", "ssm_a"),
    ("linear_attn.dt_bias", "ssm_dt.bias"),
    ("linear_attn.norm", "ssm_norm"),
    ("linear_attn.out_proj", "ssm_out"),
    ("fc", "nextn.eh_proj"),
    ("pre_fc_norm_embedding", "nextn.enorm"),
    ("pre_fc_norm_hidden", "nextn.hnorm"),
];

/// Translates tensor names and says what the file does differently.
#[derive(Clone, Debug)]
pub(crate) struct GgufNames {
    architecture: String,
    /// Layers of the main model; the draft head is stored as the layer after them.
    layers: usize,
}

impl GgufNames {
    fn is_hybrid(&self) -> bool {
        matches!(self.architecture.as_str(), "qwen3next" | "qwen35" | "qwen35moe")
    }

    /// Rows of queries and keys are stored so that rotated pairs are neighbours.
    pub(crate) fn pairs_are_neighbours(&self) -> bool {
        self.architecture == "llama"
    }

    /// Qwen3.5 files store value heads tiled over the key heads instead of grouped by them.
    pub(crate) fn value_head_map(&self) -> HeadMap {
        if self.architecture == "qwen3next" {
            HeadMap::Grouped
        } else {
            HeadMap::Tiled
        }
    }

    /// The file's name for a tensor.
    pub(crate) fn stored_name(&self, name: &str) -> String {
        match name {
            "model.embed_tokens.weight" => return "token_embd.weight".to_owned(),
            "model.norm.weight" => return "output_norm.weight".to_owned(),
            "lm_head.weight" => return "output.weight".to_owned(),
            "mtp.norm.weight" => return format!("blk.{}.nextn.shared_head_norm.weight", self.layers),
            _ => {}
        }
        let (layer, module) = if let Some(rest) = name.strip_prefix("mtp.layers.0.") {
            (self.layers.to_string(), rest)
        } else if let Some(rest) = name.strip_prefix("mtp.") {
            (self.layers.to_string(), rest)
        } else if let Some((layer, rest)) = name
            .strip_prefix("model.layers.")
            .and_then(|rest| rest.split_once('.'))
        {
            (layer.to_owned(), rest)
        } else {
            return name.to_owned();
        };
        format!("blk.{layer}.{}", self.stored_module(module))
    }

    fn stored_module(&self, module: &str) -> String {
        let (stem, suffix) = match module.rsplit_once('.') {
            Some((stem, suffix @ ("weight" | "bias"))) => (stem, Some(suffix)),
            _ => (module, None),
        };
        let stored = if stem == "post_attention_layernorm" {
            if self.is_hybrid() {
                "post_attention_norm"
            } else {
                "ffn_norm"
            }
        } else {
            MODULES
                .iter()
                .find(|(name, _)| *name == stem)
                .map_or(stem, |(_, stored)| stored)
        };
        suffix.map_or_else(|| stored.to_owned(), |suffix| format!("{stored}.{suffix}"))
    }
}

/// The configuration a Hugging Face folder of this model would have, and the file's naming.
pub(crate) fn translate(
    checkpoint: &Checkpoint,
    metadata: &GgufMetadata,
) -> Result<(Value, GgufNames), ModelError> {
    let architecture = metadata.require::<&str>("general.architecture")?;
    let known = ARCHITECTURES.iter().find(|(gguf, _)| *gguf == architecture);
    let (_, model_type) = known.ok_or_else(|| ModelError::UnknownArchitecture {
        name: format!("`{architecture}` (GGUF)"),
        known: ARCHITECTURES.map(|(gguf, _)| gguf).join(", "),
    })?;
    let reader = Reader {
        metadata,
        architecture,
    };
    let blocks = reader.count("block_count")?;
    let drafts = reader.optional("nextn_predict_layers")?.unwrap_or(0);
    let Some(layers) = blocks.checked_sub(drafts).filter(|layers| *layers > 0) else {
        return Err(ModelError::config(
            "block_count",
            format!("{blocks} with {drafts} draft layers"),
        ));
    };
    let bias = "blk.0.attn_q.bias";
    if architecture != "qwen2" && checkpoint.raw_tensor(bias).is_some() {
        let why = format!("files of architecture `{architecture}` with biases are not supported");
        return Err(ModelError::config(bias, why));
    }
    let embedding = checkpoint.require("token_embd.weight")?;
    let mut config = Map::new();
    config.insert("model_type".into(), json!(model_type));
    config.insert(
        "vocab_size".into(),
        json!(embedding.shape.first().copied().unwrap_or(0)),
    );
    config.insert("num_hidden_layers".into(), json!(layers));
    config.insert("mtp_num_hidden_layers".into(), json!(drafts));
    reader.read_attention(&mut config)?;
    reader.read_rope(&mut config)?;
    reader.read_experts(&mut config)?;
    reader.read_recurrent(&mut config, layers as usize)?;
    if let Some(eos) = metadata.get_u32("tokenizer.ggml.eos_token_id")? {
        let eot = metadata.get_u32("tokenizer.ggml.eot_token_id")?;
        let mut tokens = vec![eos];
        tokens.extend(eot.filter(|eot| *eot != eos));
        config.insert("eos_token_id".into(), json!(tokens));
    }
    let names = GgufNames {
        architecture: architecture.to_owned(),
        layers: layers as usize,
    };
    Ok((Value::Object(config), names))
}

struct Reader<'a> {
    metadata: &'a GgufMetadata,
    architecture: &'a str,
}

impl Reader<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn optional(&self, key: &str) -> Result<Option<u64>, ModelError> {
        Ok(self.metadata.get_u64(&self.key(key))?)
    }

    fn count(&self, key: &str) -> Result<u64, ModelError> {
        self.optional(key)?
            .ok_or_else(|| ModelError::config(&self.key(key), "missing"))
    }

    fn number(&self, key: &str) -> Result<Option<f32>, ModelError> {
        Ok(self.metadata.get_f32(&self.key(key))?)
    }

    /// Copies counts that are there to the fields of those names.
    fn copy(&self, config: &mut Map<String, Value>, fields: &[(&str, &str)]) -> Result<(), ModelError> {
        for (key, field) in fields {
            if let Some(value) = self.optional(key)? {
                config.insert((*field).into(), json!(value));
            }
        }
        Ok(())
    }

    fn read_attention(&self, config: &mut Map<String, Value>) -> Result<(), ModelError> {
        let heads = self.count("attention.head_count")?;
        let hidden = self.count("embedding_length")?;
        let head_dim = match self.optional("attention.key_length")? {
            Some(length) => length,
            None => hidden.checked_div(heads).unwrap_or(0),
        };
        config.insert("hidden_size".into(), json!(hidden));
        config.insert("num_attention_heads".into(), json!(heads));
        config.insert("head_dim".into(), json!(head_dim));
        let eps = self.number("attention.layer_norm_rms_epsilon")?;
        let eps =
            eps.ok_or_else(|| ModelError::config(&self.key("attention.layer_norm_rms_epsilon"), "missing"))?;
        config.insert("rms_norm_eps".into(), json!(eps));
        let fields = [
            ("attention.head_count_kv", "num_key_value_heads"),
            ("context_length", "max_position_embeddings"),
            ("feed_forward_length", "intermediate_size"),
        ];
        self.copy(config, &fields)
    }

    fn read_rope(&self, config: &mut Map<String, Value>) -> Result<(), ModelError> {
        let mut rope = Map::new();
        let theta = self.number("rope.freq_base")?.unwrap_or(10_000.0);
        rope.insert("rope_theta".into(), json!(theta));
        let head_dim = config.get("head_dim").and_then(Value::as_u64).unwrap_or(0);
        if let Some(rotated) = self
            .optional("rope.dimension_count")?
            .filter(|rotated| *rotated != head_dim)
        {
            rope.insert(
                "partial_rotary_factor".into(),
                json!(rotated as f64 / head_dim as f64),
            );
        }
        let kind = self
            .metadata
            .get_str(&self.key("rope.scaling.type"))?
            .unwrap_or("none");
        if kind != "none" {
            rope.insert("rope_type".into(), json!(kind));
            let numbers = [
                ("rope.scaling.factor", "factor"),
                ("rope.scaling.yarn_beta_fast", "beta_fast"),
                ("rope.scaling.yarn_beta_slow", "beta_slow"),
            ];
            for (key, field) in numbers {
                if let Some(value) = self.number(key)? {
                    rope.insert(field.into(), json!(value));
                }
            }
            let original = [(
                "rope.scaling.original_context_length",
                "original_max_position_embeddings",
            )];
            self.copy(&mut rope, &original)?;
            if let Some(factor) = self.attention_factor()? {
                rope.insert("attention_factor".into(), json!(factor));
            }
        }
        config.insert("rope_parameters".into(), Value::Object(rope));
        Ok(())
    }

    /// Files state a multiple of the factor that follows from the scaling; mostly one, which says nothing.
    fn attention_factor(&self) -> Result<Option<f32>, ModelError> {
        let mut multiple = 1.0;
        for key in ["rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"] {
            multiple *= self.number(key)?.unwrap_or(1.0);
        }
        let factor = self.number("rope.scaling.factor")?.unwrap_or(1.0).max(1.0);
        Ok(((multiple - 1.0_f32).abs() > 0.0).then(|| multiple * (0.1 * factor.ln() + 1.0)))
    }

    fn read_experts(&self, config: &mut Map<String, Value>) -> Result<(), ModelError> {
        let fields = [
            ("expert_count", "num_experts"),
            ("expert_used_count", "num_experts_per_tok"),
            ("expert_feed_forward_length", "moe_intermediate_size"),
            (
                "expert_shared_feed_forward_length",
                "shared_expert_intermediate_size",
            ),
        ];
        self.copy(config, &fields)?;
        // Files leave the flag out where every published model of the architecture has it set.
        let normalised = self
            .metadata
            .get_bool(&self.key("expert_weights_norm"))?
            .unwrap_or(true);
        config.insert("norm_topk_prob".into(), json!(normalised));
        Ok(())
    }

    fn read_recurrent(&self, config: &mut Map<String, Value>, layers: usize) -> Result<(), ModelError> {
        let Some(inner) = self.optional("ssm.inner_size")? else {
            return Ok(());
        };
        let value_heads = self.count("ssm.time_step_rank")?;
        let Some(value_dim) = inner.checked_div(value_heads) else {
            return Err(ModelError::config(&self.key("ssm.time_step_rank"), "is zero"));
        };
        config.insert("linear_num_value_heads".into(), json!(value_heads));
        config.insert("linear_value_head_dim".into(), json!(value_dim));
        let fields = [
            ("ssm.group_count", "linear_num_key_heads"),
            ("ssm.state_size", "linear_key_head_dim"),
            ("ssm.conv_kernel", "linear_conv_kernel_dim"),
            ("full_attention_interval", "full_attention_interval"),
        ];
        self.copy(config, &fields)?;
        if let Some(recurrent) = self
            .metadata
            .get_array_bool(&self.key("attention.recurrent_layers"))?
        {
            let kind = |recurrent: &bool| {
                if *recurrent {
                    "linear_attention"
                } else {
                    "full_attention"
                }
            };
            let kinds: Vec<&str> = recurrent.iter().take(layers).map(kind).collect();
            config.insert("layer_types".into(), json!(kinds));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(architecture: &str) -> GgufNames {
        GgufNames {
            architecture: architecture.to_owned(),
            layers: 4,
        }
    }

    #[test]
    fn names_are_translated_module_by_module() {
        let cases = [
            (
                "qwen2",
                "model.layers.3.self_attn.q_proj.bias",
                "blk.3.attn_q.bias",
            ),
            (
                "llama",
                "model.layers.0.post_attention_layernorm.weight",
                "blk.0.ffn_norm.weight",
            ),
            (
                "qwen35",
                "model.layers.0.post_attention_layernorm.weight",
                "blk.0.post_attention_norm.weight",
            ),
            ("qwen35", "model.layers.1.linear_attn.A_log", "blk.1.ssm_a"),
            (
                "qwen35",
                "model.layers.1.linear_attn.dt_bias",
                "blk.1.ssm_dt.bias",
            ),
            ("qwen35", "mtp.fc.weight", "blk.4.nextn.eh_proj.weight"),
            ("qwen35", "mtp.norm.weight", "blk.4.nextn.shared_head_norm.weight"),
            (
                "qwen35",
                "mtp.layers.0.self_attn.k_norm.weight",
                "blk.4.attn_k_norm.weight",
            ),
            (
                "qwen3moe",
                "model.layers.2.mlp.experts.up_proj",
                "blk.2.ffn_up_exps.weight",
            ),
            (
                "qwen3moe",
                "model.layers.2.mlp.gate.weight",
                "blk.2.ffn_gate_inp.weight",
            ),
            ("llama", "lm_head.weight", "output.weight"),
            ("llama", "rope_freqs.weight", "rope_freqs.weight"),
        ];
        for (architecture, name, stored) in cases {
            assert_eq!(
                names(architecture).stored_name(name),
                stored,
                "{architecture}: {name}"
            );
        }
    }
}
