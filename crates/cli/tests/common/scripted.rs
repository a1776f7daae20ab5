//! A server with OpenAI's interface that does what a test tells it to.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// What a reply is made of.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A pause, in milliseconds.
    Wait(u64),
    /// A piece of text.
    Text(&'static str),
    /// Anything else that is an event.
    Event(Value),
    /// The reason to end, what was counted, and the last word.
    End { tokens: Option<u64> },
    /// The connection is kept open and nothing comes, for longer than any test takes.
    Hang,
}

/// How a request is answered.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Stream(Vec<Step>),
    Refuse(u16, &'static str),
}

/// The server; it lives as long as the test's process.
pub(crate) struct Scripted {
    pub(crate) url: String,
    most: Arc<AtomicUsize>,
}

type Script = dyn Fn(usize, &Value) -> Answer + Send + Sync;

impl Scripted {
    /// Answers the streams by number, in the order they come, with what the script says.
    pub(crate) fn start(script: impl Fn(usize, &Value) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (script, most): (Arc<Script>, _) = (Arc::new(script), Arc::new(AtomicUsize::new(0)));
        let counts = Counts {
            requests: Arc::default(),
            under_way: Arc::default(),
            most: Arc::clone(&most),
        };
        thread::spawn(move || {
            for socket in listener.incoming() {
                let (script, counts) = (Arc::clone(&script), counts.clone());
                thread::spawn(move || {
                    // A client that has gone is the test's business, not the server's.
                    let _ = serve(&socket.unwrap(), &*script, &counts);
                });
            }
        });
        Self { url, most }
    }

    /// Most streams that were under way at the same time.
    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

#[derive(Clone)]
struct Counts {
    requests: Arc<AtomicUsize>,
    under_way: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

fn serve(mut socket: &TcpStream, script: &Script, counts: &Counts) -> std::io::Result<()> {
    let mut reader = BufReader::new(socket.try_clone()?);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    if first.starts_with("GET") {
        let models = json!({ "data": [{ "id": "scripted", "owned_by": "a test", "max_model_len": 100 }] });
        let found = first.contains("/v1/models");
        return reply(socket, if found { 200 } else { 404 }, &models.to_string());
    }
    let body: Value = serde_json::from_slice(&body).unwrap();
    let number = counts.requests.fetch_add(1, Ordering::SeqCst);
    let under_way = counts.under_way.fetch_add(1, Ordering::SeqCst) + 1;
    counts.most.fetch_max(under_way, Ordering::SeqCst);
    match script(number, &body) {
        Answer::Refuse(status, message) => {
            // A server that refuses is done before the client knows.
            counts.under_way.fetch_sub(1, Ordering::SeqCst);
            reply(
                socket,
                status,
                &json!({ "error": { "message": message } }).to_string(),
            )
        }
        Answer::Stream(steps) => {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
            let chat = body.get("messages").is_some();
            let head = socket.write_all(head.as_bytes());
            head.and_then(|()| stream(socket, &steps, chat, counts))
        }
    }
}

fn stream(mut socket: &TcpStream, steps: &[Step], chat: bool, counts: &Counts) -> std::io::Result<()> {
    let mut last = false;
    for step in steps {
        let event = match step {
            Step::Wait(ms) => {
                thread::sleep(Duration::from_millis(*ms));
                continue;
            }
            Step::Hang => {
                thread::sleep(Duration::from_mins(10));
                continue;
            }
            Step::Text(text) if chat => json!({ "choices": [{ "delta": { "content": text } }] }),
            Step::Text(text) => json!({ "choices": [{ "text": text }] }),
            Step::Event(event) => event.clone(),
            Step::End { tokens } => {
                counts.under_way.fetch_sub(1, Ordering::SeqCst);
                last = true;
                let usage = tokens.map(|tokens| json!({ "prompt_tokens": 9, "completion_tokens": tokens }));
                json!({ "choices": [{ "delta": {}, "text": "", "finish_reason": "stop" }], "usage": usage })
            }
        };
        socket.write_all(format!("data: {event}\n\n").as_bytes())?;
    }
    if last {
        socket.write_all(b"data: [DONE]\n\n")?;
    } else {
        counts.under_way.fetch_sub(1, Ordering::SeqCst);
    }
    Ok(())
}

fn reply(mut socket: &TcpStream, status: u16, body: &str) -> std::io::Result<()> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    socket.write_all((head + body).as_bytes())
}
