//! `paceline bench compare` against servers that do as they are told.

use crate::common::scripted::{Answer, Scripted, Step};
use crate::common::{expect_failure, expect_usage_error, run, stderr, stdout};
use serde_json::{Value, json};
use std::fs;
use std::process::Output;
use std::sync::{Arc, Barrier, Mutex};
use tempfile::TempDir;

/// Who was asked what, in order.
type Log = Arc<Mutex<Vec<(&'static str, String)>>>;

/// A server that answers with these steps and writes down what it is asked.
fn server(
    name: &'static str,
    log: &Log,
    answer: impl Fn(usize) -> Answer + Send + Sync + 'static,
) -> Scripted {
    let log = Arc::clone(log);
    Scripted::start(move |number, body| {
        let prompt = body["messages"][0]["content"].as_str().unwrap().to_owned();
        log.lock().unwrap().push((name, prompt));
        answer(number)
    })
}

fn text(wait: u64, tokens: u64) -> Answer {
    Answer::Stream(vec![
        Step::Wait(wait),
        Step::Text("one"),
        Step::Wait(wait),
        Step::Text(" two"),
        Step::End { tokens: Some(tokens) },
    ])
}

/// Compares two servers; returns what was printed and the report.
fn compare(ours: &str, peer: &str, arguments: &[&str]) -> (Output, Value) {
    let folder = tempfile::tempdir().unwrap();
    let prompts = prompts(&folder);
    let report = folder.path().join("report.json");
    let (prompts, report) = (prompts.as_str(), report.to_str().unwrap());
    let servers = ["bench", "compare", "--base-url", ours, "--peer-url", peer];
    let files = ["--warmup", "0", "--prompts", prompts, "--json", report];
    let output = run(&[&servers[..], &files, arguments].concat());
    let report = serde_json::from_slice(&fs::read(report).unwrap_or_default()).unwrap_or_default();
    (output, report)
}

fn prompts(folder: &TempDir) -> String {
    let path = folder.path().join("prompts.txt");
    let lines: Vec<String> = (0..50).map(|index| format!("prompt {index:02}")).collect();
    fs::write(&path, lines.join("\n")).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn servers_take_turns_with_the_same_prompts_and_the_first_is_not_always_the_same() {
    let log = Log::default();
    // Of a crowd, none is answered before all have asked.
    let together = |wait: u64| {
        let barrier = Barrier::new(3);
        move |number: usize| {
            if number >= 3 {
                barrier.wait();
            }
            text(wait, 2)
        }
    };
    let ours = server("ours", &log, together(0));
    let peer = server("peer", &log, together(20));
    let (output, report) = compare(&ours.url, &peer.url, &["--concurrency", "1,3", "--turns", "3"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let log: Vec<(&str, String)> = log.lock().unwrap().clone();
    let mut expected: Vec<(&str, Vec<String>)> = Vec::new();
    for (size, from) in [(1, 0), (3, 3)] {
        for turn in 0..3 {
            let prompts =
                (from + turn * size..from + (turn + 1) * size).map(|index| format!("prompt {index:02}"));
            let prompts: Vec<String> = prompts.collect();
            let order = if turn % 2 == 0 {
                ["ours", "peer"]
            } else {
                ["peer", "ours"]
            };
            expected.extend(order.map(|name| (name, prompts.clone())));
        }
    }
    let mut asked = log.into_iter();
    for (name, prompts) in expected {
        // A crowd arrives in any order.
        let mut found: Vec<_> = asked.by_ref().take(prompts.len()).collect();
        found.sort();
        let wanted: Vec<_> = prompts.into_iter().map(|prompt| (name, prompt)).collect();
        assert_eq!(found, wanted);
    }
    assert_eq!(asked.next(), None);
    assert_eq!((ours.most(), peer.most()), (3, 3));
    check_figures(&report);
    let table = stdout(&output);
    for part in [
        "first token, ms",
        "generated, tok/s",
        "worst stall, ms",
        "3 at a time, 3 turns each",
    ] {
        assert!(table.contains(part), "`{part}` is not in:\n{table}");
    }
}

/// The ratios are those of the turns in the report, and no wait of the peer is lost.
fn check_figures(report: &Value) {
    for crowd in report["crowds"].as_array().unwrap() {
        let turns = crowd["turns"].as_array().unwrap();
        assert_eq!(turns.len(), 3, "{crowd}");
        let names = ["ttft_ms", "tok_s", "stall_ms", "e2e_ms"];
        for (name, figure) in names.iter().zip(crowd["figures"].as_array().unwrap()) {
            let of = |side: usize| turns.iter().map(move |turn| turn[side][name].as_f64().unwrap());
            // Pieces that are read at once have no stall between them.
            let pairs = of(0).zip(of(1)).filter(|(ours, peer)| *ours > 0.0 && *peer > 0.0);
            let mut ratios: Vec<f64> = pairs.map(|(ours, peer)| ours / peer).collect();
            ratios.sort_by(f64::total_cmp);
            let (Some(least), Some(most)) = (ratios.first(), ratios.last()) else {
                assert!(figure["ratio"].is_null(), "{figure}");
                continue;
            };
            let bounds = figure["ratio"].as_array().unwrap();
            let bounds: Vec<f64> = bounds.iter().map(|bound| bound.as_f64().unwrap()).collect();
            let median = ratios[(ratios.len() - 1) / 2];
            assert!((bounds[0] - median).abs() < 1e-9, "{figure} {ratios:?}");
            assert!(
                *least <= bounds[1] && bounds[1] <= bounds[0],
                "{figure} {ratios:?}"
            );
            assert!(
                bounds[0] <= bounds[2] && bounds[2] <= *most,
                "{figure} {ratios:?}"
            );
        }
        for turn in turns {
            let peer = |name: &str| turn[1][name].as_f64().unwrap();
            assert!(peer("ttft_ms") >= 20.0 && peer("e2e_ms") >= 40.0, "{turn}");
        }
    }
}

#[test]
fn turns_with_failures_are_left_out_and_told() {
    let log = Log::default();
    let ours = server("ours", &log, |_| text(0, 2));
    let peer = server("peer", &log, |number| match number {
        1 => Answer::Refuse(500, "out of order"),
        _ => text(0, 2),
    });
    let (output, report) = compare(&ours.url, &peer.url, &["--concurrency", "1", "--turns", "4"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let crowd = &report["crowds"][0];
    assert_eq!(crowd["turns"].as_array().unwrap().len(), 3);
    assert_eq!(crowd["failed"], json!([0, 1]));
    let table = stdout(&output);
    assert!(
        table.contains("left out: 0 turns of ours, 1 of the peer's") && table.contains("out of order"),
        "{table}"
    );
}

#[test]
fn a_peer_that_answers_nothing_is_a_failure() {
    let log = Log::default();
    let ours = server("ours", &log, |_| text(0, 2));
    let peer = server("peer", &log, |_| Answer::Refuse(503, "not today"));
    let (output, _) = compare(&ours.url, &peer.url, &["--concurrency", "2", "--turns", "2"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("not today"), "{}", stderr(&output));
    let nobody = "http://127.0.0.1:1";
    let arguments = ["bench", "compare", "--base-url", &ours.url, "--peer-url", nobody];
    expect_failure(&arguments, &[nobody]);
    expect_usage_error(&["bench", "compare"], &["--peer-url"]);
}
