//! That the documents exist and agree with the tree.

use super::{Finding, Tree};

/// The map of the code.
pub(super) const ARCHITECTURE: &str = "ARCHITECTURE.md";

/// Sources that do not say what they are for.
pub(super) fn headers(tree: &Tree) -> Vec<Finding> {
    let starts = [("rs", "//! "), ("ts", "// "), ("tsx", "// "), ("mjs", "// ")];
    starts
        .iter()
        .flat_map(|(end, start)| tree.texts_with(end).map(move |(path, text)| (path, text, *start)))
        .filter(|(_, text, start)| !text.starts_with(start))
        .map(|(path, _, start)| {
            let mark = start.trim_end();
            let message = format!("start the file with a `{mark}` line that says what it is for");
            Finding::new(path, 1, message)
        })
        .collect()
}

/// Crates without a README.
pub(super) fn readmes(tree: &Tree) -> Vec<Finding> {
    let message = "the crate has no README.md; write a few lines on what it does and what it must not know";
    tree.packages()
        .map(|package| package.folder)
        .filter(|folder| !tree.contains(&format!("{folder}/README.md")))
        .map(|folder| Finding::new(&format!("{folder}/Cargo.toml"), 1, message))
        .collect()
}

/// Crates that the map leaves out, and crates on the map that are no more.
pub(super) fn architecture(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(ARCHITECTURE) else {
        return Vec::new();
    };
    let named: Vec<(usize, &str)> = text
        .lines()
        .enumerate()
        .flat_map(|(index, line)| crates_named(line).map(move |name| (index + 1, name)))
        .collect();
    let mut found = Vec::new();
    for package in tree
        .packages()
        .filter(|package| package.folder.starts_with("crates/"))
    {
        if !named.iter().any(|(_, name)| *name == package.name) {
            let message = format!("`{}` is not described; say what it is for", package.folder);
            found.push(Finding::new(ARCHITECTURE, 1, message));
        }
    }
    for (line, name) in named {
        if !tree.contains(&format!("crates/{name}")) {
            let message = format!("there is no `crates/{name}`; correct the name or take it out");
            found.push(Finding::new(ARCHITECTURE, line, message));
        }
    }
    found
}

/// The names that follow `crates/` in a line.
fn crates_named(line: &str) -> impl Iterator<Item = &str> {
    line.split("crates/").skip(1).filter_map(|rest| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        (end > 0).then_some(&rest[..end])
    })
}

/// Links in documents that lead nowhere.
pub(super) fn links(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.texts_with("md") {
        let mut in_code = false;
        for (index, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                in_code = !in_code;
            }
            if in_code {
                continue;
            }
            let line_without_code = without_code(line);
            for target in targets(&line_without_code) {
                if !leads_somewhere(tree, path, target) {
                    let message = format!("`{target}` does not exist; correct the link");
                    found.push(Finding::new(path, index + 1, message));
                }
            }
        }
    }
    found
}

/// A line of Markdown less its `code`.
fn without_code(line: &str) -> String {
    let pieces: Vec<&str> = line.split('`').collect();
    // A last mark without a partner opens nothing.
    let closed = pieces.len() - usize::from(pieces.len().is_multiple_of(2));
    let outside = |(index, piece): (usize, &&str)| {
        if index < closed && index % 2 == 1 {
            String::new()
        } else {
            (*piece).to_owned()
        }
    };
    pieces.iter().enumerate().map(outside).collect()
}

/// What the links of a line point to: `[text](target)` and `[name]: target`.
fn targets(line: &str) -> Vec<&str> {
    let mut found: Vec<&str> = line
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', ' ']).next())
        .collect();
    let definition = line
        .trim_start()
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("]: "));
    if let Some((_, target)) = definition {
        found.extend(target.split_whitespace().next());
    }
    found
}

fn leads_somewhere(tree: &Tree, from: &str, target: &str) -> bool {
    let target = target.trim_matches(['<', '>']);
    let file = target.split(['#', '?']).next().unwrap_or_default();
    let elsewhere = target.contains("://") || target.starts_with("mailto:");
    if elsewhere || file.is_empty() {
        return true;
    }
    let mut place: Vec<&str> = from.split('/').collect();
    place.pop();
    for part in file.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => {
                if place.pop().is_none() {
                    return false;
                }
            }
            part => place.push(part),
        }
    }
    place.is_empty() || tree.contains(&place.join("/"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::lines;
    use super::*;

    #[test]
    fn sources_without_a_header_are_found() {
        let tree = Tree::of(&[
            ("a.rs", "//! A.\n"),
            ("b.rs", "// B.\n"),
            ("c.rs", ""),
            ("d.rs", "\n//! D.\n"),
        ]);
        assert_eq!(lines(&headers(&tree)), [1, 1, 1]);
        let tree = Tree::of(&[("a.ts", "// A.\n"), ("b.tsx", "import b;\n"), ("c.js", "")]);
        let found = headers(&tree);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "b.tsx");
    }

    #[test]
    fn crates_without_a_readme_are_found() {
        let tree = Tree::of(&[
            ("crates/a/Cargo.toml", ""),
            ("crates/a/README.md", ""),
            ("crates/b/Cargo.toml", ""),
        ]);
        let found = readmes(&tree);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "crates/b/Cargo.toml");
    }

    #[test]
    fn links_to_nothing_are_found() {
        let text = "[a](b.md) [a](b.md#part) [a](/b)\n[a](../gone.md)\n[a]: gone.md\n![a](gone.png \"A\")\n";
        let tree = Tree::of(&[("docs/a.md", text), ("docs/b.md", "")]);
        assert_eq!(lines(&links(&tree)), [1, 2, 3, 4]);
    }

    #[test]
    fn links_to_files_folders_and_elsewhere_are_fine() {
        let text = "[a](../docs/) [a](./b.md) [a](..) [a](#part) [a](https://example.org/x) [a]: b.md\n";
        let tree = Tree::of(&[("docs/a.md", text), ("docs/b.md", "")]);
        assert_eq!(links(&tree), []);
    }

    #[test]
    fn links_out_of_the_repository_are_found() {
        assert_eq!(lines(&links(&Tree::of(&[("a.md", "[a](../b.md)\n")]))), [1]);
    }

    #[test]
    fn code_in_documents_holds_no_links() {
        let text = "`v[0](x)`\n```\n[a](gone.md)\n```\nit`s [a](gone.md)\n";
        assert_eq!(lines(&links(&Tree::of(&[("a.md", text)]))), [5]);
    }

    #[test]
    fn the_map_names_every_crate_and_no_other() {
        let tree = Tree::of(&[
            (ARCHITECTURE, "# Map\n`crates/a-b`, crates/gone/src\n"),
            ("crates/a/Cargo.toml", ""),
            ("crates/a-b/Cargo.toml", ""),
        ]);
        let found = architecture(&tree);
        assert_eq!(lines(&found), [1, 2]);
        assert!(found[0].message.contains("`crates/a`"), "{}", found[0]);
        assert!(found[1].message.contains("`crates/gone`"), "{}", found[1]);
    }
}
