//! `paceline bench serve` against servers that do as they are told, and against our own.

use crate::common::scripted::{Answer, Scripted, Step};
use crate::common::served::Served;
use crate::common::{check_failure, expect_failure, expect_usage_error, paceline, run, stderr, stdout};
use serde_json::{Value, json};
use std::fs;
use std::process::{Command, Stdio};
use std::sync::{Arc, Barrier, Mutex};
use tempfile::TempDir;

/// Runs it without requests before the measurement and returns the table and the report.
fn bench(url: &str, arguments: &[&str]) -> (String, Value) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.json");
    let file = file.to_str().unwrap();
    let all = [
        &[
            "bench",
            "serve",
            "--base-url",
            url,
            "--warmup",
            "0",
            "--json",
            file,
        ],
        arguments,
    ]
    .concat();
    let output = run(&all);
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    (
        stdout(&output),
        serde_json::from_slice(&fs::read(file).unwrap()).unwrap(),
    )
}

/// Prompts in a file: nothing has to be asked of the server about its tokens.
fn prompts(folder: &TempDir, count: usize) -> String {
    let path = folder.path().join("prompts.txt");
    let lines: Vec<String> = (0..count).map(|index| format!("prompt {index}")).collect();
    fs::write(&path, lines.join("\n")).unwrap();
    path.to_str().unwrap().to_owned()
}

fn answer(tokens: Option<u64>) -> Answer {
    Answer::Stream(vec![Step::Text("one"), Step::Text(" two"), Step::End { tokens }])
}

#[test]
fn waits_of_the_server_are_found_where_they_were() {
    let server = Scripted::start(|number, _| {
        // Far longer than a busy machine keeps a client from reading.
        let stall = if number == 2 { 3000 } else { 0 };
        Answer::Stream(vec![
            Step::Event(json!({ "choices": [{ "delta": { "role": "assistant", "content": "" } }] })),
            Step::Wait(60),
            Step::Text("one"),
            Step::Wait(20 + stall),
            Step::Text(" two three"),
            Step::Wait(30),
            Step::Text(" four"),
            Step::End { tokens: Some(4) },
        ])
    });
    let folder = tempfile::tempdir().unwrap();
    let file = prompts(&folder, 4);
    let (table, report) = bench(&server.url, &["--prompts", &file, "--concurrency", "1"]);
    let figures = &report["figures"];
    for (index, request) in report["requests"].as_array().unwrap().iter().enumerate() {
        let ms = |name: &str| request[name].as_f64().unwrap();
        let (first, decoding, stall) = (ms("ttft_ms"), ms("tpot_ms") * 3.0, ms("stall_ms"));
        // A piece may be read later than it was sent, which shortens the wait behind it; none is read before it was sent.
        let waits = if index == 2 { 3110.0 } else { 110.0 };
        assert!(first >= 60.0 && first + decoding >= waits, "{request}");
        assert!(ms("e2e_ms") >= first + decoding - 1e-3, "{request}");
        // The longer of two waits.
        assert!(
            stall <= decoding + 1e-3 && stall * 2.0 >= decoding - 1e-3,
            "{request}"
        );
    }
    let ms = |name: &str, column: &str| figures[name][column].as_f64().unwrap();
    assert!(ms("ttft_ms", "p50") >= 60.0 && ms("e2e_ms", "p50") >= 110.0);
    assert!(ms("e2e_ms", "max") >= 3110.0 && ms("ttft_ms", "max") < ms("e2e_ms", "max"));
    let worst = figures["worst_stall"]["ms"].as_f64().unwrap();
    assert!(
        worst >= 1500.0 && (worst - ms("chunk_gap_ms", "max")).abs() < 1e-3,
        "{figures}"
    );
    assert_eq!(figures["worst_stall"]["request"], 2);
    assert_eq!(
        (&figures["completed"], &figures["output_tokens"]),
        (&json!(4), &json!(16))
    );
    assert_eq!(figures["tokens_from"], "usage");
    assert_eq!(report["requests"][1]["chunks"], 3);
    assert_eq!(report["server"]["owner"], "a test");
    for part in [
        "TTFT",
        "worst stall",
        "4 completed, 0 failed",
        "counted by the server",
        "1.33 per chunk",
    ] {
        assert!(table.contains(part), "`{part}` is not in:\n{table}");
    }
}

