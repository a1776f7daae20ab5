//! The commands of the README, run as they stand; those that measure with fewer requests and tokens.
//!
//! Models of the hub come from a server that plays it: the built-in model, and as Q4_K_M a reference model with one token
//! per byte. `big` and `small` are copies of the built-in model, `model.gguf` is the reference model.

use crate::common::hub::FakeHub;
use crate::common::served::Served;
use crate::common::{Copy, gguf, paceline, repository, stderr, stdout};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const PROMPTS: &str =
    "{\"prompt\": \"Once\", \"temperature\": 0.7, \"max_tokens\": 64}\n{\"prompt_ids\": [1, 2]}\n";

/// What is run elsewhere: by `serve_readme.rs`, or by `install.rs`.
const ELSEWHERE: [&str; 2] = ["curl ", "cargo install --locked --path crates/cli"];

/// Commands of code blocks, of transcripts and of tables.
fn commands() -> Vec<String> {
    let readme = fs::read_to_string(repository("README.md")).unwrap();
    let mut found = Vec::new();
    let mut shell = false;
    for line in readme.lines() {
        if line.starts_with("```") {
            shell = line == "```sh";
            continue;
        }
        // Lines of a longer command are indented.
        let known = ["# ", " "]
            .iter()
            .chain(&ELSEWHERE)
            .any(|start| line.starts_with(start));
        let line = line.strip_prefix("$ ").unwrap_or(line);
        if line.starts_with("paceline ") || (shell && line.contains("| paceline ")) {
            found.push(line.to_owned());
        } else if shell {
            assert!(known || line.is_empty(), "no test runs {line}");
        } else if line.starts_with('|') {
            let quoted = line.split('`').skip(1).step_by(2);
            found.extend(
                quoted
                    .filter(|text| text.starts_with("paceline "))
                    .map(str::to_owned),
            );
        }
    }
    found
}

/// A folder with everything that the commands name.
struct Place {
    folder: TempDir,
    hub: FakeHub,
    _models: Copy,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let models = Copy::of("assets/storyteller");
        let at = |name: &str| folder.path().join(name);
        for name in ["folder", "big", "small"] {
            symlink(models.path(), at(name)).unwrap();
        }
        gguf::write(&at("model.gguf"));
        fs::write(at("prompts.jsonl"), PROMPTS).unwrap();
        fs::write(at("HumanEval.jsonl"), "{\"prompt\": \"def add(a, b):\"}\n").unwrap();
        for name in ["book.txt", "ARCHITECTURE.md"] {
            symlink(repository("ARCHITECTURE.md"), at(name)).unwrap();
        }
        fs::create_dir(at("bin")).unwrap();
        symlink(paceline().get_program(), at("bin/paceline")).unwrap();
        let names = [
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
        ];
        let mut files: Vec<_> = names
            .map(|name| (name, fs::read(models.file(name)).unwrap()))
            .into();
        files.push(("name-Q4_K_M.gguf", fs::read(at("model.gguf")).unwrap()));
        let hub = FakeHub::start(&files);
        hub.behaviour().also = vec!["Qwen/Qwen3-0.6B".to_owned(), "Qwen/Qwen3-8B-GGUF".to_owned()];
        Self {
            folder,
            hub,
            _models: models,
        }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A shell in the folder, in which `paceline` is the program under test.
    fn shell(&self, command: &str) -> Command {
        let programs = std::env::var("PATH").unwrap();
        let mut shell = Command::new("sh");
        shell
            .args(["-c", command])
            .current_dir(self.path())
            .env(
                "PATH",
                format!("{}:{programs}", self.path().join("bin").display()),
            )
            .env("HF_HOME", self.path().join("hf"))
            .env("XDG_CACHE_HOME", self.path().join("cache"))
            .env("HF_ENDPOINT", self.hub.endpoint())
            .env_remove("HF_HUB_OFFLINE")
            .env_remove("HF_TOKEN")
            .env_remove("PACELINE_LOG")
            .env_remove("PACELINE_API_KEY")
            .stdin(Stdio::null());
        shell
    }

