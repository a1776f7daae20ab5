//! Tasks of the repository itself: `cargo xtask tidy`.

mod tidy;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask TASK

Tasks:
  tidy    Check the rules of STYLE.md that neither rustc nor clippy can check";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["tidy"] => run_tidy(),
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

fn run_tidy() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let tree = match tidy::Tree::read(&root) {
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
