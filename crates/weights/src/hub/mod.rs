//! Models from the Hugging Face hub.
//!
//! [`resolve`] turns what a user typed into a path that [`Checkpoint`](crate::Checkpoint) opens, downloading into the
//! cache that the other tools of the hub share (`blobs/`, `snapshots/`, `refs/`).
//!
//! The client is written here over `reqwest`. The `hf-hub` crate was looked at first: its version 1.0 brings an
//! asynchronous stack of some 300 crates and starts an interrupted download over, and its version 0.5, which is
//! blocking and small, appends to a partial file whatever the server answers, cannot finish a partial file that is
//! already whole, uses the names the server sends as paths unchecked, and never compares what arrived with what
//! was announced. The transfer is all that would be used of it, and the transfer is where care is needed: here a
//! partial file goes on only from a matching `206` answer, and the size and the SHA-256 that the hub states for
//! large files are checked before a file enters the cache.

mod cache;
mod choice;
mod client;
mod config;
mod error;
mod id;
mod installed;
mod refusal;
mod transfer;

use std::fs::{self, File, FileTimes};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

pub use config::HubConfig;
pub use error::HubError;
pub use id::{Choice, HubModel, ModelRef};
pub use installed::{Installed, installed, remove};

use crate::folder::{self, INDEX, Index, SINGLE, is_file_name};
use cache::RepoCache;
use choice::NoChoice;
use client::{Client, Listing};

/// The side files that are downloaded where a repository has them.
const SIDE_FILES: [&str; 4] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
];

/// Hears how downloads go, one file after the other.
pub trait Progress {
    /// A file of `total` bytes, where that is known, begins; again for the same file if it has to start over.
    fn start(&self, file: &str, total: Option<u64>);
    /// `bytes` more of the file are there; the part left from an earlier attempt counts at once.
    fn advance(&self, bytes: u64);
    /// The file is complete.
    fn finish(&self);
    /// Another process downloads the file; it is waited for.
    fn wait(&self, file: &str);
}

/// Reports nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn start(&self, _file: &str, _total: Option<u64>) {}
    fn advance(&self, _bytes: u64) {}
    fn finish(&self) {}
    fn wait(&self, _file: &str) {}
}

/// The local path of the model that `argument` names: the path itself if it exists, else the model of the hub with
/// that name, which is downloaded unless the cache has it.
pub fn resolve(argument: &str, config: &HubConfig, progress: &dyn Progress) -> Result<PathBuf, HubError> {
    match ModelRef::parse(argument, &config.endpoint)? {
        ModelRef::Path(path) => Ok(path),
        ModelRef::Hub(model) => fetch(&model, config, progress),
    }
}

/// The local path of a model of the hub, which is downloaded unless the cache has it.
pub fn fetch(model: &HubModel, config: &HubConfig, progress: &dyn Progress) -> Result<PathBuf, HubError> {
    let path = find(model, config, progress)?;
    mark_used(&path);
    Ok(path)
}

fn find(model: &HubModel, config: &HubConfig, progress: &dyn Progress) -> Result<PathBuf, HubError> {
    let cache = RepoCache::new(&config.cache_dir, &model.repo);
    let cached = cached_model(model, &cache);
    if config.offline {
        let missing = || HubError::Offline {
            model: model.to_string(),
            cache: config.cache_dir.clone(),
        };
        return cached.ok_or_else(missing);
    }
    // A commit never changes, so there is nothing to ask the hub about; but what is usual there, only the hub knows.
    if let (Some(path), true) = (&cached, model.is_pinned())
        && (path.is_dir() || model.choice != Choice::Usual)
    {
        return Ok(path.clone());
    }
    let client = Client::new(config)?;
    let listing = match (client.listing(model), cached) {
        (Err(error), Some(path)) if error.is_passing() => return Ok(path),
        (listing, _) => listing?,
    };
    let path = download(model, &listing, &cache, &client, progress)?;
    cache.write_ref(&model.revision, &listing.commit)?;
    Ok(path)
}

