//! Texts far beyond what the model takes, and bodies that never end.

use crate::common::served::{PATIENCE, open, serve, status};
use crate::victim::{ATTACKER, Victim, limited, scale};
use serde_json::{Value, json};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;

/// Bytes of a prompt that fits a body of the default limit.
const HUGE: usize = 15_500_000;

/// Texts that tokenizers find hard in different ways.
fn texts(bytes: usize) -> [String; 4] {
    let fill = |part: &str| part.repeat(bytes / part.len());
    [
        fill("Once upon a time there was a fox. "),
        fill("a"),
        fill(" "),
        fill("\u{1F98A}\u{0301}"),
    ]
}

/// The same text at every place that computes with one.
fn requests(text: &str) -> [(&'static str, Value); 5] {
    let messages = json!([{ "role": "user", "content": text }]);
    [
        ("/v1/completions", json!({ "prompt": text })),
        ("/v1/chat/completions", json!({ "messages": messages })),
        ("/v1/responses", json!({ "input": text })),
        (
            "/v1/messages",
            json!({ "messages": messages, "model": "storyteller", "max_tokens": 4 }),
        ),
        ("/v1/embeddings", json!({ "input": text })),
    ]
}

/// Sends huge prompts at the same time and expects each to be refused by name.
fn send_huge(victim: &Victim, count: usize) {
    let address = &victim.served.address;
    let texts = texts(HUGE);
    thread::scope(|scope| {
        for number in 0..count {
            let (path, body) = requests(&texts[number % 4])[number % 5].clone();
            scope.spawn(move || {
                let mut reply = String::new();
                let sent = open(address, &format!("POST {path}"), ATTACKER, &body.to_string());
                let answered = sent.and_then(|mut socket| socket.read_to_string(&mut reply));
                // One that is refused before all of it has been sent may not get to read why.
                if let Err(error) = answered {
                    let closed = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
                    assert!(closed.contains(&error.kind()), "{path}: {error}");
                    return;
                }
                // It is too long, or there are too many of its kind just now.
                let status = status(&reply);
                let start: String = reply.chars().take(2000).collect();
                assert!(matches!(status, Some(400 | 413 | 429 | 503)), "{path}: {start}");
            });
        }
    });
}

#[test]
fn prompts_far_too_long_cost_little() {
    let victim = Victim::start(&[]);
    let count = scale(2, 6);
    let figures = victim.under("prompts of 15.5 MB", || {
        send_huge(&victim, count);
        Ok(())
    });
    // The bodies, their texts, and what the socket and the JSON take of them on the way.
    figures.expect(64 * count as u64, 64);
}

#[test]
fn prompts_far_too_long_do_not_end_a_server_with_little_memory() {
    let command = serve(&["--num-blocks", "256"]);
    let victim = Victim::spawn(limited(&command, 4 << 30).stderr(std::process::Stdio::null()));
    let figures = victim.under("prompts of 15.5 MB within 4 GiB", || {
        send_huge(&victim, scale(2, 12));
        Ok(())
    });
    figures.expect(1024, 64);
}

#[test]
fn a_text_for_the_tokenizer_alone_costs_little_too() {
    let victim = Victim::start(&[]);
    let figures = victim.under("/tokenize of 15.5 MB", || {
        for text in texts(scale(HUGE / 8, HUGE)) {
            let body = json!({ "prompt": text }).to_string();
            let (status, reply) = victim.served.ask("POST /tokenize", ATTACKER, &body);
            let start: String = reply.chars().take(2000).collect();
            assert!(matches!(status, 200 | 400 | 413 | 429 | 503), "{start}");
        }
        Ok(())
    });
    figures.expect(512, 128);
}

#[test]
fn bodies_that_never_end_share_a_bound() {
    let victim = Victim::start(&["--body-timeout", scale("5", "20")]);
    let (bodies, bytes) = scale((16, 8 << 20), (128, 15 << 20));
    let part = vec![b'a'; bytes];
    let figures = victim.under("bodies that never end", || {
        let begun: Vec<_> = (0..bodies)
            .map(|_| begin(&victim.served.address, &part))
            .collect();
        let answer = victim.answer();
        drop(begun);
        answer
    });
    // What may be on its way at a time is 64 MiB.
    figures.expect(scale(112, 192), 96);
}

/// Sends most of a body.
fn begin(address: &str, part: &[u8]) -> TcpStream {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_write_timeout(Some(PATIENCE)).unwrap();
    let length = part.len() + 64;
    let head =
        format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\n{ATTACKER}content-length: {length}\r\n\r\n");
    socket.write_all(head.as_bytes()).unwrap();
    // A server that has enough of them refuses the rest.
    let _ = socket
        .write_all(b"{\"prompt\": \"")
        .and_then(|()| socket.write_all(part));
    socket
}
