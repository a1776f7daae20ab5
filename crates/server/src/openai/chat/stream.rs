//! An answer as it comes.

use super::parts::Delta;
use super::reply::{ChoiceReply, Writer};
use crate::error::ApiError;
use crate::generation::{Finish, Output, PartReader, Piece, has_moved};
use crate::openai::error_body;
use crate::openai::usage::{UsageField, UsageReply};
use crate::sse::{Encoder, Frames};
use std::sync::Arc;

/// Writes the chunks.
pub(crate) struct Chunks {
    writer: Writer,
    readers: Vec<PartReader>,
    usage: UsageReply,
    failed: bool,
    /// Tokens of all choices so far.
    tokens: usize,
}

impl Chunks {
    pub(super) fn new(writer: Writer) -> Self {
        Self {
            readers: (0..writer.n).map(|_| writer.reader()).collect(),
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

    fn chunk(&self, choices: Vec<ChoiceReply>, usage: UsageField, frames: &mut Frames) {
        let mut reply = self.writer.reply("chat.completion.chunk", choices);
        reply.usage = usage;
        frames.json(&reply);
    }

    fn piece(&mut self, index: usize, piece: Piece, frames: &mut Frames) {
        self.tokens += piece.tokens.len();
        if let Some(told) = &mut self.writer.resumed.told {
            told.add(&piece.tokens, None);
        }
        let delta = Delta::of(self.readers[index].push(&piece.text));
        let reports = self.writer.logprobs || self.writer.token_ids;
        if delta.is_empty() && piece.steps.is_empty() && (!reports || piece.tokens.is_empty()) {
            return;
        }
        let mut choice = self.writer.choice(index, &piece.tokens, piece.steps);
        choice.delta = Some(delta);
        self.chunk(vec![choice], self.so_far(), frames);
    }

    fn finish(&mut self, index: usize, finish: &Finish, frames: &mut Frames) {
        let reader = &mut self.readers[index];
        let rest = if has_moved(finish) {
            Vec::new()
        } else {
            reader.finish()
        };
        let mut choice = self.writer.choice(index, &[], Vec::new());
        choice.delta = Some(Delta::of(rest));
        let told = self.writer.resumed.told.as_mut();
        choice.continuation = told.and_then(|told| told.add(&[], Some(finish)));
        choice.logprobs = None;
        choice.finish(finish, &self.readers[index]);
        self.usage.add(finish);
        self.chunk(vec![choice], self.so_far(), frames);
    }
}

impl Encoder for Chunks {
    fn start(&mut self, frames: &mut Frames) {
        for index in 0..self.writer.n {
            let mut choice = self.writer.choice(index, &[], Vec::new());
            choice.logprobs = None;
            choice.token_ids = None;
            let told = self.writer.resumed.told.as_mut();
            choice.continuation = told.and_then(|told| told.add(&[], None));
            choice.delta = Some(Delta {
                role: Some("assistant"),
                content: Some(String::new()),
                ..Delta::default()
            });
            let mut reply = self.writer.reply("chat.completion.chunk", vec![choice]);
            reply.usage = self.so_far();
            reply.prompt_token_ids =
                (index == 0 && self.writer.token_ids).then(|| Arc::clone(&self.writer.prompt_tokens));
            frames.json(&reply);
        }
    }

    fn output(&mut self, output: Output, frames: &mut Frames) {
        match output {
            Output::Prompt { .. } => {}
            Output::Delta { choice, output } => self.piece(choice, output, frames),
            Output::Finished { choice, finish } => self.finish(choice, &finish, frames),
            Output::Failed(failure) => {
                self.failed = true;
                frames.json(&error_body(&ApiError::failed(&failure)).0);
            }
        }
    }

    fn end(&mut self, frames: &mut Frames) {
        if self.writer.stream_options.include_usage && !self.failed {
            self.chunk(Vec::new(), UsageField::Known(self.usage), frames);
        }
        frames.word("[DONE]");
    }
}
