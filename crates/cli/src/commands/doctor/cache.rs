//! The folder that downloaded models are kept in.

use crate::env;
use crate::format::{self, Facts};
use serde::Serialize;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

/// Models that the hub's cache holds.
#[derive(Serialize)]
pub(super) struct Cache {
    folder: PathBuf,
    exists: bool,
    bytes: u64,
    models: usize,
    /// Whether models can be put there; for a folder that does not exist, whether it can be made.
    writable: bool,
    packed: Packed,
}

/// Packed weights in the cache.
#[derive(Serialize)]
struct Packed {
    folder: Option<PathBuf>,
    files: usize,
    bytes: u64,
}

impl Packed {
    fn look(folder: Option<PathBuf>) -> Self {
        let files = folder.iter().flat_map(fs::read_dir).flatten().flatten();
        Self {
            files: files.count(),
            bytes: folder.as_deref().map_or(0, size),
            folder,
        }
    }
}

impl Cache {
    pub(super) fn look(folder: &Path) -> Self {
        let models = fs::read_dir(folder).into_iter().flatten().flatten();
        let models = models.filter(|entry| entry.file_name().to_string_lossy().starts_with("models--"));
        let existing = folder.ancestors().find(|folder| folder.is_dir());
        Self {
            folder: folder.to_owned(),
            exists: folder.is_dir(),
            bytes: size(folder),
            models: models.count(),
            writable: existing.is_some_and(is_writable),
            packed: Packed::look(env::packed_folder()),
        }
    }

    pub(super) fn describe(&self, facts: &mut Facts) {
        let state = if self.exists {
            let models = if self.models == 1 { "model" } else { "models" };
            format!("{} {models}, {}", self.models, format::bytes(self.bytes))
        } else {
            "not there yet".to_owned()
        };
        let writable = match (self.writable, self.exists) {
            (true, _) => "writable",
            (false, true) => "NOT writable: downloads will fail; set HF_HOME to another folder",
            (false, false) => "CANNOT be created: downloads will fail; set HF_HOME to another folder",
        };
        facts.add(
            "model cache",
            format!("{}: {state}, {writable}", self.folder.display()),
        );
        if let Some(folder) = &self.packed.folder {
            let files = if self.packed.files == 1 { "file" } else { "files" };
            let bytes = format::bytes(self.packed.bytes);
            let held = format!("{}: {} {files}, {bytes}", folder.display(), self.packed.files);
            facts.add("packed weights", held);
        }
    }
}

/// Bytes of the files below; links are not followed, so shared contents count once.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let kind = entry.file_type().ok()?;
            if kind.is_dir() {
                return Some(size(&entry.path()));
            }
            entry
                .metadata()
                .ok()
                .filter(|_| kind.is_file())
                .map(|file| file.len())
        })
        .sum()
}

/// Permissions do not tell about read-only file systems, so a file is made and removed.
fn is_writable(folder: &Path) -> bool {
    let probe = folder.join(format!(".paceline-{}", std::process::id()));
    let made = OpenOptions::new().write(true).create_new(true).open(&probe);
    made.is_ok() && fs::remove_file(&probe).is_ok()
}
