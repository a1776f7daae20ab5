//! Writes Hugging Face models as GGUF files, by the published conventions of that format.

#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "shared by several test programs"
)]

use crate::model_files::{ModelFiles, Stored};
use half::f16;
use paceline_types::DType;
use paceline_weights::gguf_writer::{GgufWriter, Meta};
use std::collections::BTreeMap;
use std::f32::consts::PI;

/// What conversions leave open.
#[derive(Clone, Copy)]
pub struct Options {
    /// Type of the matrices.
    pub matrices: DType,
    /// Store the matrices as 32-bit floats after rounding them to that type.
    pub widened: bool,
    /// Qwen3-Next as the first converters wrote it: one interleaved projection.
    pub legacy_input: bool,
    /// Gate and up projections of the experts in one stack.
    pub fused_experts: bool,
    /// State which layers are recurrent one by one instead of by the interval.
    pub layer_list: bool,
}

/// Everything as most files have it, exact.
pub const EXACT: Options = Options {
    matrices: DType::F32,
    widened: false,
    legacy_input: false,
    fused_experts: false,
    layer_list: false,
};

/// A tensor on its way into the file.
type Tensor = (Vec<usize>, Vec<f32>);

/// The file of a model.
pub fn to_gguf(model: &ModelFiles, options: Options) -> GgufWriter {
    let converter = Converter::new(model, options);
    let mut writer = GgufWriter::new();
    converter.write_keys(&mut writer);
    for (name, (shape, values)) in converter.tensors() {
        // Convolutions and routers are kept in full by all converters.
        let is_matrix = shape.len() > 1
            && !["ssm_conv1d", "ffn_gate_inp"]
                .iter()
                .any(|kept| name.contains(kept));
        let (dtype, data) = if is_matrix {
            encode(&values, options)
        } else {
            (DType::F32, Stored::f32(&shape, &values).data)
        };
        writer.tensor(&name, dtype, &shape, &data);
    }
    writer
}

struct Converter<'a> {
    model: &'a ModelFiles,
    options: Options,
    architecture: &'static str,
    layers: usize,
}

impl<'a> Converter<'a> {
    fn new(model: &'a ModelFiles, options: Options) -> Self {
        let architecture = match model.config["model_type"].as_str().unwrap() {
            "llama" => "llama",
            "qwen2" => "qwen2",
            "qwen3" => "qwen3",
            "qwen3_moe" => "qwen3moe",
            "qwen3_next" => "qwen3next",
            "qwen3_5_text" => "qwen35",
            "qwen3_5_moe_text" => "qwen35moe",
            other => panic!("{other} has no GGUF files here"),
        };
        let mut converter = Self {
            model,
            options,
            architecture,
            layers: 0,
        };
        converter.layers = converter.field("num_hidden_layers").unwrap();
        converter
    }

    fn field(&self, name: &str) -> Option<usize> {
        self.model.config[name].as_u64().map(|n| n as usize)
    }

    fn is_hybrid(&self) -> bool {
        ["qwen3next", "qwen35", "qwen35moe"].contains(&self.architecture)
    }

    fn head_dim(&self) -> usize {
        self.field("head_dim").unwrap_or_else(|| {
            self.field("hidden_size").unwrap() / self.field("num_attention_heads").unwrap()
        })
    }

    fn rope(&self, name: &str) -> Option<f32> {
        self.model.config["rope_parameters"][name]
            .as_f64()
            .map(|n| n as f32)
    }

    fn write_keys(&self, writer: &mut GgufWriter) {
        let drafts = usize::from(self.model.tensors.contains_key("mtp.fc.weight"));
        writer.key("general.architecture", Meta::string(self.architecture));
        let key = |name: &str| format!("{}.{name}", self.architecture);
        writer.key(&key("block_count"), Meta::U32((self.layers + drafts) as u32));
        if drafts > 0 {
            writer.key(&key("nextn_predict_layers"), Meta::U32(1));
        }
        let copied = [
            ("context_length", "max_position_embeddings"),
            ("embedding_length", "hidden_size"),
            ("feed_forward_length", "intermediate_size"),
            ("attention.head_count", "num_attention_heads"),
            ("attention.head_count_kv", "num_key_value_heads"),
            ("expert_count", "num_experts"),
            ("expert_count", "num_local_experts"),
            ("expert_used_count", "num_experts_per_tok"),
            ("expert_feed_forward_length", "moe_intermediate_size"),
            (
                "expert_shared_feed_forward_length",
                "shared_expert_intermediate_size",
            ),
            ("ssm.conv_kernel", "linear_conv_kernel_dim"),
            ("ssm.state_size", "linear_key_head_dim"),
            ("ssm.group_count", "linear_num_key_heads"),
            ("ssm.time_step_rank", "linear_num_value_heads"),
        ];
        for (name, field) in copied {
            if let Some(value) = self.field(field) {
                writer.key(&key(name), Meta::U32(value as u32));
            }
        }
        for name in ["attention.key_length", "attention.value_length"] {
            writer.key(&key(name), Meta::U32(self.head_dim() as u32));
        }
        let eps = self.model.config["rms_norm_eps"].as_f64().unwrap() as f32;
        writer.key(&key("attention.layer_norm_rms_epsilon"), Meta::F32(eps));
        self.write_rope_keys(writer);
        if self.is_hybrid() {
            self.write_layer_keys(writer);
        }
    }

