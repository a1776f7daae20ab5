//! How users name models.

use std::fmt;
use std::path::{Path, PathBuf};

use super::HubError;
use crate::folder::{has_extension, is_file_name};
use crate::split::SplitName;

/// Most characters of a name on the hub.
const MAX_NAME: usize = 96;

/// Hosts that are the hub, besides that of its address.
const HOSTS: [&str; 3] = ["huggingface.co", "hf.co", "www.huggingface.co"];

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
    /// Which of the repository's models.
    pub choice: Choice,
}

/// Which model of a repository is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The safetensors model, or else the GGUF file of the usual quantisation.
    Usual,
    /// The GGUF file of this quantisation, such as `Q4_K_M`.
    Quantisation(String),
    /// This GGUF file.
    File(String),
}

impl ModelRef {
    /// Reads an argument: an existing path, or `org/name`, `org/name@revision`, each with `:Q4_K_M` or `:FILE.gguf` behind
    /// it, the same behind `hf.co/`, or the address of a page or file of the hub at `endpoint`.
    pub fn parse(argument: &str, endpoint: &str) -> Result<Self, HubError> {
        let path = Path::new(argument);
        if !argument.is_empty() && path.exists() {
            return Ok(Self::Path(path.to_owned()));
        }
        let model = match on_hub(argument, endpoint) {
            Some(place) => HubModel::parse_place(place),
            None if argument.contains("://") => {
                Err("it is an address, but not one of the hub (see HF_ENDPOINT)")
            }
            None if looks_local(argument) => {
                return Err(HubError::NoSuchPath {
                    path: path.to_owned(),
                    hint: file_hint(argument),
                });
            }
            None => HubModel::parse(argument),
        };
        model.map(Self::Hub).map_err(|reason| HubError::InvalidArgument {
            argument: argument.to_owned(),
            reason,
        })
    }
}

impl ModelRef {
    /// What clients of a server would call the model: `org/name:Q4_K_M`, or the name of its file or folder, without what
    /// stands only for the kind of file.
    pub fn name(&self) -> String {
        let path = match self {
            Self::Hub(model) => return model.to_string(),
            Self::Path(path) => std::path::absolute(path).unwrap_or_else(|_| path.clone()),
        };
        let last = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if let Some(repo) = cached_repo(&path).filter(|_| path.is_dir()) {
            return repo;
        }
        match SplitName::parse(&last) {
            Some(split) => split.stem.to_owned(),
            None if has_extension(&last, "gguf") => last[..last.len() - ".gguf".len()].to_owned(),
            None => last,
        }
    }
}

/// The repository whose part of a cache `path` lies in.
fn cached_repo(path: &Path) -> Option<String> {
    let parts = path.iter().filter_map(|part| part.to_str());
    let mut repos = parts.filter_map(|part| part.strip_prefix("models--")?.split_once("--"));
    repos.next_back().map(|(org, name)| format!("{org}/{name}"))
}

/// What stands behind the hub's host.
fn on_hub<'a>(argument: &'a str, endpoint: &str) -> Option<&'a str> {
    let without_scheme = |text: &'a str| {
        let schemes = ["https://", "http://"];
        schemes.iter().find_map(|scheme| text.strip_prefix(scheme))
    };
    let given = without_scheme(argument);
    let address = given.unwrap_or(argument);
    let own = endpoint.split_once("://").map_or(endpoint, |(_, host)| host);
    // Only the well-known hosts are known without a scheme.
    let hosts = HOSTS.iter().copied().chain(given.map(|_| own));
    let mut found = hosts.filter_map(|host| address.strip_prefix(host)?.strip_prefix('/'));
    found.next()
}

/// Whether this can only be meant as a path.
fn looks_local(argument: &str) -> bool {
    let file = [".gguf", ".json", ".safetensors"];
    [".", "/", "~"].iter().any(|start| argument.starts_with(start))
        || argument.ends_with('/')
        || (file.iter().any(|end| argument.ends_with(end)) && !argument.contains(':'))
}

/// How a file of the hub is written, where that may have been meant.
fn file_hint(argument: &str) -> String {
    let mut parts = argument.splitn(3, '/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(org), Some(name), Some(file))
            if is_name(org) && is_name(name) && has_extension(file, "gguf") =>
        {
            format!("; a file of the hub is {org}/{name}:{file}")
        }
        _ => String::new(),
    }
}

