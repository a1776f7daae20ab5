//! GGUF files: the same model as the folder it was made from, with the tokenizer and template in its metadata.

#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

mod common;

use common::{Copy, expect_usage_error, gguf, json_lines, paceline, repository, stderr, stdout, succeed};
use serde_json::Value;
use std::fs;

#[test]
fn a_gguf_file_brings_model_tokenizer_and_template() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    gguf::write(&file);
    let file = file.to_str().unwrap();
    let original = repository("fixtures/qwen3");
    let generate = |model: &str, more: &[&str]| {
        let common = [
            "generate",
            "--json",
            "--temperature",
            "0",
            "--max-tokens",
            "12",
            "--model",
            model,
        ];
        json_lines(&[&common[..], more].concat()).remove(0)
    };
    let ids = ["--ignore-eos", "--prompt-ids", "97,98,99"];
    let expected = generate(original.to_str().unwrap(), &ids);
    assert_eq!(generate(file, &ids)["token_ids"], expected["token_ids"]);
    let text = generate(file, &["--ignore-eos", "--prompt", "abc"]);
    assert_eq!(
        (&text["token_ids"], &text["prompt_tokens"]),
        (&expected["token_ids"], &3.into())
    );
    let chat = generate(file, &["--ignore-eos", "--prompt", "abc", "--chat"]);
    assert_eq!(chat["prompt_tokens"], 5);

    let report: Value = serde_json::from_str(&succeed(&["inspect", "--json", file])).unwrap();
    assert_eq!(
        (&report["format"], &report["architecture"]),
        (&"gguf".into(), &"qwen3".into())
    );
    assert_eq!(report["tokenizer"]["kind"], "byte-level BPE (default)");
    assert_eq!(report["tokenizer"]["eos"]["id"], 2);
    assert_eq!(report["chat_template"]["mentions_tools"], false);
    assert_eq!(report["weights_bytes"], report["file_bytes"]);
}

#[test]
fn weights_are_quantised_while_they_are_loaded() {
    let model = repository("fixtures/qwen3");
    let generate = |more: &[&str]| {
        let common = [
            "generate",
            "--json",
            "--temperature",
            "0",
            "--max-tokens",
            "8",
            "--ignore-eos",
        ];
        let prompt = ["--prompt-ids", "97,98,99", "--model", model.to_str().unwrap()];
        json_lines(&[&common[..], &prompt, more].concat()).remove(0)
    };
    for bits in ["q8", "q4"] {
        let answer = generate(&["--quantize", bits]);
        assert_eq!(answer["token_ids"].as_array().unwrap().len(), 8, "{answer}");
    }
    let both = ["generate", "--prompt", "x", "--quantize", "q8", "--dtype", "f32"];
    expect_usage_error(&both, &["--quantize", "--dtype"]);
    expect_usage_error(
        &["generate", "--prompt", "x", "--quantize", "q5"],
        &["q5", "q8, q4"],
    );
}

#[test]
fn packed_weights_are_written_once_and_mapped_from_then_on() {
    let model = Copy::of("fixtures/qwen3");
    let cache = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let output = paceline()
            .env("XDG_CACHE_HOME", cache.path())
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        (stdout(&output), stderr(&output))
    };
    let generate = |more: &[&str]| {
        let common = [
            "generate",
            "--json",
            "--temperature",
            "0",
            "--max-tokens",
            "8",
            "--ignore-eos",
        ];
        let prompt = [
            "--prompt-ids",
            "97,98,99",
            "--device",
            "cpu",
            "--model",
            model.path(),
        ];
        let (answer, told) = run(&[&common[..], &prompt, more].concat());
        let answer: Value = serde_json::from_str(&answer).unwrap();
        (answer["token_ids"].clone(), told)
    };
    let expected = generate(&[]).0;

    let (path, _) = run(&["pack", model.path()]);
    let path = path.trim();
    assert!(path.starts_with(cache.path().to_str().unwrap()), "{path}");
    let (tokens, told) = generate(&[]);
    assert_eq!(tokens, expected);
    assert!(!told.contains("packed"), "{told}");

    // Weights of other inputs give other tokens, so these are what the engine computes with; other types do not look there.
    let whole = fs::read(path).unwrap();
    let index = u64::from_le_bytes(whole[24..32].try_into().unwrap()) as usize;
    let mut other = whole.clone();
    other[64..index].rotate_left(64);
    fs::write(path, &other).unwrap();
    assert_ne!(generate(&[]).0, expected);
    assert_eq!(generate(&["--dtype", "f32"]).1, "");

    fs::write(path, &whole[..whole.len() - 1]).unwrap();
    let (tokens, told) = generate(&[]);
    assert_eq!(tokens, expected);
    assert!(told.contains("are not used: it is cut off"), "{told}");

    // Beside the model, and of weights that were touched since.
    let beside = model.file("paceline.pack");
    fs::remove_file(path).unwrap();
    run(&["pack", model.path(), "-o", beside.to_str().unwrap()]);
    assert_eq!(generate(&[]), (expected.clone(), String::new()));
    let weights = fs::File::options()
        .append(true)
        .open(model.file("model.safetensors"))
        .unwrap();
    weights.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let (tokens, told) = generate(&[]);
    assert_eq!(tokens, expected);
    assert!(told.contains("it was made of other files"), "{told}");
}
