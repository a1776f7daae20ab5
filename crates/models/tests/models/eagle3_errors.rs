//! A head that is damaged, or made for another model, is refused with the file, the place and what was expected.

use crate::model_files::{ModelFiles, Stored, failure};
use paceline_device::Recorder;
use paceline_device_cpu::{Cpu, CpuOptions, Instructions};
use paceline_models::Eagle3;
use paceline_testkit::{Fixture, HEADS, HeadFixture, storyteller};
use paceline_weights::Checkpoint;
use proptest::prelude::*;
use serde_json::{Value, json};

fn head(name: &str) -> ModelFiles {
    ModelFiles::read(&HeadFixture::read(name).checkpoint())
}

/// The message that loading a head for a model gives.
fn refusal(target: &Checkpoint, head: &Checkpoint) -> String {
    let backend = Cpu::new(CpuOptions {
        threads: 1,
        instructions: Instructions::detect(),
    });
    let model = paceline_models::load(&backend, target, None, &|_| {}).unwrap();
    match Eagle3::load(&backend, head, &model, None, &|_| {}) {
        Ok(_) => panic!("the head loads"),
        Err(error) => error.to_string(),
    }
}

fn for_qwen3(head: &ModelFiles) -> String {
    refusal(&Fixture::read("qwen3").checkpoint(), &head.checkpoint())
}