impl HubModel {
    fn parse(argument: &str) -> Result<Self, &'static str> {
        let (head, tag) = match argument.split_once(':') {
            Some((head, tag)) => (head, Some(tag)),
            None => (argument, None),
        };
        let (repo, revision) = head.split_once('@').unwrap_or((head, "main"));
        let is_id = repo
            .split_once('/')
            .is_some_and(|(org, name)| is_name(org) && is_name(name));
        if !is_id {
            return Err("an id has the form org/name, such as Qwen/Qwen3-0.6B");
        }
        if !is_relative_path(revision) {
            return Err("the revision after @ is not valid");
        }
        let choice = match tag {
            None => Choice::Usual,
            Some(file) if has_extension(file, "gguf") && is_relative_path(file) => {
                Choice::File(file.to_owned())
            }
            Some(tag) if is_quantisation(tag) => Choice::Quantisation(tag.to_owned()),
            Some(_) => {
                return Err("after : comes a quantisation such as Q4_K_M, or the name of a .gguf file");
            }
        };
        Ok(Self {
            repo: repo.to_owned(),
            revision: revision.to_owned(),
            choice,
        })
    }

    /// Reads what stands behind the hub's host: an id, or the path of one of its pages.
    fn parse_place(place: &str) -> Result<Self, &'static str> {
        let place = place.split(['?', '#']).next().unwrap_or_default();
        let place = place.trim_end_matches('/');
        let mut parts = place.splitn(5, '/');
        let (org, name, page) = (parts.next(), parts.next(), parts.next());
        let (Some(org), Some(name), Some(page)) = (org, name, page) else {
            return Self::parse(place);
        };
        let revision = decoded(parts.next().unwrap_or("main"));
        let file = decoded(parts.next().unwrap_or_default());
        let revision = revision.ok_or("its revision is not valid")?;
        let file = file.ok_or("its path is not valid")?;
        let model = format!("{org}/{name}@{revision}");
        match page {
            "tree" | "blob" | "resolve" | "raw" if has_extension(&file, "gguf") => {
                Self::parse(&format!("{model}:{file}"))
            }
            // Publishers put the parts of a quantisation into a folder of its name.
            "tree" if is_quantisation(&file) => Self::parse(&format!("{model}:{file}")),
            "tree" | "blob" | "resolve" | "raw" => Self::parse(&model),
            _ => Err("it is a page of the hub, but not that of a model"),
        }
    }

    /// The repository at this revision, whichever of its models is meant.
    #[must_use]
    pub fn whole(&self) -> Self {
        Self {
            choice: Choice::Usual,
            ..self.clone()
        }
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
        match &self.choice {
            Choice::Usual => Ok(()),
            Choice::Quantisation(name) | Choice::File(name) => write!(f, ":{name}"),
        }
    }
}

/// A path of an address with its escapes undone.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                let digits = std::str::from_utf8(&digits).ok()?.to_owned();
                u8::from_str_radix(&digits, 16).ok()?
            }
            plain => plain,
        });
    }
    String::from_utf8(bytes).ok()
}

