//! `paceline generate`, as users run it.

use crate::common::{
    check_failure, ids, json_lines, paceline, repository, run, run_with_input, stderr, stdout, succeed,
};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

const GREEDY: [&str; 5] = ["generate", "--temperature", "0", "--max-tokens", "16"];

fn greedy<'a>(more: &[&'a str]) -> Vec<&'a str> {
    GREEDY.iter().copied().chain(more.iter().copied()).collect()
}

#[test]
fn greedy_tokens_are_those_of_the_reference() {
    let file = fs::read(repository("assets/storyteller/reference.json")).unwrap();
    let reference: Value = serde_json::from_slice(&file).unwrap();
    for entry in reference.as_array().unwrap() {
        let prompt = ids(&entry["prompt_ids"])
            .iter()
            .map(u64::to_string)
            .collect::<Vec<_>>()
            .join(",");
        let expected = ids(&entry["greedy"]);
        let count = expected.len().to_string();
        let arguments = [
            "generate",
            "--json",
            "--temperature",
            "0",
            "--ignore-eos",
            "--max-tokens",
            &count,
            "--prompt-ids",
            &prompt,
        ];
        let result = &json_lines(&arguments)[0];
        assert_eq!(ids(&result["token_ids"]), expected, "{}", entry["prompt"]);
        assert_eq!(
            result["prompt_tokens"],
            entry["prompt_ids"].as_array().unwrap().len()
        );
    }
}

#[test]
fn a_text_prompt_gives_the_same_as_its_ids() {
    let file = fs::read(repository("assets/storyteller/reference.json")).unwrap();
    let reference: Value = serde_json::from_slice(&file).unwrap();
    let prompt = reference[0]["prompt"].as_str().unwrap();
    let result = &json_lines(&greedy(&["--json", "--prompt", prompt]))[0];
    assert_eq!(ids(&result["token_ids"]), ids(&reference[0]["greedy"])[..16]);
    let text = succeed(&greedy(&["--prompt", prompt]));
    assert_eq!(text.strip_suffix('\n'), result["text"].as_str());
}

#[test]
fn the_embedded_model_can_be_named_and_found_in_a_folder() {
    let folder = repository("assets/storyteller");
    let texts = [
        succeed(&greedy(&["--prompt", "The fox"])),
        succeed(&greedy(&["--prompt", "The fox", "--model", "storyteller"])),
        succeed(&greedy(&[
            "--prompt",
            "The fox",
            "--model",
            folder.to_str().unwrap(),
        ])),
        succeed(&greedy(&[
            "--prompt",
            "The fox",
            "--threads",
            "1",
            "--dtype",
            "f32",
        ])),
    ];
    assert!(texts[0].len() > 10);
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
}

#[test]
fn equal_seeds_give_equal_texts_and_other_seeds_others() {
    let with_seed = |seed| {
        succeed(&[
            "generate",
            "--prompt",
            "The fox",
            "--max-tokens",
            "40",
            "--seed",
            seed,
        ])
    };
    assert_eq!(with_seed("7"), with_seed("7"));
    assert_ne!(with_seed("7"), with_seed("8"));
}

#[test]
fn a_run_can_be_repeated_with_the_seed_it_tells() {
    let arguments = ["generate", "--prompt", "The fox", "--max-tokens", "20", "--json"];
    let first = &json_lines(&arguments)[0];
    let seed = first["seed"].as_u64().unwrap().to_string();
    let again = &json_lines(&[&arguments[..], &["--seed", &seed]].concat())[0];
    assert_eq!(first["token_ids"], again["token_ids"]);
    let output = run(&[
        "generate",
        "--prompt",
        "The fox",
        "--max-tokens",
        "3",
        "--seed",
        "41",
    ]);
    assert!(stderr(&output).contains("seed 41"), "{}", stderr(&output));
}

#[test]
fn the_closing_line_tells_the_speed_and_quiet_silences_it() {
    let output = run(&greedy(&["--prompt", "The fox"]));
    let closing = stderr(&output);
    assert_eq!(closing.lines().count(), 1, "{closing}");
    assert!(
        closing.contains("16 generated tokens") && closing.contains("tok/s"),
        "{closing}"
    );
    let output = run(&greedy(&["--prompt", "The fox", "-q"]));
    assert_eq!(stderr(&output), "");
    assert!(!stdout(&output).is_empty());
}

