//! Those who wait for what the engine makes: from deliveries to what they read.

use crate::cancel_flags::{CancelFlag, CancelFlags};
use crate::embedding::{Embedded, EmbeddingError};
use crate::event::{Event, Usage};
use async_channel::{Sender, TrySendError};
use paceline_schedule::{Finish, RequestOutput};
use paceline_types::{FinishReason, TokenId};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One continuation, or one vector, that the engine works on.
pub(crate) struct Client {
    pub(crate) cancel_flags: Arc<CancelFlags>,
    pub(crate) choice: usize,
    pub(crate) arrived: Instant,
    /// From its arrival to its first slot.
    pub(crate) queued: Option<Duration>,
    pub(crate) prompt_tokens: usize,
    pub(crate) reader: Reader,
}

/// What it waits for.
pub(crate) enum Reader {
    Text(TextReader),
    /// The vector, which comes once.
    Vector(Sender<Result<Embedded, EmbeddingError>>),
}

/// A reader of text.
pub(crate) struct TextReader {
    events: Sender<Event>,
    /// Events the reader has not made room for yet; bounded by what the request may generate.
    backlog: VecDeque<Event>,
    stop_tokens: Vec<TokenId>,
    first_token: Option<Duration>,
    tokens: usize,
}

impl TextReader {
    pub(crate) fn new(events: Sender<Event>, stop_tokens: Vec<TokenId>) -> Self {
        Self {
            events,
            backlog: VecDeque::new(),
            stop_tokens,
            first_token: None,
            tokens: 0,
        }
    }
}

impl Client {
    /// How its caller wants it to end.
    pub(crate) fn cancel_flag(&self) -> Option<CancelFlag> {
        self.cancel_flags.of(self.choice)
    }

    /// From its arrival to its first token.
    pub(crate) fn first_token(&self) -> Option<Duration> {
        match &self.reader {
            Reader::Text(text) => text.first_token,
            Reader::Vector(_) => None,
        }
    }

    /// Takes in what a step brought.
    pub(crate) fn take(&mut self, mut request_output: RequestOutput) {
        let finish = request_output.finish;
        let usage = Usage {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: request_output.cached_tokens,
            total: self.arrived.elapsed(),
            speculation: request_output
                .speculation
                .take()
                .map_or_else(Default::default, |it| *it),
            ..Usage::default()
        };
        match &mut self.reader {
            Reader::Text(text) => {
                text.take(request_output, usage.total, self.choice);
                if let Some(finish) = finish {
                    text.finish(finish, usage, self.choice);
                }
            }
            Reader::Vector(reader) => {
                let Some(finish) = finish else { return };
                let values = request_output.embedding;
                let result = match finish {
                    Finish::Deadline => Err(EmbeddingError::Deadline),
                    _ if values.is_empty() => Err(EmbeddingError::Cancelled),
                    _ => Ok(Embedded { values, usage }),
                };
                // There is room for the one result; a reader that is gone does not want it.
                let _ = reader.try_send(result);
            }
        }
    }

    /// Nothing more will come, for this reason.
    pub(crate) fn refuse(&mut self, message: String) {
        match &mut self.reader {
            Reader::Text(text) => text.backlog.push_back(Event::Failed { message }),
            Reader::Vector(reader) => {
                let _ = reader.try_send(Err(EmbeddingError::Failed(message)));
            }
        }
    }

    /// Sends as much of the backlog as there is room for; a reader that is gone wants none of it.
    pub(crate) fn flush(&mut self) {
        let Reader::Text(text) = &mut self.reader else {
            return;
        };
        while let Some(event) = text.backlog.pop_front() {
            match text.events.try_send(event) {
                Ok(()) => {}
                Err(TrySendError::Full(event)) => {
                    text.backlog.push_front(event);
                    return;
                }
                Err(TrySendError::Closed(_)) => {
                    self.cancel_flags.cancel_all();
                    text.backlog.clear();
                }
            }
        }
    }

    /// Whether the reader has been sent all there is.
    pub(crate) fn is_served(&self) -> bool {
        match &self.reader {
            Reader::Text(text) => text.backlog.is_empty(),
            Reader::Vector(_) => true,
        }
    }
}

impl TextReader {
    /// Turns a delivery into events. A stop token is not part of the text.
    fn take(&mut self, mut request_output: RequestOutput, elapsed: Duration, choice: usize) {
        if self.first_token.is_none() && !request_output.tokens.is_empty() {
            self.first_token = Some(elapsed);
        }
        if request_output.finish == Some(Finish::Stop)
            && request_output
                .tokens
                .last()
                .is_some_and(|token| self.stop_tokens.contains(token))
        {
            request_output.tokens.pop();
            request_output.logprobs.truncate(request_output.tokens.len());
        }
        if !request_output.prompt_logprobs.is_empty() {
            self.backlog.push_back(Event::Prompt {
                logprobs: request_output.prompt_logprobs,
            });
        }
        if request_output.tokens.is_empty() {
            return;
        }
        self.tokens += request_output.tokens.len();
        if let Some(Event::Tokens { tokens, logprobs, .. }) = self.backlog.back_mut() {
            tokens.extend(request_output.tokens);
            logprobs.extend(request_output.logprobs);
            return;
        }
        self.backlog.push_back(Event::Tokens {
            choice,
            tokens: request_output.tokens,
            logprobs: request_output.logprobs,
        });
    }

    fn finish(&mut self, finish: Finish, usage: Usage, choice: usize) {
        let reason = match finish {
            Finish::Stop => FinishReason::Stop,
            Finish::Length => FinishReason::Length,
            Finish::Cancelled => FinishReason::Cancelled,
            Finish::Deadline => FinishReason::Deadline,
            Finish::Constraint => FinishReason::Constraint,
        };
        let usage = Usage {
            completion_tokens: self.tokens,
            first_token: self.first_token.unwrap_or(usage.total),
            ..usage
        };
        self.backlog.push_back(Event::Finished {
            choice,
            reason,
            usage,
        });
    }
}
