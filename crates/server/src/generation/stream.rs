//! The outputs of a generation, as they come.

use super::text::{ChoiceText, GeneratedToken};
use super::{Failure, Finish, GenerationTask, Output};
use crate::admission::Permit;
use crate::lifecycle::Lifecycle;
use crate::metrics::{ChoiceMetrics, RequestMetrics};
use futures_core::Stream;
use futures_util::StreamExt;
use paceline::{Event, Generation, Handle, Request, RequestError, Usage};
use paceline_text::Tokenizer;
use paceline_types::{FinishReason, TokenId, TokenLogprobs};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio_util::sync::WaitForCancellationFutureOwned;

/// The outputs of a task, in order. Dropping it cancels what still runs.
pub struct Outputs {
    sources: Vec<Source>,
    /// Outputs that wait to be taken.
    ready: VecDeque<Output>,
    /// The source to look at first, so that each gets its turn.
    turn: usize,
    over: bool,
    engine: Handle,
    lifecycle: Arc<Lifecycle>,
    abort: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Held until the last output has been written.
    _permit: Permit,
}

/// One prompt with its choices.
struct Source {
    prompt: usize,
    prompt_tokens: usize,
    /// Gone when every choice has ended.
    generation: Option<Generation>,
    choices: Vec<Choice>,
    /// Log-probabilities of the prompt as far as they have come.
    prompt_logprobs: Vec<TokenLogprobs>,
    /// What must wait for the rest of them; `None` once they are complete or if nobody asked.
    withheld: Option<Vec<Output>>,
    started: Instant,
}

struct Choice {
    index: usize,
    text: ChoiceText,
    open: bool,
    first_token: Option<Duration>,
    metrics: ChoiceMetrics,
}

/// What a task runs on.
pub(crate) struct Means<'a> {
    pub(crate) engine: &'a Handle,
    pub(crate) tokenizer: Option<&'a Tokenizer>,
    pub(crate) lifecycle: &'a Arc<Lifecycle>,
    pub(crate) metrics: &'a RequestMetrics,
}

impl Outputs {
    /// Hands the task to the engine. If it takes one prompt and refuses the next, nothing runs.
    pub(crate) fn start(
        means: &Means<'_>,
        task: &GenerationTask,
        permit: Permit,
    ) -> Result<Self, RequestError> {
        let sources = task.prompts.iter().enumerate();
        let sources = sources.map(|(index, prompt)| Source::start(means, task, (index, prompt)));
        let sources = sources.collect::<Result<Vec<_>, _>>()?;
        let mut outputs = Self {
            sources,
            ready: VecDeque::new(),
            turn: 0,
            over: false,
            engine: means.engine.clone(),
            lifecycle: Arc::clone(means.lifecycle),
            abort: Box::pin(means.lifecycle.abort_token().cancelled_owned()),
            _permit: permit,
        };
        for source in &mut outputs.sources {
            source.note_prompt(Vec::new(), &mut outputs.ready);
        }
        Ok(outputs)
    }

    /// Takes what the engine has for source `at`; false if it has nothing now.
    fn pull(&mut self, at: usize, cx: &mut Context<'_>) -> bool {
        let Some(generation) = &mut self.sources[at].generation else {
            return false;
        };
        let Poll::Ready(event) = generation.poll_next_unpin(cx) else {
            return false;
        };
        match event {
            Some(Event::Failed { message }) => {
                if let Some(reason) = self.engine.fault() {
                    self.lifecycle.fail(&reason);
                }
                self.fail(Failure::Engine(message));
            }
            None => {
                // The engine's thread is gone without a word.
                let reason = self.engine.fault();
                let reason = reason.unwrap_or_else(|| "its thread ended unexpectedly".to_owned());
                self.lifecycle.fail(&reason);
                self.fail(Failure::Engine(reason));
            }
            Some(event) => {
                let (source, ready) = (&mut self.sources[at], &mut self.ready);
                source.take(event, ready);
            }
        }
        true
    }

    fn fail(&mut self, failure: Failure) {
        for source in &mut self.sources {
            source.generation = None;
            source.choices.iter_mut().for_each(|choice| choice.metrics.fail());
        }
        self.ready.push_back(Output::Failed(failure));
        self.over = true;
    }

    /// Ends what is open because the server goes down.
    fn abort(&mut self) {
        for source in &mut self.sources {
            let mut ready = std::mem::take(&mut self.ready);
            ready.extend(source.withheld.take().into_iter().flatten());
            for choice in 0..source.choices.len() {
                source.end_early(choice, (FinishReason::Cancelled, None), &mut ready);
            }
            self.ready = ready;
        }
        self.fail(Failure::ShuttingDown);
    }
}

impl Stream for Outputs {
    type Item = Output;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Output>> {
        let this = &mut *self;
        loop {
            if let Some(output) = this.ready.pop_front() {
                return Poll::Ready(Some(output));
            }
            let running = this.sources.iter().any(|source| source.generation.is_some());
            if this.over || !running {
                return Poll::Ready(None);
            }
            if this.abort.as_mut().poll(cx).is_ready() {
                this.abort();
                continue;
            }
            let count = this.sources.len();
            let mut pulled = false;
            for offset in 0..count {
                let at = (this.turn + offset) % count;
                pulled |= !this.over && this.pull(at, cx);
            }
            this.turn = (this.turn + 1) % count;
            if !pulled {
                return Poll::Pending;
            }
        }
    }
}

