//! What a reply took.

use crate::generation::{Finish, SpeculationUsage, StreamOptions};
use paceline::SpeculationReport;
use serde::{Serialize, Serializer};

/// Counts of tokens, and what drafts did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct UsageReply {
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    pub(crate) total_tokens: usize,
    prompt_tokens_details: PromptDetails,
    /// Absent where there was no decode step, or the server went down before the engine had counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    speculation: Option<SpeculationUsage>,
    /// Summed over the choices.
    #[serde(skip)]
    report: SpeculationReport,
}

/// More of the prompts' tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct PromptDetails {
    /// Found in the prefix cache. Choices of one prompt do not count what they share with each other.
    cached_tokens: usize,
}

impl UsageReply {
    /// Of prompts with `prompt_tokens` tokens in all, nothing generated yet.
    pub(crate) fn of_prompts(prompt_tokens: usize) -> Self {
        Self {
            prompt_tokens,
            completion_tokens: 0,
            total_tokens: prompt_tokens,
            ..Self::default()
        }
    }

    /// A choice ended.
    pub(crate) fn add(&mut self, finish: &Finish) {
        self.completion_tokens += finish.usage.completion_tokens;
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
        self.prompt_tokens_details.cached_tokens += finish.usage.cached_tokens;
        let (sum, more) = (&mut self.report, &finish.usage.speculation);
        sum.steps += more.steps;
        sum.tokens += more.tokens;
        sum.drafted += more.drafted;
        sum.accepted += more.accepted;
        sum.gained_ns += more.gained_ns;
        self.speculation = SpeculationUsage::of(sum);
    }
}

/// The field `usage` of a reply.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::large_enum_variant, reason = "one per reply, written at once")]
pub(crate) enum UsageField {
    /// Not there: a stream whose usage was not asked for.
    #[default]
    Absent,
    /// Null: a chunk of a stream whose last chunk has the counts.
    Later,
    /// Counts of the whole reply.
    Known(UsageReply),
}

impl UsageField {
    /// The field of a chunk that is not the last: after this many tokens, behind prompts with this usage.
    pub(crate) fn so_far(options: StreamOptions, prompts: UsageReply, tokens: usize) -> Self {
        if options.continuous_usage {
            return Self::Known(UsageReply {
                completion_tokens: tokens,
                total_tokens: prompts.prompt_tokens + tokens,
                ..prompts
            });
        }
        if options.include_usage {
            Self::Later
        } else {
            Self::Absent
        }
    }

    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
}

impl Serialize for UsageField {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Absent | Self::Later => serializer.serialize_none(),
            Self::Known(usage) => usage.serialize(serializer),
        }
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
