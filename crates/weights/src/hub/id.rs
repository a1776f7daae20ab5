//! How users name models.

use std::fmt;
use std::path::{Path, PathBuf};

use super::HubError;
use crate::folder::{has_extension, is_file_name};

/// Most characters of a name on the hub.
const MAX_NAME: usize = 96;

/// What a model argument stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelRef {
    /// An existing file or folder.
    Path(PathBuf),
    /// A model of the hub.
    Hub(HubModel),
}

/// A model of the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    /// The repository, `org/name`.
    pub repo: String,
    /// The branch, tag or commit.
    pub revision: String,
    /// The one GGUF file that is meant; the safetensors model of the repository otherwise.
    pub file: Option<String>,
}

impl ModelRef {
    /// Reads an argument: an existing path, or `org/name`, `org/name@revision`, `org/name:FILE.gguf` or
    /// `org/name@revision:FILE.gguf`.
    pub fn parse(argument: &str) -> Result<Self, HubError> {
        let path = Path::new(argument);
        if !argument.is_empty() && path.exists() {
            return Ok(Self::Path(path.to_owned()));
        }
        HubModel::parse(argument)
            .map(Self::Hub)
            .map_err(|reason| HubError::InvalidArgument {
                argument: argument.to_owned(),
                reason,
            })
    }
}

impl HubModel {
    fn parse(argument: &str) -> Result<Self, &'static str> {
        let (head, file) = match argument.split_once(':') {
            Some((head, file)) => (head, Some(file)),
            None => (argument, None),
        };
        let (repo, revision) = head.split_once('@').unwrap_or((head, "main"));
        let is_id = repo
            .split_once('/')
            .is_some_and(|(org, name)| is_name(org) && is_name(name));
        if !is_id {
            return Err("an id has the form org/name");
        }
        if !is_relative_path(revision) {
            return Err("the revision after @ is not valid");
        }
        if file.is_some_and(|file| !is_relative_path(file) || !has_extension(file, "gguf")) {
            return Err("after : comes the name of a .gguf file");
        }
        let (repo, revision) = (repo.to_owned(), revision.to_owned());
        Ok(Self {
            repo,
            revision,
            file: file.map(str::to_owned),
        })
    }

    /// Whether the revision is a commit, which never changes.
    pub fn is_pinned(&self) -> bool {
        is_commit(&self.revision)
    }
}

impl fmt::Display for HubModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repo)?;
        if self.revision != "main" {
            write!(f, "@{}", self.revision)?;
        }
        self.file.iter().try_for_each(|file| write!(f, ":{file}"))
    }
}

/// Whether `text` is a full commit id.
pub(super) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether `path` stays inside the folder it is joined to.
pub(super) fn is_relative_path(path: &str) -> bool {
    path.split('/').all(is_file_name)
}

fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let edge = |byte: Option<&u8>| byte.is_some_and(|byte| !b"-.".contains(byte));
    let bytes = name.as_bytes();
    bytes.len() <= MAX_NAME
        && bytes.iter().all(|&byte| allowed(byte))
        && edge(bytes.first())
        && edge(bytes.last())
        && !name.contains("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(repo: &str, revision: &str, file: Option<&str>) -> ModelRef {
        let (repo, revision) = (repo.to_owned(), revision.to_owned());
        ModelRef::Hub(HubModel {
            repo,
            revision,
            file: file.map(str::to_owned),
        })
    }

    #[test]
    fn ids_with_revision_and_file_are_read() {
        let cases = [
            ("Qwen/Qwen3-0.6B", model("Qwen/Qwen3-0.6B", "main", None)),
            ("a/b.c@v1.0", model("a/b.c", "v1.0", None)),
            ("a/b@refs/pr/3", model("a/b", "refs/pr/3", None)),
            ("a/b:x/Q4.gguf", model("a/b", "main", Some("x/Q4.gguf"))),
            ("a/b@v1:Q4.GGUF", model("a/b", "v1", Some("Q4.GGUF"))),
        ];
        for (argument, expected) in cases {
            assert_eq!(ModelRef::parse(argument).unwrap(), expected);
            let ModelRef::Hub(model) = expected else {
                panic!("not of the hub")
            };
            assert_eq!(model.to_string(), argument);
        }
    }

    #[test]
    fn existing_paths_stand_for_themselves() {
        let folder = tempfile::tempdir().unwrap();
        let argument = folder.path().to_str().unwrap();
        assert_eq!(
            ModelRef::parse(argument).unwrap(),
            ModelRef::Path(folder.path().to_owned())
        );
    }

    #[test]
    fn everything_else_is_refused_by_name() {
        let bad = [
            "",
            "gpt2",
            "/no/such/folder",
            "./x/y",
            "a/b/c",
            "a/../b",
            "../b",
            "a b/c",
            "-a/b",
            "a/b@",
            "a/b@../c",
            "a/b:",
            "a/b:model.safetensors",
            "a/b:../x.gguf",
            "a/b:/x.gguf",
            "models\\x",
            "https://huggingface.co/a/b",
        ];
        for argument in bad {
            let message = ModelRef::parse(argument).unwrap_err().to_string();
            assert!(
                message.contains(&format!("`{argument}` is neither an existing path")),
                "{message}"
            );
        }
    }
}