impl Source {
    fn start(
        means: &Means<'_>,
        task: &GenerationTask,
        (index, prompt): (usize, &Vec<TokenId>),
    ) -> Result<Self, RequestError> {
        let generation = means.engine.generate(Request {
            prompt: prompt.clone(),
            sampling: task.sampling.clone(),
            n: Some(task.n),
            priority: task.priority,
            deadline: task.deadline,
            speculation: task.speculation,
            constraint: task.constraint.clone(),
        })?;
        let choice = |number| Choice {
            index: index * task.n + number,
            text: ChoiceText::new(means.tokenizer, task),
            open: true,
            first_token: None,
            metrics: means.metrics.choice(prompt.len(), number == 0),
        };
        Ok(Self {
            prompt: index,
            prompt_tokens: prompt.len(),
            generation: Some(generation),
            choices: (0..task.n).map(choice).collect(),
            prompt_logprobs: Vec::new(),
            withheld: task.sampling.prompt_logprobs.map(|_| Vec::new()),
            started: Instant::now(),
        })
    }

    fn take(&mut self, event: Event, ready: &mut VecDeque<Output>) {
        match event {
            Event::Prompt { logprobs } => self.note_prompt(logprobs, ready),
            Event::Tokens {
                choice,
                tokens,
                logprobs,
            } => {
                let mut logprobs = logprobs.into_iter();
                let tokens = tokens.into_iter().map(|id| GeneratedToken {
                    id,
                    logprobs: logprobs.next(),
                });
                self.add(choice, tokens, ready);
            }
            Event::Finished {
                choice,
                reason,
                usage,
            } => self.end(choice, (reason, usage), ready),
            Event::Failed { .. } => {}
        }
    }

    /// More log-probabilities of the prompt; when they are complete, what waited for them may go.
    fn note_prompt(&mut self, logprobs: Vec<TokenLogprobs>, ready: &mut VecDeque<Output>) {
        self.prompt_logprobs.extend(logprobs);
        if self.prompt_logprobs.len() + 1 < self.prompt_tokens {
            return;
        }
        if let Some(withheld) = self.withheld.take() {
            ready.push_back(Output::Prompt {
                prompt: self.prompt,
                logprobs: std::mem::take(&mut self.prompt_logprobs),
            });
            ready.extend(withheld);
        }
    }

    fn add(
        &mut self,
        number: usize,
        tokens: impl Iterator<Item = GeneratedToken>,
        ready: &mut VecDeque<Output>,
    ) {
        let elapsed = self.started.elapsed();
        let Some(choice) = self.choices.get_mut(number).filter(|choice| choice.open) else {
            return;
        };
        choice.first_token.get_or_insert(elapsed);
        let piece = choice.text.push(tokens);
        choice.metrics.tokens(choice.text.tokens());
        let (index, stop) = (choice.index, choice.text.stopped().map(str::to_owned));
        if !piece.is_empty() {
            self.emit(Output::Piece { choice: index, piece }, ready);
        }
        if stop.is_some() {
            self.end_early(number, (FinishReason::Stop, stop), ready);
        }
    }

    /// The engine ended a choice.
    fn end(&mut self, number: usize, (reason, usage): (FinishReason, Usage), ready: &mut VecDeque<Output>) {
        let Some(choice) = self.choices.get_mut(number).filter(|choice| choice.open) else {
            return;
        };
        choice.open = false;
        let (index, piece) = (choice.index, choice.text.finish());
        let stop = choice.text.stopped().map(str::to_owned);
        let reason = if stop.is_some() {
            FinishReason::Stop
        } else {
            reason
        };
        choice.metrics.end(reason);
        if !piece.is_empty() {
            self.emit(Output::Piece { choice: index, piece }, ready);
        }
        let finish = Finish { reason, stop, usage };
        self.emit(
            Output::Finished {
                choice: index,
                finish,
            },
            ready,
        );
        self.close();
    }

    /// A choice ends before the engine says so. What it took is counted here: tokens that the engine had made
    /// beyond the end depend on how far ahead it was, and are no part of the reply.
    fn end_early(
        &mut self,
        number: usize,
        (reason, stop): (FinishReason, Option<String>),
        ready: &mut VecDeque<Output>,
    ) {
        let total = self.started.elapsed();
        let Some(choice) = self.choices.get_mut(number).filter(|choice| choice.open) else {
            return;
        };
        choice.open = false;
        choice.metrics.end(reason);
        let index = choice.index;
        let piece = choice.text.finish();
        let usage = Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: choice.text.tokens(),
            first_token: choice.first_token.unwrap_or(total),
            total,
            ..Usage::default()
        };
        if !piece.is_empty() {
            self.emit(Output::Piece { choice: index, piece }, ready);
        }
        let finish = Finish { reason, stop, usage };
        self.emit(
            Output::Finished {
                choice: index,
                finish,
            },
            ready,
        );
        self.close();
    }

    fn emit(&mut self, output: Output, ready: &mut VecDeque<Output>) {
        match &mut self.withheld {
            Some(withheld) => withheld.push(output),
            None => ready.push_back(output),
        }
    }

    /// Lets the engine go once no choice is open; one that was ended early is cancelled by that.
    fn close(&mut self) {
        if self.choices.iter().all(|choice| !choice.open) {
            self.generation = None;
        }
    }
}
