//! `paceline serve` as a process: start, signals, exit codes, logs that cannot be written.

use crate::common::served::{PATIENCE, Served, serve as command};
use crate::common::{run, stderr};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A request that takes a while.
fn long() -> String {
    json!({ "prompt": "Once", "max_tokens": 1000, "ignore_eos": true, "stream": true }).to_string()
}

#[test]
fn a_server_answers_and_ends_cleanly_on_a_signal() {
    for signal in ["TERM", "INT", "HUP"] {
        let mut served = Served::start(&[]);
        assert_eq!(served.ask("GET /ready", "", "").0, 200);
        let body = r#"{"model": "storyteller", "prompt": "Once upon a time", "max_tokens": 8}"#;
        let (status, reply) = served.ask("POST /v1/completions", "", body);
        assert_eq!(status, 200, "{reply}");
        served.signal(signal);
        assert_eq!(served.wait(), Some(0));
    }
}

/// Starts a server, and reads what it says on stderr up to the end of the command to try.
fn start_and_read(arguments: &[&str]) -> (Served, Vec<String>) {
    let mut command = command(&[&["--log", "off", "--served-model-name", "tiny"], arguments].concat());
    let mut served = Served::spawn(command.stderr(Stdio::piped()));
    let said = BufReader::new(served.child.stderr.take().unwrap()).lines();
    let mut lines = Vec::new();
    for line in said {
        lines.push(line.unwrap());
        if lines.last().is_some_and(|line| line.starts_with("  -d ")) {
            return (served, lines);
        }
    }
    panic!("no command in {lines:?}");
}

#[test]
fn the_table_fits_a_terminal_and_ends_with_the_page_and_a_command_that_works() {
    let tokens_only = crate::common::repository("fixtures/qwen3");
    let tokens_only = tokens_only.to_str().unwrap();
    for (arguments, text) in [
        (&["--api-key", "open sesame"][..], "/choices/0/message/content"),
        (
            &["--host", "0.0.0.0", "--max-num-seqs", "2"],
            "/choices/0/message/content",
        ),
        (
            &[tokens_only, "--max-model-len", "64", "--no-page"],
            "/choices/0/finish_reason",
        ),
    ] {
        let (served, lines) = start_and_read(arguments);
        // The first line has the path of the model, as it was given.
        for line in &lines[1..] {
            assert!(
                line.chars().count() <= 80,
                "{} columns: {line}",
                line.chars().count()
            );
        }
        let begin = lines.iter().position(|line| line.starts_with("curl ")).unwrap();
        let (_, port) = served.address.rsplit_once(':').unwrap();
        let page = format!("try it: open http://127.0.0.1:{port} in a browser, or");
        let expected = if arguments.contains(&"--no-page") {
            "try it"
        } else {
            page.as_str()
        };
        assert_eq!(lines[begin - 1], expected);
        let output = Command::new("sh")
            .args(["-c", &lines[begin..].join("\n")])
            .env("PACELINE_API_KEY", "open sesame")
            .output()
            .unwrap();
        let reply: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let found = reply.pointer(text).and_then(Value::as_str).unwrap_or_default();
        assert!(!found.is_empty(), "{:?}: {output:?}", &lines[begin..]);
        assert!(reply["usage"]["completion_tokens"].as_u64() > Some(0), "{reply}");
        drop(served);
    }
}

