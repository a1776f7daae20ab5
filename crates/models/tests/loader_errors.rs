//! Damaged and unsupported models are errors that name what is wrong, quickly and without a panic.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "support/model_files.rs"]
mod model_files;

use model_files::{ModelFiles, Stored, failure};
use paceline_device::Recorder;
use paceline_testkit::{FIXTURES, Fixture};
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof, proptest};
use serde_json::{Value, json};

fn model(name: &str) -> ModelFiles {
    ModelFiles::of(&Fixture::read(name))
}

fn assert_fails(model: &ModelFiles, words: &[&str]) {
    let message = failure(&model.checkpoint());
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
}

#[test]
fn every_tensor_that_is_missing_is_named() {
    for name in FIXTURES {
        let whole = model(name);
        // Without this one the model counts as one without a draft head.
        for tensor in whole.tensors.keys().filter(|name| *name != "mtp.fc.weight") {
            let mut damaged = whole.clone();
            damaged.tensors.remove(tensor);
            let message = failure(&damaged.checkpoint());
            // Of a stack of experts, the first single expert is missed.
            let stem = tensor.split(".experts").next().unwrap();
            assert!(
                message.contains("is missing") && message.contains(stem),
                "{name} without {tensor}: {message}"
            );
        }
    }
}

#[test]
fn a_tensor_of_another_shape_is_named_with_both_shapes() {
    for (name, tensor, shape) in [
        ("llama", "model.layers.1.self_attn.k_proj.weight", vec![64, 32]),
        ("llama", "model.layers.0.input_layernorm.weight", vec![63]),
        ("qwen2", "model.layers.0.self_attn.q_proj.bias", vec![32]),
        (
            "qwen3_5",
            "model.layers.0.linear_attn.conv1d.weight",
            vec![128, 1, 3],
        ),
        ("qwen3_5", "model.embed_tokens.weight", vec![255, 64]),
        ("qwen3_5_moe", "model.layers.0.mlp.gate.weight", vec![7, 64]),
        ("bamba", "model.layers.0.mamba.D", vec![3]),
    ] {
        let mut damaged = model(name);
        let stored = Stored::zeros("F32", 4, &shape);
        damaged.tensors.insert(tensor.to_owned(), stored);
        assert_fails(&damaged, &[tensor, &format!("{shape:?}"), "asks for"]);
    }
}

#[test]
fn a_tensor_of_an_unusable_type_is_named_with_its_type() {
    let tensors = [
        ("llama", "model.layers.0.self_attn.v_proj.weight"),
        ("llama", "model.norm.weight"),
        ("llama3-rope", "lm_head.weight"),
        ("qwen3_5", "mtp.fc.weight"),
        ("qwen3_5", "model.layers.0.linear_attn.A_log"),
        ("qwen3_next", "model.layers.0.linear_attn.in_proj_ba.weight"),
        ("nemotron_h", "backbone.embeddings.weight"),
    ];
    for (name, tensor) in tensors {
        for (dtype, bytes) in [("I64", 8), ("F8_E4M3", 1), ("U8", 1)] {
            let mut damaged = model(name);
            let shape = damaged.tensors[tensor].shape.clone();
            let stored = Stored::zeros(dtype, bytes, &shape);
            damaged.tensors.insert(tensor.to_owned(), stored);
            assert_fails(&damaged, &[tensor, dtype]);
            assert_fails(&damaged.without("tie_word_embeddings"), &[tensor, dtype]);
        }
    }
}

#[test]
fn values_that_are_not_finite_are_found_and_named() {
    for tensor in [
        "model.layers.1.mlp.down_proj.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.embed_tokens.weight",
        "model.norm.weight",
        "model.layers.0.linear_attn.dt_bias",
        "mtp.layers.0.self_attn.q_norm.weight",
    ] {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut damaged = model("qwen3_5");
            let name = if damaged.tensors.contains_key(tensor) {
                tensor.to_owned()
            } else {
                tensor.replace("layers.0", "layers.3")
            };
            let stored = damaged.tensors.get_mut(&name).unwrap();
            let mut values = stored.values();
            let last = values.len() - 1;
            values[last] = value;
            *stored = Stored::f32(&stored.shape, &values);
            assert_fails(&damaged, &[&name, "finite"]);
        }
    }
    let mut damaged = model("qwen3_5");
    let decay = "model.layers.0.linear_attn.A_log";
    let stored = Stored::f32(&[4], &[0.0, 0.0, 1000.0, 0.0]);
    damaged.tensors.insert(decay.to_owned(), stored);
    assert_fails(&damaged, &[decay, "element 2"]);
}

#[test]
fn an_unknown_architecture_is_named_with_those_that_are_known() {
    let strange = model("llama")
        .with("architectures", json!(["MysteryForCausalLM"]))
        .with("model_type", json!("mystery"));
    assert_fails(
        &strange,
        &["MysteryForCausalLM", "LlamaForCausalLM", "Qwen3NextForCausalLM"],
    );
    let nameless = model("llama").without("architectures").without("model_type");
    assert_fails(&nameless, &["model_type"]);
}

