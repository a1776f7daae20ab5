//! Which files of a folder hold a model's weights.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::WeightsError;
use crate::json::{self, MAX_INDEX};

/// The file of a model that has its weights in one.
pub(crate) const SINGLE: &str = "model.safetensors";
/// The index of a model that has its weights in several.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// The weight files of a folder.
pub(crate) struct WeightFiles {
    /// The files, in the order of their names.
    pub(crate) shards: Vec<PathBuf>,
    /// Where each tensor is said to be, when there is an index.
    pub(crate) index: Option<Index>,
}

/// The index of a sharded model: the shard of each tensor.
pub(crate) struct Index {
    path: PathBuf,
    shard_of: BTreeMap<String, String>,
}

impl Index {
    pub(crate) fn read(path: &Path) -> Result<Option<Self>, WeightsError> {
        let Some(value) = json::read_json(path, MAX_INDEX)? else {
            return Ok(None);
        };
        let broken = |problem: String| WeightsError::Index {
            path: path.to_owned(),
            problem,
        };
        let map = value
            .get("weight_map")
            .ok_or_else(|| broken("no weight_map".to_owned()))?;
        let map = map
            .as_object()
            .ok_or_else(|| broken("weight_map is not an object".to_owned()))?;
        let mut shard_of = BTreeMap::new();
        for (tensor, shard) in map {
            // The name is joined to the folder, so it must not be able to lead out of it.
            let shard = shard.as_str().filter(|name| is_file_name(name)).ok_or_else(|| {
                broken(format!(
                    "the shard of tensor {tensor} is {shard}, which is not a file name"
                ))
            })?;
            shard_of.insert(tensor.clone(), shard.to_owned());
        }
        if shard_of.is_empty() {
            return Err(broken("weight_map is empty".to_owned()));
        }
        Ok(Some(Self {
            path: path.to_owned(),
            shard_of,
        }))
    }

    /// The names of the shards, each once.
    pub(crate) fn shards(&self) -> BTreeSet<&str> {
        self.shard_of.values().map(String::as_str).collect()
    }

    /// Checks that every tensor is in the shard it is said to be in; `actual` gives the shard a tensor is in.
    pub(crate) fn check<'a>(&self, actual: impl Fn(&str) -> Option<&'a Path>) -> Result<(), WeightsError> {
        for (tensor, stated) in &self.shard_of {
            let problem = match actual(tensor).and_then(Path::file_name) {
                Some(found) if found == stated.as_str() => continue,
                Some(found) => {
                    format!(
                        "tensor {tensor} is listed in {stated}, but is in {}",
                        found.display()
                    )
                }
                None => format!("tensor {tensor} is listed in {stated}, but is in none of the shards"),
            };
            return Err(WeightsError::Index {
                path: self.path.clone(),
                problem,
            });
        }
        Ok(())
    }
}

/// Finds the weight files of `folder`: the single file, else those of the index, else all there are.
pub(crate) fn weight_files(folder: &Path) -> Result<WeightFiles, WeightsError> {
    let single = folder.join(SINGLE);
    if single.exists() {
        return Ok(WeightFiles {
            shards: vec![single],
            index: None,
        });
    }
    if let Some(index) = Index::read(&folder.join(INDEX))? {
        let mut shards = Vec::new();
        for name in index.shards() {
            let shard = folder.join(name);
            if !shard.exists() {
                let problem = format!("shard {name} is listed, but is not in the folder");
                return Err(WeightsError::Index {
                    path: index.path.clone(),
                    problem,
                });
            }
            shards.push(shard);
        }
        return Ok(WeightFiles {
            shards,
            index: Some(index),
        });
    }
    let names = file_names(folder)?;
    let shards: Vec<_> = loose_shards(&names).map(|name| folder.join(name)).collect();
    if shards.is_empty() {
        return Err(WeightsError::NoWeights {
            path: folder.to_owned(),
            hint: hint(&names),
        });
    }
    Ok(WeightFiles { shards, index: None })
}

/// The weight files among the sorted `names` of a folder that has neither the single file nor an index.
pub(crate) fn loose_shards(names: &[String]) -> impl Iterator<Item = &str> {
    let weights = |name: &&str| has_extension(name, "safetensors");
    // Some publishers add a second copy of the weights under this name, in their own naming of tensors.
    let second_copy = |name: &&str| name.starts_with("consolidated");
    let names = || names.iter().map(String::as_str).filter(weights);
    let only_copies = names().all(|name| second_copy(&name));
    names().filter(move |name| only_copies || !second_copy(name))
}

/// What `names` hold that might be what the user meant, for the end of a message.
pub(crate) fn hint(names: &[String]) -> String {
    if names.is_empty() {
        return " (it is empty)".to_owned();
    }
    if let Some(gguf) = names.iter().find(|name| has_extension(name, "gguf")) {
        return format!("; to open the GGUF file in it, give its path ({gguf})");
    }
    match names
        .iter()
        .find(|name| has_extension(name, "bin") || has_extension(name, "pth"))
    {
        Some(pickle) => {
            format!("; {pickle} is a pickle file, which is not supported: convert it to safetensors")
        }
        None => String::new(),
    }
}

/// The names in `folder`, sorted.
pub(crate) fn file_names(folder: &Path) -> Result<Vec<String>, WeightsError> {
    let failed = |cause| WeightsError::io(folder, cause);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

/// Whether `name` is the name of a file and not a path to somewhere else.
pub(crate) fn is_file_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\\', '\0'])
}

pub(crate) fn has_extension(name: &str, extension: &str) -> bool {
    Path::new(name)
        .extension()
        .is_some_and(|found| found.eq_ignore_ascii_case(extension))
}
