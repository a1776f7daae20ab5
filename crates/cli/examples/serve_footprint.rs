//! What a server costs before it does anything: the time from start to ready, its memory when idle, and what a
//! connection, an open stream and a served token add to it. Linux only, where `/proc` tells.
//!
//! ```text
//! cargo build --release && cargo run --release --example serve_footprint -- target/release/paceline [MODEL]
//! ```
//!
//! With a model, only what its tokens add.

use anyhow::{Context, Result, ensure};
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Starts that are timed.
const STARTS: usize = 21;

/// Connections that are open at a time.
const CONNECTIONS: usize = 500;

/// Streams that are open at a time.
const STREAMS: usize = 200;

/// Streams that are read to their end before any is counted.
const WARM_UP: usize = 40;

/// Prompts that are served before memory is measured, and after that; each has as many tokens, and no two have any block
/// in common.
const PROMPTS: (usize, usize) = (4, 24);
const PROMPT_TOKENS: usize = 512;

struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(binary: &str, arguments: &[&str]) -> Result<Self> {
        let mut child = Command::new(binary)
            .args(["serve", "--port", "0", "--log", "off"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot run {binary}"))?;
        let mut line = String::new();
        let out = child.stdout.take().context("its output")?;
        BufReader::new(out).read_line(&mut line)?;
        let address = line.trim().rsplit_once("//").context("no address")?.1.to_owned();
        Ok(Self { child, address })
    }

    /// A connection that has had one reply and stays open.
    fn connect(&self) -> Result<TcpStream> {
        let mut socket = TcpStream::connect(&self.address)?;
        socket.write_all(b"GET /ready HTTP/1.1\r\nhost: x\r\n\r\n")?;
        let reply = some(&mut socket)?;
        ensure!(reply.starts_with("HTTP/1.1 200"), "{reply}");
        Ok(socket)
    }

    /// A stream that has been asked for.
    fn stream(&self, connection: &str) -> Result<TcpStream> {
        let body = r#"{"prompt": "Once", "max_tokens": 400, "ignore_eos": true, "stream": true}"#;
        self.ask(connection, body)
    }

    fn ask(&self, connection: &str, body: &str) -> Result<TcpStream> {
        let mut socket = TcpStream::connect(&self.address)?;
        let length = body.len();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: {connection}\r\ncontent-length: {length}\r\n\r\n"
        );
        socket.write_all(format!("{head}{body}").as_bytes())?;
        Ok(socket)
    }

    /// Serves some prompts, one after the other.
    fn serve(&self, prompts: std::ops::Range<usize>) -> Result<()> {
        for number in prompts {
            let prompt: Vec<usize> = (0..PROMPT_TOKENS)
                .map(|i| 100 + (number * 31 + i * 7) % 3000)
                .collect();
            let body = format!(r#"{{"prompt": {prompt:?}, "max_tokens": 1, "ignore_eos": true}}"#);
            let mut reply = String::new();
            self.ask("close", &body)?.read_to_string(&mut reply)?;
            ensure!(reply.starts_with("HTTP/1.1 200"), "{reply}");
        }
        Ok(())
    }

    /// Its memory in bytes.
    fn resident(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
        Ok(kibibytes.context("VmRSS")?.parse::<u64>()? * 1024)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn some(socket: &mut TcpStream) -> Result<String> {
    let mut buffer = [0; 1000];
    let read = socket.read(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..read]).into_owned())
}

/// What cached tokens add, one request at a time, so that nothing else grows.
fn tokens(binary: &str, arguments: &[&str]) -> Result<()> {
    let server = Server::start(binary, arguments)?;
    let (first, then) = PROMPTS;
    server.serve(0..first)?;
    let before = server.resident()?;
    server.serve(first..first + then)?;
    let each = server.resident()?.saturating_sub(before) as f64 / (then * PROMPT_TOKENS) as f64;
    println!(
        "per served token of {}: {:.2} kB",
        then * PROMPT_TOKENS,
        each / 1e3
    );
    Ok(())
}

fn main() -> Result<()> {
    let binary = env::args()
        .nth(1)
        .context("usage: serve_footprint BINARY [MODEL]")?;
    if let Some(model) = env::args().nth(2) {
        return tokens(&binary, &["--model", &model]);
    }
    tokens(&binary, &[])?;
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let start = Instant::now();
        let server = Server::start(&binary, &[])?;
        server.connect()?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    println!("start to ready, median of {STARTS}: {:?}", times[STARTS / 2]);
    println!("start to ready, slowest: {:?}", times[STARTS - 1]);

    let server = Server::start(&binary, &[])?;
    server.connect()?;
    thread::sleep(Duration::from_secs(1));
    let idle = server.resident()?;
    println!("idle: {:.1} MB", idle as f64 / 1e6);
    let connections = (0..CONNECTIONS)
        .map(|_| server.connect())
        .collect::<Result<Vec<_>>>()?;
    let each = server.resident()?.saturating_sub(idle) / CONNECTIONS as u64;
    println!(
        "per idle connection of {CONNECTIONS}: {:.1} kB",
        each as f64 / 1e3
    );
    drop(connections);

    // The engine's own memory becomes resident with its first use and is no part of a stream: there is little of it here,
    // and all of it has been used before streams are counted. All but two of them wait for a slot.
    let few = [
        "--max-num-seqs",
        "2",
        "--num-blocks",
        "64",
        "--max-model-len",
        "512",
    ];
    let server = Server::start(&binary, &few)?;
    for _ in 0..WARM_UP {
        let mut whole = Vec::new();
        server.stream("close")?.read_to_end(&mut whole)?;
    }
    let warm = server.resident()?;
    let streams = (0..STREAMS)
        .map(|_| server.stream("keep-alive"))
        .collect::<Result<Vec<_>>>()?;
    thread::sleep(Duration::from_millis(200));
    let each = server.resident()?.saturating_sub(warm) / streams.len() as u64;
    println!("per open stream of {STREAMS}: {:.1} kB", each as f64 / 1e3);
    Ok(())
}