/// Whether this can be the name of a quantisation.
fn is_quantisation(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=32).contains(&text.len()) && text.bytes().all(allowed) && !has_extension(text, "safetensors")
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
    use std::fs;

    const HUB: &str = "https://huggingface.co";

    fn parsed(argument: &str) -> HubModel {
        match ModelRef::parse(argument, HUB).unwrap() {
            ModelRef::Hub(model) => model,
            ModelRef::Path(path) => panic!("{argument} is {}", path.display()),
        }
    }

    fn model(repo: &str, revision: &str, choice: Choice) -> HubModel {
        HubModel {
            repo: repo.to_owned(),
            revision: revision.to_owned(),
            choice,
        }
    }

    fn file(name: &str) -> Choice {
        Choice::File(name.to_owned())
    }

    fn quantisation(name: &str) -> Choice {
        Choice::Quantisation(name.to_owned())
    }

    #[test]
    fn ids_with_revision_quantisation_and_file_are_read() {
        let cases = [
            ("Qwen/Qwen3-0.6B", model("Qwen/Qwen3-0.6B", "main", Choice::Usual)),
            ("a/b.c@v1.0", model("a/b.c", "v1.0", Choice::Usual)),
            ("a/b@refs/pr/3", model("a/b", "refs/pr/3", Choice::Usual)),
            ("a/b:x/Q4.gguf", model("a/b", "main", file("x/Q4.gguf"))),
            ("a/b@v1:Q4.GGUF", model("a/b", "v1", file("Q4.GGUF"))),
            ("a/b:Q4_K_M", model("a/b", "main", quantisation("Q4_K_M"))),
            ("a/b@v1:UD-Q2", model("a/b", "v1", quantisation("UD-Q2"))),
        ];
        for (argument, expected) in cases {
            assert_eq!(parsed(argument), expected);
            assert_eq!(expected.to_string(), argument);
        }
    }

    #[test]
    fn addresses_of_the_hub_mean_the_models_they_show() {
        for (argument, expected) in [
            ("hf.co/a/b", "a/b"),
            ("hf.co/a/b:Q8_0", "a/b:Q8_0"),
            ("huggingface.co/a/b", "a/b"),
            ("https://huggingface.co/a/b", "a/b"),
            ("https://huggingface.co/a/b/", "a/b"),
            ("https://hf.co/a/b?library=gguf#files", "a/b"),
            ("https://huggingface.co/a/b/tree/main", "a/b"),
            ("https://huggingface.co/a/b/tree/v1", "a/b@v1"),
            ("https://huggingface.co/a/b/tree/refs%2Fpr%2F3", "a/b@refs/pr/3"),
            ("https://huggingface.co/a/b/tree/main/Q8_0", "a/b:Q8_0"),
            ("https://huggingface.co/a/b/blob/main/x.gguf", "a/b:x.gguf"),
            (
                "https://huggingface.co/a/b/resolve/v1/q%204/x.gguf?download=true",
                "a/b@v1:q 4/x.gguf",
            ),
            ("https://huggingface.co/a/b/blob/main/model.safetensors", "a/b"),
            ("https://huggingface.co/a/b/raw/main/config.json", "a/b"),
        ] {
            assert_eq!(parsed(argument).to_string(), expected, "{argument}");
        }
        let mirror = ModelRef::parse("http://mirror:8/hub/a/b:Q8_0", "http://mirror:8/hub").unwrap();
        assert_eq!(mirror, ModelRef::Hub(model("a/b", "main", quantisation("Q8_0"))));
    }

    #[test]
    fn existing_paths_stand_for_themselves() {
        let folder = tempfile::tempdir().unwrap();
        let argument = folder.path().to_str().unwrap();
        assert_eq!(
            ModelRef::parse(argument, HUB).unwrap(),
            ModelRef::Path(folder.path().to_owned())
        );
    }

    #[test]
    fn a_model_is_called_as_clients_expect_it() {
        let folder = tempfile::tempdir().unwrap();
        let snapshot = format!("models--org--name/snapshots/{}", "0".repeat(40));
        fs::create_dir_all(folder.path().join(&snapshot)).unwrap();
        fs::create_dir(folder.path().join("Qwen3-0.6B")).unwrap();
        for file in ["m-Q4_K_M.gguf", "m-F16-00001-of-00002.gguf"] {
            fs::write(folder.path().join(file), "").unwrap();
        }
        for (path, name) in [
            ("Qwen3-0.6B", "Qwen3-0.6B"),
            ("Qwen3-0.6B/", "Qwen3-0.6B"),
            ("m-Q4_K_M.gguf", "m-Q4_K_M"),
            ("m-F16-00001-of-00002.gguf", "m-F16"),
            (&snapshot, "org/name"),
        ] {
            let argument = folder.path().join(path);
            let model = ModelRef::parse(argument.to_str().unwrap(), HUB).unwrap();
            assert_eq!(model.name(), name);
        }
        let model = ModelRef::parse("https://hf.co/a/b/blob/main/m.gguf", HUB).unwrap();
        assert_eq!(model.name(), "a/b:m.gguf");
    }

    #[test]
    fn everything_else_is_refused_by_name() {
        let bad = [
            "",
            "gpt2",
            "a/b/c",
            "a b/c",
            "-a/b",
            "a/b@",
            "a/b@../c",
            "a/b:",
            "a/b:model.safetensors",
            "a/b:../x.gguf",
            "a/b:/x.gguf",
            "models\\x",
            "https://example.com/a/b",
            "https://huggingface.co/datasets/a/b",
            "https://huggingface.co/a/b/discussions/3",
            "https://huggingface.co/a/b/blob/main/%2e%2e%2fx.gguf",
            "https://huggingface.co/a/b/blob/main/%zz.gguf",
            "https://huggingface.co/",
        ];
        for argument in bad {
            let message = ModelRef::parse(argument, HUB).unwrap_err().to_string();
            assert!(
                message.contains(&format!("`{argument}` is neither an existing path")),
                "{message}"
            );
        }
        for path in [
            "/no/such/folder",
            "./x/y",
            "../b",
            "a/../b/",
            "~/m",
            "m.gguf",
            "a/b/m.gguf",
        ] {
            let message = ModelRef::parse(path, HUB).unwrap_err().to_string();
            assert!(
                message.starts_with(&format!("{path}: no such file or folder")),
                "{message}"
            );
            assert_eq!(message.contains("a/b:m.gguf"), path == "a/b/m.gguf", "{message}");
        }
    }
}
