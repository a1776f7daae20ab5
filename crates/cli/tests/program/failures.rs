//! What goes wrong is told in one line that names the file, tensor or field, with the right exit code.

use crate::common::{Copy, check_failure, expect_failure, expect_usage_error, paceline, repository};
use serde_json::json;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::thread;

/// Generates a little with a model that is expected to be refused.
fn refused(model: &str, parts: &[&str]) {
    let arguments = [
        "generate",
        "--model",
        model,
        "--prompt-ids",
        "1,2",
        "--max-tokens",
        "2",
    ];
    expect_failure(&arguments, parts);
}

#[test]
fn an_unknown_path_is_named() {
    refused("./no/such/model", &["./no/such/model", "no such file"]);
    refused("model.gguf", &["model.gguf", "no such file"]);
    refused("no such thing", &["no such thing"]);
    expect_failure(&["inspect", "/nowhere/config.json"], &["/nowhere/config.json"]);
}

#[test]
fn a_model_that_cannot_be_fetched_is_named() {
    refused("org/name", &["org/name"]);
}

#[test]
fn an_empty_folder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    refused(
        folder.path().to_str().unwrap(),
        &[folder.path().to_str().unwrap(), "config.json"],
    );
}

#[test]
fn a_device_that_is_not_there_is_named_by_whoever_asked_for_it() {
    // More than any machine has, so that this holds with and without a driver.
    let missing = ["there is no cuda:99", "driver"];
    let generate = ["generate", "--prompt", "x", "--max-tokens", "1"];
    expect_failure(&[&generate[..], &["--device", "cuda:99"]].concat(), &missing);
    expect_failure(&["inspect", "--device", "cuda:99"], &missing);
    expect_failure(&["serve", "--port", "0", "--device", "cuda:99"], &missing);
    expect_usage_error(
        &[&generate[..], &["--device", "gpu"]].concat(),
        &["`gpu`", "cuda:N"],
    );
    let with_variable = |device: &str, arguments: &[&str]| {
        let command = [&generate[..], arguments].concat();
        paceline()
            .args(command)
            .env("PACELINE_DEVICE", device)
            .output()
            .unwrap()
    };
    check_failure(&with_variable("cuda:99", &[]), &missing);
    check_failure(&with_variable("gpu", &[]), &["PACELINE_DEVICE", "`gpu`"]);
    // What is typed counts.
    assert!(with_variable("cuda:99", &["--device", "cpu"]).status.success());
    let doctor = paceline()
        .arg("doctor")
        .env("PACELINE_DEVICE", "cuda:98")
        .output()
        .unwrap();
    let table = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(
        doctor.status.success() && table.contains("cuda:98") && table.contains("there is no cuda:98"),
        "{table}"
    );
}

