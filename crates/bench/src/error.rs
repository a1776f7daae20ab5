//! Why something could not be measured.

use crate::subject::SubjectError;
use paceline::{Failure, RequestError};
use paceline_client::ClientError;
use paceline_device::DeviceError;
use paceline_types::TokenId;
use std::fmt::Display;
use std::io;
use thiserror::Error;

/// Why something could not be measured.
#[derive(Debug, Error)]
pub enum BenchError {
    /// No engine, or a model that cannot do what the measurement needs.
    #[error(transparent)]
    Subject(#[from] SubjectError),
    /// The engine refused a request.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The engine ended a request without its result.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Prompts and generated tokens do not fit the context.
    #[error("input_len {input} and output_len {output} are {} tokens together; the context holds {limit}", input + output)]
    Lengths {
        /// Tokens of a prompt.
        input: usize,
        /// Tokens to generate.
        output: usize,
        /// Longest sequence of the model.
        limit: usize,
    },
    /// A prompt that is given as text does not fit the context.
    #[error("a prompt and its output are {longest} tokens together; the context holds {limit}")]
    TooLong {
        /// Tokens of the longest sequence.
        longest: usize,
        /// Longest sequence that fits.
        limit: usize,
    },
    /// The engine that drafts and the one that does not disagree.
    #[error(
        "{workload} {index}: with speculation the text differs from token {position} on: {with:?} instead of {without:?}"
    )]
    Differs {
        /// Name of the workload.
        workload: &'static str,
        /// The request, from 0.
        index: usize,
        /// Where they part.
        position: usize,
        /// The token with drafts, if there is one.
        with: Option<TokenId>,
        /// The token without.
        without: Option<TokenId>,
    },
    /// An answer that a server gave in a crowd is not the one that it gives alone.
    #[error(
        "request {request}: alone and without drafts the text differs from character {position} on:\n  crowd: {crowd:?}\n  alone: {alone:?}"
    )]
    Unlike {
        /// The request, from 0.
        request: usize,
        /// Where they part.
        position: usize,
        /// What came under load.
        crowd: String,
        /// What came alone.
        alone: String,
    },
    /// A file with prompts or with an earlier run could not be used.
    #[error("{place}: {problem}")]
    Input {
        /// The file, and the line if it is one line's fault.
        place: String,
        /// What is wrong.
        problem: String,
    },
    /// The server could not be asked for what it is.
    #[error("{0}")]
    Server(ClientError),
    /// A request before the measurement failed, so those of the measurement would.
    #[error("the first request, {request}: {problem}")]
    FirstRequest {
        /// The request without its prompt.
        request: String,
        /// What came of it.
        problem: String,
    },
    /// Every request of a run failed.
    #[error("no request got its answer; the first ended with {kind}: {message}")]
    NoAnswer {
        /// Kind of the first failure.
        kind: String,
        /// What the first failure says.
        message: String,
    },
    /// A task of the benchmark itself ended early.
    #[error("a request of the benchmark: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// A report could not be written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl BenchError {
    pub(crate) fn input(place: &dyn Display, problem: &dyn Display) -> Self {
        Self::Input {
            place: place.to_string(),
            problem: problem.to_string(),
        }
    }
}
