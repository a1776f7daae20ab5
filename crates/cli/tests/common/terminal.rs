//! A terminal to type into, and what it shows.

use super::{paceline, repository, stderr, stdout};
use std::path::Path;
use std::process::Command;

pub(crate) const CTRL_C: &str = "\u{3}";
pub(crate) const CTRL_D: &str = "\u{4}";
/// Ends a process at once, with a core dump where nobody listens.
pub(crate) const CTRL_BACKSLASH: &str = "\u{1c}";

/// Rows of the terminal, enough for everything that a test shows.
const ROWS: u16 = 100;

/// Types into a terminal of 80 columns, step by step: what is waited for, what is typed then. Returns all that was written
/// to it.
pub(crate) fn terminal(home: &Path, arguments: &[&str], steps: &[(&str, &str)]) -> String {
    let (written, code, _) = type_into(home, 80, arguments, steps);
    assert_eq!(code, Some(0), "{written}");
    written
}

/// The same with a conversation.
pub(crate) fn talk(home: &Path, arguments: &[&str], steps: &[(&str, &str)]) -> String {
    // A bar of what is loaded may have the prompt's characters in it.
    terminal(home, arguments, &[&[("Ctrl-D leaves.", "")], steps].concat())
}

/// The same on a terminal of any width: all that was written, the exit code, and whether it shows what is typed in the end.
pub(crate) fn type_into(
    home: &Path,
    columns: u16,
    arguments: &[&str],
    steps: &[(&str, &str)],
) -> (String, Option<i32>, bool) {
    let program = paceline().get_program().to_str().unwrap().to_owned();
    type_program(&program, home, columns, arguments, steps)
}

/// The same with another program, which finds the things that ours finds.
pub(crate) fn type_program(
    program: &str,
    home: &Path,
    columns: u16,
    arguments: &[&str],
    steps: &[(&str, &str)],
) -> (String, Option<i32>, bool) {
    let steps = serde_json::to_string(steps).unwrap();
    let set = paceline()
        .get_envs()
        .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
        .collect::<Vec<_>>();
    let mut command = Command::new("python3");
    command
        .arg(repository("crates/cli/tests/data/terminal.py"))
        .arg(steps)
        .arg(program)
        .args(arguments)
        .envs(set)
        .env("HOME", home)
        .env("TERM", "xterm")
        .env("COLUMNS", columns.to_string())
        .env_remove("PACELINE_LOG")
        .env_remove("NO_COLOR")
        .env_remove("XDG_STATE_HOME");
    let output = command.output().expect("python3 makes the terminal");
    let told = stderr(&output);
    let echo = told.contains("echo is on");
    assert!(echo || told.contains("echo is off"), "{told}");
    (stdout(&output), output.status.code(), echo)
}

/// The lines that a terminal of this width shows of what was written to it.
pub(crate) fn screen(written: &str, columns: u16) -> Vec<String> {
    let mut terminal = vt100::Parser::new(ROWS, columns, 0);
    terminal.process(written.as_bytes());
    let rows = terminal.screen().rows(0, columns);
    let mut rows: Vec<String> = rows.map(|row| row.trim_end().to_owned()).collect();
    while rows.last().is_some_and(String::is_empty) {
        rows.pop();
    }
    rows
}
