//! Why a model could not be had from the hub.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{HubModel, choice};
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
    /// The argument is a path that leads nowhere.
    #[error("{}: no such file or folder{hint}", path.display())]
    NoSuchPath {
        /// The path.
        path: PathBuf,
        /// What may have been meant, starting with punctuation, or nothing.
        hint: String,
    },
    /// The hub has no such model, revision or file.
    #[error("{what} was not found on {endpoint}: {advice}")]
    NotFound {
        /// The model, with the file if that is what is missing.
        what: String,
        /// The hub.
        endpoint: String,
        /// What is missing, or what to do.
        advice: &'static str,
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
        advice: String,
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
    /// The hub wants fewer requests.
    #[error(
        "{endpoint} allows no more requests for now (HTTP 429, when asked for {what}): wait {}{advice}",
        wait.map_or_else(|| "some minutes".to_owned(), |wait| format!("{} seconds", wait.as_secs()))
    )]
    Limited {
        /// The model, with the file if there is one.
        what: String,
        /// The hub.
        endpoint: String,
        /// For how long, if the hub says.
        wait: Option<Duration>,
        /// What else would help, starting with punctuation, or nothing.
        advice: &'static str,
    },
    /// The hub answered with an unexpected status.
    #[error("{endpoint} answered HTTP {status} when asked for {what}{words}")]
    Status {
        /// The model, with the file if there is one.
        what: String,
        /// The hub.
        endpoint: String,
        /// The status.
        status: u16,
        /// The hub's own words, starting with punctuation, or nothing.
        words: String,
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
        model: String,
        /// The folder of the cache.
        cache: PathBuf,
    },
    /// A repository without a file that was asked for.
    #[error("{model}: the repository has no file {file}{hint}")]
    NoSuchFile {
        /// The model.
        model: String,
        /// The file.
        file: String,
        /// The GGUF files there are, starting with punctuation, or nothing.
        hint: String,
    },
    /// A repository without the quantisation that was asked for.
    #[error("{model}: the repository has no GGUF file of this quantisation{hint}")]
    NoSuchQuantisation {
        /// The model.
        model: String,
        /// Those there are, starting with punctuation, or nothing.
        hint: String,
    },
    /// A repository with several models that could be meant.
    #[error("{model}: several files could be meant; name one, as in {example} (there are {files})")]
    Several {
        /// The model.
        model: String,
        /// The model with the first of the files.
        example: String,
        /// All of them.
        files: String,
    },
    /// A repository that holds no model in a supported format.
    #[error("{model}: the repository has neither a config.json with .safetensors files nor GGUF files")]
    NotAModel {
        /// The model.
        model: String,
    },
    /// There is no room for a download.
    #[error(
        "there is no space left for {what} at {}; make some (`paceline list` and `paceline rm` show and remove models), or \
         set HF_HOME to a folder on a larger disk; run again to resume",
        cache.display()
    )]
    DiskFull {
        /// The model with the file.
        what: String,
        /// Where it was written to.
        cache: PathBuf,
    },
    /// A model that is to be removed is not in the cache.
    #[error("{model} is not in the cache at {}", cache.display())]
    NotInstalled {
        /// The model.
        model: String,
        /// The folder of the cache.
        cache: PathBuf,
    },
    /// A model that is to be removed is being downloaded.
    #[error("{repo} is being downloaded by another process; end that first")]
    InUse {
        /// The repository.
        repo: String,
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

    /// Whether the same may succeed later: models downloaded before serve until then.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Limited { .. } => true,
            Self::Status { status, .. } => *status >= 500,
            _ => false,
        }
    }

    /// How long the hub asks to be left alone.
    pub(super) fn wait(&self) -> Option<Duration> {
        match self {
            Self::Limited { wait, .. } => *wait,
            _ => None,
        }
    }

    /// Why bytes of `what` could not be written to `path`.
    pub(super) fn writing<'a>(what: &'a str, path: &'a Path) -> impl FnOnce(io::Error) -> Self + 'a {
        move |cause| match cause.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull {
                what: what.to_owned(),
                cache: path.parent().unwrap_or(path).to_owned(),
            },
            _ => Self::io(path)(cause),
        }
    }

    pub(super) fn no_such_file(model: &HubModel, file: &str, files: &[String]) -> Self {
        let ggufs: Vec<String> = files
            .iter()
            .filter(|name| has_extension(name, "gguf"))
            .cloned()
            .collect();
        let hint = hint(&ggufs);
        Self::NoSuchFile {
            model: model.whole().to_string(),
            file: file.to_owned(),
            hint,
        }
    }

    pub(super) fn no_such_quantisation(model: &HubModel, files: &[String]) -> Self {
        let mut labels: Vec<String> = choice::models(files).map(choice::label).collect();
        labels.sort_unstable();
        labels.dedup();
        Self::NoSuchQuantisation {
            model: model.to_string(),
            hint: hint(&labels),
        }
    }

    pub(super) fn several(model: &HubModel, files: &[String]) -> Self {
        Self::Several {
            model: model.to_string(),
            example: format!("{}:{}", model.whole(), files.first().map_or("", String::as_str)),
            files: first_few(files),
        }
    }

    pub(super) fn not_a_model(model: &HubModel) -> Self {
        Self::NotAModel {
            model: model.to_string(),
        }
    }
}

/// Tells what there is, if there is anything.
fn hint(there: &[String]) -> String {
    if there.is_empty() {
        return String::new();
    }
    format!("; it has {}", first_few(there))
}

fn first_few(names: &[String]) -> String {
    const FEW: usize = 16;
    let more = if names.len() > FEW { " ..." } else { "" };
    format!("{}{more}", names[..names.len().min(FEW)].join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_with_what_helps() {
        let full = |kind: io::ErrorKind| {
            HubError::writing("m.gguf of a/b", Path::new("/cache/blobs/x.incomplete"))(kind.into())
                .to_string()
        };
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
            let message = full(kind);
            for part in [
                "m.gguf of a/b",
                "/cache/blobs",
                "paceline rm",
                "HF_HOME",
                "resume",
            ] {
                assert!(message.contains(part), "{message}");
            }
        }
        assert!(full(io::ErrorKind::PermissionDenied).starts_with("/cache/blobs/x.incomplete: "));
    }
}
