//! What a generation yields.

use paceline_schedule::{SpeculationReport, StepOrigins};
use paceline_types::{FinishReason, TokenId, TokenLogprobs};
use std::time::Duration;

/// Something that happened to a request. The engine's output is [`Tokens`]; what turns them into something else, such as
/// text, hands on the same events with that.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "few wait at a time, and an end comes once per continuation"
)]
pub enum Event<T = Tokens> {
    /// Log-probabilities of a prompt's tokens from the second on, in order. The engine gives them as they come, in several
    /// events if need be.
    Prompt {
        /// Number of the prompt, from 0, where there are several; a request of the engine has one.
        prompt: usize,
        /// One per token.
        logprobs: Vec<TokenLogprobs>,
    },
    /// More of a continuation.
    Delta {
        /// Number of the continuation, from 0.
        choice: usize,
        /// What comes next in it.
        output: T,
    },
    /// A continuation ended. It is its last event.
    Finished {
        /// Number of the continuation, from 0.
        choice: usize,
        /// Why, and what it took.
        finish: Finish,
    },
    /// All is over before its end. It is the last event.
    Failed(Failure),
}

/// New tokens of a continuation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tokens {
    /// The tokens, in order. A stop token is not among them.
    pub ids: Vec<TokenId>,
    /// One per token, if asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// The steps that brought them, in order, if asked for. One may have brought none but a stop token.
    pub origins: Vec<StepOrigins>,
}

/// How a continuation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    /// Why the continuation ended.
    pub reason: FinishReason,
    /// The stop string that its text was found to end with. The engine sees no text and leaves this to its caller.
    pub stop: Option<String>,
    /// What its constraint ran into, where that ended it.
    pub detail: Option<String>,
    /// What it took.
    pub usage: Usage,
}

/// Why a request is over before its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The engine failed, for this reason.
    #[error("the engine failed: {0}")]
    Engine(String),
    /// What runs the engine goes down; continuations that were open have ended as cancelled.
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// What a continuation took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, tokens that need not be run: they were in the prefix cache when the continuation started. All but the
    /// first continuation of a request find the prompt there as a rule.
    pub cached_tokens: usize,
    /// Tokens generated, a final stop token not counted.
    pub completion_tokens: usize,
    /// From the request's arrival to its first slot.
    pub queued: Duration,
    /// From the request's arrival to its first token.
    pub first_token: Duration,
    /// From the request's arrival to its end.
    pub total: Duration,
    /// What drafts did for it.
    pub speculation: SpeculationReport,
}
