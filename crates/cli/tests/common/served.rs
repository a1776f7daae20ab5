//! `paceline serve` in a process of its own.

use super::paceline;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};

/// A server on a free port; it ends with the test.
pub(crate) struct Served {
    child: Child,
    pub(crate) url: String,
    _out: BufReader<ChildStdout>,
}

impl Served {
    /// With the built-in model on one thread.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut child = paceline()
            .args([
                "serve",
                "--port",
                "0",
                "--threads",
                "1",
                "--log",
                "error",
                "--quiet",
            ])
            .args(arguments)
            .env_remove("PACELINE_API_KEY")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("Paceline is listening on ");
        let url = url.unwrap_or_else(|| panic!("no address in {line:?}")).to_owned();
        Self {
            child,
            url,
            _out: out,
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
