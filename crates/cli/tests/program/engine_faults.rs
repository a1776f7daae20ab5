//! What becomes of the process when its engine fails. The fault is injected, which only builds with debug assertions let
//! one do.

#![cfg(debug_assertions)]

use crate::common::paceline;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take before a test counts as stuck.
const PATIENCE: Duration = Duration::from_mins(1);

/// A server whose engine fails with its twentieth step, and its address.
fn failing(fault: &str, more: &[&str]) -> (Child, String) {
    let mut command = paceline();
    command
        .args(["serve", "--port", "0", "--threads", "1", "--max-model-len", "512"])
        .args(more)
        .env("PACELINE_TEST_FAULT", format!("{fault}:20"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("Paceline is listening on http://");
    (child, address.unwrap_or_else(|| panic!("{line:?}")).to_owned())
}

/// Asks for a long text and returns all that comes back.
fn ask(address: &str, stream: bool) -> String {
    let body = format!(r#"{{"prompt": "Once", "max_tokens": 400, "ignore_eos": true, "stream": {stream}}}"#);
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.write_all(head.as_bytes()).unwrap();
    let mut reply = String::new();
    socket.read_to_string(&mut reply).unwrap();
    reply
}

#[test]
fn a_fault_ends_the_process_with_its_cause_and_every_reply_with_an_error() {
    for (fault, cause, more) in [
        ("panic", "a fault was injected in step 20", &[][..]),
        ("collect", "the device failed: a fault was injected", &[]),
        ("hang", "no step for 1 s", &["--watchdog-timeout", "1"]),
    ] {
        let (mut child, address) = failing(fault, more);
        let replies: Vec<String> = thread::scope(|scope| {
            let asking: Vec<_> = [true, false]
                .map(|stream| {
                    let address = &address;
                    scope.spawn(move || ask(address, stream))
                })
                .into();
            asking.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let [stream, whole] = &replies[..] else { panic!() };
        assert!(
            stream.contains("\"error\"") && stream.contains(cause),
            "{fault}: {stream}"
        );
        assert!(
            stream.starts_with("HTTP/1.1 200") && stream.contains("[DONE]"),
            "{fault}: {stream}"
        );
        assert!(
            whole.starts_with("HTTP/1.1 500") && whole.contains(cause),
            "{fault}: {whole}"
        );
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < PATIENCE, "{fault}: it does not end");
            thread::sleep(Duration::from_millis(5));
        };
        let mut log = String::new();
        child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        assert_eq!(status.code(), Some(1), "{fault}: {log}");
        assert!(log.contains(cause), "{fault}: {log}");
    }
}