#[test]
fn failures_are_counted_by_their_kind_and_do_not_end_the_run() {
    let server = Scripted::start(|number, _| match number {
        0 => Answer::Refuse(429, "too many requests"),
        1 => Answer::Refuse(500, "out of order"),
        2 => Answer::Stream(vec![Step::Text("half")]),
        3 => Answer::Stream(vec![
            Step::Text("half"),
            Step::Event(json!({ "error": { "message": "lost" } })),
        ]),
        4 => Answer::Stream(vec![Step::Text("half"), Step::Hang]),
        5 => Answer::Stream(vec![
            Step::Event(json!("not a chunk")),
            Step::End { tokens: Some(0) },
        ]),
        _ => answer(Some(2)),
    });
    let folder = tempfile::tempdir().unwrap();
    let file = prompts(&folder, 8);
    let arguments = [
        "--prompts",
        &file,
        "--concurrency",
        "1",
        "--timeout",
        "3",
        "--slo",
        "e2e:60000",
    ];
    let (table, report) = bench(&server.url, &arguments);
    let figures = &report["figures"];
    assert_eq!(
        (&figures["requests"], &figures["failed"]),
        (&json!(8), &json!(5)),
        "{table}"
    );
    for (kind, message) in [
        ("HTTP 429", "too many requests"),
        ("HTTP 500", "out of order"),
        ("broken stream", "without a finish reason"),
        ("failed stream", "lost"),
        ("timeout", "no end after 3 s"),
    ] {
        assert_eq!(figures["errors"][kind]["count"], 1, "{kind}: {table}");
        let first = figures["errors"][kind]["first"].as_str().unwrap();
        assert!(first.contains(message), "{first}");
        assert!(table.contains(kind), "{table}");
    }
    // Three of eight are complete, and those are good.
    assert_eq!(
        (&figures["goodput"]["met"], &figures["goodput"]["share"]),
        (&json!(3), &json!(0.375))
    );
}

#[test]
fn a_server_that_does_not_count_is_named_as_such() {
    let server = Scripted::start(|_, _| answer(None));
    let (table, report) = bench(&server.url, &["--num-prompts", "3", "--endpoint", "completions"]);
    assert_eq!(report["figures"]["tokens_from"], "chunks");
    assert_eq!(report["figures"]["output_tokens"], 6);
    assert!(table.contains("the server does not count"), "{table}");
}

#[test]
fn an_open_loop_does_not_wait_for_answers() {
    // No request is answered before all are there: a client that waits for an answer before it asks again never gets one.
    let all = Arc::new(Barrier::new(6));
    let server = Scripted::start(move |_, _| {
        all.wait();
        answer(Some(2))
    });
    let folder = tempfile::tempdir().unwrap();
    let file = prompts(&folder, 6);
    for rate in ["200", "inf"] {
        let (_, report) = bench(
            &server.url,
            &["--prompts", &file, "--request-rate", rate, "--timeout", "60"],
        );
        assert_eq!(report["figures"]["completed"], 6, "{rate}");
    }
    assert_eq!(server.most(), 6);
}

#[test]
fn a_closed_loop_keeps_to_its_number() {
    let server = Scripted::start(|_, _| {
        Answer::Stream(vec![
            Step::Text("one"),
            Step::Wait(5),
            Step::End { tokens: Some(1) },
        ])
    });
    let folder = tempfile::tempdir().unwrap();
    let file = prompts(&folder, 4);
    let (_, report) = bench(
        &server.url,
        &["--prompts", &file, "--concurrency", "3", "--num-prompts", "20"],
    );
    assert_eq!(report["figures"]["completed"], 20);
    assert_eq!(server.most(), 3);
    // The same as the most of an open loop.
    let (_, report) = bench(
        &server.url,
        &[
            "--prompts",
            &file,
            "--concurrency",
            "2",
            "--request-rate",
            "inf",
            "--num-prompts",
            "9",
        ],
    );
    assert_eq!(
        (
            &report["figures"]["completed"],
            &report["figures"]["concurrency_max"]
        ),
        (&json!(9), &json!(9))
    );
    assert_eq!(server.most(), 3);
}

