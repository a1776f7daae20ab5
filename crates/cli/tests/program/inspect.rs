//! `paceline inspect`, against figures worked out by hand.

use crate::common::{repository, succeed};
use serde_json::Value;

fn inspect(model: &str) -> Value {
    serde_json::from_str(&succeed(&["inspect", "--json", model])).unwrap()
}

fn config(name: &str) -> Value {
    let path = format!("{}/tests/data/configs/{name}.json", env!("CARGO_MANIFEST_DIR"));
    inspect(&path)
}

/// Keys and values per token, the draft head's, and the state per request: on the CPU four bytes each.
fn memory(report: &Value) -> [u64; 3] {
    [
        "kv_bytes_per_token",
        "draft_kv_bytes_per_token",
        "state_bytes_per_request",
    ]
    .map(|field| report["memory"][field].as_u64().unwrap())
}

/// A count in units, rounded.
fn rounded(count: &Value, unit: f64) -> u64 {
    (count.as_u64().unwrap() as f64 / unit).round() as u64
}

#[test]
fn qwen3_5_4b_is_measured_from_its_configuration() {
    let report = config("qwen3.5-4b");
    assert_eq!(
        memory(&report),
        [65_536, 8_192, 24 * 4 * (32 * 128 * 128 + 3 * 8192)]
    );
    assert_eq!(rounded(&report["parameters"]["model"], 1e6), 4_206);
    assert_eq!(rounded(&report["parameters"]["draft_head"], 1e6), 121);
    assert_eq!(
        (&report["layers"]["attention"], &report["layers"]["delta_net"]),
        (&8.into(), &24.into())
    );
    assert_eq!(
        (&report["format"], &report["draft_head"]),
        (&"config only".into(), &true.into())
    );
}

#[test]
fn qwen3_5_27b_is_measured_from_its_configuration() {
    let report = config("qwen3.5-27b");
    assert_eq!(
        memory(&report),
        [131_072, 8_192, 48 * 4 * (48 * 128 * 128 + 3 * 10_240)]
    );
    assert_eq!(rounded(&report["parameters"]["model"], 1e7), 2_690);
    assert_eq!(rounded(&report["parameters"]["draft_head"], 1e6), 425);
}

#[test]
fn qwen3_next_80b_is_measured_from_its_configuration() {
    let report = config("qwen3-next-80b-a3b");
    assert_eq!(
        memory(&report),
        [49_152, 4_096, 36 * 4 * (32 * 128 * 128 + 3 * 8192)]
    );
    assert_eq!(rounded(&report["parameters"]["model"], 1e7), 7_967);
    assert_eq!(rounded(&report["parameters"]["draft_head"], 1e7), 165);
    assert_eq!(
        (&report["experts"]["total"], &report["experts"]["per_token"]),
        (&512.into(), &10.into())
    );
}

#[test]
fn granite_4_h_small_is_measured_from_its_configuration() {
    let report = config("granite-4.0-h-small");
    assert_eq!(memory(&report), [32_768, 0, 36 * 4 * (128 * 64 * 128 + 3 * 8448)]);
    assert_eq!(
        (&report["layers"]["attention"], &report["layers"]["mamba2"]),
        (&4.into(), &36.into())
    );
}

#[test]
fn nemotron_h_8b_is_measured_from_its_configuration() {
    let report = config("nemotron-h-8b");
    assert_eq!(
        memory(&report),
        [32_768, 0, 24 * 4 * (128 * 64 * 128 + 3 * 10_240)]
    );
    assert_eq!(
        (&report["layers"]["mlp"], &report["layers"]["mamba2"]),
        (&24.into(), &24.into())
    );
}

#[test]
fn the_embedded_model_describes_itself() {
    let report: Value = serde_json::from_str(&succeed(&["inspect", "--json"])).unwrap();
    assert_eq!(report["architecture"], "qwen3_5");
    assert_eq!(
        (&report["layers"]["attention"], &report["layers"]["delta_net"]),
        (&2.into(), &6.into())
    );
    assert_eq!(
        (&report["vocabulary_size"], &report["context_length"]),
        (&4096.into(), &4096.into())
    );
    assert_eq!(rounded(&report["parameters"]["model"], 1e5), 91);
    assert_eq!(report["weights_bytes"], report["file_bytes"]);
    assert_eq!(report["tensor_types"][0]["dtype"], "BF16");
    assert_eq!(report["tokenizer"]["eos"]["text"], "<|im_end|>");
    assert_eq!(report["chat_template"]["mentions_tools"], false);
    let table = succeed(&["inspect"]);
    for part in [
        "qwen3_5",
        "6 Gated DeltaNet",
        "4,096 tokens",
        "<|im_end|> (2)",
        "draft head",
        "cpu: ",
        "F32 states and F32 windows",
    ] {
        assert!(table.contains(part), "`{part}` is not in:\n{table}");
    }
    assert!(!table.contains("bf16"), "what this device holds is F32:\n{table}");
}

