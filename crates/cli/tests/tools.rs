//! Help, completions, `doctor` and `bench`.

mod common;

use common::{paceline, run, stderr, stdout, succeed};
use serde_json::Value;

#[test]
fn help_shows_an_example_for_every_command() {
    for (command, example) in [
        (&["--help"][..], "paceline generate --prompt"),
        (&["generate", "--help"], "paceline generate --prompt"),
        (&["inspect", "--help"], "paceline inspect path/to/model.gguf"),
        (&["doctor", "--help"], "paceline doctor --json"),
        (&["bench", "--help"], "paceline bench ops"),
        (&["bench", "ops", "--help"], "paceline bench ops --quick"),
        (&["completions", "--help"], "paceline completions bash"),
    ] {
        let help = succeed(command);
        assert!(
            help.contains("Examples:") && help.contains(example),
            "{command:?}:\n{help}"
        );
    }
    let help = succeed(&["generate", "--help"]);
    for part in ["generation_config.json", "[default: 256]", "Prompt:", "Output:"] {
        assert!(help.contains(part), "`{part}` is not in:\n{help}");
    }
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = succeed(&["completions", shell]);
        assert!(
            script.contains("generate") && script.contains("max-tokens"),
            "{shell}"
        );
    }
}

#[test]
fn the_version_is_told() {
    assert_eq!(
        succeed(&["--version"]).trim_end(),
        format!("paceline {}", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn the_log_level_comes_from_the_flag_or_the_variable() {
    let arguments = ["generate", "--prompt", "x", "--max-tokens", "1"];
    let logged = |output| stderr(&output).contains("model loaded");
    assert!(!logged(run(&arguments)));
    assert!(logged(run(&[&arguments[..], &["--log", "info"]].concat())));
    let with_variable = |level| {
        paceline()
            .args(arguments)
            .env("PACELINE_LOG", level)
            .output()
            .unwrap()
    };
    assert!(logged(with_variable("info")));
    common::check_failure(&with_variable("loud"), &["PACELINE_LOG", "`loud`"]);
}

#[test]
fn doctor_reports_the_machine() {
    let table = succeed(&["doctor"]);
    for part in [
        "processor",
        "kernels",
        "cores",
        "memory",
        "CUDA",
        "model cache",
        "storyteller",
    ] {
        assert!(table.contains(part), "`{part}` is not in:\n{table}");
    }
    let report: Value = serde_json::from_str(&succeed(&["doctor", "--json"])).unwrap();
    assert!(report["processor"]["usable_cores"].as_u64().unwrap() > 0);
    assert_eq!(report["cache"]["exists"], false);
}

#[test]
fn bench_measures_every_operation() {
    if std::env::var_os("PACELINE_TEST_LONG").is_none() {
        println!("skipped: set PACELINE_TEST_LONG");
        return;
    }
    let output = run(&["bench", "ops", "--quick", "--json", "--threads", "1"]);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(report["read_bandwidth_gb_s"].as_f64().unwrap() > 0.1);
    let operations = report["operations"].as_array().unwrap();
    for name in [
        "linear BF16",
        "linear Q4_K",
        "attention",
        "delta rule",
        "state space",
        "rms norm",
    ] {
        assert!(operations.iter().any(|row| row["operation"] == name), "{name}");
    }
}
