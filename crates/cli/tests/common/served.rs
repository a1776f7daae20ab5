//! `paceline serve` in a process of its own, and a client that is no more than a socket.

use super::paceline;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take before a test counts as stuck.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// A server in a process of its own; it goes when this is dropped.
pub(crate) struct Served {
    pub(crate) child: Child,
    /// Host and port.
    pub(crate) address: String,
    /// The same with the scheme.
    pub(crate) url: String,
    _out: BufReader<ChildStdout>,
}

/// What a server holds while it works and must have given back when it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holdings {
    pub(crate) running: u64,
    pub(crate) waiting: u64,
    pub(crate) blocks_used: u64,
    /// States that requests have reserved a place for; those of the cache are the cache's.
    pub(crate) snapshots_reserved: u64,
}

impl Holdings {
    /// Those that the state of an engine tells of.
    pub(crate) fn of(state: &Value) -> Self {
        let number = |place: &str| state.pointer(place).and_then(Value::as_u64).unwrap();
        Self {
            running: number("/slots/running"),
            waiting: number("/slots/waiting"),
            blocks_used: number("/cache/blocks_used"),
            snapshots_reserved: number("/cache/snapshots/reserved"),
        }
    }
}

/// The command, on a free port and with few resources.
pub(crate) fn serve(arguments: &[&str]) -> Command {
    serve_on("0", arguments)
}

/// The same on a given port.
pub(crate) fn serve_on(port: &str, arguments: &[&str]) -> Command {
    let mut command = paceline();
    command
        .args(["serve", "--port", port, "--threads", "1"])
        .args(arguments)
        .env_remove("PACELINE_API_KEY")
        .env_remove("VLLM_API_KEY")
        .stderr(Stdio::null());
    if !arguments.contains(&"--max-model-len") {
        command.args(["--max-model-len", "1024"]);
    }
    command
}

impl Served {
    /// Starts [`serve`] with these arguments.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::spawn(&mut serve(arguments))
    }

    /// Waits for the line with the address.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("Paceline is listening on http://");
        let address = address
            .unwrap_or_else(|| panic!("no address in {line:?}"))
            .to_owned();
        Self {
            child,
            url: format!("http://{address}"),
            address,
            _out: out,
        }
    }

    /// Sends a request and returns the open connection.
    pub(crate) fn open(&self, request: &str, headers: &str, body: &str) -> TcpStream {
        open(&self.address, request, headers, body).unwrap()
    }

    /// Sends a request and returns status and reply.
    pub(crate) fn ask(&self, request: &str, headers: &str, body: &str) -> (u16, String) {
        let mut reply = String::new();
        self.open(request, headers, body)
            .read_to_string(&mut reply)
            .unwrap();
        (status(&reply).unwrap(), reply)
    }

    /// Sends a request without a body that gets JSON.
    pub(crate) fn get(&self, path: &str) -> Value {
        let (status, reply) = self.ask(&format!("GET {path}"), "", "");
        assert_eq!(status, 200, "{path}: {reply}");
        serde_json::from_str(reply.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    /// What it holds now.
    pub(crate) fn holdings(&self) -> Holdings {
        Holdings::of(&self.get("/v1/engine"))
    }

    /// Waits until it holds `before` again.
    pub(crate) fn expect_free(&self, before: Holdings) {
        let start = Instant::now();
        loop {
            let now = self.holdings();
            if now == before {
                return;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "it holds {now:?}, before it was {before:?}"
            );
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Its memory in bytes.
    pub(crate) fn resident(&self) -> u64 {
        self.memory("VmRSS")
    }

    /// The most that [`Self::resident`] has been, since [`Self::forget_peak`] or the start.
    pub(crate) fn peak(&self) -> u64 {
        self.memory("VmHWM")
    }

    pub(crate) fn forget_peak(&self) {
        fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5").unwrap();
    }

    fn memory(&self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let kibibytes = line
            .unwrap()
            .trim_start_matches(':')
            .trim()
            .strip_suffix(" kB")
            .unwrap();
        kibibytes.parse::<u64>().unwrap() * 1024
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", name, &pid])
                .status()
                .unwrap()
                .success()
        );
    }

    /// The exit code.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < PATIENCE, "it does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a request to an address and returns the open connection.
pub(crate) fn open(address: &str, request: &str, headers: &str, body: &str) -> std::io::Result<TcpStream> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let length = body.len();
    let head = format!(
        "{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
    );
    socket.write_all(head.as_bytes())?;
    Ok(socket)
}

/// The status of a reply, if there is one.
pub(crate) fn status(reply: &str) -> Option<u16> {
    reply.split(' ').nth(1)?.parse().ok()
}
