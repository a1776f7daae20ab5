//! The rules of the repository that are checked by reading its files.
//!
//! Every check takes the whole [`Tree`] and returns [`Finding`]s; none touches the file system, so each is
//! tested on a few made-up files.

mod arrows;
mod calls;
mod docs;
mod paths;
mod rust;
mod sizes;
mod tree;
mod unsafe_code;

pub(crate) use tree::Tree;

use std::fmt;

/// A place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    path: String,
    line: usize,
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            message: message.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// What all checks together found.
pub(crate) struct Report {
    /// Places that break a rule, by path and line.
    pub(crate) findings: Vec<Finding>,
    /// Checks that could not be made, and why.
    pub(crate) notes: Vec<String>,
}

/// Runs every check.
pub(crate) fn check(tree: &Tree) -> Report {
    let checks = [
        sizes::functions,
        sizes::files,
        arrows::dependencies,
        arrows::lints,
        unsafe_code::check,
        calls::unfinished,
        calls::printing,
        calls::environment,
        docs::headers,
        docs::readmes,
        docs::links,
        docs::architecture,
        paths::check,
    ];
    let mut findings: Vec<Finding> = checks.iter().flat_map(|check| check(tree)).collect();
    findings.sort();
    let mut notes = Vec::new();
    if !tree.contains(docs::ARCHITECTURE) {
        let file = docs::ARCHITECTURE;
        notes.push(format!(
            "there is no {file} yet, so it is not compared with crates/"
        ));
    }
    Report { findings, notes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_come_in_order_and_name_their_place() {
        let tree = Tree::of(&[
            ("b.rs", "fn f() {}\n"),
            ("a.rs", "//! A.\n\nfn f() { todo!() }\n"),
        ]);
        let report = check(&tree);
        let shown: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        assert_eq!(shown.len(), 2);
        assert!(shown[0].starts_with("a.rs:3: "), "{}", shown[0]);
        assert!(shown[1].starts_with("b.rs:1: "), "{}", shown[1]);
    }

    #[test]
    fn a_missing_architecture_file_is_noted_not_refused() {
        let report = check(&Tree::of(&[]));
        assert!(report.findings.is_empty());
        assert_eq!(report.notes.len(), 1);
    }

    /// The lines at which a check finds something.
    pub(super) fn lines(found: &[Finding]) -> Vec<usize> {
        found.iter().map(|finding| finding.line).collect()
    }
}