#[test]
fn a_time_limit_ends_a_run_without_a_number() {
    let server = Scripted::start(|_, _| answer(Some(2)));
    let folder = tempfile::tempdir().unwrap();
    let file = prompts(&folder, 1);
    let (table, report) = bench(
        &server.url,
        &["--prompts", &file, "--duration", "0.3", "--concurrency", "2"],
    );
    assert!(report["figures"]["completed"].as_u64().unwrap() > 1, "{table}");
    assert_eq!(report["figures"]["cancelled"], 0);
}

#[test]
fn an_interrupted_run_reports_what_there_is() {
    let (asked, heard) = std::sync::mpsc::channel();
    let server = Scripted::start(move |number, _| {
        if number < 2 {
            return answer(Some(2));
        }
        asked.send(()).unwrap();
        Answer::Stream(vec![Step::Text("one"), Step::Hang])
    });
    let folder = tempfile::tempdir().unwrap();
    let file = prompts(&folder, 3);
    let child = paceline()
        .args([
            "bench",
            "serve",
            "--base-url",
            &server.url,
            "--warmup",
            "0",
            "--prompts",
            &file,
        ])
        .args(["--concurrency", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    heard.recv().unwrap();
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-s", "INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let table = stdout(&output);
    assert!(table.contains("2 completed, 0 failed, 1 cut off"), "{table}");
    assert!(table.contains("ended early"), "{table}");
}

#[test]
fn what_is_sent_is_what_was_asked_for() {
    let server = Scripted::start(|number, body| {
        assert_eq!(
            (&body["stream"], &body["temperature"]),
            (&json!(true), &json!(0.5))
        );
        assert_eq!((&body["ignore_eos"], &body["top_p"]), (&json!(true), &json!(0.9)));
        assert_eq!(
            (&body["model"], body.get("stream_options")),
            (&json!("scripted"), None)
        );
        let (most, content) = match number {
            0 => (7, "a"),
            _ => (5, "b"),
        };
        assert_eq!(
            (&body["max_tokens"], &body["messages"][0]["content"]),
            (&json!(most), &json!(content))
        );
        answer(None)
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompts.jsonl");
    fs::write(&file, "{\"prompt\": \"a\", \"max_tokens\": 7}\n\n{\"messages\": [{\"role\": \"user\", \"content\": \"b\"}]}\n")
        .unwrap();
    let body = r#"{"top_p": 0.9, "stream_options": null}"#;
    let arguments = [
        "--prompts",
        file.to_str().unwrap(),
        "--concurrency",
        "1",
        "--output-len",
        "5",
        "--temperature",
        "0.5",
        "--ignore-eos",
        "--extra-body",
        body,
    ];
    // A script that is not content ends its connection, which would be a failure here.
    let (table, report) = bench(&server.url, &arguments);
    assert_eq!(report["figures"]["completed"], 2, "{table}");
}

/// The prompts of a run of four requests, in order of their numbers, and its report.
fn prompts_of_run(arguments: &[&str]) -> (Vec<String>, Value) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&asked);
    let server = Scripted::start(move |_, body| {
        heard
            .lock()
            .unwrap()
            .push(body["prompt"].as_str().unwrap().to_owned());
        answer(Some(2))
    });
    let fixed = [
        "--endpoint",
        "completions",
        "--num-prompts",
        "4",
        "--concurrency",
        "1",
    ];
    let (table, report) = bench(&server.url, &[&fixed, arguments].concat());
    let seed = report["seed"].as_u64().unwrap();
    assert!(table.contains(&format!("seed {seed}")), "{table}");
    let asked = asked.lock().unwrap().clone();
    (asked, report)
}

#[test]
fn a_second_run_asks_for_other_texts_unless_it_has_the_seed_of_the_first() {
    let (first, report) = prompts_of_run(&[]);
    let (second, _) = prompts_of_run(&[]);
    assert_eq!((first.len(), second.len()), (6, 6));
    // The server's prefix cache would answer a start that it has seen.
    for prompt in &second {
        assert!(!first.contains(prompt), "asked again: {prompt}");
    }
    let seed = report["seed"].to_string();
    let (again, report) = prompts_of_run(&["--seed", &seed]);
    assert_eq!(again, first);
    assert_eq!(report["seed"].to_string(), seed);
}

#[test]
fn our_own_server_is_measured_through_both_endpoints() {
    let server = Served::start(&["--max-model-len", "512"]);
    let folder = tempfile::tempdir().unwrap();
    let (first, page) = (folder.path().join("first.json"), folder.path().join("page.html"));
    let (first, page) = (first.to_str().unwrap(), page.to_str().unwrap());
    let common = [
        "bench",
        "serve",
        "--base-url",
        &server.url,
        "--num-prompts",
        "8",
        "--concurrency",
        "4",
    ];
    let lengths = ["--input-len", "60", "--output-len", "12", "--ignore-eos"];
    let output = run(&[
        &common[..],
        &lengths,
        &["--endpoint", "completions", "--json", first],
    ]
    .concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&fs::read(first).unwrap()).unwrap();
    let figures = &report["figures"];
    assert_eq!(
        (&figures["completed"], &figures["output_tokens"]),
        (&json!(8), &json!(96))
    );
    let mean = figures["prompt_tokens"].as_f64().unwrap() / 8.0;
    assert!((40.0..80.0).contains(&mean), "prompts have {mean} tokens");
    assert_eq!(report["server"]["owner"], "paceline");

    let chat = [
        "--compare",
        first,
        "--html",
        page,
        "--token-ids",
        "--slo",
        "e2e:600000",
    ];
    let output = run(&[&common[..], &lengths, &chat].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let table = stdout(&output);
    for part in [
        "8 completed",
        "against",
        "ratio",
        "100.0 % of the requests keep e2e:600000",
    ] {
        assert!(table.contains(part), "`{part}` is not in:\n{table}");
    }
    check_page(
        page,
        &[
            "storyteller under load",
            "8 / 8",
            "first.json",
            "this / other",
            "Time between tokens",
        ],
    );
}

#[test]
fn what_a_server_says_stays_text_on_the_page() {
    let server = Scripted::start(|number, _| match number {
        0 => Answer::Refuse(500, "</script><script>throw new Error('<b>')</script>"),
        _ => answer(Some(2)),
    });
    let folder = tempfile::tempdir().unwrap();
    let file = prompts(&folder, 2);
    let page = folder.path().join("page.html");
    let page = page.to_str().unwrap();
    bench(
        &server.url,
        &["--prompts", &file, "--concurrency", "1", "--html", page],
    );
    let text = fs::read_to_string(page).unwrap();
    assert_eq!(text.matches("</script>").count(), 2);
    check_page(page, &["1 × HTTP 500", "throw new Error('<b>')"]);
}

/// Runs the page's script and looks for words among what it shows.
fn check_page(page: &str, words: &[&str]) {
    let script = crate::common::repository("crates/cli/tests/data/page.mjs");
    let output = Command::new("node").arg(script).arg(page).output();
    let output = output.expect("node runs the page's script");
    assert!(output.status.success(), "{}", stderr(&output));
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown["plots"], 8);
    assert!(shown["shapes"].as_u64().unwrap() > 50);
    let text = shown["text"].as_str().unwrap();
    for word in words {
        assert!(text.contains(word), "`{word}` is not on the page:\n{text}");
    }
    for wrong in ["NaN", "undefined", "Infinity", "[object"] {
        assert!(!text.contains(wrong), "`{wrong}` is on the page:\n{text}");
        assert!(
            !shown["attributes"].as_str().unwrap().contains(wrong),
            "`{wrong}` is in a plot"
        );
    }
}

#[test]
fn who_stops_reading_the_table_has_the_files_all_the_same() {
    let server = Scripted::start(|_, _| answer(Some(2)));
    let folder = tempfile::tempdir().unwrap();
    let file = prompts(&folder, 2);
    let page = folder.path().join("page.html");
    let mut child = paceline()
        .args(["bench", "serve", "--base-url", &server.url, "--prompts", &file])
        .arg("--html")
        .arg(&page)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(fs::read_to_string(page).unwrap().ends_with("</html>\n"));
}

#[test]
fn a_run_without_an_answer_is_a_failure() {
    let server = Scripted::start(|_, _| Answer::Refuse(503, "draining"));
    let folder = tempfile::tempdir().unwrap();
    let file = prompts(&folder, 2);
    let arguments = ["bench", "serve", "--base-url", &server.url, "--prompts", &file];
    let output = run(&[&arguments[..], &["--warmup", "0"]].concat());
    check_failure(&output, &["no request got its answer", "HTTP 503", "draining"]);
    // With requests before the measurement it is known before it.
    expect_failure(&arguments, &["the first request", "503", "draining"]);
}

#[test]
fn a_server_that_is_not_there_is_told_with_what_to_do() {
    // Nobody listens there: port 9 is for throwing things away.
    expect_failure(
        &["bench", "serve", "--base-url", "http://127.0.0.1:9"],
        &[
            "cannot connect to http://127.0.0.1:9",
            "paceline serve",
            "--base-url",
        ],
    );
    expect_failure(&["bench", "serve", "--base-url", "localhost:8000"], &["http://"]);
}

#[test]
fn a_key_is_sent_and_asked_for() {
    let server = Served::start(&["--api-key", "open sesame"]);
    let arguments = [
        "bench",
        "serve",
        "--base-url",
        &server.url,
        "--num-prompts",
        "1",
        "--output-len",
        "2",
    ];
    expect_failure(&arguments, &["401", "--api-key"]);
    let (_, report) = bench(
        &server.url,
        &[
            "--num-prompts",
            "1",
            "--output-len",
            "2",
            "--api-key",
            "open sesame",
        ],
    );
    assert_eq!(report["figures"]["completed"], 1);
    assert!(!report.to_string().contains("sesame"));
}

#[test]
fn wrong_usage_is_told_before_anything_is_sent() {
    for (arguments, part) in [
        (["--slo", "ttft"], "ttft:200"),
        (["--request-rate", "0"], "above 0"),
        (["--extra-body", "[]"], "JSON object"),
        (["--burstiness", "2"], "--request-rate"),
        (["--endpoint", "embeddings"], "completions"),
    ] {
        expect_usage_error(&[&["bench", "serve"][..], &arguments].concat(), &[part]);
    }
    expect_failure(
        &["bench", "serve", "--prompts", "/nonexistent/prompts.jsonl"],
        &["prompts.jsonl"],
    );
    expect_failure(
        &["bench", "serve", "--ca-file", "/nonexistent/ca.pem"],
        &["--ca-file", "ca.pem"],
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("other.json");
    fs::write(&file, "{\"format\": 99}").unwrap();
    expect_failure(
        &["bench", "serve", "--compare", file.to_str().unwrap()],
        &["format is 99"],
    );
}

#[test]
fn answers_are_asked_for_again_alone_and_must_be_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let file = prompts(&folder, 4);
    let asked = ["--prompts", &file, "--concurrency", "4", "--verify", "3"];
    let text = |number: usize| if number > 4 { "one" } else { " one" };
    let seeds = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&seeds);
    let same = Scripted::start(move |_, body| {
        seen.lock().unwrap().push(body["seed"].as_u64().unwrap());
        Answer::Stream(vec![Step::Text("one"), Step::End { tokens: Some(1) }])
    });
    let (table, _) = bench(&same.url, &asked);
    assert!(
        table.ends_with("3 answers asked again, alone and without drafts: the same\n"),
        "{table}"
    );
    let mut seeds = seeds.lock().unwrap().clone();
    seeds[..4].sort_unstable();
    assert_eq!(seeds, [0, 1, 2, 3, 0, 1, 2], "each as it was asked in the crowd");
    // The first four requests are those of the crowd.
    let other = Scripted::start(move |number, _| {
        Answer::Stream(vec![Step::Text(text(number)), Step::End { tokens: Some(1) }])
    });
    let all = [
        &["bench", "serve", "--base-url", &other.url, "--warmup", "0"],
        &asked[..],
    ]
    .concat();
    expect_failure(
        &all,
        &["alone and without drafts the text differs from character 0 on"],
    );
}

#[test]
fn our_own_server_gives_in_a_crowd_what_it_gives_alone() {
    let served = Served::start(&["--max-num-seqs", "4"]);
    let url = format!("http://{}", served.address);
    let load = ["--num-prompts", "8", "--concurrency", "8", "--output-len", "24"];
    let (table, _) = bench(
        &url,
        &[&load[..], &["--temperature", "0.9", "--verify", "4"]].concat(),
    );
    assert!(table.contains("4 answers asked again"), "{table}");
}
