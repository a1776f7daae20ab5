//! Why a model cannot be built.

use paceline_device::DeviceError;
use paceline_weights::WeightsError;

/// Everything that can be wrong with a model's configuration or tensors.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A configuration field is missing or makes no sense.
    #[error("config field `{field}`: {why}")]
    Config {
        /// The field.
        field: String,
        /// What is wrong with it.
        why: String,
    },
    /// No architecture of this name.
    #[error("unknown architecture {name}; known are: {known}")]
    UnknownArchitecture {
        /// As the model names it.
        name: String,
        /// Those that would work.
        known: String,
    },
    /// A tensor the architecture needs is not in the files.
    #[error("tensor `{name}` is missing (expected shape {expected:?})")]
    MissingTensor {
        /// Its name.
        name: String,
        /// Its shape.
        expected: Vec<usize>,
    },
    /// A tensor has another shape than the configuration says.
    #[error("tensor `{name}` has shape {found:?}, the configuration asks for {expected:?}")]
    Shape {
        /// Its name.
        name: String,
        /// By the configuration.
        expected: Vec<usize>,
        /// In the file.
        found: Vec<usize>,
    },
    /// A tensor's element type cannot be used there.
    #[error("tensor `{name}` has element type {dtype}: {why}")]
    DType {
        /// Its name.
        name: String,
        /// As stored.
        dtype: String,
        /// Why not.
        why: String,
    },
    /// A value that no computation can go on from.
    #[error("tensor `{name}` holds a value that is not finite at element {index}")]
    NotFinite {
        /// Its name.
        name: String,
        /// Index of the element.
        index: usize,
    },
    /// An element that makes no sense.
    #[error("element {index} of tensor `{name}`: {why}")]
    Element {
        /// The tensor.
        name: String,
        /// Index of the element.
        index: usize,
        /// What is wrong with it.
        why: String,
    },
    /// Something is wrong with a draft head, or it is for another model.
    #[error("draft head {file}: {cause}")]
    DraftHead {
        /// Its folder.
        file: String,
        /// What is wrong.
        #[source]
        cause: Box<ModelError>,
    },
    /// A draft head in the place of a model.
    #[error(
        "{name} is an EAGLE-3 draft head: it drafts for the model it was made for and cannot run without it"
    )]
    LoneDraftHead {
        /// As it names itself.
        name: String,
    },
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The files could not be read.
    #[error(transparent)]
    Weights(#[from] WeightsError),
}

impl ModelError {
    /// A complaint about one configuration field.
    pub(crate) fn config(field: &str, why: impl Into<String>) -> Self {
        Self::Config {
            field: field.to_owned(),
            why: why.into(),
        }
    }
}