    fn write_rope_keys(&self, writer: &mut GgufWriter) {
        let key = |name: &str| format!("{}.rope.{name}", self.architecture);
        writer.key(&key("freq_base"), Meta::F32(self.rope("rope_theta").unwrap()));
        let share = self.rope("partial_rotary_factor").unwrap_or(1.0);
        let rotated = (self.head_dim() as f32 * share) as u32;
        writer.key(&key("dimension_count"), Meta::U32(rotated));
        if self.model.config["rope_parameters"]["rope_type"] == "yarn" {
            let original = self.rope("original_max_position_embeddings").unwrap();
            writer
                .key(&key("scaling.type"), Meta::string("yarn"))
                .key(&key("scaling.factor"), Meta::F32(self.rope("factor").unwrap()))
                .key(
                    &key("scaling.original_context_length"),
                    Meta::U32(original as u32),
                )
                .key(&key("scaling.yarn_attn_factor"), Meta::F32(1.0));
        }
    }

    fn write_layer_keys(&self, writer: &mut GgufWriter) {
        let key = |name: &str| format!("{}.{name}", self.architecture);
        let inner =
            self.field("linear_num_value_heads").unwrap() * self.field("linear_value_head_dim").unwrap();
        writer.key(&key("ssm.inner_size"), Meta::U32(inner as u32));
        let kinds = self.model.config["layer_types"].as_array().unwrap();
        let recurrent: Vec<bool> = kinds.iter().map(|kind| kind == "linear_attention").collect();
        if self.options.layer_list {
            writer.key(&key("attention.recurrent_layers"), Meta::bools(recurrent));
        } else {
            writer.key(&key("full_attention_interval"), Meta::U32(4));
        }
        if self.architecture != "qwen3next" {
            writer.key(&key("rope.dimension_sections"), Meta::i32s([2, 1, 1, 0]));
        }
    }

    fn tensors(&self) -> BTreeMap<String, Tensor> {
        let mut out = BTreeMap::new();
        for (name, stored) in &self.model.tensors {
            let tensor = (stored.shape.clone(), stored.values());
            match name.as_str() {
                "model.embed_tokens.weight" => drop(out.insert("token_embd.weight".to_owned(), tensor)),
                "lm_head.weight" => drop(out.insert("output.weight".to_owned(), tensor)),
                "model.norm.weight" => {
                    out.insert("output_norm.weight".to_owned(), self.norm(tensor));
                }
                _ => {
                    let (block, module) = self.place(name);
                    for (module, tensor) in self.convert(module, tensor) {
                        out.insert(format!("blk.{block}.{module}"), tensor);
                    }
                }
            }
        }
        self.stack_experts(&mut out);
        if self.model.config["rope_parameters"]["rope_type"] == "llama3" {
            let factors = self.rope_factors();
            out.insert("rope_freqs.weight".to_owned(), (vec![factors.len()], factors));
        }
        out
    }