#[test]
fn wrong_usage_gets_a_hint() {
    expect_usage_error(&["generate"], &["--prompt"]);
    expect_usage_error(&["generate", "Once upon a time"], &["behind '--prompt'"]);
    expect_usage_error(
        &["generate", "--prompt", "x", "--prompt-ids", "1"],
        &["--prompt-ids", "cannot be used with"],
    );
    expect_usage_error(
        &["generate", "--prompt", "x", "--prompts", "f"],
        &["--prompts", "cannot be used with"],
    );
    expect_usage_error(&["generate", "--prompt-ids", "1", "--chat"], &["--chat"]);
    expect_usage_error(&["generate", "--prompt", "x", "--system", "s"], &["--chat"]);
    for (flag, value) in [
        ("--max-tokens", "0"),
        ("--max-tokens", "many"),
        ("--temperature", "-1"),
        ("--temperature", "NaN"),
        ("--top-p", "0"),
        ("--top-p", "1.5"),
        ("--top-k", "-2"),
        ("--min-p", "2"),
        ("--seed", "x"),
        ("--logprobs", "21"),
        ("--threads", "0"),
        ("--dtype", "f8"),
        ("--n", "0"),
        ("--n", "129"),
        ("--pipeline-depth", "0"),
        ("--pipeline-depth", "5"),
        ("--max-num-seqs", "0"),
        ("--max-num-batched-tokens", "0"),
        ("--block-size", "0"),
        ("--num-blocks", "0"),
        ("--max-model-len", "1"),
        ("--memory-utilization", "0"),
        ("--memory-utilization", "1.5"),
        ("--repetition-penalty", "0"),
        ("--presence-penalty", "-3"),
        ("--frequency-penalty", "2.5"),
        ("--logit-bias", "42"),
        ("--logit-bias", "x:1"),
        ("--min-tokens", "-1"),
        ("--stop-token", "x"),
        ("--prompt-logprobs", "21"),
        ("--priority", "0.5"),
        ("--deadline-ms", "0"),
    ] {
        expect_usage_error(
            &["generate", "--prompt", "x", &format!("{flag}={value}")],
            &[flag, value],
        );
    }
    expect_usage_error(&["generate", "--prompt-ids", "1,x"], &["--prompt-ids", "`x`"]);
    expect_usage_error(&["bench", "ops", "--threads", "0"], &["--threads"]);
    expect_usage_error(&["bench", "ops", "--device", "gpu"], &["--device", "`gpu`"]);
    expect_usage_error(&["bench", "latency", "--batch-size", "1,0"], &["--batch-size"]);
    expect_usage_error(&["bench", "pipeline", "--depth", "5"], &["--depth"]);
    expect_usage_error(&["bench", "throughput", "--rate", "0"], &["--rate"]);
    expect_usage_error(
        &["bench", "throughput", "--rate", "1", "--concurrency", "1"],
        &["--rate", "--concurrency"],
    );
    expect_usage_error(&["inspect", "--draft-tokens", "3"], &["--memory"]);
    expect_usage_error(&["inspect", "--memory", "much"], &["--memory", "much"]);
    expect_usage_error(
        &["inspect", "--memory", "--draft-tokens", "16"],
        &["--draft-tokens", "15"],
    );
}

#[test]
fn a_prompt_the_model_cannot_take_is_refused() {
    let ids = |ids: &str, parts: &[&str]| expect_failure(&["generate", "--prompt-ids", ids], parts);
    ids("1,4096", &["4096", "4095"]);
    ids(&vec!["5"; 4096].join(","), &["4096 tokens"]);
    ids(&vec!["5"; 5000].join(","), &["5000 tokens", "4096"]);
    expect_failure(&["generate", "--prompt", ""], &["no tokens"]);
    expect_failure(&["generate", "--prompts", "/no/such.jsonl"], &["/no/such.jsonl"]);
}

#[test]
fn a_benchmark_that_cannot_run_is_refused() {
    expect_failure(
        &["bench", "latency", "--input-len", "4000", "--output-len", "97"],
        &["--input-len 4000", "--output-len 97", "4096"],
    );
    expect_failure(
        &["bench", "throughput", "--prompts", "/no/such.jsonl"],
        &["/no/such.jsonl"],
    );
    expect_failure(
        &["inspect", "--memory", "1M"],
        &["--memory-utilization", "--max-num-seqs"],
    );
}

#[test]
fn a_truncated_weight_file_is_named() {
    for keep in [0, 7, 100, 100_000] {
        let model = Copy::of("fixtures/llama");
        model.edit("model.safetensors", |bytes| bytes.truncate(keep));
        refused(model.path(), &["model.safetensors"]);
    }
}

#[test]
fn a_corrupted_tokenizer_is_named() {
    let model = Copy::of("assets/storyteller");
    model.edit("tokenizer.json", |bytes| bytes.truncate(bytes.len() / 2));
    refused(model.path(), &["tokenizer.json"]);
    let model = Copy::of("assets/storyteller");
    model.edit_json("tokenizer.json", |file| {
        file["model"]["merges"] = json!([["never", "seen"]]);
    });
    refused(model.path(), &["tokenizer.json", "merge"]);
}

