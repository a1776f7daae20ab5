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
mod client;
mod config;
mod error;
mod id;
mod transfer;

use std::path::PathBuf;

pub use config::HubConfig;
pub use error::HubError;
pub use id::{HubModel, ModelRef};

use crate::folder::{self, INDEX, Index, SINGLE, is_file_name};
use cache::RepoCache;
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
}

/// Reports nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn start(&self, _file: &str, _total: Option<u64>) {}
    fn advance(&self, _bytes: u64) {}
    fn finish(&self) {}
}

/// The local path of the model that `argument` names: the path itself if it exists, else the model of the hub with
/// that id, which is downloaded unless the cache has it.
pub fn resolve(argument: &str, config: &HubConfig, progress: &dyn Progress) -> Result<PathBuf, HubError> {
    match ModelRef::parse(argument)? {
        ModelRef::Path(path) => Ok(path),
        ModelRef::Hub(model) => fetch(&model, config, progress),
    }
}

/// The local path of a model of the hub, which is downloaded unless the cache has it.
pub fn fetch(model: &HubModel, config: &HubConfig, progress: &dyn Progress) -> Result<PathBuf, HubError> {
    let cache = RepoCache::new(&config.cache_dir, &model.repo);
    let cached = cached_model(model, &cache);
    if config.offline {
        let missing = || HubError::Offline {
            model: model.clone(),
            cache: config.cache_dir.clone(),
        };
        return cached.ok_or_else(missing);
    }
    // A commit never changes, so there is nothing to ask the hub about.
    if let (Some(path), true) = (&cached, model.is_pinned()) {
        return Ok(path.clone());
    }
    let client = Client::new(config)?;
    let listing = match (client.listing(model), cached) {
        (Err(HubError::Unreachable { .. }), Some(path)) => return Ok(path),
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
    if let Some(file) = &model.file {
        if !listing.files.contains(file) {
            return Err(HubError::no_such_file(model, file, &listing.files));
        }
        return get(file);
    }
    let has = |file: &str| listing.files.iter().any(|listed| listed == file);
    // Weights in folders of the repository are other versions of the model.
    let root: Vec<String> = listing
        .files
        .iter()
        .filter(|file| is_file_name(file))
        .cloned()
        .collect();
    let weights: Vec<&str> = if has(SINGLE) {
        vec![SINGLE]
    } else if has(INDEX) {
        vec![INDEX]
    } else {
        folder::loose_shards(&root).collect()
    };
    if !has("config.json") || weights.is_empty() {
        return Err(HubError::not_a_model(model, &listing.files));
    }
    get("config.json")?;
    SIDE_FILES
        .into_iter()
        .filter(|file| has(file))
        .try_for_each(|file| get(file).map(drop))?;
    for file in weights {
        let path = get(file)?;
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

/// The model's path in the cache, if all of it is there.
fn cached_model(model: &HubModel, cache: &RepoCache) -> Option<PathBuf> {
    let snapshot = cache.snapshot(&cache.commit(&model.revision)?);
    if let Some(file) = &model.file {
        return Some(snapshot.join(file)).filter(|path| path.is_file());
    }
    let whole = snapshot.join("config.json").is_file() && folder::weight_files(&snapshot).is_ok();
    whole.then_some(snapshot)
}
