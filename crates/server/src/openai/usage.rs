//! What a reply took.

use crate::generation::Finish;
use serde::Serialize;

/// Counts of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct UsageReply {
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    pub(crate) total_tokens: usize,
}

impl UsageReply {
    /// Of prompts with so many tokens in all, nothing generated yet.
    pub(crate) fn of_prompts(prompt_tokens: usize) -> Self {
        Self {
            prompt_tokens,
            completion_tokens: 0,
            total_tokens: prompt_tokens,
        }
    }

    /// A choice ended.
    pub(crate) fn add(&mut self, finish: &Finish) {
        self.completion_tokens += finish.usage.completion_tokens;
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
    }
}

/// Why a choice ended, in OpenAI's words where it has one.
pub(crate) fn finish_reason(finish: &Finish) -> &'static str {
    use paceline_types::FinishReason;
    match finish.reason {
        FinishReason::Cancelled => "abort",
        other => other.name(),
    }
}
