//! Why a generation cannot be done.

use paceline_device::DeviceError;
use paceline_models::ModelError;

/// A request that cannot be served, or a device that failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A parameter outside its bounds.
    #[error("`{field}` is {value}; it must be {bound}")]
    Parameter {
        /// Which.
        field: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        bound: String,
    },
    /// Nothing to continue.
    #[error("the prompt has no tokens; give at least one")]
    EmptyPrompt,
    /// No room for the prompt and one more token.
    #[error(
        "the prompt has {tokens} tokens; the context holds {limit}, one of which must be left to generate"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens of the context.
        limit: usize,
    },
    /// A token the model does not know.
    #[error("prompt token {index} is {id}; the vocabulary ends at {last}")]
    TokenOutsideVocabulary {
        /// Place in the prompt.
        index: usize,
        /// The token.
        id: u32,
        /// The largest known.
        last: usize,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The model could not be set up.
    #[error(transparent)]
    Model(#[from] ModelError),
}
