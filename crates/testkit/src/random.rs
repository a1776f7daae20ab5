//! Drafters with random weights, for any model: what they draft is of no use, which must not matter.

use crate::files::{Stored, in_memory};
use paceline_device::Recorder;
use paceline_models::ModelDims;
use paceline_types::TokenId;
use paceline_weights::Checkpoint;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const WIDTH: usize = 32;
const FEED_FORWARD: usize = 48;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 16;

/// A small EAGLE-3 head for a model. It starts from the first, the middle and the last layer.
///
/// `tokens` are those it can draft, in rising order; without them it drafts from the whole vocabulary. A few tokens
/// that the text is full of make a head whose drafts are often accepted.
pub fn random_eagle3(target: &Checkpoint, tokens: Option<&[TokenId]>, seed: u64) -> Checkpoint {
    let dims = dims(target);
    let mut weights = Weights::new(seed);
    let drafted = tokens.map_or(dims.vocabulary, <[_]>::len);
    weights.matrix("fc", WIDTH, 3 * dims.hidden);
    weights.layer("midlayer", 2 * WIDTH);
    weights.norm("midlayer.hidden_norm", WIDTH);
    weights.norm("norm", WIDTH);
    weights.matrix("embed_tokens", dims.vocabulary, WIDTH);
    weights.matrix("lm_head", drafted, WIDTH);
    if let Some(tokens) = tokens {
        let offsets = tokens.iter().enumerate();
        let offsets: Vec<i64> = offsets
            .map(|(index, token)| i64::from(*token) - index as i64)
            .collect();
        weights.tensors.insert("d2t".to_owned(), Stored::i64(&offsets));
    }
    let mut config = layer_config("LlamaForCausalLMEagle3", dims.vocabulary);
    config["draft_vocab_size"] = json!(drafted);
    config["target_hidden_size"] = json!(dims.hidden);
    config["eagle_aux_hidden_state_layer_ids"] = json!([0, dims.layers / 2, dims.layers]);
    in_memory("random head", &config, &weights.tensors)
}

/// A small Llama model with the vocabulary of another model, to draft for it.
pub fn random_draft_model(target: &Checkpoint, seed: u64) -> Checkpoint {
    let dims = dims(target);
    let mut weights = Weights::new(seed);
    weights.matrix("model.embed_tokens", dims.vocabulary, WIDTH);
    weights.layer("model.layers.0", WIDTH);
    weights.norm("model.norm", WIDTH);
    let mut config = layer_config("LlamaForCausalLM", dims.vocabulary);
    config["tie_word_embeddings"] = json!(true);
    in_memory("random draft model", &config, &weights.tensors)
}

/// The same model with outputs beyond all bounds: its weights are finite numbers, its logits are not.
pub fn overflowing_model(target: &Checkpoint, seed: u64) -> Checkpoint {
    let dims = dims(target);
    let mut weights = Weights::new(seed);
    weights.matrix("model.embed_tokens", dims.vocabulary, WIDTH);
    weights.layer("model.layers.0", WIDTH);
    weights.norm("model.norm", WIDTH);
    // Each row and its opposite, so that one of the two overflows to the positive side.
    let row: Vec<f32> = (0..WIDTH).map(|_| f32::MAX.copysign(weights.next())).collect();
    let rows = (0..dims.vocabulary).flat_map(|index| {
        let sign = if index % 2 == 0 { 1.0 } else { -1.0 };
        row.iter().map(move |x| x * sign).collect::<Vec<_>>()
    });
    let head = Stored::f32(&[dims.vocabulary, WIDTH], &rows.collect::<Vec<_>>());
    weights.tensors.insert("lm_head.weight".to_owned(), head);
    let config = layer_config("LlamaForCausalLM", dims.vocabulary);
    in_memory("overflowing model", &config, &weights.tensors)
}

fn dims(checkpoint: &Checkpoint) -> ModelDims {
    let model = paceline_models::load(&Recorder::new(), checkpoint, None, &|_| {});
    model.unwrap_or_else(|e| panic!("{e}")).dims
}

fn layer_config(class: &str, vocabulary: usize) -> Value {
    json!({
        "architectures": [class],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": WIDTH,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 1 << 16,
        "rms_norm_eps": 1e-5,
    })
}

struct Weights {
    tensors: BTreeMap<String, Stored>,
    state: u64,
}

impl Weights {
    fn new(seed: u64) -> Self {
        Self {
            tensors: BTreeMap::new(),
            state: seed,
        }
    }

    /// Between -1 and 1, by the `SplitMix64` generator.
    fn next(&mut self) -> f32 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        (bits >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn matrix(&mut self, name: &str, outputs: usize, inputs: usize) {
        let scale = (3.0 / inputs as f32).sqrt();
        let values: Vec<f32> = (0..outputs * inputs).map(|_| scale * self.next()).collect();
        self.tensors
            .insert(format!("{name}.weight"), Stored::f32(&[outputs, inputs], &values));
    }

    fn norm(&mut self, name: &str, len: usize) {
        let values: Vec<f32> = (0..len).map(|_| 1.0 + 0.3 * self.next()).collect();
        self.tensors
            .insert(format!("{name}.weight"), Stored::f32(&[len], &values));
    }

    /// A Llama layer whose attention reads `inputs` inputs.
    fn layer(&mut self, prefix: &str, inputs: usize) {
        self.norm(&format!("{prefix}.input_layernorm"), WIDTH);
        self.norm(&format!("{prefix}.post_attention_layernorm"), WIDTH);
        let (query, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
        let matrices = [
            ("self_attn.q_proj", query, inputs),
            ("self_attn.k_proj", kv, inputs),
            ("self_attn.v_proj", kv, inputs),
            ("self_attn.o_proj", WIDTH, query),
            ("mlp.gate_proj", FEED_FORWARD, WIDTH),
            ("mlp.up_proj", FEED_FORWARD, WIDTH),
            ("mlp.down_proj", WIDTH, FEED_FORWARD),
        ];
        for (name, outputs, inputs) in matrices {
            self.matrix(&format!("{prefix}.{name}"), outputs, inputs);
        }
    }
}
