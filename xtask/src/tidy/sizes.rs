//! How long functions and files may be.

use super::rust::{RustFile, is_test_path};
use super::tree::extension;
use super::{Finding, Tree};

/// Lines of a function, from `fn` to its closing brace, comments included.
const FUNCTION_LINES: usize = 70;

/// Lines of a source file.
const FILE_LINES: usize = 500;

/// Lines of a file of tests.
const TEST_FILE_LINES: usize = 800;

/// Files that count as sources.
const SOURCES: [&str; 9] = ["rs", "cu", "cuh", "py", "js", "mjs", "ts", "tsx", "css"];

/// Functions that are too long. Tests may tell a long story.
pub(super) fn functions(tree: &Tree) -> Vec<Finding> {
    tree.rust().iter().flat_map(long_functions).collect()
}

fn long_functions(file: &RustFile) -> Vec<Finding> {
    let mut found = Vec::new();
    for index in 0..file.len() {
        // A name follows; `fn(` is a type.
        if file.word(index) != "fn" || matches!(file.word(index + 1), "(" | "") {
            continue;
        }
        let first = file.line(index);
        if file.is_test(first) {
            continue;
        }
        let Some(open) = file.body(index) else {
            continue;
        };
        let lines = file.line(file.closing(open)) - first + 1;
        if lines > FUNCTION_LINES {
            let name = file.word(index + 1);
            let message = format!(
                "function `{name}` has {lines} lines and {FUNCTION_LINES} are allowed; move a part that has a \
                 name of its own into a function"
            );
            found.push(Finding::new(&file.path, first, message));
        }
    }
    found
}

/// Files that are too long.
pub(super) fn files(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.texts() {
        if !extension(path).is_some_and(|end| SOURCES.contains(&end)) {
            continue;
        }
        let limit = if is_test_path(path) {
            TEST_FILE_LINES
        } else {
            FILE_LINES
        };
        let lines = text.lines().count();
        if lines > limit {
            let message = format!("the file has {lines} lines and {limit} are allowed; split it by subject");
            found.push(Finding::new(path, limit + 1, message));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::tests::lines;
    use super::*;

    fn function(lines: usize) -> String {
        let body = "    work();\n".repeat(lines - 2);
        format!("//! A.\n\nfn long<T>(x: [u8; 2]) -> fn(u8) where T: Copy {{\n{body}}}\n")
    }

    #[test]
    fn a_function_over_the_limit_is_found_at_its_first_line() {
        let tree = Tree::of(&[("a.rs", &function(71))]);
        assert_eq!(lines(&functions(&tree)), [3]);
        let tree = Tree::of(&[("a.rs", &function(70))]);
        assert!(functions(&tree).is_empty());
    }

    #[test]
    fn methods_in_long_blocks_are_measured_one_by_one() {
        let text = format!("impl A {{\n{}{}}}\n", function(60), function(71));
        let tree = Tree::of(&[("a.rs", &text)]);
        assert_eq!(lines(&functions(&tree)), [66]);
    }

    #[test]
    fn long_tests_are_fine() {
        let inside = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", function(200));
        let tree = Tree::of(&[("src/a.rs", &inside), ("tests/a.rs", &function(200))]);
        assert!(functions(&tree).is_empty());
    }

    #[test]
    fn files_over_the_limit_are_found() {
        let text = "//! A.\n".repeat(501);
        let tree = Tree::of(&[("src/a.rs", &text), ("tests/a.rs", &text), ("a.md", &text)]);
        assert_eq!(files(&tree).len(), 1);
        let text = "//! A.\n".repeat(801);
        let tree = Tree::of(&[("tests/a.rs", &text)]);
        assert_eq!(lines(&files(&tree)), [801]);
    }
}
