//! Runs the program and makes damaged models for it.

#![allow(dead_code, reason = "each test file uses its own part of this")]
#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

pub(crate) mod gguf;
#[path = "../../../weights/tests/support/hub.rs"]
pub(crate) mod hub;
pub(crate) mod mix;
pub(crate) mod scripted;
pub(crate) mod served;
pub(crate) mod terminal;

use serde_json::{Map, Value};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// A folder of the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// The program, away from the user's own settings.
pub(crate) fn paceline() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command
        .env_remove("PACELINE_LOG")
        .env("HF_HOME", "/nonexistent/paceline-tests")
        .env("HF_HUB_OFFLINE", "1");
    command
}

/// Runs it with these arguments.
pub(crate) fn run(arguments: &[&str]) -> Output {
    paceline().args(arguments).output().unwrap()
}

/// Runs it with text on stdin.
pub(crate) fn run_with_input(arguments: &[&str], input: &str) -> Output {
    let mut child = paceline()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs it successfully and returns stdout.
pub(crate) fn succeed(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    stdout(&output)
}

/// Runs it successfully and reads the JSON lines it prints.
pub(crate) fn json_lines(arguments: &[&str]) -> Vec<Value> {
    let lines = succeed(arguments);
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The token ids of a list.
pub(crate) fn ids(list: &Value) -> Vec<u64> {
    list.as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap())
        .collect()
}

/// Expects a failure with exit code 1 in one line that contains all of `parts`.
pub(crate) fn expect_failure(arguments: &[&str], parts: &[&str]) {
    let output = run(arguments);
    check_failure(&output, parts);
}

/// As [`expect_failure`] for a finished run.
pub(crate) fn check_failure(output: &Output, parts: &[&str]) {
    let message = stderr(output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(!message.contains("panicked"), "{message}");
    let line = message.lines().last().unwrap_or_default();
    assert!(line.starts_with("error: "), "{message}");
    for part in parts {
        assert!(line.contains(part), "`{part}` is not in: {line}");
    }
}

/// Expects a usage error whose message contains all of `parts`.
pub(crate) fn expect_usage_error(arguments: &[&str], parts: &[&str]) {
    let output = run(arguments);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
    assert!(message.contains("--help"), "no hint in: {message}");
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

/// A copy of a model folder that may be damaged.
pub(crate) struct Copy {
    folder: TempDir,
}

impl Copy {
    pub(crate) fn of(model: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(repository(model)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if !name.starts_with("golden") && name != "reference.json" {
                fs::copy(&path, folder.path().join(name)).unwrap();
            }
        }
        Self { folder }
    }

    pub(crate) fn path(&self) -> &str {
        self.folder.path().to_str().unwrap()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn edit(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = fs::read(self.file(name)).unwrap();
        change(&mut bytes);
        fs::write(self.file(name), bytes).unwrap();
    }

    pub(crate) fn edit_json(&self, name: &str, change: impl FnOnce(&mut Value)) {
        self.edit(name, |bytes| {
            let mut value = serde_json::from_slice(bytes).unwrap();
            change(&mut value);
            *bytes = serde_json::to_vec(&value).unwrap();
        });
    }

    /// Changes the header of the weights; the data stays.
    pub(crate) fn edit_header(&self, change: impl FnOnce(&mut Map<String, Value>)) {
        self.edit("model.safetensors", |bytes| {
            let end = header_end(bytes);
            let mut header: Map<String, Value> = serde_json::from_slice(&bytes[8..end]).unwrap();
            change(&mut header);
            let header = serde_json::to_vec(&header).unwrap();
            let mut file = (header.len() as u64).to_le_bytes().to_vec();
            file.extend(header);
            file.extend(&bytes[end..]);
            *bytes = file;
        });
    }

    /// Overwrites the first element of an F32 tensor.
    pub(crate) fn set_first_element(&self, tensor: &str, value: f32) {
        self.edit("model.safetensors", |bytes| {
            let end = header_end(bytes);
            let header: Value = serde_json::from_slice(&bytes[8..end]).unwrap();
            let offset = header[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
            bytes[end + offset..][..4].copy_from_slice(&value.to_le_bytes());
        });
    }
}

fn header_end(file: &[u8]) -> usize {
    8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize
}
