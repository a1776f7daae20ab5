//! Why a model could not be had from the hub.

use std::io;
use std::path::{Path, PathBuf};

use super::HubModel;
use crate::error::WeightsError;
use crate::folder::has_extension;

/// Why a model could not be had from the hub. Every message names the model or the argument.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The argument is no path and no id.
    #[error("`{argument}` is neither an existing path nor a model id of the hub: {reason}")]
    InvalidArgument {
        /// What was given.
        argument: String,
        /// What is wrong with it as an id.
        reason: &'static str,
    },
    /// The hub has no such model, revision or file.
    #[error("{what} was not found on {endpoint}")]
    NotFound {
        /// The model, with the file if that is what is missing.
        what: String,
        /// The hub.
        endpoint: String,
    },
    /// The hub refuses access.
    #[error("{endpoint} refuses access to {what} (HTTP {status}): {advice}")]
    Denied {
        /// The model, with the file if there is one.
        what: String,
        /// The hub.
        endpoint: String,
        /// 401 or 403.
        status: u16,
        /// What to do.
        advice: &'static str,
    },
    /// The hub cannot be reached.
    #[error(
        "{what} cannot be fetched because {endpoint} cannot be reached: {cause}; without a network, give a local \
         path, or set HF_HUB_OFFLINE=1 to use models downloaded before"
    )]
    Unreachable {
        /// The model.
        what: String,
        /// The hub.
        endpoint: String,
        /// What failed.
        cause: String,
    },
    /// No connection can be made to any hub.
    #[error("connections cannot be made: {cause}")]
    Connections {
        /// What failed.
        cause: String,
    },
    /// The hub answered with an unexpected status.
    #[error("{endpoint} answered HTTP {status} when asked for {what}")]
    Status {
        /// The model, with the file if there is one.
        what: String,
        /// The hub.
        endpoint: String,
        /// The status.
        status: u16,
    },
    /// The hub answered with something unusable.
    #[error("{endpoint} gave an unusable answer when asked for {what}: {problem}")]
    BadAnswer {
        /// The model, with the file if there is one.
        what: String,
        /// The hub.
        endpoint: String,
        /// What is wrong with the answer.
        problem: String,
    },
    /// A transfer broke off too often.
    #[error(
        "the download of {what} from {endpoint} broke off after {have} of {total} bytes: {cause}; run again to resume it"
    )]
    BrokenOff {
        /// The model with the file.
        what: String,
        /// The hub.
        endpoint: String,
        /// The bytes there are.
        have: u64,
        /// The bytes of the file, or "unknown".
        total: String,
        /// What failed last.
        cause: String,
    },
    /// A file arrived that is not what the hub says it is.
    #[error(
        "{what} arrived damaged: its SHA-256 is {found}, but the hub states {expected}; run again to fetch it anew"
    )]
    Damaged {
        /// The model with the file.
        what: String,
        /// The hash that the hub states.
        expected: String,
        /// The hash of what arrived.
        found: String,
    },
    /// Offline, and the cache lacks the model.
    #[error(
        "{model} is not, or not completely, in the cache at {}, and HF_HUB_OFFLINE forbids downloading it",
        cache.display()
    )]
    Offline {
        /// The model.
        model: HubModel,
        /// The folder of the cache.
        cache: PathBuf,
    },
    /// A repository without a file that was asked for.
    #[error("{model}: the repository has no file {file}{hint}")]
    NoSuchFile {
        /// The model.
        model: HubModel,
        /// The file.
        file: String,
        /// The GGUF files there are, starting with punctuation, or nothing.
        hint: String,
    },
    /// A repository that holds no model in a supported format.
    #[error("{model}: the repository has no config.json with .safetensors files{hint}")]
    NotAModel {
        /// The model.
        model: HubModel,
        /// The GGUF files there are, starting with punctuation, or nothing.
        hint: String,
    },
    /// The cache cannot be written.
    #[error("{}: {cause}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
    /// A downloaded file cannot be used.
    #[error(transparent)]
    Weights(#[from] WeightsError),
}

impl HubError {
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |cause| Self::Io {
            path: path.to_owned(),
            cause,
        }
    }

    pub(super) fn no_such_file(model: &HubModel, file: &str, files: &[String]) -> Self {
        let hint = gguf_hint(files, "; it has ", "");
        Self::NoSuchFile {
            model: HubModel {
                file: None,
                ..model.clone()
            },
            file: file.to_owned(),
            hint,
        }
    }

    pub(super) fn not_a_model(model: &HubModel, files: &[String]) -> Self {
        let form = format!("; add one of its GGUF files, as in {model}:");
        Self::NotAModel {
            model: model.clone(),
            hint: gguf_hint(files, &form, " ..."),
        }
    }
}

/// Names the first few GGUF files among `files`.
fn gguf_hint(files: &[String], before: &str, after: &str) -> String {
    let ggufs: Vec<&str> = files
        .iter()
        .map(String::as_str)
        .filter(|name| has_extension(name, "gguf"))
        .collect();
    match ggufs.as_slice() {
        [] => String::new(),
        some => format!(
            "{before}{}{}",
            some[..some.len().min(8)].join(", "),
            if some.len() > 8 { " ..." } else { after }
        ),
    }
}
