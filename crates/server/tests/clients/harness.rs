//! Runs a client's script against a server of its own.

use crate::environment::{SCRIPTS, expect_success, node_script, python};
use crate::support::{MODEL, TestServer};
use std::process::Command;

/// The key that the server wants.
const KEY: &str = "a-key-for-clients";

/// Runs a script of Python's; when it is through, nothing may be left running in the engine.
pub(crate) async fn run_python(name: &'static str) {
    against_server(move |base| {
        let mut command = Command::new(python());
        command
            .arg("-B")
            .arg(format!("{SCRIPTS}/{name}"))
            .args([base, MODEL, KEY]);
        command
    })
    .await;
}

/// The same for a script of Node's.
pub(crate) async fn run_node(name: &'static str) {
    against_server(move |base| {
        let mut command = Command::new("node");
        command.arg(node_script(name)).args([base, MODEL, KEY]);
        command
    })
    .await;
}

/// Starts a server, runs the command that `make` gives for its address, and expects all to be well afterwards.
async fn against_server(make: impl FnOnce(&str) -> Command + Send + 'static) {
    let server = TestServer::configured(|config| config.api_keys = vec![KEY.to_owned()]).await;
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
