//! However a checkpoint lays out its tensors and fields, the model is the same.

use crate::model_files::{ModelFiles, Stored};
use crate::support::{cpu, prompt_logits, runner, step};
use half::bf16;
use paceline_device_cpu::Instructions;
use paceline_testkit::Program;
use paceline_testkit::{Fixture, assert_same_bits, safetensors};
use paceline_weights::Checkpoint;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The mixtures of experts whose checkpoints come in several layouts.
const MIXTURES: [&str; 4] = ["qwen3_moe", "qwen3_next", "qwen3_5_moe", "nemotron_h_moe"];

/// Logits of a prompt, then those of the draft head where there is one.
fn outputs(fixture: &Fixture, checkpoint: &Checkpoint) -> Vec<f32> {
    let mut runner = runner(&cpu(2, Instructions::detect()), checkpoint);
    let prompt = &fixture.prompts[1];
    let mut logits = prompt_logits(&mut runner, prompt, 256, 16);
    if runner.model().mtp.is_some() {
        let followers = &prompt[1..];
        step(&mut runner, Program::Draft, followers, 0, followers.len());
        logits.extend(runner.logits().unwrap());
    }
    logits
}

fn assert_unchanged(fixture: &Fixture, changed: &ModelFiles, what: &str) {
    let expected = outputs(fixture, &fixture.checkpoint());
    let found = outputs(fixture, &changed.checkpoint());
    assert_same_bits(&found, &expected, &format!("{}: {what}", fixture.name));
}

/// The layout of published Qwen3.5 checkpoints: a text model inside a multimodal one.
fn multimodal(model: &ModelFiles, class: &str, model_type: &str) -> ModelFiles {
    let mut text = model.config.clone();
    let fields = text.as_object_mut().unwrap();
    fields.remove("architectures");
    fields.remove("tie_word_embeddings");
    let mut tensors: BTreeMap<String, Stored> = BTreeMap::new();
    for (name, tensor) in &model.tensors {
        let nested = name.strip_prefix("model.");
        let name = nested.map_or_else(|| name.clone(), |rest| format!("model.language_model.{rest}"));
        tensors.insert(name, tensor.clone());
    }
    let patches = Stored::zeros("F32", 4, &[8, 3, 2, 2, 2]);
    tensors.insert("model.visual.patch_embed.proj.weight".to_owned(), patches);
    let table = Stored::zeros("I64", 8, &[16]);
    tensors.insert("model.visual.position_table".to_owned(), table);
    let config = json!({
        "architectures": [class],
        "model_type": model_type,
        "image_token_id": 17,
        "text_config": text,
        "vision_config": {"hidden_size": 8, "depth": 1},
    });
    ModelFiles { config, tensors }
}

fn set(fields: &mut Value, field: &str, value: Option<bool>) {
    if let Some(value) = value {
        fields[field] = json!(value);
    }
}

#[test]
fn a_text_model_inside_a_multimodal_one_is_the_same_model() {
    let cases = [
        ("qwen3_5", "Qwen3_5ForConditionalGeneration"),
        ("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration"),
    ];
    for (name, class) in cases {
        let fixture = Fixture::read(name);
        let nested = multimodal(&ModelFiles::of(&fixture), class, name);
        assert_unchanged(&fixture, &nested, "nested");
        let by_type = nested.without("architectures");
        assert_unchanged(&fixture, &by_type, "found by its model type");
    }
}

#[test]
fn the_flag_for_tied_embeddings_counts_at_either_level() {
    let tied = [(Some(true), None), (None, Some(true)), (Some(true), Some(true))];
    let untied = [
        (Some(false), None),
        (None, Some(false)),
        (Some(false), Some(false)),
    ];
    // Without a flag, and with two that contradict each other, the file decides.
    let open = [(None, None), (Some(true), Some(false)), (Some(false), Some(true))];
    for (name, given) in [("qwen3_5", tied), ("qwen3_5_moe", untied)] {
        let fixture = Fixture::read(name);
        for (inner, outer) in given.into_iter().chain(open) {
            let class = "unknown to the registry";
            let mut nested = multimodal(&ModelFiles::of(&fixture), class, name);
            set(&mut nested.config, "tie_word_embeddings", outer);
            set(&mut nested.config["text_config"], "tie_word_embeddings", inner);
            assert_unchanged(&fixture, &nested, &format!("{inner:?} inside, {outer:?} outside"));
        }
    }
}

#[test]
fn a_tied_model_ignores_an_output_matrix_in_the_file() {
    let fixture = Fixture::read("qwen3_5");
    let mut model = ModelFiles::of(&fixture);
    let shape = model.tensors["model.embed_tokens.weight"].shape.clone();
    model
        .tensors
        .insert("lm_head.weight".to_owned(), Stored::zeros("F32", 4, &shape));
    assert_unchanged(&fixture, &model, "with an output matrix of zeros");
}

