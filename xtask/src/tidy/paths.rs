//! No file names a place on one machine.

use super::{Finding, Tree};

/// Folders of one machine, written in two halves so that this file passes its own check.
const LOCAL: [&str; 3] = [
    concat!("/wo", "rk/"),
    concat!("/tmp/", "target"),
    concat!("/ro", "ot/"),
];

/// Absolute paths that exist on one machine only.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.texts() {
        for (index, line) in text.lines().enumerate() {
            if let Some(local) = LOCAL.iter().find(|local| names(line, local)) {
                let message = format!("`{local}` exists on one machine only; use a path from the repository");
                found.push(Finding::new(path, index + 1, message));
            }
        }
    }
    found
}

/// Whether an absolute path in `line` starts with `local`; a longer path or an address may contain it.
fn names(line: &str, local: &str) -> bool {
    let goes_on = |c: char| c.is_alphanumeric() || "._-~*/}$".contains(c);
    line.match_indices(local)
        .any(|(at, _)| !line[..at].chars().next_back().is_some_and(goes_on))
}

#[cfg(test)]
mod tests {
    use super::super::tests::lines;
    use super::*;

    #[test]
    fn local_paths_are_found_in_any_text() {
        for local in LOCAL {
            let text = format!("fine\nsee {local}notes.md\nPATH=\"{local}bin\"\n");
            for path in ["a.md", "src/a.rs", "test", "a.json"] {
                assert_eq!(
                    lines(&check(&Tree::of(&[(path, &text)]))),
                    [2, 3],
                    "{path}, {local}"
                );
            }
        }
    }

    #[test]
    fn parts_of_other_paths_are_fine() {
        let text = format!("a{0}b https://example.org{0}b ${{HOME}}{0}b\n", LOCAL[0]);
        assert!(check(&Tree::of(&[("a.md", &text)])).is_empty());
    }
}
