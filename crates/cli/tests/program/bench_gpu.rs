//! What `benchmarks/gpu` needs of this program, without a GPU.

use crate::common::{repository, succeed};
use serde_json::{Value, json};
use std::process::Command;

/// The shape of Qwen3.5-4B with few and short rows.
fn small_shape() -> Value {
    let shape = std::fs::read_to_string(repository("benchmarks/configs/qwen3.5-4b.json")).unwrap();
    let mut shape: Value = serde_json::from_str(&shape).unwrap();
    let layers = json!(shape["layer_types"].as_array().unwrap()[..4]);
    let small = json!({
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 160, "head_dim": 32, "num_attention_heads": 4,
        "num_key_value_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "num_hidden_layers": 4, "layer_types": layers, "eos_token_id": 2
    });
    for (key, value) in small.as_object().unwrap() {
        shape[key] = value.clone();
    }
    shape
}

#[test]
fn a_made_up_checkpoint_is_one_that_can_be_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let (config, checkpoint) = (folder.path().join("shape.json"), folder.path().join("model"));
    std::fs::write(&config, small_shape().to_string()).unwrap();
    let made = Command::new(repository("benchmarks/gpu/checkpoint"))
        .args([&config, &checkpoint])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let said = String::from_utf8(made.stdout).unwrap();
    assert!(said.contains("70 tensors"), "{said}");
    let arguments = [
        "--device",
        "cpu",
        "--batch-size",
        "1",
        "--input-len",
        "8",
        "--output-len",
        "4",
        "--repeats",
        "1",
    ];
    let command = ["bench", "latency", "--json", "--speculation", "mtp", "--model"];
    let model = checkpoint.to_str().unwrap();
    let report: Value =
        serde_json::from_str(&succeed(&[&command[..], &[model], &arguments].concat())).unwrap();
    let rate = report["cases"][0]["decode_tok_s"].as_f64();
    assert!(rate.is_some_and(|rate| rate > 0.0), "{report}");
}

#[test]
fn parts_are_listed_with_their_limits() {
    let run = Command::new(repository("benchmarks/gpu/run"))
        .arg("--list")
        .output()
        .unwrap();
    let list = String::from_utf8(run.stdout).unwrap();
    let readme = std::fs::read_to_string(repository("benchmarks/gpu/README.md")).unwrap();
    assert!(run.status.success() && list.lines().count() > 10, "{list}");
    for line in list.lines() {
        let part = line.split_whitespace().next().unwrap();
        assert!(
            part == "doctor" || readme.contains(&format!("`{part}`")),
            "README.md does not say what {part} is"
        );
    }
}
