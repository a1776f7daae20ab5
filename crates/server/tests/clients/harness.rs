//! Runs a client's script against a server of its own.

use crate::support::{MODEL, TestServer};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The key that the server wants.
const KEY: &str = "a-key-for-clients";

/// The folder with the scripts.
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients");

/// Runs a script of Python's; when it is through, nothing may be left running in the engine.
pub(crate) async fn python_script(name: &str) {
    let script = format!("{SCRIPTS}/{name}");
    against_server(move |base| {
        let mut command = Command::new(python());
        command.arg("-B").arg(script).args([base, MODEL, KEY]);
        command
    })
    .await;
}

/// Starts a server, runs the command that `make` gives for its address, and expects all to be well afterwards.
pub(crate) async fn against_server(make: impl FnOnce(&str) -> Command + Send + 'static) {
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

/// The interpreter of an environment with everything in `requirements.txt`. It is made once, whoever asks first.
fn python() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let wanted = fs::read_to_string(format!("{SCRIPTS}/requirements.txt")).unwrap();
    fs::create_dir_all(target).unwrap();
    // Tests may be processes of their own; the lock ends with the file.
    let lock = File::create(target.join("clients-python.lock")).unwrap();
    lock.lock().unwrap();
    let folder = target.join("clients-python");
    let (python, mark) = (folder.join("bin/python"), folder.join("installed.txt"));
    if fs::read_to_string(&mark).is_ok_and(|installed| installed == wanted) {
        return python;
    }
    let mut make = Command::new("python3");
    make.args(["-m", "venv", "--clear"]).arg(&folder);
    let made = make.output();
    let made = made.unwrap_or_else(|error| panic!("the tests of clients need python3: {error}"));
    expect_success("python3 -m venv", &made);
    let mut install = Command::new(&python);
    install.args([
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--quiet",
        "-r",
    ]);
    install.arg(format!("{SCRIPTS}/requirements.txt"));
    let installed = install.output().unwrap();
    expect_success(
        "pip install (the tests of clients need a package index that can be reached)",
        &installed,
    );
    fs::write(&mark, wanted).unwrap();
    python
}

fn expect_success(what: &str, output: &Output) {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{what} failed with {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
}
