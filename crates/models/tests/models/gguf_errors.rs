//! Damaged and unsupported GGUF files are errors that name the key or tensor as the file does.

use crate::model_files::{ModelFiles, Stored, failure};
use crate::to_gguf::{EXACT, to_gguf};
use paceline_testkit::Fixture;
use paceline_types::DType;
use paceline_weights::gguf_writer::{GgufWriter, Meta};
use paceline_weights::{Bytes, Checkpoint};

fn model(name: &str) -> ModelFiles {
    ModelFiles::of(&Fixture::read(name))
}

/// The failure of a GGUF file.
fn gguf_failure(writer: &GgufWriter) -> String {
    let bytes = Bytes::from(writer.to_bytes());
    failure(&Checkpoint::from_gguf("model.gguf", bytes).unwrap_or_else(|e| panic!("{e}")))
}

#[test]
fn a_gguf_file_of_an_unknown_architecture_is_refused_by_name() {
    let mut writer = GgufWriter::new();
    writer.key("general.architecture", Meta::string("mystery"));
    let message = gguf_failure(&writer);
    assert!(
        message.contains("mystery") && message.contains("qwen35moe"),
        "{message}"
    );
    let message = gguf_failure(&GgufWriter::new());
    assert!(message.contains("general.architecture"), "{message}");
}

#[test]
fn a_gguf_file_without_a_metadata_key_is_refused_by_the_key() {
    let keys = [
        ("block_count", Meta::U32(2)),
        ("embedding_length", Meta::U32(64)),
        ("attention.head_count", Meta::U32(4)),
        ("attention.layer_norm_rms_epsilon", Meta::F32(1e-6)),
    ];
    for (missing, _) in &keys {
        let mut writer = GgufWriter::new();
        writer.key("general.architecture", Meta::string("llama"));
        for (key, value) in keys.iter().filter(|(key, _)| key != missing) {
            writer.key(&format!("llama.{key}"), value.clone());
        }
        let embedding = Stored::zeros("F32", 4, &[256, 64]);
        writer.tensor("token_embd.weight", DType::F32, &[256, 64], &embedding.data);
        let message = gguf_failure(&writer);
        assert!(message.contains(&format!("llama.{missing}")), "{message}");
    }
}

#[test]
fn a_gguf_file_without_a_tensor_is_refused_by_the_name_in_the_file() {
    for (name, layer, tensor, stored) in [
        ("llama", 1, "mlp.up_proj.weight", "blk.1.ffn_up.weight"),
        ("llama", 0, "input_layernorm.weight", "blk.0.attn_norm.weight"),
        ("qwen3_5", 0, "linear_attn.A_log", "blk.0.ssm_a"),
        ("qwen3_5", 2, "linear_attn.dt_bias", "blk.2.ssm_dt.bias"),
        (
            "qwen3_5",
            3,
            "post_attention_layernorm.weight",
            "blk.3.post_attention_norm.weight",
        ),
    ] {
        let mut damaged = model(name);
        damaged.tensors.remove(&format!("model.layers.{layer}.{tensor}"));
        let message = gguf_failure(&to_gguf(&damaged, EXACT));
        assert!(message.contains(&format!("`{stored}`")), "{message}");
    }
}

#[test]
fn a_gguf_file_with_values_that_are_not_finite_is_refused_by_the_name_in_the_file() {
    for (tensor, stored) in [
        ("model.layers.1.mlp.up_proj.weight", "blk.1.ffn_up.weight"),
        ("model.layers.0.input_layernorm.weight", "blk.0.attn_norm.weight"),
    ] {
        let mut damaged = model("llama");
        let stored_tensor = damaged.tensors.get_mut(tensor).unwrap();
        let mut values = stored_tensor.values();
        values[3] = f32::NAN;
        *stored_tensor = Stored::f32(&stored_tensor.shape, &values);
        let message = gguf_failure(&to_gguf(&damaged, EXACT));
        assert!(message.contains(stored), "{message}");
    }
}

#[test]
fn gguf_files_with_biases_or_factors_that_would_be_wrong_are_refused() {
    let mut writer = to_gguf(&model("llama"), EXACT);
    writer.tensor("blk.0.attn_q.bias", DType::F32, &[64], &[0; 256]);
    let message = gguf_failure(&writer);
    assert!(message.contains("blk.0.attn_q.bias"), "{message}");
    let mut writer = to_gguf(&model("llama"), EXACT);
    writer.tensor("rope_freqs.weight", DType::F32, &[8], &[0; 32]);
    let message = gguf_failure(&writer);
    assert!(message.contains("rope_freqs"), "{message}");
}
