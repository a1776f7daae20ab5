//! Those who wait for what the engine makes: from outputs of steps to what they read.

use crate::cancel_flags::{CancelFlag, CancelFlags};
use crate::channel::EventSender;
use crate::embedding::{Embedded, EmbeddingError};
use crate::event::{Event, Usage};
use async_channel::Sender;
use paceline_schedule::RequestOutput;
use paceline_types::{FinishReason, TokenId};
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
    events: Arc<EventSender>,
    stop_tokens: Vec<TokenId>,
    first_token: Option<Duration>,
    tokens: usize,
}

impl TextReader {
    pub(crate) fn new(events: Arc<EventSender>, stop_tokens: Vec<TokenId>) -> Self {
        Self {
            events,
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

    /// Notes the first token, if a step brought it. How long it took from the arrival, then.
    pub(crate) fn note_first_token(&mut self, request_output: &RequestOutput) -> Option<Duration> {
        let Reader::Text(text) = &mut self.reader else {
            return None;
        };
        if text.first_token.is_some() || request_output.tokens.is_empty() {
            return None;
        }
        text.first_token = Some(self.arrived.elapsed());
        text.first_token
    }

    /// Hands on what a step brought. It never waits: a reader that is slow finds it later, one that is gone does not want it.
    pub(crate) fn deliver(&mut self, mut request_output: RequestOutput) {
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
                let events = text.events(request_output, usage, self.choice);
                // The last continuation of a request has the sender for itself.
                if finish.is_some()
                    && let Some(sender) = Arc::get_mut(&mut text.events)
                {
                    sender.release();
                }
                text.events.send(events);
            }
            Reader::Vector(reader) => {
                let Some(finish) = finish else { return };
                let values = request_output.embedding;
                let result = match finish {
                    FinishReason::Deadline => Err(EmbeddingError::Deadline),
                    _ if values.is_empty() => Err(EmbeddingError::Cancelled),
                    _ => Ok(Embedded { values, usage }),
                };
                // There is room for the one result.
                let _ = reader.try_send(result);
            }
        }
    }

    /// Nothing more will come, for this reason.
    pub(crate) fn refuse(self, message: String) {
        match self.reader {
            Reader::Text(text) => text.events.send([Event::Failed { message }]),
            Reader::Vector(reader) => {
                let _ = reader.try_send(Err(EmbeddingError::Failed(message)));
            }
        }
    }
}

impl TextReader {
    /// What a step's output is to its reader. A stop token is not part of the text.
    fn events(
        &mut self,
        mut request_output: RequestOutput,
        usage: Usage,
        choice: usize,
    ) -> impl Iterator<Item = Event> + use<> {
        if request_output.finish == Some(FinishReason::Stop)
            && request_output
                .tokens
                .last()
                .is_some_and(|token| self.stop_tokens.contains(token))
        {
            request_output.tokens.pop();
            request_output.logprobs.truncate(request_output.tokens.len());
        }
        self.tokens += request_output.tokens.len();
        let prompt = (!request_output.prompt_logprobs.is_empty()).then_some(Event::Prompt {
            logprobs: request_output.prompt_logprobs,
        });
        let tokens = (!request_output.tokens.is_empty()).then_some(Event::Tokens {
            choice,
            tokens: request_output.tokens,
            logprobs: request_output.logprobs,
        });
        let end = request_output.finish.map(|reason| Event::Finished {
            choice,
            reason,
            usage: Usage {
                completion_tokens: self.tokens,
                first_token: self.first_token.unwrap_or(usage.total),
                ..usage
            },
        });
        prompt.into_iter().chain(tokens).chain(end)
    }
}
