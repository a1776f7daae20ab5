//! Which crate may depend on which, and that all share the lints.

use super::{Finding, Tree};

/// Every crate of the workspace with the crates it may depend on. Dev-dependencies are free.
///
/// A crate exists to forbid something to the code in it, so a new arrow is a decision: ARCHITECTURE.md says
/// what each crate must not know.
const ALLOWED: [(&str, &[&str]); 21] = [
    ("types", &[]),
    ("device", &["types"]),
    ("device-cpu", &["types", "device"]),
    ("device-cuda", &["types", "device"]),
    ("device-cuda-emulator", &[]),
    ("cache", &["types"]),
    ("schedule", &["types", "cache"]),
    ("kv-events", &["types", "cache"]),
    ("weights", &["types", "device"]),
    ("text", &["types"]),
    ("grammar", &["types", "text"]),
    ("models", &["types", "device", "weights"]),
    ("runner", &["types", "device", "models", "schedule"]),
    (
        "paceline",
        &[
            "types",
            "device",
            "device-cpu",
            "device-cuda",
            "models",
            "runner",
            "schedule",
            "text",
            "weights",
        ],
    ),
    ("server", &["types", "text", "grammar", "paceline", "client"]),
    ("client", &[]),
    ("bench", &["types", "device", "paceline", "client"]),
    (
        "cli",
        &[
            "bench",
            "types",
            "device",
            "weights",
            "text",
            "grammar",
            "kv-events",
            "models",
            "paceline",
            "selftest",
            "server",
            "client",
        ],
    ),
    ("testkit", &["types", "device", "models", "weights"]),
    (
        "selftest",
        &[
            "types",
            "device",
            "device-cpu",
            "models",
            "runner",
            "schedule",
            "weights",
            "paceline",
            "testkit",
        ],
    ),
    ("xtask", &["device-cuda"]),
];

/// The library that everything below leads to; its package has the project's own name.
const LIBRARY: &str = "paceline";

/// The package of a crate's folder.
fn package(folder: &str) -> String {
    if folder == LIBRARY {
        LIBRARY.to_owned()
    } else {
        format!("paceline-{folder}")
    }
}

/// Dependencies that point the wrong way.
pub(super) fn dependencies(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for package in tree.packages() {
        let path = format!("{}/Cargo.toml", package.folder);
        let name = package.name;
        let Some((_, allowed)) = ALLOWED.iter().find(|(known, _)| *known == name) else {
            let message = format!(
                "crate `{name}` has no row in the table of allowed dependencies; add one to ALLOWED in \
                 xtask/src/tidy/arrows.rs"
            );
            found.push(Finding::new(&path, 1, message));
            continue;
        };
        for (line, target) in workspace_dependencies(package.manifest) {
            if !allowed.contains(&target) {
                let message = format!(
                    "crate `{name}` must not depend on `{target}`; move what it needs to a crate that both may \
                     use, or make it a dev-dependency if only tests need it"
                );
                found.push(Finding::new(&path, line, message));
            }
        }
    }
    found
}

/// Crates that neither take the workspace's lints nor state their own.
pub(super) fn lints(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for package in tree.packages() {
        let path = format!("{}/Cargo.toml", package.folder);
        let has_lints = sections(package.manifest).any(|(section, _, _)| section.starts_with("lints"));
        if !has_lints {
            let message = "no lints apply here; add `[lints]` with `workspace = true`";
            found.push(Finding::new(&path, 1, message));
        }
    }
    found
}

/// The crates of the workspace that a manifest's code depends on, with their lines.
fn workspace_dependencies(manifest: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (section, line, entry) in sections(manifest) {
        let parts: Vec<&str> = section.split('.').collect();
        let table = parts.iter().position(|part| is_dependency_table(part));
        let Some(table) = table else {
            continue;
        };
        // `[dependencies.name]` names it in the heading; otherwise an entry does, also when it is renamed.
        let names = if entry.is_empty() {
            parts[table + 1..].join(".")
        } else {
            entry.to_owned()
        };
        for (_, target) in ALLOWED
            .iter()
            .map(|(name, _)| (package(name), *name))
            .filter(|(full, _)| mentions(&names, full))
        {
            found.push((line, target));
        }
    }
    found
}

fn is_dependency_table(part: &str) -> bool {
    part == "dependencies" || part == "build-dependencies"
}

/// Whether `name` occurs in `text` as a whole word.
fn mentions(text: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    text.match_indices(name).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + name.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

/// Every heading (with an empty entry) and every entry of a manifest, with its section and line.
fn sections(manifest: &str) -> impl Iterator<Item = (&str, usize, &str)> {
    let mut section = "";
    manifest.lines().enumerate().filter_map(move |(index, line)| {
        let line = line.split('#').next().unwrap_or_default().trim();
        if let Some(heading) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = heading.trim_matches(['[', ']', ' ']);
            return Some((section, index + 1, ""));
        }
        (!line.is_empty()).then_some((section, index + 1, line))
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::lines;
    use super::*;

    fn found(name: &str, manifest: &str) -> Vec<usize> {
        let path = format!("crates/{name}/Cargo.toml");
        lines(&dependencies(&Tree::of(&[(&path, manifest)])))
    }

    #[test]
    fn arrows_of_the_table_are_allowed() {
        let manifest = "[dependencies]\npaceline-types.workspace = true\nhalf.workspace = true\n";
        assert!(found("device", manifest).is_empty());
    }

    #[test]
    fn other_arrows_are_found_however_they_are_written() {
        let to_runner = [
            "[dependencies]\npaceline-runner.workspace = true\n",
            "[build-dependencies]\npaceline-runner = { path = \"../runner\" }\n",
            "[target.'cfg(unix)'.dependencies]\npaceline-runner.workspace = true\n",
            "[dependencies]\nsteps = { package = \"paceline-runner\", path = \"../runner\" }\n",
        ];
        for manifest in to_runner {
            assert_eq!(found("models", manifest), [2], "{manifest}");
        }
        assert_eq!(
            found("models", "[dependencies.paceline-runner]\npath = \"../runner\"\n"),
            [1]
        );
    }

    #[test]
    fn arrows_to_the_library_are_found_by_its_own_name() {
        let manifest = "[dependencies]\npaceline.workspace = true\n";
        assert_eq!(found("runner", manifest), [2]);
        assert!(found("cli", manifest).is_empty());
    }

    #[test]
    fn a_crate_is_not_taken_for_one_whose_name_starts_alike() {
        assert_eq!(
            found("runner", "[dependencies]\npaceline-device-cpu.workspace = true\n"),
            [2]
        );
        assert!(found("runner", "[dependencies]\npaceline-device.workspace = true\n").is_empty());
    }

    #[test]
    fn dev_dependencies_are_free() {
        assert!(found("types", "[dev-dependencies]\npaceline-runner.workspace = true\n").is_empty());
    }

    #[test]
    fn a_crate_without_a_row_is_found() {
        assert_eq!(found("surprise", "[package]\n"), [1]);
    }

    #[test]
    fn a_crate_without_lints_is_found() {
        let with = [("crates/a/Cargo.toml", "[lints]\nworkspace = true\n")];
        assert!(lints(&Tree::of(&with)).is_empty());
        let own = [("crates/a/Cargo.toml", "[lints.rust]\nmissing_docs = \"warn\"\n")];
        assert!(lints(&Tree::of(&own)).is_empty());
        let without = [("crates/a/Cargo.toml", "[package]\nname = \"a\"\n")];
        assert_eq!(lines(&lints(&Tree::of(&without))), [1]);
    }
}
