//! The models in the cache: what there is, and how to be rid of it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::cache::RepoCache;
use super::id::is_commit;
use super::{Choice, HubError, HubModel, choice, gguf_files, is_whole_folder, witness};
use crate::folder::has_extension;
use crate::json::{self, MAX_CONFIG};

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// Its name, which can be typed as it stands.
    pub model: HubModel,
    /// The kind of its files, and what is known of them: `safetensors, qwen3`, `gguf, Q4_K_M`, or `incomplete`.
    pub kind: String,
    /// Bytes of its files, or what there is of them.
    pub bytes: u64,
    /// When it was last opened.
    pub used: Option<SystemTime>,
    /// Where it is: a folder, a GGUF file, or the repository's folder if it is incomplete.
    pub path: PathBuf,
}

/// The models in a cache, by name.
pub fn installed(cache: &Path) -> Result<Vec<Installed>, HubError> {
    let entries = match fs::read_dir(cache) {
        Ok(entries) => entries,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(HubError::io(cache)(cause)),
    };
    let mut models = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let repo = name
            .strip_prefix("models--")
            .and_then(|name| name.split_once("--"));
        if let Some((org, name)) = repo {
            models.extend(of_repo(&format!("{org}/{name}"), cache));
        }
    }
    models.sort_by_key(|model| model.model.to_string());
    Ok(models)
}

fn of_repo(repo: &str, cache: &Path) -> Vec<Installed> {
    let cache = RepoCache::new(cache, repo);
    let model = |revision: &str, choice| HubModel {
        repo: repo.to_owned(),
        revision: revision.to_owned(),
        choice,
    };
    let mut found = Vec::new();
    for (commit, revision) in revisions(&cache) {
        let snapshot = cache.snapshot(&commit);
        if is_whole_folder(&snapshot) {
            let architecture = json::read_json(&snapshot.join("config.json"), MAX_CONFIG)
                .ok()
                .flatten();
            let architecture = architecture
                .as_ref()
                .and_then(|config| config["model_type"].as_str());
            let kind = architecture.map_or("safetensors".to_owned(), |name| format!("safetensors, {name}"));
            found.push(Installed {
                model: model(&revision, Choice::Usual),
                kind,
                bytes: bytes_below(&snapshot, &|name| !has_extension(name, "gguf")),
                used: used(&snapshot),
                path: snapshot.clone(),
            });
        }
        let files = gguf_files(&snapshot);
        for file in choice::models(&files) {
            let parts = choice::parts(file);
            let paths: Vec<PathBuf> = parts.iter().map(|part| snapshot.join(part)).collect();
            if !paths.iter().all(|path| path.is_file()) {
                continue;
            }
            let label = choice::label(file);
            let tag = match choice::choose(&files, Some(&label)) {
                Ok(chosen) if chosen == file => Choice::Quantisation(label.clone()),
                _ => Choice::File(file.to_owned()),
            };
            found.push(Installed {
                model: model(&revision, tag),
                kind: format!("gguf, {label}"),
                bytes: paths.iter().map(|path| size(path)).sum(),
                used: used(&paths[0]),
                path: paths[0].clone(),
            });
        }
    }
    if found.is_empty() {
        found.push(Installed {
            model: model("main", Choice::Usual),
            kind: "incomplete".to_owned(),
            bytes: bytes_below(&cache.root.join("blobs"), &|_| true),
            used: None,
            path: cache.root,
        });
    }
    found
}

/// The commits that there are files of, each with the name it goes by.
fn revisions(cache: &RepoCache) -> Vec<(String, String)> {
    let names = ref_names(&cache.root.join("refs"), "");
    let mut commits: Vec<String> = fs::read_dir(cache.root.join("snapshots"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|commit| is_commit(commit))
        .collect();
    commits.sort_unstable();
    let named = commits.into_iter().map(|commit| {
        let mut of_commit = names
            .iter()
            .filter(|name| cache.commit(name).as_ref() == Some(&commit));
        let name = of_commit.clone().find(|name| *name == "main");
        let name = name.or_else(|| of_commit.next()).unwrap_or(&commit).clone();
        (commit, name)
    });
    named.collect()
}

/// The files below `folder`, by their paths in it.
fn ref_names(folder: &Path, prefix: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names = Vec::new();
    for entry in entries {
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            names.extend(ref_names(&entry.path(), &format!("{name}/")));
        } else {
            names.push(name);
        }
    }
    names.sort_unstable();
    names
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |file| file.len())
}