#[test]
fn a_signal_under_load_ends_every_stream_properly() {
    let mut served = Served::start(&["--drain-timeout", "0.05"]);
    let streams: Vec<_> = (0..8)
        .map(|_| served.open("POST /v1/completions", "", &long()))
        .collect();
    // All of them have begun.
    let mut begun = Vec::new();
    for mut stream in streams {
        let mut first = [0; 1];
        stream.read_exact(&mut first).unwrap();
        begun.push(stream);
    }
    served.signal("TERM");
    for mut stream in begun {
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert!(reply.contains("data: [DONE]"), "{reply}");
        assert!(
            reply.contains(r#""finish_reason":"abort""#) || reply.contains(r#""finish_reason":"length""#)
        );
    }
    assert_eq!(served.wait(), Some(0));
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let mut served = Served::start(&["--drain-timeout", "600", "--max-num-batched-tokens", "1"]);
    let mut running: Vec<_> = (0..16)
        .map(|_| served.open("POST /v1/completions", "", &long()))
        .collect();
    running[0].read_exact(&mut [0]).expect("a reply begins");
    served.signal("TERM");
    let start = Instant::now();
    while served.ask("GET /ready", "", "").0 != 503 {
        assert!(start.elapsed() < PATIENCE);
    }
    served.signal("TERM");
    assert_eq!(served.wait(), Some(130));
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = run(&["serve", "--port", &port]);
    assert_eq!(output.status.code(), Some(1));
    let error = stderr(&output);
    assert!(error.contains(&port) && error.contains("127.0.0.1"), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_log_that_cannot_be_written_takes_nothing_down() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut served = Served::spawn(command(&["--log-format", "json"]).stderr(full));
    for _ in 0..20 {
        assert_eq!(served.ask("GET /health", "", "").0, 200);
    }
    served.signal("TERM");
    assert_eq!(served.wait(), Some(0));
    // A pipe that nobody reads any more.
    let mut child = command(&[]);
    let mut served = Served::spawn(child.stderr(Stdio::piped()));
    drop(served.child.stderr.take());
    for _ in 0..20 {
        assert_eq!(served.ask("GET /health", "", "").0, 200);
    }
    served.signal("TERM");
    assert_eq!(served.wait(), Some(0));
}

/// What a server with a log in JSON writes to stderr until it ends: nothing but objects.
fn json_log(arguments: &[&str], variables: &[(&str, &str)], use_it: impl FnOnce(&Served)) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let mut command = command(arguments);
    command.envs(variables.iter().copied());
    command
        .args(["--log-format", "json"])
        .stderr(File::create(&path).unwrap());
    let mut served = Served::spawn(&mut command);
    use_it(&served);
    served.signal("TERM");
    served.wait();
    let text = fs::read_to_string(&path).unwrap();
    let object = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"));
    text.lines().map(object).collect()
}

#[test]
fn a_log_in_json_is_objects_with_numbers_and_what_a_request_took() {
    let lines = json_log(&[], &[], |served| {
        served.ask("GET /health", "x-request-id: seven\r\n", "");
        let body = json!({ "prompt": "Once", "max_tokens": 9, "ignore_eos": true, "n": 2 }).to_string();
        for id in ["first", "second"] {
            served.ask("POST /v1/completions", &format!("x-request-id: {id}\r\n"), &body);
        }
        served.ask("POST /v1/completions", "x-request-id: bad\r\n", "{}");
    });
    let of = |id: &str| {
        let found = lines.iter().find(|line| line["id"] == id);
        found.unwrap_or_else(|| panic!("{id} is not in {lines:?}"))
    };
    let health = of("seven");
    assert_eq!(
        (
            &health["message"],
            &health["path"],
            &health["status"],
            &health["level"]
        ),
        (&json!("request"), &json!("/health"), &json!(200), &json!("INFO"))
    );
    assert!(
        health["ms"].is_f64() && health.get("prompt_tokens").is_none(),
        "{health}"
    );
    let text = of("first");
    assert_eq!(
        (
            &text["method"],
            &text["prompt_tokens"],
            &text["completion_tokens"]
        ),
        (&json!("POST"), &json!(1), &json!(18))
    );
    let (first, whole) = (
        text["first_token_ms"].as_f64().unwrap(),
        text["ms"].as_f64().unwrap(),
    );
    assert!(0.0 < first && first <= whole, "{text}");
    assert_eq!(of("bad")["status"], 400);
    assert!(of("bad")["reason"].as_str().unwrap().contains("prompt"));
}

#[test]
fn a_streams_line_comes_with_its_end_and_tells_of_clients_that_leave() {
    let lines = json_log(&[], &[], |served| {
        let body = json!({ "prompt": "Once", "max_tokens": 30, "ignore_eos": true, "stream": true });
        served.ask(
            "POST /v1/completions",
            "x-request-id: stays\r\n",
            &body.to_string(),
        );
        let before = served.holdings();
        let mut leaves = served.open("POST /v1/completions", "x-request-id: leaves\r\n", &long());
        leaves.read_exact(&mut [0; 1]).unwrap();
        drop(leaves);
        served.expect_free(before);
    });
    let of = |id: &str| lines.iter().find(|line| line["id"] == id).unwrap();
    let (stays, leaves) = (of("stays"), of("leaves"));
    assert_eq!(
        (&stays["completion_tokens"], stays.get("incomplete")),
        (&json!(30), None),
        "{stays}"
    );
    assert_eq!(leaves["incomplete"], true, "{leaves}");
    assert!(leaves["completion_tokens"].as_u64().unwrap() < 1000, "{leaves}");
}

#[test]
fn a_failure_of_a_server_with_a_log_in_json_is_an_object_too() {
    for arguments in [
        &["--port", "0", "--api-key", " "][..],
        &["/nonexistent/model", "--port", "0"],
    ] {
        let output = run(&[&["serve", "--log-format", "json"], arguments].concat());
        assert_eq!(output.status.code(), Some(1));
        let text = stderr(&output);
        let line: Value = serde_json::from_str(text.trim()).unwrap_or_else(|_| panic!("no JSON: {text}"));
        assert_eq!(line["level"], "ERROR", "{line}");
    }
    if cfg!(debug_assertions) {
        let lines = json_log(&[], &[("PACELINE_TEST_FAULT", "panic:3")], |served| {
            let (status, _) = served.ask("POST /v1/completions", "", &long());
            assert!(status == 200 || status == 500);
        });
        let told = |part: &str| {
            lines
                .iter()
                .any(|line| line["message"].as_str().unwrap().contains(part))
        };
        assert!(
            told("a thread panicked: a fault was injected") && told("the engine has failed"),
            "{lines:?}"
        );
    }
}

#[test]
fn keys_come_from_flag_file_and_variables() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    fs::write(&file, "# of the team\nfrom-file\n\n  another \n#old\n").unwrap();
    let mut command = command(&[
        "--api-key",
        " from-flag ",
        "--api-key-file",
        file.to_str().unwrap(),
    ]);
    command
        .env("PACELINE_API_KEY", "from-variable")
        .env("VLLM_API_KEY", "from-vllm");
    let served = Served::spawn(&mut command);
    let status = |key: &str| {
        served
            .ask("GET /v1/models", &format!("authorization: Bearer {key}\r\n"), "")
            .0
    };
    for key in ["from-flag", "from-file", "another", "from-variable", "from-vllm"] {
        assert_eq!(status(key), 200, "{key}");
    }
    for key in ["guess", "# of the team", "#old", ""] {
        assert_eq!(status(key), 401, "{key}");
    }
    // What is open to everybody, and nothing else is.
    for path in ["/health", "/ping", "/ready", "/version", "/metrics"] {
        assert_eq!(served.ask(&format!("GET {path}"), "", "").0, 200, "{path}");
    }
    for path in ["/v1/engine", "/openapi.json", "/v1/models", "/nothing"] {
        assert_eq!(served.ask(&format!("GET {path}"), "", "").0, 401, "{path}");
    }
}