    fn run(&self, command: &str) -> Output {
        let output = self.shell(command).output().unwrap();
        assert!(output.status.success(), "{command}: {}", stderr(&output));
        output
    }
}

/// The command with flags for less work, as far as it does not give them.
fn shortened(command: &str) -> String {
    let less: &[(&str, &str)] = match words(command)[..] {
        ["bench", "latency", ..] => &[("--batch-size", "1,2"), ("--output-len", "8"), ("--repeats", "1")],
        ["bench", "pipeline", ..] => &[("--batch-size", "1"), ("--depth", "1,2"), ("--output-len", "8")],
        ["bench", "speculation", ..] => &[("--output-len", "8"), ("--requests", "2"), ("--repeats", "1")],
        ["bench", "serve", ..] => &[("--output-len", "8"), ("--num-prompts", "12")],
        ["bench", "compare", ..] => &[("--output-len", "8"), ("--concurrency", "1"), ("--turns", "2")],
        ["bench", "quality", ..] => &[("--tokens", "100")],
        ["selftest", ..] => &[("--only", "rms_norm")],
        _ => &[],
    };
    let (command, _) = command.split_once("  #").unwrap_or((command, ""));
    less.iter()
        .filter(|(flag, _)| !command.contains(flag))
        .fold(command.to_owned(), |command, (flag, value)| {
            format!("{command} {flag} {value}")
        })
}

/// The words behind the program's name.
fn words(command: &str) -> Vec<&str> {
    command.split_whitespace().skip(1).collect()
}

/// Numbers of the line that begins with `name`, in the order they stand.
fn numbers(table: &str, name: &str) -> Vec<f64> {
    let line = table.lines().find(|line| line.trim_start().starts_with(name));
    let line = line.unwrap_or_else(|| panic!("no line {name} in\n{table}"));
    let words = line.split_whitespace();
    words
        .filter_map(|word| word.replace(',', "").trim_end_matches('×').parse().ok())
        .collect()
}

fn check_generate(command: &str, output: &Output) {
    let text = stdout(output);
    if command.contains("--json") {
        let lines: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), PROMPTS.lines().count(), "{command}");
        for line in lines {
            assert!(
                line["token_ids"].as_array().is_some_and(|ids| !ids.is_empty()),
                "{line}"
            );
        }
    } else {
        assert!(!text.trim().is_empty(), "{command}: no text");
    }
    if command.contains("--stats") {
        let notes = stderr(output);
        let figures = ["memory", "engine", "speculation"];
        assert!(
            figures.iter().all(|part| notes.contains(part)),
            "{command}: {notes}"
        );
    }
}

/// A server of the model that the command names, on a free port.
fn check_serve(place: &Place, command: &str) {
    let (command, _) = command.split_once("  #").unwrap_or((command, ""));
    let command = command.replace("--port 8000", "");
    let model = words(&command).get(1).copied().unwrap_or("storyteller");
    let command = format!("exec {command} --port 0 --threads 1 --max-model-len 256");
    let served = Served::spawn(place.shell(&command).stderr(Stdio::null()));
    assert_eq!(served.get("/v1/models")["data"][0]["id"], model);
    let (status, page) = served.ask("GET /", "", "");
    assert!(
        status == 200 && page.contains("<title>Paceline</title>"),
        "{command}: {page}"
    );
}

/// Rows of a table of a benchmark, with all figures above zero.
fn check_table(command: &str, table: &str, (header, columns): (&str, usize)) {
    let (_, rows) = table
        .split_once(header)
        .unwrap_or_else(|| panic!("no {header} in\n{table}"));
    let rows: Vec<&str> = rows.lines().skip(1).filter(|row| !row.is_empty()).collect();
    assert!(!rows.is_empty(), "{command}: {table}");
    for row in rows {
        let count = row.split_whitespace().filter(|word| {
            word.trim_end_matches('×')
                .parse::<f64>()
                .is_ok_and(|number| number > 0.0)
        });
        assert!(count.count() >= columns, "{command}: {row}");
    }
}

