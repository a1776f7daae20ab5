//! The folder layout that the tools of the hub share.
//!
//! `models--org--name/blobs/<etag>` holds the contents, `snapshots/<commit>/<file>` links to them, and
//! `refs/<revision>` says which commit a branch or tag was at when it was last looked up.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::HubError;
use super::id::is_commit;

/// The part of the cache that belongs to one repository.
pub(super) struct RepoCache {
    pub(super) root: PathBuf,
    locks: PathBuf,
}

impl RepoCache {
    pub(super) fn new(cache: &Path, repo: &str) -> Self {
        let name = format!("models--{}", repo.replace('/', "--"));
        Self {
            root: cache.join(&name),
            locks: cache.join(".locks").join(&name),
        }
    }

    /// The folder of one commit.
    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.root.join("snapshots").join(commit)
    }

    /// Where contents with this entity tag belong.
    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.root.join("blobs").join(etag)
    }

    /// The commit of a revision, as far as the cache knows.
    pub(super) fn commit(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let commit = fs::read_to_string(self.root.join("refs").join(revision)).ok()?;
        Some(commit.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// Remembers the commit of a revision.
    pub(super) fn write_ref(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if revision == commit {
            return Ok(());
        }
        let path = self.root.join("refs").join(revision);
        create_parent(&path)?;
        fs::write(&path, commit).map_err(HubError::io(&path))
    }

    /// Waits until no other process downloads these contents, and says so where it has to; the lock lasts as long as the
    /// file is open.
    pub(super) fn lock(&self, etag: &str, waits: impl FnOnce()) -> Result<File, HubError> {
        let path = self.locks.join(format!("{etag}.lock"));
        create_parent(&path)?;
        let file = File::create(&path).map_err(HubError::io(&path))?;
        let lock = match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                waits();
                file.lock()
            }
            Err(TryLockError::Error(cause)) => Err(cause),
            Ok(()) => Ok(()),
        };
        match lock {
            // Some network file systems have no locks; a race there costs a second download at worst.
            Err(cause) if cause.kind() != io::ErrorKind::Unsupported => Err(HubError::io(&path)(cause)),
            _ => Ok(file),
        }
    }

    /// Whether a process downloads anything of the repository now.
    pub(super) fn is_locked(&self) -> bool {
        let locks = fs::read_dir(&self.locks).into_iter().flatten().flatten();
        let mut files = locks.filter_map(|lock| File::open(lock.path()).ok());
        files.any(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Makes `file` of `commit` stand for the contents with this entity tag.
    pub(super) fn link(&self, commit: &str, file: &str, etag: &str) -> Result<PathBuf, HubError> {
        let path = self.snapshot(commit).join(file);
        if path.exists() {
            return Ok(path);
        }
        create_parent(&path)?;
        // A link whose target was deleted does not count as existing, but is in the way.
        if path.is_symlink() {
            fs::remove_file(&path).map_err(HubError::io(&path))?;
        }
        let up = "../".repeat(2 + file.matches('/').count());
        let target = PathBuf::from(format!("{up}blobs/{etag}"));
        match symlink(&target, &path) {
            // Another process may have made the same link meanwhile.
            Err(_) if path.exists() => Ok(path),
            Err(_) => {
                let blob = self.blob(etag);
                fs::hard_link(&blob, &path)
                    .or_else(|_| fs::copy(&blob, &path).map(drop))
                    .map_err(HubError::io(&path))?;
                Ok(path)
            }
            Ok(()) => Ok(path),
        }
    }
}

/// Creates the folder that `path` lies in.
pub(super) fn create_parent(path: &Path) -> Result<(), HubError> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(HubError::io(folder))
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(not(unix))]
fn symlink(_target: &Path, _link: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