fn assert_names(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

#[test]
fn a_head_cannot_run_as_a_model() {
    for name in HEADS {
        assert_names(
            &failure(&HeadFixture::read(name).checkpoint()),
            &["draft head", "EAGLE-3"],
        );
    }
    // The first heads were published under the name of their layers.
    let old = head("eagle3").with("architectures", json!(["LlamaForCausalLM"]));
    assert_names(&failure(&old.checkpoint()), &["draft head"]);
}

#[test]
fn a_model_is_no_head() {
    let target = Fixture::read("qwen3").checkpoint();
    let message = refusal(&target, &Fixture::read("llama").checkpoint());
    assert_names(&message, &["fixtures/llama", "architectures", "EAGLE-3"]);
}

#[test]
fn a_head_for_another_model_is_refused() {
    let checkpoint = HeadFixture::read("eagle3").checkpoint();
    let message = refusal(&storyteller(), &checkpoint);
    assert_names(&message, &["fixtures/eagle3", "vocab_size", "256", "4096"]);
    let wide = head("eagle3").with("target_hidden_size", json!(128));
    assert_names(&for_qwen3(&wide), &["target_hidden_size", "128", "64"]);
    let large = head("eagle3-narrow").with("draft_vocab_size", json!(300));
    assert_names(&for_qwen3(&large), &["draft_vocab_size", "300", "256"]);
}

#[test]
fn every_missing_tensor_and_every_other_shape_is_named() {
    for name in HEADS {
        let whole = head(name);
        let optional = |tensor: &str| {
            let named_by_presence = ["q_norm", "k_norm", "hidden_norm", "embed_tokens"];
            tensor == "t2d" || named_by_presence.iter().any(|part| tensor.contains(part))
        };
        for tensor in whole.tensors.keys().filter(|tensor| *tensor != "t2d") {
            let mut odd = whole.clone();
            odd.tensors
                .insert(tensor.clone(), Stored::zeros("F32", 4, &[3, 5]));
            assert_names(&for_qwen3(&odd), &[tensor, "[3, 5]"]);
            if !optional(tensor) {
                let mut less = whole.clone();
                less.tensors.remove(tensor);
                assert_names(&for_qwen3(&less), &[tensor, "missing", "expected shape"]);
            }
        }
    }
}

/// Embedding and output matrix may come from the model only if they fit.
#[test]
fn what_cannot_be_shared_must_be_there() {
    let mut narrow = head("eagle3-narrow");
    narrow.tensors.remove("embed_tokens.weight");
    assert_names(
        &for_qwen3(&narrow),
        &["embed_tokens.weight", "missing", "[256, 48]"],
    );
}

#[test]
fn the_vocabulary_of_a_head_leads_to_tokens_of_the_model() {
    let with = |offsets: &[i64]| {
        let mut head = head("eagle3-narrow");
        let mut all = vec![0_i64; 96];
        all[..offsets.len()].copy_from_slice(offsets);
        head.tensors.insert("d2t".to_owned(), Stored::i64(&all));
        for_qwen3(&head)
    };
    assert_names(&with(&[-1]), &["element 0", "d2t", "-1"]);
    assert_names(&with(&[0, 255]), &["element 1", "d2t", "255"]);
    assert_names(&with(&[5, 4]), &["element 1", "d2t", "of its own"]);
    assert_names(&with(&[0, i64::MAX]), &["element 1", "d2t"]);
    let mut floats = head("eagle3-narrow");
    floats
        .tensors
        .insert("d2t".to_owned(), Stored::zeros("F32", 4, &[96]));
    assert_names(&for_qwen3(&floats), &["d2t", "F32", "I64"]);
}

#[test]
fn the_layers_a_head_listens_to_must_be_there() {
    let layers = |value: Value| {
        let mut head = head("eagle3");
        head.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = value;
        for_qwen3(&head)
    };
    let field = "eagle_aux_hidden_state_layer_ids";
    assert_names(&layers(json!([0, 1, 3])), &[field, "layer 3", "2"]);
    assert_names(&layers(json!([])), &[field]);
    assert_names(&layers(json!(["1"])), &[field]);
    // The usual ones of a model of two layers would be 2, 1 and -1.
    assert_names(&layers(Value::Null), &[field, "2 layers"]);
    assert_names(&layers(json!([1, 2])), &["fc.weight", "[64, 128]", "[64, 192]"]);
}

#[test]
fn what_is_not_supported_is_refused() {
    let mut parallel = head("eagle3");
    let mask = Stored::zeros("F32", 4, &[1, 192]);
    parallel.tensors.insert("mask_hidden".to_owned(), mask);
    assert_names(&for_qwen3(&parallel), &["mask_hidden", "not supported"]);
    let mut blind = head("eagle3");
    blind.config["eagle_config"]["use_aux_hidden_state"] = json!(false);
    assert_names(&for_qwen3(&blind), &["use_aux_hidden_state", "not supported"]);
    let both = head("eagle3-narrow").with("fc_norm", json!(true));
    assert_names(&for_qwen3(&both), &["fc_norm", "norm_before_fc"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_configuration_makes_the_loader_panic(
        name in proptest::sample::select(HEADS.to_vec()),
        inner in any::<bool>(),
        place in any::<proptest::sample::Index>(),
        value in prop_oneof![
            Just(Value::Null),
            Just(json!([])),
            Just(json!({})),
            any::<bool>().prop_map(|flag| json!(flag)),
            any::<i64>().prop_map(|n| json!(n)),
            (0..25_u32).prop_map(|bits| json!(1_u64 << bits)),
            any::<f64>().prop_map(|x| json!(x)),
            Just(json!([0, 1 << 19])),
        ],
    ) {
        let mut damaged = head(name);
        let parts = damaged.config.as_object_mut().unwrap();
        let nested = ["eagle_config", "transformer_layer_config"];
        let part = nested.into_iter().find(|part| inner && parts.contains_key(*part));
        let fields = match part {
            Some(part) => parts[part].as_object_mut().unwrap(),
            None => parts,
        };
        let at = place.index(fields.len());
        *fields.iter_mut().nth(at).unwrap().1 = value;
        let recorder = Recorder::new();
        let target = Fixture::read("qwen3").checkpoint();
        let model = paceline_models::load(&recorder, &target, None, &|_| {}).unwrap();
        let _ = Eagle3::load(&recorder, &damaged.checkpoint(), &model, None, &|_| {});
    }
}
