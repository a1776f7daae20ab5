//! GGUF files: the same model as the folder it was made from, with the tokenizer and template in its metadata.

#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

mod common;

use common::{gguf, json_lines, repository, succeed};
use serde_json::Value;

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
