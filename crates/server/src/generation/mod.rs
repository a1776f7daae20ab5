//! Generating, for every interface: a checked task in, a stream of text per choice out.

mod allowed;
mod collect;
mod parts;
mod speculation;
mod stream;
mod task;

pub use collect::{Collected, Completion, collect};
pub use paceline_text::{GeneratedToken, Piece};
pub(crate) use parts::PartReader;
pub(crate) use speculation::SpeculationUsage;
pub(crate) use stream::Means;
pub use stream::Outputs;
pub(crate) use task::{StreamOptions, cache_salt, stream};

use paceline::{Request, Usage};
use paceline_text::DecodeOptions;
use paceline_types::{FinishReason, TokenId, TokenLogprobs};
use std::sync::Arc;

/// What to generate. The engine checks it when it is handed in.
#[derive(Clone, Debug, Default)]
pub struct GenerationTask {
    /// One or more prompts. Choice `c` of prompt `p` has the index `p * n + c`.
    pub prompts: Vec<Arc<[TokenId]>>,
    /// What all of them are asked with; its own prompt is empty.
    pub request: Request,
    /// How tokens become text.
    pub decoding: DecodeOptions,
    /// Nothing but these tokens may come.
    pub allowed: Option<Vec<TokenId>>,
    /// The client's own part of the salt.
    pub cache_salt: Option<String>,
    /// Keep this many of the last tokens of each prompt.
    pub truncate: Option<usize>,
}

/// Something a generation yields.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "few wait at a time, and an end comes once per choice"
)]
pub enum Output {
    /// Log-probabilities of a prompt's tokens from the second on, all at once and before any text of its choices.
    /// It comes only if they were asked for.
    Prompt {
        /// Number of the prompt in the request, from 0.
        prompt: usize,
        /// One per token but the first.
        logprobs: Vec<TokenLogprobs>,
    },
    /// More of a choice.
    Piece {
        /// Number of the choice over all prompts, from 0.
        choice: usize,
        /// Text and tokens; either may be empty.
        piece: Piece,
    },
    /// A choice ended.
    Finished {
        /// Number of the choice over all prompts, from 0.
        choice: usize,
        /// Reason and counts.
        finish: Finish,
    },
    /// All is over before its end. It is the last output.
    Failed(Failure),
}

/// How a choice ended.
#[derive(Clone, Debug)]
pub struct Finish {
    /// Why the text ended.
    pub reason: FinishReason,
    /// The stop string that was found.
    pub stop: Option<String>,
    /// What it took.
    pub usage: Usage,
}

/// Why a generation is over before its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The engine failed, for this reason.
    Engine(String),
    /// The server is going down. The choices that were open have been ended as cancelled.
    ShuttingDown,
}

impl Failure {
    /// The failure as clients are told of it.
    pub fn error(&self) -> crate::error::ApiError {
        use crate::error::{ApiError, ErrorKind};
        match self {
            Self::Engine(reason) => {
                ApiError::new(ErrorKind::Internal, format!("the engine failed: {reason}"))
            }
            Self::ShuttingDown => crate::admission::going_down(),
        }
    }
}
