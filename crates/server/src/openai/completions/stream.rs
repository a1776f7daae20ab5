//! A completion as it comes.

use super::reply::{Progress, Writer};
use crate::error::ApiError;
use crate::generation::{Output, Piece};
use crate::openai::error_body;
use crate::openai::usage::{UsageField, UsageReply};
use crate::sse::{Encoder, Frames};
use paceline_types::TokenLogprobs;

/// Writes the chunks.
pub(crate) struct Chunks {
    writer: Writer,
    progress: Vec<Progress>,
    prompt_logprobs: Vec<Vec<TokenLogprobs>>,
    usage: UsageReply,
    failed: bool,
    /// Tokens of all choices so far.
    tokens: usize,
}

impl Chunks {
    pub(super) fn new(writer: Writer) -> Self {
        Self {
            progress: vec![writer.progress(); writer.choices()],
            prompt_logprobs: vec![Vec::new(); writer.prompt_count()],
            usage: writer.usage(),
            failed: false,
            tokens: writer.resumed.tokens.len(),
            writer,
        }
    }

    /// What chunks before the last say of what was taken.
    fn so_far(&self) -> UsageField {
        UsageField::so_far(self.writer.stream_options, self.writer.usage(), self.tokens)
    }
}

impl Encoder for Chunks {
    fn start(&mut self, _: &mut Frames) {}

    fn output(&mut self, output: Output, frames: &mut Frames) {
        let (choice, piece, finish) = match output {
            Output::Prompt { prompt, logprobs } => {
                self.prompt_logprobs[prompt] = logprobs;
                return;
            }
            Output::Failed(failure) => {
                self.failed = true;
                frames.json(&error_body(&ApiError::failed(&failure)).0);
                return;
            }
            Output::Delta { choice, output } => (choice, output, None),
            Output::Finished { choice, finish } => (choice, Piece::default(), Some(finish)),
        };
        let logprobs = &self.prompt_logprobs[choice / self.writer.n];
        if !self.writer.only_prompt {
            self.tokens += piece.tokens.len();
        }
        let told = self.writer.resumed.told.as_mut();
        let continuation = told.and_then(|told| told.add(&piece.tokens, finish.as_ref()));
        let progress = &mut self.progress[choice];
        let mut reply = self.writer.piece(choice, piece, logprobs, progress);
        reply.continuation = continuation;
        if let Some(finish) = &finish {
            reply.finish(finish);
            self.writer.count(&mut self.usage, finish);
        }
        frames.json(&self.writer.reply(vec![reply], self.so_far()));
    }

    fn end(&mut self, frames: &mut Frames) {
        if self.writer.stream_options.include_usage && !self.failed {
            frames.json(&self.writer.reply(Vec::new(), UsageField::Known(self.usage)));
        }
        frames.word("[DONE]");
    }
}
