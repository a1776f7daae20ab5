//! One continuation of a prompt as its events come in.

use super::prompts::Job;
use super::report::Report;
use super::text::TextStream;
use paceline::Usage;
use paceline_text::Tokenizer;
use paceline_types::{FinishReason, TokenId, TokenLogprobs};
use std::time::Duration;

/// What there is of a continuation so far.
pub(super) struct Continuation<'a> {
    pub(super) job: &'a Job,
    pub(super) choice: usize,
    /// The text that is certain.
    pub(super) text: String,
    /// Of the prompt; only the first continuation gets them.
    pub(super) prompt_logprobs: Vec<TokenLogprobs>,
    /// Still open while there may be more text.
    stream: Option<TextStream>,
    tokens: Vec<TokenId>,
    logprobs: Vec<TokenLogprobs>,
    /// A stop string was found: what the engine still sends is beyond it.
    stopped: bool,
    end: Option<(FinishReason, Usage)>,
}

impl<'a> Continuation<'a> {
    pub(super) fn new(job: &'a Job, choice: usize, tokenizer: Option<&Tokenizer>) -> Self {
        Self {
            job,
            choice,
            text: String::new(),
            prompt_logprobs: Vec::new(),
            stream: Some(TextStream::new(tokenizer, job)),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            stopped: false,
            end: None,
        }
    }

    /// Takes new tokens, up to a stop string.
    pub(super) fn push(&mut self, tokens: &[TokenId], logprobs: Vec<TokenLogprobs>) {
        let Some(stream) = self.stream.as_mut().filter(|_| !self.stopped) else {
            return;
        };
        let before = self.tokens.len();
        for token in tokens {
            let piece = stream.push(*token);
            self.tokens.push(*token);
            self.text.push_str(&piece.text);
            if piece.stopped {
                self.stopped = true;
                break;
            }
        }
        let taken = self.tokens.len() - before;
        self.logprobs.extend(logprobs.into_iter().take(taken));
    }

    /// Takes the end.
    pub(super) fn finish(&mut self, reason: FinishReason, usage: Usage) {
        if let Some(stream) = self.stream.take() {
            let rest = stream.finish();
            self.text.push_str(&rest.text);
            self.stopped |= rest.stopped && reason == FinishReason::Length;
        }
        let reason = if self.stopped { FinishReason::Stop } else { reason };
        self.end = Some((reason, usage));
    }

    /// Whether nothing will be added to the text.
    pub(super) fn is_settled(&self) -> bool {
        self.stopped || self.end.is_some()
    }

    /// Whether the end has come.
    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Whether it was cancelled before it had a token.
    pub(super) fn came_to_nothing(&self) -> bool {
        let cancelled = matches!(self.end, Some((FinishReason::Cancelled, _)));
        cancelled && self.tokens.is_empty()
    }

    /// What is to be told once it has ended.
    pub(super) fn report(&self, load_time: Duration) -> Option<Report<'_>> {
        let (finish_reason, usage) = self.end?;
        Some(Report {
            job: self.job,
            choice: self.choice,
            tokens: &self.tokens,
            logprobs: &self.logprobs,
            prompt_logprobs: &self.prompt_logprobs,
            text: &self.text,
            finish_reason,
            usage,
            load_time,
        })
    }
}