#[test]
fn a_key_that_got_lost_does_not_leave_a_server_open() {
    for name in ["PACELINE_API_KEY", "VLLM_API_KEY"] {
        let output = command(&[])
            .env(name, "")
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(&format!("{name} is empty")), "{error}");
    }
}

#[test]
fn a_process_that_was_stopped_has_not_hung() {
    let served = Served::start(&["--watchdog-timeout", "1"]);
    let mut stream = served.open("POST /v1/completions", "", &long());
    stream.read_exact(&mut [0; 1]).unwrap();
    served.signal("STOP");
    thread::sleep(Duration::from_secs(2));
    served.signal("CONT");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.contains(r#""finish_reason":"length""#), "{reply}");
    assert_eq!(served.ask("GET /health", "", "").0, 200);
}

#[test]
fn without_a_watchdog_nobody_is_killed() {
    let served = Served::start(&["--watchdog-timeout", "0"]);
    let (status, reply) = served.ask("POST /v1/completions", "", &long());
    assert_eq!(status, 200);
    assert!(reply.contains(r#""finish_reason":"length""#), "{reply}");
}

#[test]
fn the_table_says_what_is_on_and_what_has_no_effect() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("err");
    let err = File::create(&path).unwrap();
    let mut served = Served::spawn(
        command(&["--enforce-eager", "--no-enable-prefix-caching", "--log", "off"]).stderr(err),
    );
    served.signal("TERM");
    served.wait();
    let table = fs::read_to_string(&path).unwrap();
    for part in [
        "storyteller",
        "--enforce-eager",
        "has no effect, because",
        "prefix caching",
        "--no-prefix-caching",
        "speculation",
        "API keys",
        "KV blocks",
    ] {
        assert!(table.contains(part), "`{part}` is not in:\n{table}");
    }
}

#[test]
fn bad_files_are_named() {
    for (arguments, part) in [
        (
            &["serve", "--api-key-file", "/nonexistent/keys"][..],
            "--api-key-file",
        ),
        (
            &["serve", "--chat-template", "/nonexistent/template"],
            "--chat-template",
        ),
        (
            &["serve", "--port", "0", "--chat-template", "{% broken"],
            "--chat-template",
        ),
        (
            &[
                "serve",
                "--ssl-certfile",
                "/nonexistent/c",
                "--ssl-keyfile",
                "/nonexistent/k",
            ],
            "--ssl-certfile",
        ),
        (
            &["serve", "/nonexistent/model", "--port", "0"],
            "/nonexistent/model",
        ),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(
            stderr(&output).contains(part),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
}