#[test]
fn json_has_every_field() {
    let result = &json_lines(&greedy(&["--prompt", "The fox", "--json"]))[0];
    assert_eq!(result["index"], 0);
    assert_eq!(result["finish_reason"], "length");
    assert_eq!(ids(&result["token_ids"]).len(), 16);
    assert!(result.get("logprobs").is_none());
    for field in ["load_ms", "ttft_ms", "decode_tok_s"] {
        assert!(result["timing"][field].as_f64().unwrap() > 0.0, "{field}");
    }
}

#[test]
fn logprobs_name_the_chosen_token_first_when_greedy() {
    let result = &json_lines(&greedy(&["--prompt", "The fox", "--json", "--logprobs", "3"]))[0];
    let logprobs = result["logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), 16);
    for (entry, id) in logprobs.iter().zip(ids(&result["token_ids"])) {
        assert_eq!(entry["token_id"], id);
        assert!(entry["token"].is_string() && entry["logprob"].as_f64().unwrap() <= 0.0);
        let top = entry["top"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        assert_eq!(
            (&top[0]["token_id"], &top[0]["logprob"]),
            (&entry["token_id"], &entry["logprob"])
        );
    }
    let output = run(&greedy(&["--prompt", "The fox", "--logprobs", "0"]));
    assert_eq!(stderr(&output).lines().count(), 17);
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let whole = succeed(&greedy(&["--prompt", "The fox"]));
    let words: Vec<_> = whole.split_whitespace().collect();
    let stop = words[3];
    let result = &json_lines(&greedy(&[
        "--prompt", "The fox", "--stop", stop, "--stop", "zzz", "--json",
    ]))[0];
    assert_eq!(result["finish_reason"], "stop");
    let text = result["text"].as_str().unwrap();
    assert_eq!(text, &whole[..whole.find(stop).unwrap()]);
    let printed = succeed(&greedy(&["--prompt", "The fox", "--stop", stop]));
    assert_eq!(printed.strip_suffix('\n'), Some(text));
}

#[test]
fn chat_applies_the_template() {
    let plain = &json_lines(&greedy(&["--prompt", "Tell me a story.", "--json"]))[0];
    let chat = &json_lines(&greedy(&["--prompt", "Tell me a story.", "--chat", "--json"]))[0];
    let system = [
        "--prompt",
        "Tell me a story.",
        "--chat",
        "--system",
        "Be kind.",
        "--json",
    ];
    let system = &json_lines(&greedy(&system))[0];
    let tokens = |result: &Value| result["prompt_tokens"].as_u64().unwrap();
    assert!(tokens(plain) < tokens(chat) && tokens(chat) < tokens(system));
    assert_ne!(plain["token_ids"], chat["token_ids"]);
    let by_hand = "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n";
    let by_hand = &json_lines(&greedy(&["--prompt", by_hand, "--json"]))[0];
    assert_eq!(by_hand["token_ids"], chat["token_ids"]);
}

#[test]
fn lines_of_a_file_may_differ_in_everything() {
    let lines = [
        json!({ "prompt": "The fox" }),
        json!({ "prompt_ids": [443, 441], "max_tokens": 3 }),
        json!({ "prompt": "The fox", "temperature": 1.0, "seed": 3, "logprobs": 1 }),
        json!({ "prompt": "Hello", "chat": true, "stop": ["."], "top_p": 0.5, "top_k": 2, "min_p": 0.1 }),
    ];
    let input = lines.map(|line| line.to_string()).join("\n\n");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompts.jsonl");
    fs::write(&file, &input).unwrap();
    let results = json_lines(&greedy(&["--json", "--prompts", file.to_str().unwrap()]));
    assert_eq!(results.len(), 4);
    for (index, result) in results.iter().enumerate() {
        assert_eq!(result["index"], index);
    }
    let alone = &json_lines(&greedy(&["--json", "--prompt", "The fox"]))[0];
    assert_eq!(results[0]["token_ids"], alone["token_ids"]);
    assert_eq!(ids(&results[1]["token_ids"]).len(), 3);
    assert_eq!(results[2]["seed"], 3);
    assert!(results[2]["logprobs"].is_array() && results[0].get("logprobs").is_none());
    let output = run_with_input(&greedy(&["--json", "--prompts", "-"]), &input);
    assert_eq!(stdout(&output).lines().count(), 4, "{}", stderr(&output));
}

#[test]
fn several_texts_get_headers_on_stderr() {
    let input = "{\"prompt\": \"The fox\"}\n{\"prompt\": \"The bear\"}\n";
    let output = run_with_input(&greedy(&["--prompts", "-"]), input);
    let notes = stderr(&output);
    assert!(
        notes.contains("[1/2] The fox") && notes.contains("[2/2] The bear"),
        "{notes}"
    );
    assert!(!stdout(&output).contains("[1/2]"));
}

#[test]
fn a_bad_line_is_named_before_anything_runs() {
    let good = "{\"prompt\": \"x\"}\n\n";
    for (line, field) in [
        ("{\"prompt\": \"x\", \"top_q\": 1}", "`top_q`"),
        ("{\"prompt\": 7}", "`prompt`"),
        ("{\"prompt\": \"x\", \"max_tokens\": \"many\"}", "`max_tokens`"),
        ("not json", "JSON"),
    ] {
        let output = run_with_input(&greedy(&["--prompts", "-"]), &format!("{good}{line}\n"));
        check_failure(&output, &["stdin, line 3", field]);
        assert_eq!(stdout(&output), "");
    }
    let output = run_with_input(&greedy(&["--prompts", "-"]), "\n");
    check_failure(&output, &["stdin", "no prompts"]);
}

#[test]
fn a_model_without_a_tokenizer_works_on_ids() {
    let folder = repository("fixtures/llama");
    let folder = folder.to_str().unwrap();
    let golden: Value =
        serde_json::from_slice(&fs::read(repository("fixtures/llama/golden.json")).unwrap()).unwrap();
    let expected = ids(&golden["greedy"][0])[..8]
        .iter()
        .map(u64::to_string)
        .collect::<Vec<_>>()
        .join(" ");
    let prompt = ids(&golden["prompts"][0])
        .iter()
        .map(u64::to_string)
        .collect::<Vec<_>>()
        .join(",");
    let arguments = [
        "generate",
        "--model",
        folder,
        "--prompt-ids",
        &prompt,
        "--temperature",
        "0",
        "--max-tokens",
        "8",
        "--ignore-eos",
    ];
    assert_eq!(succeed(&arguments).trim_end(), expected);
    let result = &json_lines(&[&arguments[..], &["--json"]].concat())[0];
    assert_eq!(result["text"], "");
    crate::common::expect_failure(
        &["generate", "--model", folder, "--prompt", "x"],
        &[folder, "no tokenizer", "--prompt-ids"],
    );
    let stop = ["generate", "--model", folder, "--prompt-ids", "1", "--stop", "x"];
    crate::common::expect_failure(&stop, &["no tokenizer", "stop"]);
}

#[cfg(unix)]
#[test]
fn a_reader_that_leaves_ends_the_run_quietly() {
    for arguments in [
        &[
            "generate",
            "--prompt",
            "The fox",
            "--max-tokens",
            "3000",
            "--ignore-eos",
        ][..],
        &["inspect", "--json"],
        &["completions", "bash"],
    ] {
        let mut child = paceline()
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0; 1];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            (output.status.code(), stderr(&output)),
            (Some(0), String::new()),
            "{arguments:?}"
        );
    }
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_the_text_and_says_so() {
    let mut child = paceline()
        .args([
            "generate",
            "--prompt",
            "The fox",
            "--max-tokens",
            "4000",
            "--ignore-eos",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    assert!(!reader.fill_buf().unwrap().is_empty());
    let kill = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(text.ends_with('\n') && text.len() > 1);
    assert!(stderr(&output).contains("cancelled"), "{}", stderr(&output));
}
