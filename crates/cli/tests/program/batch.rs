//! Many prompts at once: whatever runs beside a request, its tokens are those it has alone.

use crate::common::{check_failure, json_lines, paceline, run, run_with_input, stderr, stdout, succeed};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

/// Lines that differ in length and in how they sample.
fn lines() -> Vec<Value> {
    vec![
        json!({ "prompt": "The fox", "temperature": 0 }),
        json!({ "prompt": "Once upon a time there was a small bear who", "seed": 11 }),
        json!({ "prompt": "The fox", "seed": 12, "top_k": 20, "max_tokens": 3 }),
        json!({ "prompt_ids": [443], "temperature": 0, "max_tokens": 1 }),
        json!({ "prompt": "A bird sang", "seed": 13, "temperature": 1.3, "repetition_penalty": 1.2 }),
        json!({ "prompt": "Once upon a time there was a small bear who", "temperature": 0 }),
    ]
}

fn input(lines: &[Value]) -> String {
    let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
    lines.join("\n") + "\n"
}

/// Runs lines as one batch and reads the objects.
fn batch(lines: &[Value], more: &[&str]) -> Vec<Value> {
    let arguments = [
        &["generate", "--json", "--max-tokens", "24", "--prompts", "-"],
        more,
    ]
    .concat();
    let output = run_with_input(&arguments, &input(lines));
    assert!(output.status.success(), "{}", stderr(&output));
    let objects = stdout(&output);
    objects
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn a_batch_gives_what_its_lines_give_alone() {
    let lines = lines();
    let alone: Vec<Value> = lines
        .iter()
        .map(|line| batch(std::slice::from_ref(line), &[]).remove(0))
        .collect();
    for depth in ["1", "4"] {
        for seqs in ["1", "16"] {
            let flags = ["--pipeline-depth", depth, "--max-num-seqs", seqs];
            let together = batch(&lines, &flags);
            assert_eq!(together.len(), lines.len());
            for (index, (result, alone)) in together.iter().zip(&alone).enumerate() {
                assert_eq!(result["index"], index);
                for field in ["token_ids", "text", "finish_reason", "prompt_tokens"] {
                    assert_eq!(result[field], alone[field], "line {index}, {field}, {flags:?}");
                }
            }
        }
    }
}

#[test]
fn more_lines_than_the_engine_queues_are_all_served() {
    let lines = vec![json!({ "prompt_ids": [443], "temperature": 0, "max_tokens": 1 }); 1100];
    let results = batch(&lines, &["--max-num-seqs", "16"]);
    assert_eq!(results.len(), 1100);
    assert!(
        results
            .iter()
            .enumerate()
            .all(|(index, result)| result["index"] == index)
    );
}

#[test]
fn continuations_of_one_prompt_come_in_order_and_differ() {
    let arguments = [
        "generate",
        "--prompt",
        "The fox",
        "--max-tokens",
        "20",
        "--seed",
        "7",
        "--json",
    ];
    let one = json_lines(&arguments);
    let three = json_lines(&[&arguments[..], &["--n", "3"]].concat());
    assert_eq!(three.len(), 3);
    for (choice, result) in three.iter().enumerate() {
        assert_eq!((&result["index"], &result["choice"]), (&0.into(), &choice.into()));
    }
    assert_eq!(three[0]["token_ids"], one[0]["token_ids"]);
    assert_ne!(three[1]["token_ids"], three[0]["token_ids"]);
    assert_ne!(three[1]["token_ids"], three[2]["token_ids"]);
    let output = run(&[&arguments[..7], &["--n", "2"]].concat());
    let notes = stderr(&output);
    assert!(
        notes.contains("[choice 1/2] The fox") && notes.contains("[choice 2/2] The fox"),
        "{notes}"
    );
}

#[test]
fn the_letter_for_continuations_is_the_word_for_them() {
    let prompt = [
        "generate",
        "--prompt",
        "Once",
        "--seed",
        "1",
        "--max-tokens",
        "3",
        "--json",
    ];
    let texts = |flag: &str| -> Vec<Value> {
        let lines = json_lines(&[&prompt[..], &[flag, "2"]].concat());
        lines
            .into_iter()
            .map(|mut line| line["token_ids"].take())
            .collect()
    };
    let short = texts("-n");
    assert_eq!(short.len(), 2);
    assert_eq!(short, texts("--n"));
    crate::common::expect_usage_error(&["chat", "-n", "2"], &["-n"]);
}

#[test]
fn siblings_stop_at_a_stop_string_each_for_itself() {
    let arguments = [
        "generate", "--prompt", "The fox", "--seed", "7", "--json", "--n", "3",
    ];
    let results = json_lines(&[&arguments[..], &["--stop", ".", "--max-tokens", "60"]].concat());
    assert_eq!(results.len(), 3);
    for result in &results {
        assert!(!result["text"].as_str().unwrap().contains('.'), "{result}");
    }
    assert!(results.iter().any(|result| result["finish_reason"] == "stop"));
}

#[test]
fn a_line_the_engine_refuses_is_named() {
    for (line, field) in [
        (
            json!({ "prompt": "x", "min_tokens": 9, "max_tokens": 3 }),
            "`min_tokens`",
        ),
        (json!({ "prompt": "x", "stop_token": 4096 }), "`stop_token`"),
        (
            json!({ "prompt": "x", "logit_bias": { "5000": 1 } }),
            "`logit_bias`",
        ),
        (json!({ "prompt": "" }), "no tokens"),
    ] {
        let lines = [json!({ "prompt": "x" }), line];
        let output = run_with_input(&["generate", "--prompts", "-"], &input(&lines));
        check_failure(&output, &["stdin, line 2", field]);
        assert_eq!(stdout(&output), "");
    }
    crate::common::expect_failure(
        &["generate", "--prompt", "x", "--stop-token", "9999"],
        &["--stop-token"],
    );
    crate::common::expect_failure(
        &["generate", "--prompt", "x", "--n", "3", "--max-num-seqs", "2"],
        &["--n is 3"],
    );
    crate::common::expect_failure(
        &["generate", "--prompt", "x", "--max-model-len", "9999"],
        &["--max-model-len", "4096"],
    );
    crate::common::expect_failure(
        &["generate", "--prompt", "x", "--num-blocks", "1"],
        &["--num-blocks", "--max-model-len"],
    );
}

#[test]
fn statistics_tell_memory_and_steps() {
    let output = run(&[
        "generate",
        "--prompt",
        "The fox",
        "--max-tokens",
        "8",
        "--ignore-eos",
        "--stats",
    ]);
    let notes = stderr(&output);
    for part in [
        "KV blocks",
        "states",
        "scratch",
        "1 request at a time",
        "steps",
        "(8 tokens, 1 request)",
        "device idle",
        "prefix cache",
        "preemptions    0",
    ] {
        assert!(notes.contains(part), "`{part}` is not in:\n{notes}");
    }
}

#[test]
fn a_trace_has_a_host_and_a_device_track() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let path = file.to_str().unwrap();
    succeed(&[
        "generate",
        "--prompt",
        "The fox",
        "--max-tokens",
        "8",
        "--ignore-eos",
        "--trace",
        path,
    ]);
    let trace: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for track in ["host", "device"] {
        let named = events
            .iter()
            .find(|event| event["args"]["name"] == track)
            .unwrap();
        let spans = events
            .iter()
            .filter(|event| event["ph"] == "X" && event["tid"] == named["tid"]);
        assert!(spans.count() >= 8, "{track}");
    }
    crate::common::expect_failure(
        &["generate", "--prompt", "x", "--trace", "/no/such/folder/t.json"],
        &["--trace", "/no/such/folder/t.json"],
    );
}

