//! GGUF files: the same model as the folder it was made from, with the tokenizer and template in its metadata.

use crate::common::served::Served;
use crate::common::{
    Copy, expect_usage_error, gguf, json_lines, paceline, repository, stderr, stdout, succeed,
};
use paceline_weights::gguf_writer::Meta;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;

#[test]
fn a_server_tells_the_type_that_the_file_has_for_people() {
    let folder = tempfile::tempdir().unwrap();
    // One that is not known, or no number, is as none.
    for (file_type, told) in [
        (Some(Meta::U32(15)), "Q4_K_M"),
        (Some(Meta::U32(9999)), "F32"),
        (Some(Meta::string("Q4_K_M")), "F32"),
        (None, "F32"),
    ] {
        let file = folder.path().join("model.gguf");
        let keys = file_type.map(|file_type| ("general.file_type".to_owned(), file_type));
        gguf::write_with(&file, keys);
        let served = Served::start(&[file.to_str().unwrap(), "--max-model-len", "64"]);
        let tags = served.get("/api/tags");
        assert_eq!(tags["models"][0]["details"]["quantization_level"], told);
    }
}

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

/// A model whose packed weights are kept in a folder of its own.
struct Packed {
    model: Copy,
    cache: tempfile::TempDir,
}

impl Packed {
    fn new() -> Self {
        Self {
            model: Copy::of("fixtures/qwen3"),
            cache: tempfile::tempdir().unwrap(),
        }
    }

    /// Runs a command that succeeds: what it wrote to standard output and to standard error.
    fn run(&self, arguments: &[&str]) -> (String, String) {
        let mut command = paceline();
        command.env("XDG_CACHE_HOME", self.cache.path()).args(arguments);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        (stdout(&output), stderr(&output))
    }

    /// Packs to the cache. Returns the file.
    fn pack(&self) -> PathBuf {
        let (path, _) = self.run(&["pack", self.model.path()]);
        let path = PathBuf::from(path.trim());
        assert!(path.starts_with(self.cache.path()), "{}", path.display());
        path
    }

    /// Greedy tokens, and what was told with them.
    fn generate(&self, more: &[&str]) -> (Value, String) {
        let how =
            "generate --json --temperature 0 --max-tokens 8 --ignore-eos --prompt-ids 97,98,99 --device cpu";
        let arguments: Vec<&str> = how.split(' ').chain(["--model", self.model.path()]).collect();
        let (answer, told) = self.run(&[&arguments[..], more].concat());
        let answer: Value = serde_json::from_str(&answer).unwrap();
        (answer["token_ids"].clone(), told)
    }
}

#[test]
fn packed_weights_are_written_once_and_mapped_from_then_on() {
    let packed = Packed::new();
    let expected = packed.generate(&[]).0;
    let path = packed.pack();
    assert_eq!(packed.generate(&[]), (expected.clone(), String::new()));

    // Weights of other inputs give other tokens, so these are what the engine computes with; other types do not look there.
    let whole = fs::read(&path).unwrap();
    fs::write(&path, with_other_inputs(whole.clone())).unwrap();
    assert_ne!(packed.generate(&[]).0, expected);
    assert_eq!(packed.generate(&["--dtype", "f32"]).1, "");

    let mut damaged = whole.clone();
    damaged[5000] ^= 1;
    for (bytes, why) in [(&whole[..whole.len() - 1], "cut off"), (&damaged[..], "damaged")] {
        fs::write(&path, bytes).unwrap();
        let (tokens, told) = packed.generate(&[]);
        assert_eq!(tokens, expected);
        assert!(told.contains(&format!("are not used: it is {why}")), "{told}");
    }
}

/// A file of packed weights as if they had been packed for other inputs.
fn with_other_inputs(mut file: Vec<u8>) -> Vec<u8> {
    let number = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let index = number(&file, 24);
    file[64..index].rotate_left(64);
    let (panels, entries) = file.split_at_mut(index);
    for entry in entries.chunks_exact_mut(56) {
        let start = number(entry, 32);
        let checksum = crc32fast::hash(&panels[start..start + number(entry, 40)]);
        entry[48..].copy_from_slice(&u64::from(checksum).to_le_bytes());
    }
    file
}

#[test]
fn packed_weights_beside_the_model_are_used_until_the_model_changes() {
    let packed = Packed::new();
    let expected = packed.generate(&[]).0;
    let beside = packed.model.file("paceline.pack");
    packed.run(&["pack", packed.model.path(), "-o", beside.to_str().unwrap()]);
    assert_eq!(packed.generate(&[]), (expected.clone(), String::new()));
    let weights = packed.model.file("model.safetensors");
    let weights = fs::File::options().append(true).open(weights).unwrap();
    weights.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let (tokens, told) = packed.generate(&[]);
    assert_eq!(tokens, expected);
    assert!(told.contains("it was made of other files"), "{told}");
}