    /// A tensor's block and its name within the layer.
    fn place<'n>(&self, name: &'n str) -> (usize, &'n str) {
        if let Some(rest) = name.strip_prefix("mtp.") {
            return (self.layers, rest.strip_prefix("layers.0.").unwrap_or(rest));
        }
        let rest = name.strip_prefix("model.layers.").unwrap();
        let (layer, module) = rest.split_once('.').unwrap();
        (layer.parse().unwrap(), module)
    }

    /// What a tensor of a layer becomes.
    fn convert(&self, module: &str, tensor: Tensor) -> Vec<(String, Tensor)> {
        let is_norm = module.contains("norm") && module != "linear_attn.norm.weight";
        let (shape, values) = tensor;
        let tensor = match module {
            "linear_attn.A_log" => (shape, values.iter().map(|x| -x.exp()).collect()),
            "linear_attn.conv1d.weight" => (vec![shape[0], shape[2]], values),
            "mlp.shared_expert_gate.weight" => (vec![shape[1]], values),
            "self_attn.q_proj.weight" | "self_attn.k_proj.weight" if self.architecture == "llama" => {
                (shape.clone(), self.neighbouring_pairs(&shape, &values))
            }
            _ if is_norm => self.norm((shape, values)),
            _ => (shape, values),
        };
        if module == "linear_attn.in_proj_qkvz.weight" && !self.options.legacy_input {
            return self.split_input(&tensor);
        }
        let tensor = if self.architecture.starts_with("qwen35") {
            self.tile_value_heads(module, tensor)
        } else {
            tensor
        };
        vec![(self.module_name(module), tensor)]
    }

    fn module_name(&self, module: &str) -> String {
        let after_attention = if self.is_hybrid() {
            "post_attention_norm"
        } else {
            "ffn_norm"
        };
        let names = [
            ("post_attention_layernorm", after_attention),
            ("input_layernorm", "attn_norm"),
            ("self_attn.q_norm", "attn_q_norm"),
            ("self_attn.k_norm", "attn_k_norm"),
            ("self_attn.q_proj", "attn_q"),
            ("self_attn.k_proj", "attn_k"),
            ("self_attn.v_proj", "attn_v"),
            ("self_attn.o_proj", "attn_output"),
            ("linear_attn.in_proj_qkvz", "ssm_in"),
            ("linear_attn.in_proj_qkv", "attn_qkv"),
            ("linear_attn.in_proj_z", "attn_gate"),
            ("linear_attn.in_proj_ba", "ssm_ba"),
            ("linear_attn.in_proj_b", "ssm_beta"),
            ("linear_attn.in_proj_a", "ssm_alpha"),
            ("linear_attn.conv1d", "ssm_conv1d"),
            ("linear_attn.A_log", "ssm_a"),
            ("linear_attn.dt_bias", "ssm_dt.bias"),
            ("linear_attn.norm", "ssm_norm"),
            ("linear_attn.out_proj", "ssm_out"),
            ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
            ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
            ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
            ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
            ("mlp.gate_proj", "ffn_gate"),
            ("mlp.up_proj", "ffn_up"),
            ("mlp.down_proj", "ffn_down"),
            ("mlp.gate", "ffn_gate_inp"),
            ("fc", "nextn.eh_proj"),
            ("pre_fc_norm_embedding", "nextn.enorm"),
            ("pre_fc_norm_hidden", "nextn.hnorm"),
            ("norm", "nextn.shared_head_norm"),
            ("mlp.experts", "experts"),
        ];
        let (from, to) = names
            .iter()
            .find(|(name, _)| {
                module
                    .strip_prefix(name)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            })
            .unwrap_or_else(|| panic!("no name for {module}"));
        module.replacen(from, to, 1)
    }

    /// Zero-centred norms have their one added.
    fn norm(&self, (shape, values): Tensor) -> Tensor {
        let one = if self.is_hybrid() { 1.0 } else { 0.0 };
        (shape, values.iter().map(|x| x + one).collect())
    }

    /// Rows of each head so that the elements rotated together are neighbours.
    fn neighbouring_pairs(&self, shape: &[usize], values: &[f32]) -> Vec<f32> {
        let (head_dim, columns) = (self.head_dim(), shape[1]);
        let mut out = vec![0.0; values.len()];
        for (row, from) in values.chunks_exact(columns).enumerate() {
            let (head, within) = (row / head_dim, row % head_dim);
            let (half, pair) = (within / (head_dim / 2), within % (head_dim / 2));
            let to = head * head_dim + 2 * pair + half;
            out[to * columns..(to + 1) * columns].copy_from_slice(from);
        }
        out
    }

    /// Qwen3-Next: the projection stored by key head as a flat one and the gate.
    fn split_input(&self, (shape, values): &Tensor) -> Vec<(String, Tensor)> {
        let columns = shape[1];
        let keys = self.field("linear_num_key_heads").unwrap();
        let per_key = self.field("linear_num_value_heads").unwrap() / keys;
        let key_dim = self.field("linear_key_head_dim").unwrap();
        let value_rows = per_key * self.field("linear_value_head_dim").unwrap();
        let group = 2 * key_dim + 2 * value_rows;
        let pick = |from: usize, rows: usize| {
            let rows = (0..keys)
                .flat_map(move |head| head * group + from..head * group + from + rows)
                .flat_map(|row| &values[row * columns..(row + 1) * columns]);
            rows.copied().collect::<Vec<f32>>()
        };
        let mut mixed = pick(0, key_dim);
        mixed.extend(pick(key_dim, key_dim));
        mixed.extend(pick(2 * key_dim, value_rows));
        let gate = pick(2 * key_dim + value_rows, value_rows);
        let tensor = |values: Vec<f32>| (vec![values.len() / columns, columns], values);
        vec![
            ("attn_qkv.weight".to_owned(), tensor(mixed)),
            ("attn_gate.weight".to_owned(), tensor(gate)),
        ]
    }

    /// Qwen3.5: value heads by their place behind a key head first, by key head second.
    fn tile_value_heads(&self, module: &str, (shape, values): Tensor) -> Tensor {
        let keys = self.field("linear_num_key_heads").unwrap();
        let heads = self.field("linear_num_value_heads").unwrap();
        let value_dim = self.field("linear_value_head_dim").unwrap();
        let key_rows = 2 * keys * self.field("linear_key_head_dim").unwrap();
        let columns: usize = shape[1..].iter().product();
        // Elements before the first head, elements of a head, and how often the pattern repeats.
        let (before, head, repeats) = match module {
            "linear_attn.in_proj_qkv.weight" | "linear_attn.conv1d.weight" => {
                (key_rows * columns, value_dim * columns, 1)
            }
            "linear_attn.in_proj_z.weight" => (0, value_dim * columns, 1),
            "linear_attn.in_proj_b.weight" | "linear_attn.in_proj_a.weight" => (0, columns, 1),
            "linear_attn.A_log" | "linear_attn.dt_bias" => (0, 1, 1),
            "linear_attn.out_proj.weight" => (0, value_dim, shape[0]),
            _ => return (shape, values),
        };
        let mut out = values[..before].to_vec();
        for repeat in 0..repeats {
            let start = before + repeat * heads * head;
            for tiled in 0..heads {
                let grouped = tiled % keys * (heads / keys) + tiled / keys;
                out.extend_from_slice(&values[start + grouped * head..start + (grouped + 1) * head]);
            }
        }
        assert_eq!(out.len(), values.len(), "{module}");
        (shape, out)
    }

    /// One tensor per kind of expert matrix instead of one per expert.
    fn stack_experts(&self, out: &mut BTreeMap<String, Tensor>) {
        let experts = self
            .field("num_experts")
            .or_else(|| self.field("num_local_experts"))
            .unwrap_or(0);
        for block in 0..=self.layers {
            if !out.contains_key(&format!("blk.{block}.experts.0.up_proj.weight")) {
                continue;
            }
            let mut take = |kinds: &[&str]| {
                let (mut rows, mut columns, mut values) = (0, 0, Vec::new());
                for expert in 0..experts {
                    for kind in kinds {
                        let name = format!("blk.{block}.experts.{expert}.{kind}_proj.weight");
                        let (shape, matrix) = out.remove(&name).unwrap();
                        (rows, columns) = (shape[0], shape[1]);
                        values.extend(matrix);
                    }
                }
                (vec![experts, rows * kinds.len(), columns], values)
            };
            let stacks = if self.options.fused_experts {
                vec![("gate_up", take(&["gate", "up"])), ("down", take(&["down"]))]
            } else {
                ["gate", "up", "down"].map(|kind| (kind, take(&[kind]))).to_vec()
            };
            for (kind, stack) in stacks {
                out.insert(format!("blk.{block}.ffn_{kind}_exps.weight"), stack);
            }
        }
    }

    /// What Llama 3 divides each frequency by.
    fn rope_factors(&self) -> Vec<f32> {
        let (theta, factor) = (self.rope("rope_theta").unwrap(), self.rope("factor").unwrap());
        let (low, high) = (
            self.rope("low_freq_factor").unwrap(),
            self.rope("high_freq_factor").unwrap(),
        );
        let original = self.rope("original_max_position_embeddings").unwrap();
        let dim = self.head_dim();
        let divisor = |pair: usize| {
            let turns = original / (2.0 * PI * theta.powf(2.0 * pair as f32 / dim as f32));
            let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            1.0 / (kept + (1.0 - kept) / factor)
        };
        (0..dim / 2).map(divisor).collect()
    }
}

/// A matrix in the type asked for.
fn encode(values: &[f32], options: Options) -> (DType, Vec<u8>) {
    let widen = |rounded: Vec<f32>| {
        let bytes = rounded.iter().flat_map(|x| x.to_le_bytes()).collect();
        (DType::F32, bytes)
    };
    match options.matrices {
        DType::F32 => widen(values.to_vec()),
        DType::F16 if options.widened => widen(values.iter().map(|x| f16::from_f32(*x).to_f32()).collect()),
        DType::F16 => {
            let bytes = values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes());
            (DType::F16, bytes.collect())
        }
        DType::Q8_0 => {
            let (mut bytes, mut rounded) = (Vec::new(), Vec::new());
            for block in values.chunks_exact(32) {
                let largest = block.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
                let scale = f16::from_f32(largest / 127.0);
                bytes.extend(scale.to_le_bytes());
                for x in block {
                    let code = (x / scale.to_f32()).round().clamp(-127.0, 127.0) as i8;
                    bytes.push(code as u8);
                    rounded.push(scale.to_f32() * f32::from(code));
                }
            }
            if options.widened {
                widen(rounded)
            } else {
                (DType::Q8_0, bytes)
            }
        }
        other => panic!("no encoder for {other}"),
    }
}