#[test]
fn shared_beginnings_are_computed_once() {
    let lines = vec![json!({ "prompt_ids": vec![443; 100], "temperature": 0, "max_tokens": 2 }); 2];
    let hits = |more: &[&str]| {
        let arguments = [
            &["generate", "--prompts", "-", "--stats", "--max-num-seqs", "1"],
            more,
        ]
        .concat();
        let notes = stderr(&run_with_input(&arguments, &input(&lines)));
        let line = notes.lines().find(|line| line.contains("prefix cache")).unwrap();
        line.split_whitespace().nth(2).unwrap().parse::<usize>().unwrap()
    };
    assert!(hits(&[]) >= 96);
    assert_eq!(hits(&["--no-prefix-caching"]), 0);
}

#[test]
fn a_deadline_ends_a_request_and_spares_the_others() {
    let lines = [
        json!({ "prompt": "The fox", "max_tokens": 3000, "ignore_eos": true, "deadline_ms": 1, "priority": 1 }),
        json!({ "prompt": "The fox", "max_tokens": 4, "ignore_eos": true }),
    ];
    let results = batch(&lines, &[]);
    assert_eq!(results[0]["finish_reason"], "deadline");
    assert_eq!(results[1]["finish_reason"], "length");
}

#[cfg(unix)]
#[test]
fn ctrl_c_prints_what_there_is_of_a_batch() {
    let mut child = paceline()
        .args(["generate", "--json", "--prompts", "-", "--ignore-eos"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = [
        json!({ "prompt": "The fox", "max_tokens": 2 }),
        json!({ "prompt": "The bear", "max_tokens": 4000 }),
        json!({ "prompt": "The bird", "max_tokens": 4000 }),
    ];
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), input(&lines).as_bytes()).unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut objects = String::new();
    reader.read_line(&mut objects).unwrap();
    let kill = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
    reader.read_to_string(&mut objects).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    let objects: Vec<Value> = objects
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let reasons: Vec<_> = objects.iter().map(|object| &object["finish_reason"]).collect();
    assert_eq!(reasons, ["length", "cancelled", "cancelled"]);
}
