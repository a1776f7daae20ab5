//! Signals, clocks and settings: what an operator, a terminal or a scheduler of containers does to a server.

use crate::common::served::{PATIENCE, Served, serve};
use crate::victim::{ATTACKER, Victim};
use serde_json::json;
use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A stream that has begun.
fn begin(served: &Served, headers: &str) -> (TcpStream, String) {
    let body = json!({ "prompt": "Once", "max_tokens": 300, "ignore_eos": true, "stream": true }).to_string();
    let mut socket = served.open("POST /v1/completions", headers, &body);
    let mut first = [0; 1];
    socket.read_exact(&mut first).unwrap();
    (socket, String::from_utf8(first.to_vec()).unwrap())
}

/// Reads a stream to its end, which has to be that of all its tokens.
fn expect_whole((mut socket, mut reply): (TcpStream, String)) {
    socket.read_to_string(&mut reply).unwrap();
    assert!(reply.contains(r#""finish_reason":"length""#), "{reply}");
    assert!(reply.contains("data: [DONE]"), "{reply}");
}

/// The status of a request for the models with this key.
fn status(served: &Served, key: &str) -> u16 {
    let headers = format!("authorization: Bearer {key}\r\n");
    served.ask("GET /v1/models", &headers, "").0
}

/// Waits for a command that has to fail by itself, and returns what it says.
pub(crate) fn failure(command: &mut Command) -> String {
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let ended = wait(&mut child);
    if ended.is_none() {
        child.kill().unwrap();
    }
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    child.wait().unwrap();
    assert!(
        matches!(ended, Some(1 | 2)),
        "{command:?} ended with {ended:?}: {text}"
    );
    assert!(!text.contains("panicked"), "{text}");
    text
}

/// The exit code of a process that ends in time, or -1 for a signal.
fn wait(child: &mut Child) -> Option<i32> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE / 2 {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status.code().unwrap_or(-1));
        }
        thread::sleep(Duration::from_millis(10));
    }
    None
}

#[test]
fn time_in_which_the_process_was_stopped_is_not_the_engines() {
    // One stop that is longer than the watchdog's patience, and many that are shorter and come one after the other.
    for (patience, stops, stopped) in [("3", 2, 3200), ("1", 8, 600)] {
        let victim = Victim::start(&["--watchdog-timeout", patience]);
        let streams: Vec<_> = (0..16).map(|_| begin(&victim.served, ATTACKER)).collect();
        // What is woken for a moment gets to look at the clock, and hardly to the end of a step.
        for _ in 0..stops {
            victim.served.signal("STOP");
            thread::sleep(Duration::from_millis(stopped));
            victim.served.signal("CONT");
        }
        for stream in streams {
            expect_whole(stream);
        }
        victim.under(&format!("SIGSTOP and SIGCONT, {stops} times"), || victim.answer());
    }
}

#[test]
fn a_watchdog_of_no_seconds_does_not_bite() {
    let victim = Victim::start(&["--watchdog-timeout", "0"]);
    victim.under("--watchdog-timeout 0", || {
        expect_whole(begin(&victim.served, ATTACKER));
        Ok(())
    });
}

#[test]
fn a_terminal_that_closes_lets_streams_end() {
    let mut served = Served::start(&[]);
    let streams: Vec<_> = (0..4).map(|_| begin(&served, "")).collect();
    served.signal("HUP");
    for stream in streams {
        expect_whole(stream);
    }
    assert_eq!(served.wait(), Some(0));
}

#[test]
fn a_key_that_is_empty_opens_nothing() {
    for variable in ["PACELINE_API_KEY", "VLLM_API_KEY"] {
        for key in ["", " ", "\n"] {
            let text = failure(serve(&[]).env(variable, key));
            assert!(text.contains(variable), "{text}");
        }
        let served = Served::spawn(serve(&[]).env(variable, " right \n"));
        assert_eq!((status(&served, "right"), status(&served, "wrong")), (200, 401));
        assert_eq!(served.ask("GET /v1/models", "", "").0, 401);
    }
}

#[test]
fn a_file_of_keys_has_the_keys_that_it_seems_to_have() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    fs::write(&file, "# of the team\r\n  spaced  \r\n\n#off\nlast").unwrap();
    let served = Served::start(&["--api-key-file", file.to_str().unwrap()]);
    for (key, expected) in [
        ("spaced", 200),
        ("last", 200),
        ("# of the team", 401),
        ("#off", 401),
        ("off", 401),
        ("", 401),
    ] {
        assert_eq!(status(&served, key), expected, "{key:?}");
    }
    // A file without keys is no way to serve without any.
    fs::write(&file, "# none yet\n").unwrap();
    let text = failure(&mut serve(&["--api-key-file", file.to_str().unwrap()]));
    assert!(text.contains("--api-key-file"), "{text}");
}

#[test]
fn pages_of_allowed_origins_may_send_keys() {
    let served = Served::start(&["--api-key", "k", "--allowed-origins", "https://example.org"]);
    let ask = "origin: https://example.org\r\naccess-control-request-method: POST\r\n\
               access-control-request-headers: authorization,content-type\r\n";
    let (status, reply) = served.ask("OPTIONS /v1/chat/completions", ask, "");
    assert!(matches!(status, 200 | 204), "{reply}");
    let allowed = reply
        .lines()
        .find(|line| line.starts_with("access-control-allow-headers: "));
    // A star does not stand for this header.
    assert!(
        allowed.is_some_and(|line| line.to_lowercase().contains("authorization")),
        "{reply}"
    );
}

#[test]
fn deadlines_beyond_every_clock_are_refused() {
    let victim = Victim::start(&[]);
    victim.under("deadline_ms of 2^64 - 1", || {
        for deadline in [
            json!(u64::MAX),
            json!(u64::MAX / 2),
            json!(0),
            json!(-1),
            json!(1e300),
        ] {
            let body = json!({ "prompt": "Once", "max_tokens": 4, "deadline_ms": deadline }).to_string();
            let (status, reply) = victim.served.ask("POST /v1/completions", ATTACKER, &body);
            assert_eq!(status, 400, "{deadline}: {reply}");
            assert!(reply.contains("deadline_ms"), "{reply}");
        }
        Ok(())
    });
}
