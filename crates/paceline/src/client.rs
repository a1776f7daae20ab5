//! From outputs of steps to what the caller of a request reads.

use crate::cancel_flags::{CancelFlag, CancelFlags};
use crate::channel::EventSender;
use crate::embedding::{Embedded, EmbeddingError};
use crate::event::{Event, Failure, Finish, Tokens, Usage};
use async_channel::Sender;
use paceline_schedule::{CheckedRequest, RequestOutput, StepOrigins};
use paceline_types::{FinishReason, TokenId};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where the output of a request goes.
#[derive(Clone)]
pub(crate) enum Answer {
    /// To the reader of its events, which the continuations of a request share.
    Text(Arc<EventSender>),
    /// The vector, which comes once.
    Vector(Sender<Result<Embedded, EmbeddingError>>),
}

impl Answer {
    /// Nothing more will come, for this reason.
    pub(crate) fn fail(&self, reason: String) {
        match self {
            Self::Text(events) => events.send([Event::Failed(Failure::Engine(reason))]),
            Self::Vector(result) => {
                // There is room for the one result.
                let _ = result.try_send(Err(EmbeddingError::Failed(reason)));
            }
        }
    }
}

/// One continuation, or one vector, that the engine works on.
pub(crate) struct Client {
    cancel_flags: Arc<CancelFlags>,
    choice: usize,
    pub(crate) arrived: Instant,
    /// From its arrival to its first slot.
    pub(crate) queued: Option<Duration>,
    prompt_tokens: usize,
    stop_tokens: Arc<[TokenId]>,
    /// From its arrival to its first token.
    first_token: Option<Duration>,
    /// Tokens given to the reader, here or elsewhere.
    tokens: usize,
    pub(crate) answer: Answer,
}

impl Client {
    pub(crate) fn new(
        request: &CheckedRequest,
        choice: usize,
        answer: Answer,
        (cancel_flags, arrived): (&Arc<CancelFlags>, Instant),
    ) -> Self {
        Self {
            cancel_flags: Arc::clone(cancel_flags),
            choice,
            arrived,
            queued: None,
            prompt_tokens: request.prompt.len(),
            stop_tokens: Arc::clone(&request.stop_tokens),
            first_token: None,
            tokens: request.generated.len(),
            answer,
        }
    }

    /// How its caller wants it to end.
    pub(crate) fn cancel_flag(&self) -> Option<CancelFlag> {
        self.cancel_flags.of(self.choice)
    }

    /// Notes the first token, if a step brought it. How long it took from the arrival, then.
    pub(crate) fn note_first_token(&mut self, request_output: &RequestOutput) -> Option<Duration> {
        if self.first_token.is_some() || request_output.tokens.is_empty() {
            return None;
        }
        self.first_token = Some(self.arrived.elapsed());
        self.first_token
    }

    /// Hands on what a step brought. It never waits: a reader that is slow finds it later, one that is gone does not want it.
    pub(crate) fn deliver(&mut self, mut request_output: RequestOutput, origins: Option<StepOrigins>) {
        let reason = request_output.finish;
        if let Answer::Vector(result) = &self.answer {
            let Some(reason) = reason else { return };
            let values = std::mem::take(&mut request_output.embedding);
            let vector = match reason {
                FinishReason::Deadline => Err(EmbeddingError::Deadline),
                _ if values.is_empty() => Err(EmbeddingError::Cancelled),
                _ => Ok(Embedded {
                    values,
                    usage: self.usage(&request_output),
                }),
            };
            // There is room for the one result.
            let _ = result.try_send(vector);
            return;
        }
        let events = self.events(request_output, origins);
        if let Answer::Text(sender) = &mut self.answer {
            // The last continuation of a request has the sender for itself.
            if reason.is_some()
                && let Some(sender) = Arc::get_mut(sender)
            {
                sender.release();
            }
            sender.send(events);
        }
    }

    /// What a step's output is to its reader. A stop token is not part of the text.
    fn events(
        &mut self,
        mut request_output: RequestOutput,
        origins: Option<StepOrigins>,
    ) -> impl Iterator<Item = Event> + use<> {
        let mut ids = std::mem::take(&mut request_output.tokens);
        let mut logprobs = std::mem::take(&mut request_output.logprobs);
        if request_output.finish == Some(FinishReason::Stop)
            && ids.pop_if(|token| self.stop_tokens.contains(token)).is_some()
        {
            logprobs.truncate(ids.len());
        }
        self.tokens += ids.len();
        let tokens = ids.len();
        let origins = origins.map(|step| StepOrigins { tokens, ..step });
        let origins: Vec<StepOrigins> = origins.into_iter().collect();
        let choice = self.choice;
        let detail = request_output.detail.take();
        let end = request_output.finish.map(|reason| Event::Finished {
            choice,
            finish: Finish {
                reason,
                stop: None,
                detail,
                usage: self.usage(&request_output),
            },
        });
        let prompt_logprobs = request_output.prompt_logprobs;
        let prompt = (!prompt_logprobs.is_empty()).then_some(Event::Prompt {
            prompt: 0,
            logprobs: prompt_logprobs,
        });
        let output = Tokens {
            ids,
            logprobs,
            origins,
        };
        let any = !output.ids.is_empty() || !output.origins.is_empty();
        let tokens = any.then_some(Event::Delta { choice, output });
        prompt.into_iter().chain(tokens).chain(end)
    }

    /// What it has taken until its end, which the output brings.
    fn usage(&self, request_output: &RequestOutput) -> Usage {
        let total = self.arrived.elapsed();
        Usage {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: request_output.cached_tokens,
            completion_tokens: self.tokens,
            queued: self.queued.unwrap_or(total),
            first_token: self.first_token.unwrap_or(total),
            total,
            speculation: request_output.speculation.as_deref().copied().unwrap_or_default(),
        }
    }
}
