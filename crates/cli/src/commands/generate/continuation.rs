//! One continuation of a prompt as its events come in.

use super::prompts::Job;
use super::report::Report;
use paceline::Finish;
use paceline_text::{Piece, TextDecoder, Tokenizer};
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
    decoder: TextDecoder,
    tokens: Vec<TokenId>,
    logprobs: Vec<TokenLogprobs>,
    /// There is no tokenizer: the ids are the text.
    ids: bool,
    end: Option<Finish>,
}

impl<'a> Continuation<'a> {
    pub(super) fn new(job: &'a Job, choice: usize, tokenizer: Option<&Tokenizer>) -> Self {
        Self {
            job,
            choice,
            text: String::new(),
            prompt_logprobs: Vec::new(),
            decoder: TextDecoder::new(tokenizer, job.decoding.clone()),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            ids: tokenizer.is_none(),
            end: None,
        }
    }

    /// Takes new tokens, up to a stop string.
    pub(super) fn push(&mut self, tokens: Vec<TokenId>, logprobs: Vec<TokenLogprobs>) {
        let piece = self.decoder.push_all(tokens, logprobs);
        self.take(piece);
    }

    fn take(&mut self, piece: Piece) {
        self.text.push_str(&piece.text);
        for token in piece.tokens {
            if self.ids {
                if !self.tokens.is_empty() {
                    self.text.push(' ');
                }
                self.text.push_str(&token.id.to_string());
            }
            self.tokens.push(token.id);
            self.logprobs.extend(token.logprobs);
        }
    }

    /// Takes the end.
    pub(super) fn finish(&mut self, mut finish: Finish) {
        let rest = self.decoder.finish();
        self.take(rest);
        if self.stopped() {
            finish.reason = FinishReason::Stop;
        }
        self.end = Some(finish);
    }

    /// A stop string was found: what the engine still sends is beyond it.
    fn stopped(&self) -> bool {
        self.decoder.stopped().is_some()
    }

    /// Whether nothing will be added to the text.
    pub(super) fn is_settled(&self) -> bool {
        self.stopped() || self.end.is_some()
    }

    /// Whether the end has come.
    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Whether it was cancelled before it had a token.
    pub(super) fn came_to_nothing(&self) -> bool {
        let end = self.end.as_ref();
        let cancelled = end.is_some_and(|end| end.reason == FinishReason::Cancelled);
        cancelled && self.tokens.is_empty()
    }

    /// What is to be told once it has ended.
    pub(super) fn report(&self, load_time: Duration) -> Option<Report<'_>> {
        let finish = self.end.as_ref()?;
        Some(Report {
            job: self.job,
            choice: self.choice,
            tokens: &self.tokens,
            logprobs: &self.logprobs,
            prompt_logprobs: &self.prompt_logprobs,
            text: &self.text,
            finish_reason: finish.reason,
            usage: finish.usage,
            load_time,
        })
    }
}
