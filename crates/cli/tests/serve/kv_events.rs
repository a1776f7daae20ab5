//! KV events of `paceline serve`, read by a subscriber in Python with libzmq.

use crate::common::served::Served;
use crate::common::{expect_usage_error, repository, run, stderr};
use crate::environment::{SCRIPTS, expect_success, python};
use std::process::Command;

const EVENTS: &str = r#"{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://127.0.0.1:0",
    "replay_endpoint": "tcp://127.0.0.1:0", "topic": "kv@here@model", "buffer_steps": 200}"#;

/// Runs the subscriber against a server with few blocks, so that much is evicted.
fn subscribe(model: &[&str]) {
    let arguments = [
        "--served-model-name",
        "model",
        "--api-key",
        "a-key",
        "--max-model-len",
        "512",
        "--max-num-seqs",
        "4",
        "--num-blocks",
        "160",
        "--kv-events-config",
        EVENTS,
    ];
    let served = Served::start(&[&arguments[..], model].concat());
    let output = Command::new(python())
        .arg("-B")
        .arg(format!("{SCRIPTS}/kv_events_client.py"))
        .args([&served.url, "model", "a-key"])
        .output()
        .unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    expect_success("the subscriber", &output);
    let (status, info) = served.ask("GET /server_info", "authorization: Bearer a-key\r\n", "");
    assert_eq!(status, 200, "{info}");
    assert!(info.contains(r#""publisher":"zmq""#), "{info}");
}

#[test]
fn hits_of_a_hybrid_model_are_as_its_events_predict() {
    subscribe(&[]);
}

#[test]
fn hits_of_a_dense_model_are_as_its_events_predict() {
    let model = repository("fixtures/qwen3");
    subscribe(&[model.to_str().unwrap()]);
}

#[test]
fn events_that_cannot_be_published_are_an_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let config = EVENTS.replacen("127.0.0.1:0", &address, 1);
    let output = run(&["serve", "--kv-events-config", &config]);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains("--kv-events-config") && message.contains(&address),
        "{message}"
    );
    let output = run(&[
        "serve",
        "--no-enable-prefix-caching",
        "--kv-events-config",
        EVENTS,
    ]);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("prefix caching"), "{message}");
    expect_usage_error(
        &["serve", "--kv-events-config", r#"{"endpoint": 3}"#],
        &["endpoint"],
    );
}
