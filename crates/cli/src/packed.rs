//! Packed weights of a model: where they are looked for, and by what they are known.

use crate::env;
use crate::ui::Ui;
use anyhow::{Context, Result};
use paceline::{PackedKey, PackedWeights};
use paceline_types::DType;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

/// What packed weights of a model are known by: its files with their sizes and times, and the type they are kept in.
pub(crate) fn key(model: &Path, dtype: Option<DType>) -> Result<PackedKey> {
    let mut digest = Sha256::new();
    digest.update(dtype.map_or("as stored", DType::name));
    for file in paceline_weights::weight_files(model)? {
        let about = fs::metadata(&file).with_context(|| file.display().to_string())?;
        let modified = about
            .modified()
            .ok()
            .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        digest.update((name.len() as u64).to_le_bytes());
        digest.update(&*name);
        digest.update(about.len().to_le_bytes());
        digest.update(modified.unwrap_or_default().as_nanos().to_le_bytes());
    }
    Ok(digest.finalize().into())
}

/// The file beside a model: in its folder, or by the name of its file.
fn beside(model: &Path) -> PathBuf {
    if model.is_dir() {
        return model.join("paceline.pack");
    }
    let mut name = model.as_os_str().to_owned();
    name.push(".pack");
    name.into()
}

/// The file in the cache.
pub(crate) fn in_cache(key: &PackedKey) -> Option<PathBuf> {
    let name = u128::from_be_bytes(*key.first_chunk()?);
    Some(env::packed_folder()?.join(format!("{name:032x}.pack")))
}

/// The packed weights of a model, from beside it or from the cache. A file that is of no use is told of.
pub(crate) fn find(model: &Path, dtype: Option<DType>, ui: Ui) -> Option<Arc<PackedWeights>> {
    let key = key(model, dtype).ok()?;
    let places = [Some(beside(model)), in_cache(&key)];
    for path in places.into_iter().flatten().filter(|path| path.exists()) {
        match PackedWeights::open(&path, &key) {
            Ok(packed) => return Some(Arc::new(packed)),
            Err(error) => ui.note(format_args!(
                "packed weights in {} are not used: {error}; `paceline pack` writes them anew",
                path.display()
            )),
        }
    }
    None
}
