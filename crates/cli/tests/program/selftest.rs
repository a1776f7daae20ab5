//! `paceline selftest` on the CPU: what it judges, what it finds, and what it ends with.

use crate::common::{expect_failure, repository, run, stdout, succeed};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Judges a part of the CPU with the reference models of a folder.
fn judge<'a>(fixtures: &'a str, only: &'a str) -> Vec<&'a str> {
    let mut arguments = vec!["selftest", "--device", "cpu", "--seed", "7", "--mixes", "4"];
    arguments.extend(["--fixtures", fixtures, "--only", only]);
    arguments
}

/// Name, yardstick, cases and verdict of the table's lines.
fn lines(output: &str) -> Vec<(String, String, usize, String)> {
    let table = output.lines().skip(2);
    table
        .take_while(|line| line.ends_with(" ok") || line.ends_with(" MISS"))
        .map(|line| {
            let (name, rest) = line.split_at(32);
            let columns: Vec<&str> = rest.split_whitespace().collect();
            let cases = columns[1].parse().unwrap();
            let text = |text: &str| text.trim().to_owned();
            (text(name), text(columns[0]), cases, text(columns[5]))
        })
        .collect()
}

#[test]
fn operations_and_models_are_judged_and_counted() {
    let fixtures = repository("fixtures").display().to_string();
    for (only, expected) in [
        (
            "rms_norm",
            vec![
                ("rms_norm", "cpu"),
                ("rms_norm", "itself"),
                ("add_rms_norm", "cpu"),
                ("add_rms_norm", "itself"),
            ],
        ),
        (
            "golden qwen3_5",
            vec![("golden qwen3_5", "golden"), ("golden qwen3_5_moe", "golden")],
        ),
        ("identity", vec![("identity of mixes", "alone")]),
        (
            "ways",
            vec![
                ("ways: on one thread", "itself"),
                ("ways: in plain instructions", "itself"),
            ],
        ),
        (
            "planted",
            vec![
                ("planted: a bad block", "itself"),
                ("planted: a bad snapshot", "itself"),
                ("planted: a bad token", "itself"),
                ("planted: logits that are NaN", "itself"),
            ],
        ),
    ] {
        let output = succeed(&judge(&fixtures, only));
        let lines = lines(&output);
        let found: Vec<(&str, &str)> = lines
            .iter()
            .map(|line| (line.0.as_str(), line.1.as_str()))
            .collect();
        assert_eq!(found, expected, "{output}");
        assert!(lines.iter().all(|line| line.3 == "ok"), "{output}");
        let cases: usize = lines.iter().map(|line| line.2).sum();
        let summary = format!("seed 7: {cases} cases, 0 of {} lines missed", lines.len());
        assert_eq!(output.lines().last(), Some(summary.as_str()));
        if only == "identity" {
            assert_eq!(cases, 4, "the mixes that were asked for");
        }
    }
}

/// The reference models, with another continuation for one of them.
fn planted(folder: &Path) {
    let (fixtures, assets) = (folder.join("fixtures"), folder.join("assets"));
    symlink(repository("assets"), assets).unwrap();
    fs::create_dir_all(fixtures.join("llama")).unwrap();
    for entry in fs::read_dir(repository("fixtures")).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "llama" {
            symlink(entry.path(), fixtures.join(entry.file_name())).unwrap();
        }
    }
    for entry in fs::read_dir(repository("fixtures/llama")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), fixtures.join("llama").join(entry.file_name())).unwrap();
    }
    let path = fixtures.join("llama/golden.json");
    let mut golden: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let token = golden["greedy"][1][2].as_u64().unwrap();
    golden["greedy"][1][2] = json!(token + 1);
    fs::write(path, golden.to_string()).unwrap();
}

#[test]
fn a_planted_miss_is_named_and_fails_the_command() {
    let folder = tempfile::tempdir().unwrap();
    planted(folder.path());
    let fixtures = folder.path().join("fixtures").display().to_string();
    let output = run(&judge(&fixtures, "golden llama"));
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let verdicts: Vec<String> = lines(&text).into_iter().map(|line| line.3).collect();
    assert_eq!(verdicts, ["MISS", "ok"], "{text}");
    assert!(
        text.contains("MISS golden llama, prompt 1: token 2 is "),
        "{text}"
    );
    assert!(text.ends_with("1 of 2 lines missed\n"), "{text}");
}

#[test]
fn a_name_that_nothing_has_is_an_error() {
    let fixtures = repository("fixtures").display().to_string();
    expect_failure(&judge(&fixtures, "atention"), &["--only is atention"]);
}

#[test]
fn a_device_can_be_judged_as_it_works_otherwise() {
    let fixtures = repository("fixtures").display().to_string();
    let judged = |way: &'static str| [judge(&fixtures, "add_rms_norm"), vec!["--way", way]].concat();
    let output = succeed(&judged("in plain instructions"));
    assert!(
        output.starts_with("cpu: ") && output.contains("kernels for portable"),
        "{output}"
    );
    expect_failure(
        &judged("uphill"),
        &["--way is uphill", "on one thread, in plain instructions"],
    );
}

#[test]
fn a_folder_without_reference_models_is_an_error_where_it_was_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display().to_string();
    expect_failure(&judge(&path, "rms_norm"), &[&path, "fixtures", "assets"]);
}
