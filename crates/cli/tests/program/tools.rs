//! Help, completions, `doctor` and `bench`.

use crate::common::{paceline, run, stderr, stdout, succeed};
use serde_json::Value;

#[test]
fn help_shows_an_example_for_every_command() {
    for (command, example) in [
        (&["--help"][..], "paceline generate --prompt"),
        (&["generate", "--help"], "paceline generate --prompt"),
        (&["inspect", "--help"], "paceline inspect path/to/model.gguf"),
        (&["doctor", "--help"], "paceline doctor --json"),
        (&["pack", "--help"], "paceline pack path/to/model.gguf"),
        (&["bench", "--help"], "paceline bench ops"),
        (&["bench", "ops", "--help"], "--device <DEVICE>"),
        (
            &["bench", "latency", "--help"],
            "paceline bench latency --batch-size",
        ),
        (
            &["bench", "throughput", "--help"],
            "paceline bench throughput --requests",
        ),
        (
            &["bench", "pipeline", "--help"],
            "paceline bench pipeline --depth",
        ),
        (
            &["bench", "speculation", "--help"],
            "paceline bench speculation --workload",
        ),
        (
            &["bench", "serve", "--help"],
            "paceline bench serve --request-rate",
        ),
        (&["chat", "--help"], "paceline chat --base-url"),
        (&["serve", "--help"], "paceline serve org/name"),
        (&["completions", "--help"], "paceline completions bash"),
        (&["run", "--help"], "paceline run org/name:Q4_K_M"),
        (&["pull", "--help"], "paceline pull org/name:Q4_K_M"),
        (&["list", "--help"], "paceline list --json"),
        (&["rm", "--help"], "paceline rm org/name"),
        (&["man", "--help"], "paceline man ~/.local/share/man/man1"),
    ] {
        let help = succeed(command);
        assert!(
            help.contains("Examples:") && help.contains(example),
            "{command:?}:\n{help}"
        );
    }
    let help = succeed(&["generate", "--help"]);
    for part in [
        "Sampling (defaults: the model's, or else temperature 0.8, top-k 40, top-p 0.95, min-p 0.05)",
        "[default: 256]",
        "Prompt:",
        "Output:",
        "Engine:",
        "Speculation (",
        "Continue a prompt",
    ] {
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
    crate::common::check_failure(&with_variable("loud"), &["PACELINE_LOG", "`loud`"]);
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
    let device = &report["device"];
    assert_eq!(
        (&device["asked"], &device["name"]),
        (&"auto".into(), &"cpu".into())
    );
    assert!(device["free_bytes"].as_u64().unwrap() > 0);
    assert_eq!(report["cache"]["exists"], false);
}

#[test]
fn bench_measures_every_operation() {
    if std::env::var_os("PACELINE_TEST_LONG").is_none() {
        println!("skipped: set PACELINE_TEST_LONG");
        return;
    }
    let output = run(&[
        "bench",
        "ops",
        "--quick",
        "--json",
        "--device",
        "cpu",
        "--threads",
        "1",
    ]);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(report["memory_bandwidth_gb_s"].as_f64().unwrap() > 0.1);
    assert_eq!(report["device"], "cpu");
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

fn bench(arguments: &[&str]) -> Value {
    let arguments = [&["bench"], arguments, &["--json"]].concat();
    serde_json::from_str(&succeed(&arguments)).unwrap()
}

#[test]
fn bench_latency_measures_every_combination() {
    let sizes = [
        "latency",
        "--batch-size",
        "1,3",
        "--input-len",
        "2,5",
        "--output-len",
        "4",
    ];
    let report = bench(&[&sizes[..], &["--repeats", "1"]].concat());
    let cases = report["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 4);
    for case in cases {
        for field in ["ttft_ms", "step_ms", "decode_tok_s", "output_tok_s"] {
            assert!(case[field].as_f64().unwrap() > 0.0, "{field} of {case}");
        }
    }
    let table = succeed(&[&["bench"], &sizes[..], &["--repeats", "1"]].concat());
    assert!(table.contains("ms/step") && table.lines().count() == 7, "{table}");
}

#[test]
fn bench_throughput_serves_all_requests_in_either_loop() {
    let few = [
        "throughput",
        "--requests",
        "5",
        "--input-len",
        "3",
        "--output-len",
        "4",
    ];
    for load in [["--concurrency", "2"], ["--rate", "1000"]] {
        let report = bench(&[&few[..], &load].concat());
        assert_eq!(report["requests"], 5);
        assert_eq!(
            (&report["prompt_tokens"], &report["output_tokens"]),
            (&15.into(), &20.into())
        );
        assert!(report["ttft_ms"]["p50"].as_f64() <= report["latency_ms"]["max"].as_f64());
        assert!(report["output_tok_s"].as_f64().unwrap() > 0.0);
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompts.jsonl");
    std::fs::write(
        &file,
        "{\"prompt\": \"The fox\"}\n{\"prompt_ids\": [1], \"max_tokens\": 2}\n",
    )
    .unwrap();
    let file = ["--prompts", file.to_str().unwrap(), "--output-len", "3"];
    assert_eq!(bench(&[&["throughput"], &file[..]].concat())["requests"], 2);
    let table = succeed(&[&["bench", "throughput", "--requests", "5"], &file[..]].concat());
    assert!(
        table.contains("5 requests") && table.contains("first token"),
        "{table}"
    );
}

#[test]
fn bench_pipeline_tells_the_idle_share_at_each_depth() {
    let report = bench(&[
        "pipeline",
        "--speculation",
        "off",
        "--batch-size",
        "1,2",
        "--input-len",
        "3",
        "--output-len",
        "12",
    ]);
    let cases = report["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 8);
    for case in cases {
        assert!(
            (0.0..1.0).contains(&case["idle_share"].as_f64().unwrap()),
            "{case}"
        );
        assert!(case["steps"].as_u64().unwrap() >= 12, "{case}");
        assert!(case["device_us"].as_f64().unwrap() > 0.0, "{case}");
    }
}