fn check_bench_serve(place: &Place, command: &str, table: &str) {
    let requests = numbers(table, "requests");
    let wanted = if command.contains("--num-prompts 64") {
        64.0
    } else {
        12.0
    };
    assert_eq!(requests[..2], [wanted, 0.0], "{table}");
    assert!(numbers(table, "throughput")[0] > 0.0, "{table}");
    if command.contains("--slo") {
        assert!(table.contains("goodput"), "{table}");
    }
    for name in ["TTFT", "TPOT", "ITL", "E2E"] {
        assert_eq!(numbers(table, name).len(), 6, "{table}");
    }
    let page = fs::read_to_string(place.path().join("report.html")).unwrap();
    assert!(page.contains(&format!("\"completed\":{wanted}")), "{command}");
}

fn check_parts(table: &str, parts: &[&str]) {
    for part in parts {
        assert!(table.contains(part), "`{part}` is not in:\n{table}");
    }
}

#[test]
fn the_commands_of_the_readme_do_what_they_say() {
    let place = Place::new();
    let server = Served::start(&[]);
    let commands = commands();
    assert!(commands.len() >= 20, "the README has {} commands", commands.len());
    for command in commands {
        let short = shortened(&command);
        // What comes before a pipe is for the shell.
        let (_, last) = command.split_once("| ").unwrap_or(("", &command));
        match words(last)[..] {
            ["generate", ..] => check_generate(&command, &place.run(&short)),
            ["serve", ..] => check_serve(&place, &command),
            ["run", _, message, ..] if message.starts_with('"') => {
                assert!(!stdout(&place.run(&short)).is_empty(), "{command}: no answer");
            }
            ["pull", ..] => assert!(stdout(&place.run(&short)).trim().ends_with("name-Q4_K_M.gguf")),
            ["list", ..] => check_parts(&stdout(&place.run(&short)), &["org/name:Q4_K_M", "just now"]),
            ["rm", ..] => assert!(stderr(&place.run(&short)).contains("removed org/name:Q4_K_M")),
            ["chat" | "run", ..] => {
                let said = place.run(&format!("printf '/set max_tokens 8\\nHello.\\n' | {short}"));
                assert!(!stdout(&said).trim().is_empty(), "{command}: no answer");
            }
            ["pack", ..] => {
                let file = stdout(&place.run(&short));
                assert!(place.path().join(file.trim()).is_file(), "{command}: {file}");
            }
            ["inspect", _, "--memory", ..] => {
                assert!(stdout(&place.run(&short)).contains("n-grams"), "{command}");
            }
            ["inspect", ..] => assert!(
                numbers(&stdout(&place.run(&short)), "layers")[0] > 0.0,
                "{command}"
            ),
            ["doctor", ..] => assert!(stdout(&place.run(&short)).contains("storyteller"), "{command}"),
            ["selftest", ..] => {
                check_parts(&stdout(&place.run(&short)), &["rms_norm", " 0 of 4 lines missed"]);
            }
            ["bench", "latency", ..] => {
                check_table(&command, &stdout(&place.run(&short)), ("output tok/s", 7));
            }
            ["bench", "pipeline", ..] => check_table(&command, &stdout(&place.run(&short)), ("tok/s", 9)),
            ["bench", "speculation", ..] => {
                check_table(&command, &stdout(&place.run(&short)), ("draft time", 5));
            }
            ["bench", "serve", ..] => {
                let output = place.run(&format!("{short} --base-url {}", server.url));
                check_bench_serve(&place, &command, &stdout(&output));
            }
            ["bench", "compare", ..] => {
                let short = short.replace("http://127.0.0.1:8080", &server.url);
                let output = place.run(&format!("{short} --base-url {}", server.url));
                check_parts(&stdout(&output), &["first token, ms", "2 turns each"]);
            }
            ["bench", "quality", ..] => {
                check_parts(&stdout(&place.run(&short)), &["KL divergence", "100 tokens"]);
            }
            _ => panic!("no test knows {command}"),
        }
    }
}