#[test]
fn counts_that_make_no_sense_are_named() {
    let cases: [(&str, &[&str]); 5] = [
        (
            "llama",
            &[
                "hidden_size",
                "num_hidden_layers",
                "num_attention_heads",
                "intermediate_size",
                "vocab_size",
            ],
        ),
        (
            "qwen3_moe",
            &[
                "num_local_experts",
                "num_experts_per_tok",
                "moe_intermediate_size",
            ],
        ),
        (
            "qwen3_5",
            &[
                "linear_num_key_heads",
                "linear_num_value_heads",
                "linear_key_head_dim",
                "linear_value_head_dim",
            ],
        ),
        ("bamba", &["mamba_n_heads", "mamba_d_state"]),
        (
            "nemotron_h_moe",
            &["mamba_num_heads", "n_groups", "n_routed_experts"],
        ),
    ];
    for (name, fields) in cases {
        for field in fields {
            let whole = model(name);
            let field_name = format!("`{}`", field.replace("num_local_experts", "num_experts"));
            assert_fails(&whole.clone().without(field), &[&field_name]);
            for value in [
                json!(0),
                json!(-1),
                json!(1_u64 << 40),
                json!(u64::MAX),
                json!(2.5),
                json!("64"),
                json!([64]),
                json!(true),
            ] {
                let message = failure(&whole.clone().with(field, value.clone()).checkpoint());
                assert!(message.contains(field), "{field} = {value}: {message}");
            }
        }
    }
}

/// Sets a field of a fixture's configuration and expects the error to name another.
fn assert_field_fails(name: &str, field: &str, value: &Value, named: &str) {
    let message = failure(&model(name).with(field, value.clone()).checkpoint());
    assert!(message.contains(named), "{name}, {field} = {value}: {message}");
}

#[test]
fn attention_fields_that_contradict_each_other_are_named() {
    let cases = [
        ("llama", "num_key_value_heads", json!(3), "num_key_value_heads"),
        ("llama", "head_dim", json!(15), "partial_rotary_factor"),
        ("llama", "rms_norm_eps", json!(-1e-6), "rms_norm_eps"),
        ("llama", "rms_norm_eps", json!("small"), "rms_norm_eps"),
        ("llama", "hidden_act", json!("gelu"), "hidden_act"),
        (
            "llama",
            "tie_word_embeddings",
            json!("yes"),
            "tie_word_embeddings",
        ),
        ("llama", "eos_token_id", json!("</s>"), "eos_token_id"),
        (
            "llama",
            "max_position_embeddings",
            json!(0),
            "max_position_embeddings",
        ),
        ("qwen3", "layer_types", json!(["full_attention"]), "layer_types"),
        (
            "qwen3",
            "layer_types",
            json!(["full_attention", "sliding_attention"]),
            "sliding_attention",
        ),
        (
            "qwen3",
            "layer_types",
            json!(["full_attention", "linear_attention"]),
            "layer_types",
        ),
    ];
    for (name, field, value, named) in cases {
        assert_field_fails(name, field, &value, named);
    }
    let without = model("llama").without("head_dim");
    assert_fails(
        &without.with("num_attention_heads", json!(6)),
        &["num_attention_heads"],
    );
}

#[test]
fn fields_of_recurrent_layers_and_mixtures_that_contradict_each_other_are_named() {
    let cases = [
        ("qwen3_5", "layer_types", json!(["full_attention"]), "layer_types"),
        (
            "qwen3_5",
            "layer_types",
            json!(["a", "b", "c", "d"]),
            "layer_types",
        ),
        ("qwen3_5", "layer_types", json!("full_attention"), "layer_types"),
        (
            "qwen3_5",
            "linear_num_value_heads",
            json!(3),
            "linear_num_value_heads",
        ),
        (
            "qwen3_5",
            "linear_conv_kernel_dim",
            json!(1),
            "linear_conv_kernel_dim",
        ),
        (
            "qwen3_moe",
            "num_experts_per_tok",
            json!(9),
            "num_experts_per_tok",
        ),
        ("granite_h", "layer_types", json!([]), "layer_types"),
        ("granite_h", "logits_scaling", json!(0), "logits_scaling"),
        ("bamba", "mamba_n_groups", json!(3), "mamba_n_groups"),
        ("bamba", "time_step_limit", json!([1.0, 0.5]), "time_step_limit"),
        ("falcon_h1", "ssm_multipliers", json!([1.0]), "ssm_multipliers"),
        ("nemotron_h", "num_hidden_layers", json!(99), "layers_block_type"),
        ("nemotron_h", "layers_block_type", json!([]), "layers_block_type"),
        ("nemotron_h_moe", "topk_group", json!(5), "topk_group"),
        ("nemotron_h_moe", "n_group", json!(3), "n_group"),
        (
            "nemotron_h_moe",
            "num_experts_per_tok",
            json!(5),
            "num_experts_per_tok",
        ),
    ];
    for (name, field, value, named) in cases {
        assert_field_fails(name, field, &value, named);
    }
}

