//! Calls that do not belong where they are: unfinished work, printing, the environment.

use super::rust::RustFile;
use super::{Finding, Tree};

/// Macros that stand for work to be done.
const UNFINISHED: [&str; 3] = ["todo", "unimplemented", "dbg"];

const PRINTING: [&str; 4] = ["println", "eprintln", "print", "eprint"];

const ENVIRONMENT: [&str; 6] = ["var", "var_os", "vars", "vars_os", "set_var", "remove_var"];

/// Where printing is the purpose; examples may print too.
const MAY_PRINT: [&str; 2] = ["crates/cli/", "xtask/"];

/// Where the environment is read: the command line, the hub's configuration, and what serves tests and tasks. Nobody can pass a
/// value to a driver.
const MAY_READ_ENVIRONMENT: [&str; 5] = [
    "crates/cli/",
    "crates/device-cuda-emulator/src/settings.rs",
    "crates/weights/src/hub",
    "crates/testkit/",
    "xtask/",
];

/// Work that is not done and tests that do not run.
pub(super) fn unfinished(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.rust() {
        for (line, name) in macros(file, &UNFINISHED) {
            let message = match name {
                "dbg" => "take `dbg!` out; log with `tracing` if the value matters".to_owned(),
                _ => format!(
                    "`{name}!` is not finished; do the work or return an error that says what is missing"
                ),
            };
            found.push(Finding::new(&file.path, line, message));
        }
        for (index, words) in file.attributes() {
            let first = words.first().copied().unwrap_or_default();
            if first == "ignore" || (first == "cfg_attr" && words.contains(&"ignore")) {
                let message = "a test must run; if it is slow, let it do less unless PACELINE_TEST_LONG is set; if \
                               it needs a device, let it look for one and print that it skips";
                found.push(Finding::new(&file.path, file.line(index), message));
            }
        }
    }
    found
}

/// Printing from a library.
pub(super) fn printing(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    let may_print = |path: &str| is_free(path, &MAY_PRINT) || path.contains("/examples/");
    for file in tree.rust().iter().filter(|file| !may_print(&file.path)) {
        for (line, name) in macros(file, &PRINTING) {
            if !file.is_test(line) {
                let message = format!(
                    "only the command line prints; return the value instead of `{name}!`, or log with `tracing`"
                );
                found.push(Finding::new(&file.path, line, message));
            }
        }
    }
    found
}

/// The environment read by a library.
pub(super) fn environment(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree
        .rust()
        .iter()
        .filter(|file| !is_free(&file.path, &MAY_READ_ENVIRONMENT))
    {
        for index in (0..file.len()).filter(|index| file.reads(*index, &["env", ":", ":"])) {
            let after = index + 3;
            let end = if file.word(after) == "{" {
                file.closing(after)
            } else {
                after + 1
            };
            let reads = (after..end).any(|at| ENVIRONMENT.contains(&file.word(at)));
            let line = file.line(index);
            if reads && !file.is_test(line) {
                let message =
                    "only the command line reads environment variables; take the value as a parameter";
                found.push(Finding::new(&file.path, line, message));
            }
        }
    }
    found
}

/// Whether a file is in one of these places, or is a build script, which can talk to Cargo in no other way.
fn is_free(path: &str, places: &[&str]) -> bool {
    places.iter().any(|place| path.starts_with(place)) || path.ends_with("/build.rs")
}

/// The uses of macros with these names, by line.
fn macros<'a>(file: &'a RustFile, names: &'a [&str]) -> impl Iterator<Item = (usize, &'a str)> {
    (0..file.len())
        .filter(|index| names.contains(&file.word(*index)) && file.word(index + 1) == "!")
        .filter(|index| file.word(index + 2) != "=")
        .map(|index| (file.line(index), file.word(index)))
}

#[cfg(test)]
mod tests {
    use super::super::tests::lines;
    use super::*;

    const LIBRARY: &str = "crates/models/src/a.rs";

    #[test]
    fn unfinished_work_is_found_in_tests_too() {
        let text = "//! todo!()\nfn f() {\n    todo!();\n    unimplemented!(\"x\");\n    dbg!(1);\n}\n";
        for path in [LIBRARY, "crates/cli/src/a.rs", "crates/cli/tests/a.rs"] {
            assert_eq!(
                lines(&unfinished(&Tree::of(&[(path, text)]))),
                [3, 4, 5],
                "{path}"
            );
        }
    }

    #[test]
    fn a_variable_with_the_name_of_a_macro_is_no_macro() {
        assert!(unfinished(&Tree::of(&[(LIBRARY, "fn f() { todo != dbg }\n")])).is_empty());
    }

    #[test]
    fn tests_that_do_not_run_are_found() {
        let text =
            "#[test]\n#[ignore]\nfn a() {}\n#[ignore = \"slow\"]\n#[cfg_attr(unix, ignore)]\nfn b() {}\n";
        let found = unfinished(&Tree::of(&[("crates/a/tests/a.rs", text)]));
        assert_eq!(lines(&found), [2, 4, 5]);
    }

    #[test]
    fn printing_from_a_library_is_found() {
        let text = "fn f() {\n    println!(\"x\");\n    eprint!(\"x\");\n}\n#[cfg(test)]\nmod tests {\n    fn g() { println!() }\n}\n";
        assert_eq!(lines(&printing(&Tree::of(&[(LIBRARY, text)]))), [2, 3]);
        for path in [
            "crates/cli/src/ui.rs",
            "xtask/src/a.rs",
            "crates/a/tests/a.rs",
            "crates/a/build.rs",
            "crates/a/examples/a.rs",
        ] {
            assert!(printing(&Tree::of(&[(path, text)])).is_empty(), "{path}");
        }
    }

    #[test]
    fn reading_the_environment_in_a_library_is_found() {
        let text = "use std::env::{self, var};\nfn f() {\n    std::env::var_os(\"A\");\n    env::args();\n    env!(\"B\");\n}\n";
        assert_eq!(lines(&environment(&Tree::of(&[(LIBRARY, text)]))), [1, 3]);
        assert_eq!(
            lines(&environment(&Tree::of(&[("crates/weights/src/json.rs", text)]))),
            [1, 3]
        );
        for path in [
            "crates/cli/src/env.rs",
            "crates/weights/src/hub/config.rs",
            "crates/a/tests/a.rs",
        ] {
            assert!(environment(&Tree::of(&[(path, text)])).is_empty(), "{path}");
        }
    }
}