/// What is said of a token is what the plan takes for it: 16 tokens' keys and values and their ids.
#[test]
fn figures_and_plan_are_of_the_same_device() {
    let report: Value = serde_json::from_str(&succeed(&[
        "inspect",
        "--json",
        "--memory",
        "8G",
        "--speculation",
        "off",
    ]))
    .unwrap();
    let (memory, plan) = (&report["memory"], &report["memory_plan"]);
    assert_eq!(report["device"]["name"], "cpu");
    assert_eq!(
        (&memory["kv_type"], &memory["state_type"]),
        (&plan["kv_type"], &plan["state_type"])
    );
    let number = |value: &Value| value.as_u64().unwrap();
    let token = number(&memory["kv_bytes_per_token"]) + 4;
    assert_eq!(number(&plan["kv"]), number(&plan["blocks"]) * 16 * token);
    assert_eq!(plan["state_per_request"], memory["state_bytes_per_request"]);
}

#[test]
fn weights_give_the_same_figures_as_the_configuration() {
    for family in [
        "llama",
        "qwen3_next",
        "granite_h",
        "nemotron_h",
        "falcon_h1",
        "bamba",
    ] {
        let folder = repository("fixtures").join(family);
        let with_weights = inspect(folder.to_str().unwrap());
        let from_config = inspect(folder.join("config.json").to_str().unwrap());
        assert_eq!(with_weights["format"], "safetensors");
        for field in ["architecture", "layers", "memory", "hidden_size", "experts"] {
            assert_eq!(with_weights[field], from_config[field], "{family}: {field}");
        }
        assert_eq!(
            with_weights["parameters"]["model"], from_config["parameters"]["model"],
            "{family}"
        );
    }
}

#[test]
fn a_folder_without_weights_will_do() {
    let model = crate::common::Copy::of("assets/storyteller");
    std::fs::remove_file(model.file("model.safetensors")).unwrap();
    let report = inspect(model.path());
    assert_eq!(
        (&report["format"], &report["file_bytes"]),
        (&"config only".into(), &Value::Null)
    );
    assert_eq!(report["tokenizer"]["vocabulary_size"], 4096);
}

/// The memory plan of an engine that verifies `drafts` draft tokens.
fn plan(model: &str, drafts: usize) -> Value {
    let drafts = drafts.to_string();
    let size = [
        "--memory",
        "512G",
        "--max-num-seqs",
        "16",
        "--max-model-len",
        "32768",
    ];
    let arguments = [
        &["inspect", model, "--json", "--draft-tokens", &drafts],
        &size[..],
    ]
    .concat();
    let mut report: Value = serde_json::from_str(&succeed(&arguments)).unwrap();
    report["memory_plan"].take()
}

#[test]
fn the_state_of_a_request_does_not_grow_with_the_drafts_it_verifies() {
    let model = format!(
        "{}/tests/data/configs/qwen3-next-80b-a3b.json",
        env!("CARGO_MANIFEST_DIR")
    );
    // 36 layers of f32: a state of 32 x 128 x 128 with 3 x 8192 convolution inputs before it. Since then there are 16
    // entries of 16 x 128 for keys and 32 x 129 for values and decays, and one input; per draft two more of both.
    let state = 36 * 4 * (32 * 128 * 128 + 3 * 8192);
    let (entry, input) = (16 * 128 + 32 * 129, 8192);
    let (since, draft) = (36 * 4 * (16 * entry + input), 36 * 4 * 2 * (entry + input));
    // If the head drafts, every token has keys and values of 2 x 256 for it, and every block a hidden state of 2048.
    // 16 requests of 4096 tokens.
    let (plain, blocks) = (3_221_487_616_u64, 4096);
    let with_head = plain + blocks * 4 * (16 * 2 * 2 * 256 + 2048);
    for (drafts, ring, rings, kv) in [
        (0, 15_409_152, 246_546_432, plain),
        (3, 27_823_104, 445_169_664, with_head),
        (7, 44_375_040, 710_000_640, with_head),
    ] {
        let plan = plan(&model, drafts);
        assert_eq!(plan["state_per_request"], state);
        assert_eq!(plan["states"], 1_264_582_656_u64);
        assert_eq!(plan["ring_per_request"], since + drafts * draft);
        assert_eq!(
            (&plan["ring_per_request"], &plan["rings"]),
            (&ring.into(), &rings.into())
        );
        assert_eq!(plan["weights"], 162_649_725_440_u64);
        assert_eq!(plan["kv"], kv);
        assert_eq!(plan["ngram_index"] != 0, drafts > 0);
        assert_eq!(plan["snapshots"], 15_174_991_872_u64);
        assert_eq!(
            (&plan["blocks"], &plan["full_length_requests"]),
            (&blocks.into(), &2.into())
        );
    }
    // A ring is small beside the state: a draft takes a nineteenth of it.
    assert!(19 * draft < state);
}

#[test]
fn a_memory_plan_is_a_table_for_people() {
    let table = succeed(&[
        "inspect",
        "--memory",
        "8G",
        "--max-num-seqs",
        "4",
        "--draft-tokens",
        "3",
    ]);
    for part in [
        "memory plan",
        "KV blocks",
        "rings",
        "4 requests at a time",
        "6.4 GiB",
    ] {
        assert!(table.contains(part), "`{part}` is not in:\n{table}");
    }
    assert!(!succeed(&["inspect"]).contains("memory plan"));
    assert!(succeed(&["inspect", "--memory"]).contains("16 requests at a time"));
}