#[test]
fn rope_parameters_that_make_no_sense_are_named() {
    let llama3 = |low: f64| {
        json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": low, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 256, "rope_theta": 500_000.0})
    };
    let cases = [
        (json!({"rope_type": "spiral"}), "spiral"),
        (json!({"rope_type": 4}), "rope_type"),
        (json!({"type": "linear"}), "factor"),
        (json!({"rope_type": "linear", "factor": 0}), "factor"),
        (json!({"rope_type": "llama3", "factor": 8.0}), "low_freq_factor"),
        (json!({"rope_theta": -1.0}), "rope_theta"),
        (json!({"rope_theta": 1e-45}), "rope_parameters"),
        (json!({"partial_rotary_factor": 1.5}), "partial_rotary_factor"),
        (json!({"partial_rotary_factor": 1e-9}), "partial_rotary_factor"),
        (llama3(0.0), "low_freq_factor"),
    ];
    for (parameters, named) in cases {
        let damaged = model("llama").with("rope_parameters", parameters);
        assert_fails(&damaged, &[named]);
    }
}

/// Most memory this process has had at a time, in bytes, where the system tells.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace()
        .next()?
        .parse::<u64>()
        .ok()
        .map(|kib| kib << 10)
}

#[test]
fn a_small_file_with_large_claims_fails_before_anything_is_allocated() {
    let claims = [
        ("llama", "hidden_size", 1 << 24, "hidden_size"),
        ("llama", "hidden_size", 1 << 20, "q_proj.weight"),
        ("llama", "vocab_size", 1 << 24, "embed_tokens.weight"),
        ("llama", "intermediate_size", 1 << 20, "gate_proj.weight"),
        ("llama", "num_hidden_layers", 1 << 10, "layers.2."),
        ("llama", "head_dim", 1 << 18, "q_proj.weight"),
        ("llama", "head_dim", 1 << 20, "head_dim"),
        ("qwen3_5", "head_dim", 1 << 18, "q_proj.weight"),
        ("qwen3_5", "linear_key_head_dim", 1 << 19, "in_proj_qkv.weight"),
        (
            "qwen3_next",
            "linear_value_head_dim",
            1 << 18,
            "in_proj_qkvz.weight",
        ),
        ("qwen3_moe", "num_local_experts", 1 << 12, "mlp.gate.weight"),
        (
            "qwen3_moe",
            "moe_intermediate_size",
            1 << 20,
            "experts.0.gate_proj.weight",
        ),
        ("bamba", "mamba_d_state", 1 << 20, "in_proj.weight"),
    ];
    let before = peak_memory();
    for (name, field, value, named) in claims {
        let message = failure(&model(name).with(field, json!(value)).checkpoint());
        assert!(message.contains(named), "{name}, {field} = {value}: {message}");
    }
    if let (Some(before), Some(after)) = (before, peak_memory()) {
        assert!(after - before < 256 << 20, "{} bytes were taken", after - before);
    }
}

/// The weights of a model are not looked at by a device that owns no memory.
#[test]
fn a_recorder_loads_a_model_without_reading_its_matrices() {
    for name in FIXTURES {
        let mut damaged = model(name);
        for tensor in damaged.tensors.values_mut().filter(|tensor| {
            tensor.shape.iter().filter(|n| **n > 1).count() > 1 && tensor.shape.get(1) != Some(&1)
        }) {
            let values = vec![f32::NAN; tensor.data.len() / 4];
            *tensor = Stored::f32(&tensor.shape, &values);
        }
        let checkpoint = damaged.checkpoint();
        paceline_models::load(&Recorder::new(), &checkpoint, None, &|_| {})
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(failure(&checkpoint).contains("finite"), "{name}");
    }
}

/// Values a damaged configuration may have in any place.
fn damage() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(|flag| json!(flag)),
        any::<i64>().prop_map(|n| json!(n)),
        any::<u64>().prop_map(|n| json!(n)),
        (0..70_u64).prop_map(|n| json!(n)),
        (0..25_u32).prop_map(|bits| json!(1_u64 << bits)),
        any::<f64>().prop_map(|x| json!(x)),
        Just(json!(1e-45)),
        "[a-z_]{0,12}".prop_map(|text| json!(text)),
        Just(json!([])),
        Just(json!({})),
        Just(json!([1, 0])),
        Just(json!({"rope_type": "yarn", "factor": 1e30, "rope_theta": 1.0})),
        Just(json!({"rope_type": "llama3", "factor": 2, "low_freq_factor": 1, "high_freq_factor": 1})),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_configuration_makes_the_builder_panic(
        fixture in 0..FIXTURES.len(),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), damage()), 1..4),
    ) {
        let path = Fixture::read(FIXTURES[fixture]).folder().join("config.json");
        let text = std::fs::read_to_string(path).unwrap();
        let mut config: Value = serde_json::from_str(&text).unwrap();
        let fields = config.as_object_mut().unwrap();
        for (place, value) in changes {
            let at = place.index(fields.len());
            *fields.iter_mut().nth(at).unwrap().1 = value;
        }
        if let Ok(model) = paceline_models::load_config_only(&Recorder::new(), &config) {
            let _ = paceline_models::Summary::of(&model, paceline_device::ElementTypes::F32);
        }
    }
}
