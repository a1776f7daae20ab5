//! What can be wrong with a model's files.

use std::io;
use std::path::PathBuf;

use crate::gguf::GgufError;
use crate::safetensors::SafetensorsError;

/// Why a model could not be opened or a tensor not be had. Every message names the file or folder it is about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The path names nothing.
    #[error("{}: no such file or folder", path.display())]
    NotFound {
        /// The path asked for.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("{}: {cause}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
    /// A folder without `config.json`.
    #[error("{}: no config.json in this folder{hint}", path.display())]
    NoConfig {
        /// The folder.
        path: PathBuf,
        /// What was found instead, starting with punctuation, or nothing.
        hint: String,
    },
    /// A folder without weights.
    #[error("{}: no .safetensors files in this folder{hint}", path.display())]
    NoWeights {
        /// The folder.
        path: PathBuf,
        /// What was found instead, starting with punctuation, or nothing.
        hint: String,
    },
    /// A `.safetensors` file given instead of its folder.
    #[error("{}: a .safetensors file has no configuration of its own; give the folder that holds it with its config.json", path.display())]
    LoneSafetensors {
        /// The file.
        path: PathBuf,
    },
    /// A file that is no model.
    #[error("{}: not a model: expected a folder with config.json and .safetensors files, or a .gguf file", path.display())]
    UnknownFile {
        /// The file.
        path: PathBuf,
    },
    /// A text file beyond its size limit.
    #[error("{file}: {bytes} bytes, but at most {limit} are accepted")]
    TooLarge {
        /// The file.
        file: String,
        /// Its size.
        bytes: u64,
        /// The limit for files of its kind.
        limit: u64,
    },
    /// A text file that is not valid JSON.
    #[error("{file}: not valid JSON: {cause}")]
    Json {
        /// The file.
        file: String,
        /// What the parser said, with line and column.
        cause: serde_json::Error,
    },
    /// A text file that is not valid UTF-8.
    #[error("{file}: not valid UTF-8 from byte {at}")]
    NotUtf8 {
        /// The file.
        file: String,
        /// Bytes that are valid before the first that is not.
        at: usize,
    },
    /// A malformed safetensors file.
    #[error("{file}: {cause}")]
    Safetensors {
        /// The file.
        file: String,
        /// What is wrong with it.
        cause: Box<SafetensorsError>,
    },
    /// A malformed GGUF file.
    #[error("{file}: {cause}")]
    Gguf {
        /// The file.
        file: String,
        /// What is wrong with it.
        cause: Box<GgufError>,
    },
    /// An index of shards that does not fit the shards.
    #[error("{}: {problem}", path.display())]
    Index {
        /// The index file.
        path: PathBuf,
        /// What is wrong, naming the tensor or shard.
        problem: String,
    },
    /// One tensor in two shards.
    #[error("tensor {tensor} is both in {first} and in {second}")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
        /// The shard that came first.
        first: String,
        /// The other one.
        second: String,
    },
    /// A tensor the model needs and the files lack.
    #[error("{file}: no tensor named {tensor}")]
    MissingTensor {
        /// The model.
        file: String,
        /// The tensor.
        tensor: String,
    },
    /// A tensor stored in a type the engine does not compute with.
    #[error("{file}: tensor {tensor} has dtype {dtype}, which is not supported")]
    UnsupportedDType {
        /// The model.
        file: String,
        /// The tensor.
        tensor: String,
        /// The type's name in the file.
        dtype: String,
    },
    /// A metadata key the model needs and the GGUF file lacks.
    #[error("{file}: no metadata key {key}")]
    MissingKey {
        /// The file.
        file: String,
        /// The key.
        key: String,
    },
    /// A metadata value of another type, or outside the range of the type asked for.
    #[error("{file}: metadata key {key}: expected {expected}, found {found}")]
    KeyType {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// The type asked for.
        expected: &'static str,
        /// The type and value in the file.
        found: String,
    },
}

impl WeightsError {
    /// An operating system error about `path`, told apart from the path not existing.
    pub(crate) fn io(path: impl Into<PathBuf>, cause: io::Error) -> Self {
        let path = path.into();
        if cause.kind() == io::ErrorKind::NotFound {
            Self::NotFound { path }
        } else {
            Self::Io { path, cause }
        }
    }
}
