//! Runs a client's script against a server of its own.

use crate::environment::{SCRIPTS, expect_success, node_script, python};
use crate::support::{MODEL, TestServer, engine_config};
use paceline::EngineConfig;
use paceline_server::{ServedModel, ServerConfig};
use std::process::Command;

/// The key that the server wants.
const KEY: &str = "a-key-for-clients";

/// Tokens of a sequence that are enough for most scripts.
const SHORT: usize = 512;

/// Runs a script of Python's; when it is through, nothing may be left running in the engine.
pub(crate) async fn run_python(name: &'static str) {
    run_python_with(name, SHORT, |_| {}).await;
}

/// The same with another length of sequences, and a model that is told to be different.
pub(crate) async fn run_python_with(
    name: &'static str,
    max_model_len: usize,
    change: impl FnOnce(&mut ServedModel),
) {
    let make = move |base: &str| {
        let mut command = Command::new(python());
        command
            .arg("-B")
            .arg(format!("{SCRIPTS}/{name}"))
            .args([base, MODEL, KEY]);
        command
    };
    against_server(make, max_model_len, change).await;
}

/// Runs a script of Node's.
pub(crate) async fn run_node(name: &'static str) {
    let make = move |base: &str| {
        let mut command = Command::new("node");
        command.arg(node_script(name)).args([base, MODEL, KEY]);
        command
    };
    against_server(make, SHORT, |_| {}).await;
}

/// Starts a server, runs the command that `make` gives for its address, and expects all to be well afterwards.
async fn against_server(
    make: impl FnOnce(&str) -> Command + Send + 'static,
    max_model_len: usize,
    change: impl FnOnce(&mut ServedModel),
) {
    let config = ServerConfig {
        api_keys: vec![KEY.to_owned()],
        ..ServerConfig::default()
    };
    let engine = EngineConfig {
        max_model_len: Some(max_model_len),
        ..engine_config()
    };
    let server = TestServer::launch(config, engine, change).await;
    let base = server.base.clone();
    let done = tokio::task::spawn_blocking(move || {
        let mut command = make(&base);
        let output = command.output();
        output.unwrap_or_else(|error| panic!("{command:?} cannot be run: {error}"))
    });
    expect_success("the client", &done.await.unwrap());
    server.idle().await;
    assert_eq!(server.get("/health").await.0, 200);
}