fn used(path: &Path) -> Option<SystemTime> {
    fs::metadata(witness(path)).and_then(|file| file.accessed()).ok()
}

/// Bytes of the files below a folder that are `wanted` by name; links are followed.
fn bytes_below(folder: &Path, wanted: &dyn Fn(&str) -> bool) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| {
            let (path, name) = (entry.path(), entry.file_name());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                bytes_below(&path, wanted)
            } else if wanted(&name.to_string_lossy()) {
                size(&path)
            } else {
                0
            }
        })
        .sum()
}

/// Removes a model from a cache: all there is of a repository, or of it only the revision or the GGUF file that is
/// named. Gives back what is gone.
pub fn remove(model: &HubModel, cache: &Path) -> Result<Vec<Installed>, HubError> {
    let repo = RepoCache::new(cache, &model.repo);
    let missing = || HubError::NotInstalled {
        model: model.to_string(),
        cache: cache.to_owned(),
    };
    if !repo.root.is_dir() {
        return Err(missing());
    }
    if repo.is_locked() {
        return Err(HubError::InUse {
            repo: model.repo.clone(),
        });
    }
    let all = of_repo(&model.repo, cache);
    let everything = model.choice == Choice::Usual && model.revision == "main";
    let (gone, kept): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|there| everything || is_meant(there, model, &repo));
    if gone.is_empty() {
        return Err(missing());
    }
    if kept.is_empty() {
        fs::remove_dir_all(&repo.root).map_err(HubError::io(&repo.root))?;
        return Ok(gone);
    }
    gone.iter().try_for_each(remove_files)?;
    remove_unused_blobs(&repo)?;
    Ok(gone)
}

/// Whether a model in the cache is of the revision and the file that are named.
fn is_meant(there: &Installed, named: &HubModel, repo: &RepoCache) -> bool {
    let Some(commit) = repo.commit(&named.revision) else {
        return false;
    };
    let snapshot = repo.snapshot(&commit);
    let Ok(file) = there.path.strip_prefix(&snapshot) else {
        return false;
    };
    let files = gguf_files(&snapshot);
    match &named.choice {
        Choice::Usual => true,
        Choice::File(name) => file == Path::new(name),
        Choice::Quantisation(tag) => {
            choice::choose(&files, Some(tag)).is_ok_and(|chosen| file == Path::new(chosen))
        }
    }
}

/// Removes the links of a model: those of its GGUF files, or all of its revision.
fn remove_files(gone: &Installed) -> Result<(), HubError> {
    if gone.path.is_dir() {
        return fs::remove_dir_all(&gone.path).map_err(HubError::io(&gone.path));
    }
    for part in choice::parts(&gone.path.to_string_lossy()) {
        let part = Path::new(&part);
        match fs::remove_file(part) {
            // It went with its revision.
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {}
            removed => removed.map_err(HubError::io(part))?,
        }
    }
    Ok(())
}

/// Removes contents that no file links to any more.
fn remove_unused_blobs(repo: &RepoCache) -> Result<(), HubError> {
    let mut linked = BTreeSet::new();
    collect_links(&repo.root.join("snapshots"), &mut linked);
    let blobs = repo.root.join("blobs");
    for blob in fs::read_dir(&blobs).map_err(HubError::io(&blobs))?.flatten() {
        if !linked.contains(&blob.file_name()) {
            fs::remove_file(blob.path()).map_err(HubError::io(&blob.path()))?;
        }
    }
    Ok(())
}

fn collect_links(folder: &Path, linked: &mut BTreeSet<std::ffi::OsString>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect_links(&path, linked);
        } else if let Ok(target) = fs::read_link(&path) {
            linked.extend(target.file_name().map(std::ffi::OsStr::to_owned));
        }
    }
}