#[test]
fn experts_one_by_one_and_in_stacks_are_the_same_experts() {
    for name in MIXTURES {
        let fixture = Fixture::read(name);
        let single = ModelFiles::of(&fixture).with_single_experts();
        let stacks = |model: &ModelFiles| {
            model
                .tensors
                .keys()
                .any(|name| name.ends_with("experts.down_proj"))
        };
        assert!(!stacks(&single), "{name}");
        assert_unchanged(&fixture, &single, "one by one");
        let stacked = single.with_stacked_experts();
        assert!(stacks(&stacked), "{name}");
        assert_unchanged(&fixture, &stacked, "in stacks");
    }
}

#[test]
fn small_tensors_may_be_stored_in_16_bits() {
    for name in ["qwen3_next", "qwen3_5", "qwen3_5_moe", "bamba"] {
        let fixture = Fixture::read(name);
        let mut wide = ModelFiles::of(&fixture);
        let mut narrow = wide.clone();
        let mut changed = 0;
        let is_small = |name: &str| {
            name.ends_with("A_log")
                || name.ends_with("linear_attn.norm.weight")
                || name.ends_with("dt_bias")
                || name.ends_with("conv1d.weight")
        };
        for (name, tensor) in wide.tensors.iter_mut().filter(|(name, _)| is_small(name)) {
            let rounded: Vec<bf16> = tensor.values().into_iter().map(bf16::from_f32).collect();
            let values: Vec<f32> = rounded.iter().map(|x| x.to_f32()).collect();
            *tensor = Stored::f32(&tensor.shape, &values);
            let stored = narrow.tensors.get_mut(name).unwrap();
            stored.dtype = "BF16".to_owned();
            stored.data = rounded.iter().flat_map(|x| x.to_le_bytes()).collect();
            changed += 1;
        }
        assert!(changed > 0, "{name}");
        let expected = outputs(&fixture, &wide.checkpoint());
        assert_same_bits(&outputs(&fixture, &narrow.checkpoint()), &expected, name);
    }
}

#[test]
fn a_sharded_checkpoint_is_the_same_model() {
    for name in ["llama", "qwen3_5"] {
        let fixture = Fixture::read(name);
        let model = ModelFiles::of(&fixture);
        let folder = tempfile::tempdir().unwrap();
        let mut shards = vec![BTreeMap::new(); 3];
        let mut weight_map = serde_json::Map::new();
        for (index, (name, tensor)) in model.tensors.into_iter().enumerate() {
            let shard = index % 3;
            weight_map.insert(name.clone(), json!(shard_name(shard)));
            shards[shard].insert(name, tensor);
        }
        for (index, tensors) in shards.iter().enumerate() {
            std::fs::write(folder.path().join(shard_name(index)), safetensors(tensors)).unwrap();
        }
        let write = |file: &str, value: &Value| {
            std::fs::write(folder.path().join(file), value.to_string()).unwrap();
        };
        write("config.json", &model.config);
        let index = json!({"metadata": {}, "weight_map": weight_map});
        write("model.safetensors.index.json", &index);
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let expected = outputs(&fixture, &fixture.checkpoint());
        assert_same_bits(&outputs(&fixture, &checkpoint), &expected, name);
    }
}

fn shard_name(index: usize) -> String {
    format!("model-{:05}-of-00003.safetensors", index + 1)
}

#[test]
fn a_checkpoint_may_leave_out_its_draft_head() {
    for name in ["qwen3_next", "qwen3_5", "qwen3_5_moe"] {
        let fixture = Fixture::read(name);
        let mut model = ModelFiles::of(&fixture).with("mtp_num_hidden_layers", json!(1));
        model.tensors.retain(|name, _| !name.starts_with("mtp."));
        let run = |checkpoint: &Checkpoint| {
            let mut runner = runner(&cpu(2, Instructions::detect()), checkpoint);
            let logits = prompt_logits(&mut runner, &fixture.prompts[1], 256, 16);
            (logits, runner.model().mtp.is_some())
        };
        let (expected, with_head) = run(&fixture.checkpoint());
        let (found, without_head) = run(&model.checkpoint());
        assert!(with_head && !without_head, "{name}");
        assert_same_bits(&found, &expected, name);
    }
}

#[test]
fn rope_fields_may_stand_at_the_top_level() {
    let fixture = Fixture::read("qwen3_5");
    let model = ModelFiles::of(&fixture)
        .with("rope_theta", json!(10_000_000.0))
        .with("partial_rotary_factor", json!(0.25))
        .without("rope_parameters");
    assert_unchanged(&fixture, &model, "older rope fields");
}
