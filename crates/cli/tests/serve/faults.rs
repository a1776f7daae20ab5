//! `paceline serve` when things around it break: clients that are killed, signals under load, a process that is
//! killed itself.

use crate::common::mix::{self, GENERATING};
use crate::common::served::{PATIENCE, Served, serve_on};
use serde_json::Value;
use std::env;
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

/// Clients that go in the middle of a reply.
const KILLED: usize = 1000;

/// Tokens of a stream that nobody waits for the end of.
const LONG: u64 = 900;

/// The text that a server gives, to compare with later.
fn story(served: &Served) -> Value {
    let body = r#"{"prompt": "Once upon a time", "max_tokens": 32, "temperature": 0}"#;
    let (status, reply) = served.ask("POST /v1/completions", "", body);
    assert_eq!(status, 200, "{reply}");
    let reply: Value = serde_json::from_str(reply.split_once("\r\n\r\n").unwrap().1).unwrap();
    reply["choices"].clone()
}

/// The body of a stream of `tokens` tokens.
fn stream(served: &Served, path: &str, tokens: u64) -> TcpStream {
    let body = mix::body(path, tokens, true).to_string();
    served.open(&format!("POST {path}"), "", &body)
}

#[test]
fn clients_that_are_gone_leave_nothing_behind() {
    let served = Served::start(&["--max-num-seqs", "4"]);
    let story_before = story(&served);
    let before = served.holdings();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        // More than there are slots: some are gone while they wait, some in the prompt, some in the text.
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= KILLED {
                        break;
                    }
                    let mut socket = stream(&served, GENERATING[number % 4], LONG);
                    // A socket that is closed with bytes unread resets the connection, as a killed process does.
                    let mut some = [0; 2000];
                    for _ in 0..number % 4 {
                        let _ = socket.read(&mut some).unwrap();
                    }
                }
            });
        }
    });
    served.expect_free(before);
    assert_eq!(story(&served), story_before);
}

#[test]
fn processes_that_are_killed_leave_nothing_behind() {
    let long = env::var_os("PACELINE_TEST_LONG").is_some();
    let served = Served::start(&["--max-num-seqs", "4"]);
    let before = served.holdings();
    for number in 0..if long { KILLED } else { 40 } {
        let path = GENERATING[number % 4];
        let mut client = Command::new("curl")
            .args(["-sN", "-H", "content-type: application/json", "-d"])
            .arg(mix::body(path, LONG, true).to_string())
            .arg(format!("http://{}{path}", served.address))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("this test needs curl: {error}"));
        let mut some = [0; 100];
        let read = client.stdout.as_mut().unwrap().read(&mut some).unwrap();
        assert!(read > 0, "it was killed in the middle of a stream");
        client.kill().unwrap();
        client.wait().unwrap();
    }
    served.expect_free(before);
    assert_eq!(served.ask("GET /health", "", "").0, 200);
}

/// Opens streams on every endpoint, more than there are slots, and waits until each has begun.
fn begin(served: &Served, tokens: u64) -> Vec<(&'static str, TcpStream, Vec<u8>)> {
    let mut streams = Vec::new();
    for path in GENERATING.iter().cycle().take(16) {
        streams.push((*path, stream(served, path, tokens), Vec::new()));
    }
    for (_, socket, begun) in &mut streams {
        let mut some = [0; 500];
        let read = socket.read(&mut some).unwrap();
        begun.extend_from_slice(&some[..read]);
    }
    streams
}

/// The rest of a stream.
fn finish((path, mut socket, mut reply): (&'static str, TcpStream, Vec<u8>)) -> (&'static str, String) {
    socket.read_to_end(&mut reply).unwrap();
    (path, String::from_utf8(reply).unwrap())
}

#[test]
fn streams_end_properly_on_every_endpoint_when_time_is_over() {
    let mut served = Served::start(&["--drain-timeout", "0.05", "--max-num-seqs", "4"]);
    let streams = begin(&served, LONG);
    served.signal("TERM");
    let mut cut = 0;
    for (path, reply) in streams.into_iter().map(finish) {
        assert!(mix::complete(path, &reply), "{path}: {reply}");
        let told = match path {
            "/v1/responses" => reply.contains("event: response.failed\n"),
            "/v1/messages" => reply.contains("event: error\n"),
            _ => reply.contains(r#""finish_reason":"abort""#),
        };
        // A stream that came to its end in time has a reason of its own.
        if told {
            assert!(reply.contains("going down"), "{path}: {reply}");
            cut += 1;
        }
    }
    assert!(cut > 0, "nothing was cut off");
    assert_eq!(served.wait(), Some(0));
}

#[test]
fn streams_may_finish_when_there_is_time() {
    let mut served = Served::start(&["--drain-timeout", "600", "--max-num-seqs", "4"]);
    let streams = begin(&served, 100);
    served.signal("TERM");
    let start = Instant::now();
    while served.ask("GET /ready", "", "").0 != 503 {
        assert!(start.elapsed() < PATIENCE);
    }
    for path in GENERATING {
        let (status, reply) = served.ask(
            &format!("POST {path}"),
            "",
            &mix::body(path, 4, false).to_string(),
        );
        assert_eq!(status, 503, "{path}: {reply}");
        assert!(reply.contains("retry-after: "), "{path}: {reply}");
    }
    for (path, reply) in streams.into_iter().map(finish) {
        assert!(mix::complete(path, &reply), "{path}: {reply}");
        let whole = match path {
            "/v1/responses" => reply.contains("event: response.incomplete\n"),
            "/v1/messages" => reply.contains(r#""stop_reason":"max_tokens""#),
            _ => reply.contains(r#""finish_reason":"length""#),
        };
        assert!(whole, "{path}: {reply}");
    }
    assert_eq!(served.wait(), Some(0));
}

#[test]
fn a_killed_server_can_be_started_again_at_once() {
    let mut served = Served::start(&[]);
    let (port, story_before) = (
        served.address.rsplit_once(':').unwrap().1.to_owned(),
        story(&served),
    );
    for _ in 0..3 {
        let streams = begin(&served, LONG);
        served.child.kill().unwrap();
        assert_eq!(served.wait(), None, "a signal ended it");
        // Clients see the end of the connection and do not hang.
        for (_, mut socket, mut reply) in streams {
            if let Err(error) = socket.read_to_end(&mut reply) {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            }
        }
        served = Served::spawn(&mut serve_on(&port, &[]));
        assert!(served.address.ends_with(&port));
        assert_eq!(story(&served), story_before);
    }
}
