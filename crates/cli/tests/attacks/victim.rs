//! A server that is attacked with one key while it serves a client with another, and what that comes to.

use crate::common::served::{Holdings, PATIENCE, Served, open, serve, status};
use serde_json::Value;
use std::env;
use std::io::Read;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The headers of the attacker.
pub(crate) const ATTACKER: &str = "authorization: Bearer attacker\r\n";

/// Those of the client that wants no more than a short text.
const INNOCENT: &str = "authorization: Bearer innocent\r\n";

const MIB: u64 = 1 << 20;

/// A server with two keys.
pub(crate) struct Victim {
    pub(crate) served: Served,
    before: Holdings,
    story: Value,
}

/// What an attack came to.
pub(crate) struct Figures {
    before: u64,
    peak: u64,
    after: u64,
}

/// One of two sizes: for every run, and for the long one.
pub(crate) fn scale<T>(short: T, long: T) -> T {
    if env::var_os("PACELINE_TEST_LONG").is_some() {
        long
    } else {
        short
    }
}

/// The same command within a limit of its address space.
pub(crate) fn limited(command: &Command, bytes: u64) -> Command {
    let mut limited = Command::new("sh");
    let script = format!("ulimit -v {} && exec \"$@\"", bytes >> 10);
    limited.args(["-c", &script, "sh"]).arg(command.get_program());
    limited.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited
}

impl Victim {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::spawn(&mut serve(arguments))
    }

    /// Starts the server and serves it warm: what it takes for its first requests is not what an attack took.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        command.args(["--api-key", "attacker", "--api-key", "innocent"]);
        let served = Served::spawn(command);
        let story = ask(&served.address).unwrap();
        for _ in 0..3 {
            assert_eq!(ask(&served.address).as_ref(), Ok(&story));
        }
        let mut victim = Self {
            before: holdings(&served),
            served,
            story,
        };
        victim.settle().unwrap();
        victim.before = holdings(&victim.served);
        victim
    }

    /// The state of the engine.
    pub(crate) fn engine(&self) -> Value {
        engine(&self.served)
    }

    /// Asks as the innocent client does and expects the text that it always gets.
    pub(crate) fn answer(&self) -> Result<(), String> {
        let story = ask(&self.served.address)?;
        if story == self.story {
            Ok(())
        } else {
            Err(format!("{story} is not {}", self.story))
        }
    }

    /// Attacks while the innocent client asks, and expects it to be answered and the server to be well afterwards.
    pub(crate) fn under(&self, attack: &str, act: impl FnOnce() -> Result<(), String>) -> Figures {
        let (over, start, before) = (AtomicBool::new(false), Instant::now(), self.served.resident());
        self.served.forget_peak();
        let (acted, answers) = thread::scope(|scope| {
            let client = scope.spawn(|| {
                let mut answers = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    let asked = Instant::now();
                    let answer = self.answer();
                    answers.push((asked.elapsed(), answer));
                    thread::sleep(Duration::from_millis(20));
                }
                answers
            });
            let ended = Raised(&over);
            let acted = act();
            drop(ended);
            (acted, client.join().unwrap())
        });
        let took = start.elapsed();
        let settled = self.settle();
        let (peak, after) = (self.served.peak(), self.served.resident());
        let figures = Figures { before, peak, after };
        figures.print(attack, took, &answers);
        acted.unwrap_or_else(|error| panic!("{attack}: {error}"));
        let refused: Vec<_> = answers
            .iter()
            .filter_map(|(_, answer)| answer.as_ref().err())
            .collect();
        assert!(
            refused.is_empty(),
            "{attack}: the innocent client got {refused:?}"
        );
        settled.unwrap_or_else(|held| panic!("{attack}: {held}"));
        figures
    }

    /// Waits until the server answers as at first and holds what it held then.
    fn settle(&self) -> Result<(), String> {
        self.answer()?;
        let (health, _) = self.served.ask("GET /health", "", "");
        if health != 200 {
            return Err(format!("/health: {health}"));
        }
        let start = Instant::now();
        loop {
            let held = holdings(&self.served);
            if held == self.before {
                break;
            }
            if start.elapsed() > PATIENCE {
                return Err(format!("it holds {held:?}, before it was {:?}", self.before));
            }
            thread::sleep(Duration::from_millis(10));
        }
        let (_, metrics) = self.served.ask("GET /metrics", "", "");
        for gauge in ["num_requests_running", "num_requests_waiting"] {
            let line = metrics
                .lines()
                .find(|line| line.starts_with(&format!("vllm:{gauge}{{")));
            if !line.is_some_and(|line| line.ends_with("} 0.0") || line.ends_with("} 0")) {
                return Err(format!("{line:?}"));
            }
        }
        Ok(())
    }
}

impl Figures {
    /// Expects memory to have stayed within these bounds over what it was before, in MiB.
    pub(crate) fn expect(&self, peak: u64, after: u64) {
        let grown = |bytes: u64| bytes.saturating_sub(self.before) / MIB;
        assert!(
            grown(self.peak) <= peak,
            "at its peak it took {} MiB more",
            grown(self.peak)
        );
        assert!(grown(self.after) <= after, "it kept {} MiB", grown(self.after));
    }

    fn print(&self, attack: &str, took: Duration, answers: &[(Duration, Result<(), String>)]) {
        let mut waits: Vec<_> = answers.iter().map(|(wait, _)| wait.as_secs_f64()).collect();
        waits.sort_by(f64::total_cmp);
        let failed = answers.iter().filter(|(_, answer)| answer.is_err()).count();
        println!(
            "| {:40} | {:>8} | {:>8} | {:>8} | {:>7} | {:>6} | {:>8} | {:>8} | {:>6} |",
            "attack", "MiB", "at peak", "after", "answers", "failed", "median s", "worst s", "s"
        );
        println!(
            "| {attack:40} | {:8} | {:8} | {:8} | {:7} | {failed:6} | {:8.3} | {:8.3} | {:6.1} |",
            self.before / MIB,
            self.peak / MIB,
            self.after / MIB,
            answers.len(),
            waits.get(waits.len() / 2).copied().unwrap_or_default(),
            waits.last().copied().unwrap_or_default(),
            took.as_secs_f64()
        );
    }
}

/// Raises a flag when it goes, however that comes.
struct Raised<'a>(&'a AtomicBool);

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn engine(served: &Served) -> Value {
    let (status, reply) = served.ask("GET /v1/engine", INNOCENT, "");
    assert_eq!(status, 200, "{reply}");
    serde_json::from_str(body(&reply)).unwrap()
}

fn holdings(served: &Served) -> Holdings {
    Holdings::of(&engine(served))
}

/// What comes after the headers.
pub(crate) fn body(reply: &str) -> &str {
    reply.split_once("\r\n\r\n").unwrap().1
}

/// The innocent client's request; the choices of its reply.
fn ask(address: &str) -> Result<Value, String> {
    let request = r#"{"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0}"#;
    let mut reply = String::new();
    let read = open(address, "POST /v1/completions", INNOCENT, request)
        .and_then(|mut socket| socket.read_to_string(&mut reply));
    read.map_err(|error| error.to_string())?;
    if status(&reply) != Some(200) {
        return Err(reply);
    }
    let mut value: Value = serde_json::from_str(body(&reply)).map_err(|error| error.to_string())?;
    Ok(value["choices"].take())
}
