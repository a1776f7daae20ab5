//! The files that a model's weights are in.

use crate::error::WeightsError;
use crate::folder;
use crate::split::SplitName;
use std::path::{Path, PathBuf};

/// The files with the weights of the model at `path`, a folder or a GGUF file, in the order of their names.
pub fn weight_files(path: &Path) -> Result<Vec<PathBuf>, WeightsError> {
    if path.is_dir() {
        return Ok(folder::weight_files(path)?.shards);
    }
    let name = path.to_string_lossy();
    let parts = SplitName::parse(&name).map(|split| split.parts().map(PathBuf::from).collect());
    Ok(parts.unwrap_or_else(|| vec![path.to_owned()]))
}