fn download(
    model: &HubModel,
    listing: &Listing,
    cache: &RepoCache,
    client: &Client<'_>,
    progress: &dyn Progress,
) -> Result<PathBuf, HubError> {
    let get = |file: &str| transfer::get(client, cache, model, &listing.commit, file, progress);
    let files = match wanted(model, &listing.files)? {
        Wanted::Folder(files) => files,
        Wanted::Gguf(parts) => {
            for part in &parts {
                if !listing.files.contains(part) {
                    return Err(HubError::no_such_file(model, part, &listing.files));
                }
                get(part)?;
            }
            let first = parts.first().map(String::as_str).unwrap_or_default();
            return Ok(cache.snapshot(&listing.commit).join(first));
        }
    };
    for file in files {
        let path = get(&file)?;
        if file == INDEX
            && let Some(index) = Index::read(&path)?
        {
            index
                .shards()
                .into_iter()
                .try_for_each(|shard| get(shard).map(drop))?;
        }
    }
    Ok(cache.snapshot(&listing.commit))
}

/// The files of a model.
enum Wanted {
    /// Those of a model in a folder; shards of an index are not listed.
    Folder(Vec<String>),
    /// A GGUF file, or its parts.
    Gguf(Vec<String>),
}

/// Which of a repository's files make up the model.
fn wanted(model: &HubModel, files: &[String]) -> Result<Wanted, HubError> {
    let tag = match &model.choice {
        Choice::File(file) => return Ok(Wanted::Gguf(choice::parts(file))),
        Choice::Quantisation(tag) => Some(tag.as_str()),
        Choice::Usual => None,
    };
    let folder = folder_model(files).filter(|_| tag.is_none());
    if let Some(files) = folder {
        return Ok(Wanted::Folder(files));
    }
    match (choice::choose(files, tag), tag) {
        (Ok(file), _) => Ok(Wanted::Gguf(choice::parts(file))),
        (Err(NoChoice::Several(found)), _) => Err(HubError::several(model, &found)),
        (Err(NoChoice::Missing), Some(_)) => Err(HubError::no_such_quantisation(model, files)),
        (Err(NoChoice::Missing), None) => Err(HubError::not_a_model(model)),
    }
}

/// The files of the safetensors model, if there is one.
fn folder_model(files: &[String]) -> Option<Vec<String>> {
    let has = |file: &str| files.iter().any(|listed| listed == file);
    // Weights in folders of the repository are other versions of the model.
    let root: Vec<String> = files.iter().filter(|file| is_file_name(file)).cloned().collect();
    let weights: Vec<&str> = if has(SINGLE) {
        vec![SINGLE]
    } else if has(INDEX) {
        vec![INDEX]
    } else {
        folder::loose_shards(&root).collect()
    };
    if !has("config.json") || weights.is_empty() {
        return None;
    }
    let side = SIDE_FILES.into_iter().filter(|file| has(file));
    let all = ["config.json"].into_iter().chain(side).chain(weights);
    Some(all.map(str::to_owned).collect())
}

/// The model's path in the cache, if all of it is there.
fn cached_model(model: &HubModel, cache: &RepoCache) -> Option<PathBuf> {
    let snapshot = cache.snapshot(&cache.commit(&model.revision)?);
    if model.choice == Choice::Usual && is_whole_folder(&snapshot) {
        return Some(snapshot);
    }
    let Ok(Wanted::Gguf(parts)) = wanted(model, &gguf_files(&snapshot)) else {
        return None;
    };
    let whole = parts.iter().all(|part| snapshot.join(part).is_file());
    whole.then(|| snapshot.join(&parts[0]))
}

fn is_whole_folder(snapshot: &Path) -> bool {
    snapshot.join("config.json").is_file() && folder::weight_files(snapshot).is_ok()
}

/// The GGUF files below a folder, by their paths in it, sorted.
fn gguf_files(folder: &Path) -> Vec<String> {
    fn collect(folder: &Path, prefix: &str, files: &mut Vec<String>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let name = format!("{prefix}{name}");
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                collect(&entry.path(), &format!("{name}/"), files);
            } else if folder::has_extension(&name, "gguf") {
                files.push(name);
            }
        }
    }
    let mut files = Vec::new();
    collect(folder, "", &mut files);
    files.sort_unstable();
    files
}

/// The file whose time of access tells when a model was used: one that is not read only to tell what a model is.
fn witness(path: &Path) -> PathBuf {
    let shards = folder::weight_files(path).map(|files| files.shards);
    let first = shards.ok().and_then(|shards| shards.into_iter().next());
    first.filter(|_| path.is_dir()).unwrap_or_else(|| path.to_owned())
}

/// Notes that a model is used now: many file systems do not keep times of access by themselves. A cache that may not be
/// changed is no reason to fail.
fn mark_used(path: &Path) {
    let now = FileTimes::new().set_accessed(SystemTime::now());
    let _ = File::open(witness(path)).and_then(|file| file.set_times(now));
}
