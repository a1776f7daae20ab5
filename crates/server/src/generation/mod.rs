//! Generating, for every interface: a checked task in, a stream of text per choice out.

mod collect;
mod parts;
mod speculation;
mod stream;
mod text;

pub use collect::{Collected, Completion, collect, collect_one};
pub(crate) use parts::PartReader;
pub(crate) use speculation::SpeculationUsage;
pub(crate) use stream::Means;
pub use stream::Outputs;
pub use text::{GeneratedToken, Piece};

use paceline::{RequestSpeculation, Usage};
use paceline_types::{Constraint, FinishReason, SamplingParams, TokenId, TokenLogprobs};
use std::sync::Arc;
use std::time::Duration;

/// What to generate. The engine checks the numbers when the task is handed in.
#[derive(Clone, Debug, Default)]
pub struct GenerationTask {
    /// One or more prompts. Choice `c` of prompt `p` has the index `p * n + c`.
    pub prompts: Vec<Vec<TokenId>>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Choices per prompt, at least 1.
    pub n: usize,
    /// A choice ends before any of these.
    pub stop: Vec<String>,
    /// Let the text end with the stop string that was found.
    pub include_stop: bool,
    /// Leave special tokens out of the text.
    pub skip_special: bool,
    /// The text goes on where the prompt ended; otherwise it is a text of its own, such as an answer.
    pub continues: bool,
    /// Lower comes first.
    pub priority: i32,
    /// Give up after this long.
    pub deadline: Option<Duration>,
    /// The drafters.
    pub speculation: RequestSpeculation,
    /// What every choice must follow, if anything.
    pub constraint: Option<Arc<dyn Constraint>>,
    /// Whose it is; see [`paceline::Request::tenant`].
    pub tenant: u32,
    /// The client's own part of the salt.
    pub cache_salt: Option<String>,
    /// Only tasks with the same salt share cached prefixes.
    pub salt: u64,
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
