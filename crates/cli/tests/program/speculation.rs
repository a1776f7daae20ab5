//! Speculation: it changes how many steps a text takes, and nothing else.

use crate::common::{
    Copy, check_failure, expect_failure, expect_usage_error, repository, run, run_with_input, stderr, stdout,
    succeed,
};
use serde_json::{Value, json};

/// A text that repeats itself, one that is sampled, and one with options that change from token to token.
fn lines() -> Vec<Value> {
    vec![
        json!({ "prompt": "One rainy day, Tom and his dog found a shiny key.", "temperature": 0 }),
        json!({ "prompt": "Once upon a time, there was a little fox who", "seed": 7, "temperature": 0.7 }),
        json!({ "prompt": "The bear", "seed": 8, "repetition_penalty": 1.3, "min_tokens": 9, "n": 2 }),
    ]
}

fn try_generate(lines: &[Value], more: &[&str]) -> std::process::Output {
    let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
    let input = lines.join("\n");
    let arguments = [
        &["generate", "--json", "--max-tokens", "40", "--prompts", "-"],
        more,
    ]
    .concat();
    run_with_input(&arguments, &input)
}

fn generate(lines: &[Value], more: &[&str]) -> Vec<Value> {
    let output = try_generate(lines, more);
    assert!(output.status.success(), "{more:?}: {}", stderr(&output));
    let objects = stdout(&output);
    objects
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn tokens(results: &[Value]) -> Vec<&Value> {
    results.iter().map(|result| &result["token_ids"]).collect()
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is not a number"))
}

/// Drafts of all continuations.
fn drafted(results: &[Value]) -> u64 {
    results
        .iter()
        .map(|result| number(&result["speculation"]["drafted"]))
        .sum()
}

#[test]
fn drafts_never_change_a_text() {
    let folder = Copy::of("assets/storyteller");
    let model = json!({ "model": folder.path(), "num_speculative_tokens": 2 }).to_string();
    let expected = generate(&lines(), &["--speculation", "off"]);
    assert_eq!(drafted(&expected), 0);
    let fixed = "--no-depth-control";
    for flags in [
        &["--speculation", "auto"][..],
        &["--speculation", "auto", fixed],
        &["--speculation", "ngram", fixed],
        &[
            "--speculation",
            "ngram",
            fixed,
            "--ngram-min",
            "1",
            "--ngram-max",
            "8",
        ],
        &[
            "--speculation",
            "mtp",
            fixed,
            "--draft-tokens",
            "15",
            "--pipeline-depth",
            "3",
        ],
        &["--speculation", "mtp", "--draft-tokens", "3"],
        &["--speculation", "chain", fixed],
        &["--speculation", "draft", "--draft-model", folder.path(), fixed],
        &["--speculation", "chain", "--draft-model", folder.path(), fixed],
        &["--draft-model", "storyteller", "--draft-tokens", "3"],
        &[
            "--speculative-config",
            r#"{"method": "ngram", "num_speculative_tokens": 4}"#,
            fixed,
        ],
        &["--speculative-config", r#"{"method": "qwen3_5_mtp"}"#, fixed],
        &["--speculative-config", &model, fixed],
    ] {
        let results = generate(&lines(), flags);
        assert_eq!(tokens(&results), tokens(&expected), "{flags:?}");
        if flags.contains(&fixed) {
            assert!(drafted(&results) > 0, "{flags:?}");
        }
    }
}

#[test]
fn an_eagle3_head_drafts_for_its_model() {
    let (model, head) = (repository("fixtures/qwen3"), repository("fixtures/eagle3"));
    let (model, head) = (model.to_str().unwrap(), head.to_str().unwrap());
    let lines = [json!({ "prompt_ids": [5, 6, 7, 8], "temperature": 0, "ignore_eos": true })];
    let expected = generate(&lines, &["--model", model, "--speculation", "off"]);
    let json = json!({ "model": head, "method": "eagle3" }).to_string();
    for flags in [
        &["--speculation", "eagle3", "--draft-model", head][..],
        &["--draft-model", head],
        &["--speculative-config", &json],
    ] {
        let flags = [&["--model", model, "--no-depth-control"], flags].concat();
        let results = generate(&lines, &flags);
        assert_eq!(tokens(&results), tokens(&expected), "{flags:?}");
        assert!(drafted(&results) > 0, "{flags:?}");
    }
}

#[test]
fn draft_weights_in_eight_bits_change_no_text() {
    let more = (0..6).map(|seed| json!({ "prompt": "The old man said", "seed": seed, "temperature": 0.9 }));
    let lines: Vec<Value> = lines().into_iter().chain(more).collect();
    let mtp = [
        "--speculation",
        "mtp",
        "--no-depth-control",
        "--draft-tokens",
        "3",
    ];
    let plain = generate(&lines, &["--speculation", "off"]);
    let stored = generate(&lines, &mtp);
    let rounded = generate(&lines, &[&mtp[..], &["--draft-weights", "fp8"]].concat());
    assert_eq!(tokens(&stored), tokens(&plain));
    assert_eq!(tokens(&rounded), tokens(&plain));
    let accepted = |results: &[Value]| -> Vec<Value> {
        let reports = results.iter().map(|result| &result["speculation"]);
        reports
            .map(|report| report["accepted_by_position"].clone())
            .collect()
    };
    let (stored, rounded) = (accepted(&stored), accepted(&rounded));
    assert_ne!(rounded, stored, "drafts come from other weights");
    assert_ne!(rounded, vec![json!([]); lines.len()], "drafts are good ones");
}

#[test]
fn a_report_counts_drafts_by_position() {
    let one = [lines()[0].clone()];
    let mtp = ["--speculation", "mtp", "--no-depth-control", "--draft-tokens"];
    for most in [1, 3] {
        let most_text = most.to_string();
        let results = generate(&one, &[&mtp[..], &[&most_text]].concat());
        let report = &results[0]["speculation"];
        let (steps, drafted) = (number(&report["steps"]), number(&report["drafted"]));
        let accepted = number(&report["accepted"]);
        let positions = report["accepted_by_position"].as_array().unwrap();
        assert!(
            positions.len() <= most && accepted > 0 && accepted <= drafted,
            "{report}"
        );
        assert_eq!(positions.iter().map(number).sum::<u64>(), accepted, "{report}");
        assert!(drafted <= steps * most as u64, "{report}");
        assert!(
            number(&report["wasted"]) >= drafted - accepted,
            "rejected drafts are wasted: {report}"
        );
        let length = report["mean_acceptance_length"].as_f64().unwrap();
        assert!((1.0..=1.0 + most as f64).contains(&length), "{report}");
        assert!(report["gained_ms"].is_number(), "{report}");
        // The first token comes with the prompt, every other one with a step.
        assert_eq!(steps + accepted + 1, 40, "{report}");
    }
    let off = generate(&one, &["--speculation", "off"]);
    assert_eq!(off[0]["speculation"]["drafted"], 0);
    assert_eq!(off[0]["speculation"]["accepted_by_position"], json!([]));
}

#[test]
fn fewer_drafts_are_fewer() {
    let most = |flags: &[&str]| {
        let results = generate(&lines()[..1], &[&["--no-depth-control"], flags].concat());
        let report = &results[0]["speculation"];
        report["accepted_by_position"].as_array().unwrap().len()
    };
    assert_eq!(most(&["--draft-tokens", "0"]), 0);
    assert!(most(&["--draft-tokens", "2"]) <= 2);
    assert!(most(&["--draft-tokens", "8"]) > 2);
    assert!(most(&["--speculative-config", r#"{"num_speculative_tokens": 2}"#]) <= 2);
}

#[test]
fn statistics_say_who_drafts_and_how_it_went() {
    let stats = |flags: &[&str]| {
        let prompt = ["generate", "--stats", "-t", "0", "--max-tokens", "40", "--prompt"];
        let output = run(&[&prompt[..], &["One rainy day, Tom and his dog found"], flags].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    let text = stats(&["--no-depth-control"]);
    for part in [
        "n-gram (2 to 5 tokens), then mtp; always up to",
        "accepted",
        "n-gram",
        "by place",
        "acceptance length",
        "drafting",
        "wasted",
        "gained",
        "tokens per step",
    ] {
        assert!(text.contains(part), "`{part}` is not in:\n{text}");
    }
    for (flags, part) in [
        (&["--speculation", "off"][..], "speculation    off"),
        (&["--speculation", "mtp"], "mtp; up to 7 drafts, as many as pay"),
        (
            &["--ngram-min", "3", "--ngram-max", "4", "--draft-tokens", "9"],
            "n-gram (3 to 4 tokens), then mtp; up to 9 drafts",
        ),
        (
            &["--speculation", "chain", "--draft-model", "storyteller"],
            "then draft",
        ),
        (
            &["--speculative-config", r#"{"model": "storyteller"}"#],
            "speculation    draft;",
        ),
        (
            &[
                "--speculative-config",
                r#"{"method": "ngram", "prompt_lookup_max": 3}"#,
            ],
            "n-gram (2 to 3 tokens); up to",
        ),
    ] {
        let text = stats(flags);
        assert!(text.contains(part), "{flags:?}: `{part}` is not in:\n{text}");
    }
    assert!(!stats(&["--speculation", "off"]).contains("tokens per step"));
}

#[test]
fn a_line_chooses_its_own_drafts() {
    let mut lines: Vec<Value> = (0..4).map(|_| lines()[0].clone()).collect();
    lines[1]["speculation"] = json!("off");
    lines[2]["speculation"] = json!({ "method": "mtp", "max_tokens": 1 });
    lines[3]["speculation"] = json!({ "max_tokens": 2 });
    let results = generate(&lines, &["--no-depth-control"]);
    let all = tokens(&results);
    assert!(all.iter().all(|tokens| *tokens == all[0]));
    let report = |index: usize| &results[index]["speculation"];
    assert!(number(&report(0)["accepted"]) > 0);
    assert_eq!(report(1)["drafted"], 0);
    for (index, most) in [(2, 1), (3, 2)] {
        let positions = report(index)["accepted_by_position"].as_array().unwrap();
        assert!(positions.len() <= most, "{}", report(index));
    }
    for (asked, parts) in [
        (json!({ "max_tokens": 9 }), ["line 1", "speculation.max_tokens"]),
        (json!("eagle3"), ["line 1", "speculation.method"]),
        (json!({ "method": 3 }), ["line 1", "`method`"]),
        (json!("medusa"), ["line 1", "`speculation`: medusa"]),
    ] {
        lines[0]["speculation"] = asked;
        check_failure(&try_generate(&lines, &["--draft-tokens", "3"]), &parts);
    }
}

#[test]
fn what_cannot_draft_is_refused_with_the_reason() {
    let fixture = |name: &str| {
        repository(&format!("fixtures/{name}"))
            .to_str()
            .unwrap()
            .to_owned()
    };
    let (llama, head) = (fixture("llama"), fixture("eagle3"));
    let ids = ["generate", "--prompt-ids", "1,2,3"];
    let of_llama = |more: &[&str]| [&ids[..], &["--model", &llama], more].concat().join("\n");
    for (flags, parts) in [
        (
            of_llama(&["--speculation", "mtp"]),
            &["--speculation is mtp", "no MTP head"][..],
        ),
        (
            of_llama(&["--speculation", "chain"]),
            &["--speculation is chain", "no draft model"],
        ),
        (
            of_llama(&["--speculation", "draft"]),
            &["--speculation is draft", "no draft model"],
        ),
        (
            of_llama(&["--speculation", "eagle3"]),
            &["--speculation is eagle3", "no EAGLE-3 head"],
        ),
        (
            of_llama(&["--speculation", "draft", "--draft-model", &head]),
            &["is an EAGLE-3 head"],
        ),
        (
            of_llama(&["--draft-model", "storyteller"]),
            &["--draft-model", "4096", "256", "same vocabulary"],
        ),
        (
            of_llama(&["--draft-model", "./nowhere"]),
            &["draft model", "./nowhere"],
        ),
        (
            of_llama(&["--ngram-min", "6", "--ngram-max", "4"]),
            &["--ngram-min is 6", "4"],
        ),
    ] {
        let arguments: Vec<&str> = flags.split('\n').collect();
        expect_failure(&arguments, parts);
    }
}

#[test]
fn flags_out_of_bounds_or_at_odds_are_wrong_usage() {
    let config = "--speculative-config";
    for (flags, parts) in [
        (
            &["--draft-tokens", "16"][..],
            &["--draft-tokens", "16", "0 to 15"][..],
        ),
        (&["--draft-tokens", "many"], &["many", "auto"]),
        (&["--ngram-max", "9"], &["--ngram-max", "1 to 8"]),
        (&["--ngram-min", "0"], &["--ngram-min", "1 to 8"]),
        (&["--speculation", "medusa"], &["medusa", "eagle3", "chain"]),
        (
            &["--speculation", "mtp", "--draft-model", "x"],
            &["--draft-model has no use"],
        ),
        (
            &["--speculation", "draft", "--draft-model", "x", "--ngram-max", "3"],
            &["--ngram-max has no use"],
        ),
        (&[config, "{"], &["not valid JSON"]),
        (&[config, r#"{"method": "eagle"}"#], &["only EAGLE-3"]),
        (
            &[config, r#"{"num_speculative_tokens": 99}"#],
            &["num_speculative_tokens", "99", "0 to 15"],
        ),
        (&[config, "{}", "--speculation", "mtp"], &["cannot be used with"]),
        (&[config, "{}", "--ngram-max", "3"], &["cannot be used with"]),
    ] {
        expect_usage_error(&[&["generate", "--prompt", "x"], flags].concat(), parts);
    }
}

#[test]
fn what_vllm_knows_and_we_do_not_is_said() {
    let json = r#"{"method": "ngram", "prompt_lookup_max": 12, "draft_tensor_parallel_size": 1}"#;
    let prompt = [
        "generate",
        "--prompt",
        "x",
        "--max-tokens",
        "2",
        "--speculative-config",
        json,
    ];
    let output = run(&prompt);
    let message = stderr(&output);
    assert!(output.status.success(), "{message}");
    for part in [
        "warning",
        "`draft_tensor_parallel_size`",
        "`prompt_lookup_max` is 12",
    ] {
        assert!(message.contains(part), "`{part}` is not in:\n{message}");
    }
    assert_eq!(stderr(&run(&[&prompt[..], &["--quiet"]].concat())), "");
}

#[test]
fn a_trace_shows_drafts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let flags = ["--no-depth-control", "--trace", file.to_str().unwrap()];
    generate(&lines()[..1], &flags);
    let trace: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let sum = |field: &str| {
        let steps = events
            .iter()
            .filter(|event| event["name"].as_str().unwrap().starts_with("step "));
        steps.map(|step| number(&step["args"][field])).sum::<u64>()
    };
    let (drafted, accepted) = (sum("drafted"), sum("accepted"));
    assert!(accepted > 0 && accepted <= drafted && sum("draft_ns") > 0);
    let drafts: Vec<&Value> = events.iter().filter(|event| event["name"] == "draft").collect();
    assert!(!drafts.is_empty());
    for draft in drafts {
        let name = format!("step {}", draft["args"]["step"]);
        let step = events.iter().find(|event| event["name"] == *name).unwrap();
        let range = |event: &Value| {
            let begin = event["ts"].as_f64().unwrap();
            (begin, begin + event["dur"].as_f64().unwrap())
        };
        let ((begin, end), (draft_begin, draft_end)) = (range(step), range(draft));
        assert!(
            begin <= draft_begin + 0.01 && draft_end <= end + 0.01,
            "{step} {draft}"
        );
    }
}

/// What an engine that has just told a story knows of it, one of the bench knows too, however small its cache.
#[test]
fn bench_speculation_asks_again_with_the_chat_in_the_cache() {
    let size = ["--requests", "6", "--output-len", "24", "--repeats", "1"];
    let small = [
        "--batch-size",
        "1",
        "--num-blocks",
        "12",
        "--max-model-len",
        "192",
    ];
    let cached = |workload: &str| {
        let what = ["bench", "speculation", "--json", "--workload", workload];
        let report: Value =
            serde_json::from_str(&succeed(&[&what[..], &size[..], &small[..]].concat())).unwrap();
        report["cases"][0]["cached_prompt_share"].as_f64().unwrap()
    };
    let (again, random) = (cached("again"), cached("random"));
    assert!(again > 0.5, "{again}");
    assert!(random < 0.01, "{random}");
}

#[test]
fn bench_speculation_measures_every_workload() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompts.jsonl");
    std::fs::write(
        &file,
        "{\"prompt\": \"The fox\", \"task\": 1}\n{\"prompt\": \"A bear\"}\n",
    )
    .unwrap();
    let size = ["--requests", "2", "--output-len", "12", "--repeats", "2"];
    let report = |more: &[&str]| {
        let arguments = [&["bench", "speculation", "--json"], &size[..], more].concat();
        serde_json::from_str::<Value>(&succeed(&arguments)).unwrap()
    };
    let fixed = ["--no-depth-control", "--draft-tokens", "3"];
    let all = report(&fixed);
    let names: Vec<_> = all["cases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|case| (case["workload"].as_str().unwrap(), number(&case["batch_size"])))
        .collect();
    let expected = [
        ("stories", 1),
        ("stories", 8),
        ("again", 1),
        ("again", 8),
        ("random", 1),
        ("random", 8),
    ];
    assert_eq!(names, expected);
    for case in all["cases"].as_array().unwrap() {
        assert!(
            case["off_tok_s"].as_f64().unwrap() > 0.0 && case["gain"].as_f64().unwrap() > 0.0,
            "{case}"
        );
        assert_eq!(case["gains"].as_array().unwrap().len(), 2, "{case}");
        assert!(number(&case["counts"]["drafted"]) > 0, "{case}");
        assert!(
            case["drafts"]["mean_acceptance_length"].as_f64().unwrap() >= 1.0,
            "{case}"
        );
        assert!(case["draft_time_share"].as_f64().unwrap() > 0.0, "{case}");
    }
    let of_file = report(&["--prompts", file.to_str().unwrap(), "--batch-size", "2"]);
    assert_eq!(of_file["cases"][0]["workload"], "file");
    let table = succeed(
        &[
            &["bench", "speculation", "--workload", "random"],
            &size[..],
            &fixed,
        ]
        .concat(),
    );
    assert!(
        table.contains("by position") && table.contains("random"),
        "{table}"
    );
    expect_failure(
        &["bench", "speculation", "--speculation", "off"],
        &["--speculation is off"],
    );
    expect_failure(
        &["bench", "speculation", "--workload", "file"],
        &["--workload file", "--prompts"],
    );
}

#[test]
fn bench_speculation_has_programs_to_write_and_to_change() {
    let size = [
        "--requests",
        "2",
        "--output-len",
        "12",
        "--repeats",
        "1",
        "--batch-size",
        "2",
    ];
    let arguments = [
        &["bench", "speculation", "--json", "--workload", "code,rename"],
        &size[..],
    ]
    .concat();
    let report: Value = serde_json::from_str(&succeed(&arguments)).unwrap();
    let cases = report["cases"].as_array().unwrap();
    assert_eq!([&cases[0]["workload"], &cases[1]["workload"]], ["code", "rename"]);
    for case in cases {
        assert!(
            case["off_tok_s"].as_f64().unwrap() > 0.0 && case["gain"].as_f64().unwrap() > 0.0,
            "{case}"
        );
    }
}
