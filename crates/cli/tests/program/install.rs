//! The README's way to install the program.

use crate::common::{repository, stderr, stdout};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The README's command, word by word.
fn command() -> Vec<String> {
    let readme = fs::read_to_string(repository("README.md")).unwrap();
    let line = readme
        .lines()
        .find(|line| line.starts_with("cargo install "))
        .unwrap();
    let (command, _) = line.split_once("  #").unwrap();
    command.split_whitespace().map(str::to_owned).collect()
}

/// Without `PACELINE_TEST_LONG` nothing is built: the package that the command names must have the program, and the lock file
/// must be all that it takes.
#[test]
fn the_command_of_the_readme_installs_the_program() {
    let words = command();
    assert!(words.contains(&"--locked".to_owned()), "{words:?}");
    let path = &words[words.iter().position(|word| word == "--path").unwrap() + 1];
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--no-deps", "--format-version", "1"])
        .current_dir(repository(path))
        .output()
        .unwrap();
    assert!(metadata.status.success(), "{}", stderr(&metadata));
    let metadata: Value = serde_json::from_str(&stdout(&metadata)).unwrap();
    let manifest = repository(path).join("Cargo.toml").canonicalize().unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let package = packages
        .iter()
        .find(|package| Path::new(package["manifest_path"].as_str().unwrap()) == manifest)
        .unwrap();
    let targets = package["targets"].as_array().unwrap();
    let programs: Vec<&Value> = targets
        .iter()
        .filter(|target| target["kind"][0] == "bin")
        .map(|target| &target["name"])
        .collect();
    assert_eq!(programs, ["paceline"]);

    if std::env::var_os("PACELINE_TEST_LONG").is_none() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let installed = Command::new(env!("CARGO"))
        .args(&words[1..])
        .arg("--root")
        .arg(root.path())
        .arg("--target-dir")
        .arg(repository("target/install"))
        .current_dir(repository("."))
        .output()
        .unwrap();
    assert!(installed.status.success(), "{}", stderr(&installed));
    // Away from the repository, it has all it needs.
    let story = Command::new(root.path().join("bin/paceline"))
        .args([
            "generate",
            "--quiet",
            "--temperature",
            "0",
            "--prompt",
            "Once upon a time",
        ])
        .current_dir(root.path())
        .output()
        .unwrap();
    assert!(
        stdout(&story).starts_with(", there was a little girl"),
        "{}",
        stderr(&story)
    );
}
