//! Tasks of the repository itself: `cargo xtask tidy`, `cargo xtask kernels`.

mod kernels;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask TASK

Tasks:
  tidy             Check the rules of STYLE.md that neither rustc nor clippy can check
  kernels          Compile the CUDA kernels to the packs that the binary holds
  kernels --check  Compile them and compare with the packs
  kernels --for A  Compile them for one architecture, such as sm_90a, and write its pack
  kernels FILE     Compile one file of kernels and print what the compiler says";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["tidy"] => run_tidy(),
        ["kernels"] => run_kernels(kernels::Mode::Write, None),
        ["kernels", "--for", architecture] => report(kernels::run_one(&root(), architecture)),
        ["kernels", "--check"] => run_kernels(kernels::Mode::Check, None),
        ["kernels", file] => run_kernels(kernels::Mode::Check, Some(file)),
        ["--help" | "-h"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn run_kernels(mode: kernels::Mode, only: Option<&str>) -> ExitCode {
    report(kernels::run(&root(), mode, only))
}

fn report(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kernels: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_tidy() -> ExitCode {
    let tree = match tidy::Tree::read(&root()) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("tidy: cannot read the repository: {error}");
            return ExitCode::FAILURE;
        }
    };
    let report = tidy::check(&tree);
    for note in &report.notes {
        eprintln!("tidy: {note}");
    }
    for finding in &report.findings {
        eprintln!("{finding}");
    }
    if report.findings.is_empty() {
        println!("tidy: {} files, nothing to do", tree.len());
        ExitCode::SUCCESS
    } else {
        let (files, found) = (tree.len(), report.findings.len());
        eprintln!("tidy: {files} files, {found} to put right");
        ExitCode::FAILURE
    }
}
