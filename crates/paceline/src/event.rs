//! What a generation yields.

use paceline_schedule::SpeculationReport;
use paceline_types::{FinishReason, TokenId, TokenLogprobs};
use std::time::Duration;

/// Something that happened to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Log-probabilities of the prompt's tokens from the second on, in order, possibly in several events.
    Prompt {
        /// One per token.
        logprobs: Vec<TokenLogprobs>,
    },
    /// New tokens of a continuation.
    Tokens {
        /// Number of the continuation, from 0.
        choice: usize,
        /// The tokens, in order. A stop token is not among them.
        tokens: Vec<TokenId>,
        /// One per token, if asked for.
        logprobs: Vec<TokenLogprobs>,
    },
    /// A continuation ended. It is its last event.
    Finished {
        /// Number of the continuation, from 0.
        choice: usize,
        /// Why the continuation ended.
        reason: FinishReason,
        /// What it took.
        usage: Usage,
    },
    /// The engine failed. It is the last event of the request.
    Failed {
        /// What went wrong.
        message: String,
    },
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
    /// From the request's arrival to its first token.
    pub first_token: Duration,
    /// From the request's arrival to its end.
    pub total: Duration,
    /// What drafts did for it.
    pub speculation: SpeculationReport,
}
