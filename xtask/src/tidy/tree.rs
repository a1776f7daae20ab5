//! The files of the repository, read once.

use super::rust::RustFile;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{fs, io};

/// Names that stand for no sources, wherever they are.
const SKIPPED: [&str; 6] = [".git", ".idea", ".venv", ".vscode", "node_modules", "__pycache__"];

/// Where Cargo puts its output unless told otherwise.
const OUTPUT: &str = "target";

/// Cargo marks the output folders it makes with this file.
const OUTPUT_MARK: &str = "CACHEDIR.TAG";

/// Files that are never text, not even read.
const BINARY_EXTENSIONS: [&str; 4] = ["safetensors", "gguf", "bin", "png"];

/// Every file below the root, by its path from there with `/` between folders.
#[derive(Default)]
pub(crate) struct Tree {
    texts: BTreeMap<String, String>,
    rust: Vec<RustFile>,
    /// Files and folders, text or not.
    paths: BTreeSet<String>,
}

impl Tree {
    /// Reads the files below `root`, less build output.
    pub(crate) fn read(root: &Path) -> io::Result<Self> {
        let mut tree = Self::default();
        tree.read_folder(root, "")?;
        Ok(tree)
    }

    fn read_folder(&mut self, root: &Path, folder: &str) -> io::Result<()> {
        let mut entries = fs::read_dir(root.join(folder))?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        if entries.iter().any(|entry| entry.file_name() == OUTPUT_MARK) {
            return Ok(());
        }
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if folder.is_empty() {
                name.clone()
            } else {
                format!("{folder}/{name}")
            };
            if SKIPPED.contains(&name.as_str()) || path == OUTPUT {
                continue;
            }
            let kind = entry.file_type()?;
            if kind.is_dir() {
                self.read_folder(root, &path)?;
            } else if kind.is_file() {
                let text = if extension(&path).is_some_and(|end| BINARY_EXTENSIONS.contains(&end)) {
                    None
                } else {
                    String::from_utf8(fs::read(entry.path())?).ok()
                };
                self.insert(path, text);
            }
        }
        Ok(())
    }

    /// A tree of made-up files.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let mut tree = Self::default();
        for (path, text) in files {
            tree.insert((*path).to_owned(), Some((*text).to_owned()));
        }
        tree
    }

    fn insert(&mut self, path: String, text: Option<String>) {
        for (end, _) in path.match_indices('/') {
            self.paths.insert(path[..end].to_owned());
        }
        self.paths.insert(path.clone());
        let Some(text) = text else {
            return;
        };
        if extension(&path) == Some("rs") {
            self.rust.push(RustFile::new(&path, &text));
        }
        self.texts.insert(path, text);
    }

    /// How many text files there are.
    pub(crate) fn len(&self) -> usize {
        self.texts.len()
    }

    /// Paths and contents of the text files.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// The text files whose names end in `.extension`.
    pub(crate) fn texts_with(&self, end: &str) -> impl Iterator<Item = (&str, &str)> {
        self.texts().filter(move |(path, _)| extension(path) == Some(end))
    }

    /// The content of one text file.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    /// The Rust sources.
    pub(crate) fn rust(&self) -> &[RustFile] {
        &self.rust
    }

    /// Whether there is such a file or folder.
    pub(crate) fn contains(&self, path: &str) -> bool {
        self.paths.contains(path)
    }

    /// The folders that hold a package, from `crates/` and the tasks' own, with their manifests.
    pub(crate) fn packages(&self) -> impl Iterator<Item = Package<'_>> {
        self.texts().filter_map(|(path, manifest)| {
            let folder = path.strip_suffix("/Cargo.toml")?;
            let name = folder.strip_prefix("crates/").unwrap_or(folder);
            (!name.contains('/')).then_some(Package {
                name,
                folder,
                manifest,
            })
        })
    }
}

/// A member of the workspace.
#[derive(Clone, Copy)]
pub(crate) struct Package<'a> {
    /// The name of its folder.
    pub(crate) name: &'a str,
    /// From the root.
    pub(crate) folder: &'a str,
    /// The text of its `Cargo.toml`.
    pub(crate) manifest: &'a str,
}

/// What follows the last dot of a file's name.
pub(crate) fn extension(path: &str) -> Option<&str> {
    let name = path.rsplit('/').next()?;
    name.rsplit_once('.').map(|(_, end)| end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_files_are_known() {
        let tree = Tree::of(&[("a/b/c.md", "text")]);
        assert!(tree.contains("a") && tree.contains("a/b") && tree.contains("a/b/c.md"));
        assert!(!tree.contains("a/c.md"));
    }

    #[test]
    fn packages_are_the_folders_of_manifests() {
        let tree = Tree::of(&[
            ("Cargo.toml", ""),
            ("crates/a/Cargo.toml", ""),
            ("crates/a/fuzz/Cargo.toml", ""),
            ("xtask/Cargo.toml", ""),
        ]);
        let names: Vec<&str> = tree.packages().map(|package| package.name).collect();
        assert_eq!(names, ["a", "xtask"]);
    }

    #[test]
    fn the_repository_itself_can_be_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let tree = Tree::read(&root).unwrap();
        assert!(tree.contains("xtask/src/main.rs"));
        let skipped = |path: &str| path.starts_with(".git/") || path.starts_with("target/");
        assert!(!tree.texts().any(|(path, _)| skipped(path)));
    }
}