#[test]
fn corrupted_configurations_are_named() {
    for file in ["config.json", "generation_config.json", "tokenizer_config.json"] {
        let model = Copy::of("assets/storyteller");
        model.edit(file, |bytes| bytes.truncate(bytes.len() / 2));
        refused(model.path(), &[file]);
    }
    let model = Copy::of("assets/storyteller");
    model.edit_json("generation_config.json", |file| file["top_p"] = json!("much"));
    refused(model.path(), &["generation_config.json", "`top_p`"]);
    let model = Copy::of("fixtures/llama");
    model.edit_json("config.json", |file| file["num_attention_heads"] = json!(0));
    refused(model.path(), &["num_attention_heads"]);
}

#[test]
fn a_damaged_chat_template_hinders_chats_only() {
    let model = Copy::of("assets/storyteller");
    model.edit_json("tokenizer_config.json", |file| {
        file["chat_template"] = json!("{% if %}");
    });
    let arguments = [
        "generate",
        "--model",
        model.path(),
        "--prompt",
        "x",
        "--max-tokens",
        "2",
    ];
    crate::common::succeed(&arguments);
    expect_failure(&[&arguments[..], &["--chat"]].concat(), &["chat template"]);
    model.edit_json("tokenizer_config.json", |file| {
        file["chat_template"] = json!(null);
    });
    expect_failure(
        &[&arguments[..], &["--chat"]].concat(),
        &["no chat template", "--chat"],
    );
}

#[test]
fn an_unknown_architecture_is_named() {
    let model = Copy::of("fixtures/llama");
    model.edit_json("config.json", |file| {
        file["architectures"] = json!(["SpamForCausalLM"]);
        file["model_type"] = json!("spam");
    });
    refused(model.path(), &["SpamForCausalLM", "LlamaForCausalLM"]);
}

#[test]
fn a_missing_tensor_is_named() {
    let model = Copy::of("fixtures/llama");
    model.edit_header(|header| {
        let tensor = header.remove("model.norm.weight").unwrap();
        header.insert("model.other.weight".to_owned(), tensor);
    });
    refused(model.path(), &[model.path(), "model.norm.weight", "missing"]);
}

#[test]
fn a_wrong_shape_is_named() {
    let model = Copy::of("fixtures/llama");
    let name = "model.layers.0.mlp.gate_proj.weight";
    model.edit_header(|header| header[name]["shape"].as_array_mut().unwrap().reverse());
    refused(model.path(), &[name, "[64, 160]", "[160, 64]"]);
    expect_failure(&["inspect", model.path()], &[name, "[64, 160]"]);
}

#[test]
fn values_that_are_not_finite_are_found() {
    for name in ["model.norm.weight", "model.layers.1.self_attn.q_proj.weight"] {
        for value in [f32::NAN, f32::INFINITY] {
            let model = Copy::of("fixtures/llama");
            model.set_first_element(name, value);
            refused(model.path(), &[name]);
        }
    }
}

#[test]
fn a_file_that_is_no_model_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    fs::write(&file, b"GGUF\x03\0\0\0").unwrap();
    refused(file.to_str().unwrap(), &["model.gguf", "truncated"]);
    let weights = repository("fixtures/llama/model.safetensors");
    refused(weights.to_str().unwrap(), &["model.safetensors"]);
}

#[test]
fn a_download_goes_through_the_proxy_of_the_environment() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = format!("http://{}", listener.local_addr().unwrap());
    let asked = thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(socket.try_clone().unwrap())
            .read_line(&mut line)
            .unwrap();
        let reply = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        socket.write_all(reply.as_bytes()).unwrap();
        line
    });
    let output = paceline()
        .args(["inspect", "org/name"])
        .env("HF_ENDPOINT", "http://hub.invalid")
        .env("HTTP_PROXY", &proxy)
        .env("http_proxy", &proxy)
        .env_remove("NO_PROXY")
        .env_remove("no_proxy")
        .env_remove("HF_HUB_OFFLINE")
        .output()
        .unwrap();
    check_failure(&output, &["org/name was not found on http://hub.invalid"]);
    let line = asked.join().unwrap();
    assert!(
        line.starts_with("GET http://hub.invalid/api/models/org/name"),
        "{line}"
    );
}
