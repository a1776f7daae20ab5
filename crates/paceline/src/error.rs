//! Why an engine cannot start or a request cannot be served.

use paceline_device::DeviceError;
use paceline_models::ModelError;
use paceline_runner::ListsTooLong;

/// An engine that does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An option outside its bounds.
    #[error("`{option}` is {value}; it must be {bound}")]
    Option {
        /// Name of the option, as flags spell it.
        option: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        bound: String,
    },
    /// Not enough memory for what was asked.
    #[error("{0}")]
    Memory(String),
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The model cannot be built.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Packed weights cannot be written.
    #[error("packed weights cannot be written: {0}")]
    Packed(std::io::Error),
    /// The engine's thread cannot be started.
    #[error("cannot start the engine's thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// A request that is refused. The engine goes on serving others.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// A parameter outside its bounds.
    #[error("`{field}` is {value}; it must be {bound}")]
    Parameter {
        /// Name of the field of the request.
        field: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        bound: String,
    },
    /// A prompt that the context cannot hold. Clients look for the words of the first sentence.
    #[error(
        "This model's maximum context length is {limit} tokens. However, `{field}` has {tokens} tokens{}.",
        if *.generates { ", and one must be left to generate" } else { "" }
    )]
    PromptTooLong {
        /// The field with the prompt.
        field: String,
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens of the context.
        limit: usize,
        /// Whether there must be room for one token more.
        generates: bool,
    },
    /// Too many stop tokens, biases and bad words.
    #[error(transparent)]
    Lists(#[from] ListsTooLong),
    /// No more requests are taken in for now.
    #[error("the queue is full: {open} requests are running or waiting; try again later")]
    QueueFull {
        /// Requests in the queue and running.
        open: usize,
    },
    /// The engine has stopped.
    #[error("the engine has stopped: {0}")]
    Stopped(String),
}
