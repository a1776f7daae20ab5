//! The outputs of a generation, as they come.

use super::steps::StepTracker;
use super::{Failure, Finish, GenerationTask, Output, Piece};
use crate::active::Listed;
use crate::admission::Permit;
use crate::lifecycle::{Lifecycle, Phase};
use crate::metrics::{ChoiceMetrics, RequestMetrics};
use crate::request_log::RequestUsage;
use futures_core::Stream;
use futures_util::StreamExt;
use paceline::{Continuations, Event, Generation, Handle, Request, RequestError, Tokens, Usage};
use paceline_text::{TextDecoder, Tokenizer};
use paceline_types::{FinishReason, TokenLogprobs};
use std::any::Any;
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
    /// When it has to go on elsewhere, if it can.
    moving: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    abort: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Its place among the active requests.
    _listed: Listed,
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
    /// What must wait for the rest of them; `None` once they are complete or if they were not asked for.
    withheld: Option<Vec<Output>>,
    started: Instant,
    usage: Arc<RequestUsage>,
}

struct Choice {
    index: usize,
    text: TextDecoder,
    /// Tokens of the text that came elsewhere.
    resumed: usize,
    /// If it is to be told how tokens came.
    steps: Option<StepTracker>,
    stage: Stage,
    first_token: Option<Duration>,
    metrics: ChoiceMetrics,
}

/// Where a choice stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// More of it may come.
    Open,
    /// A stop string has ended its text, and the engine has been told.
    Stopping,
    /// Its end has been told.
    Ended,
}

/// What a task runs on.
pub(crate) struct Means<'a> {
    pub(crate) engine: &'a Handle,
    pub(crate) tokenizer: Option<&'a Tokenizer>,
    pub(crate) lifecycle: &'a Arc<Lifecycle>,
    pub(crate) metrics: &'a RequestMetrics,
    pub(crate) usage: &'a Arc<RequestUsage>,
}

impl Outputs {
    /// Hands the task to the engine. If one of its prompts cannot be served, or there is no room for one, nothing runs. The
    /// permit goes with the prompts: it ends when the engine has done them all, whether or not the outputs are taken.
    pub(crate) fn start(
        means: &Means<'_>,
        task: &GenerationTask,
        (permit, listed): (Permit, Listed),
    ) -> Result<Self, RequestError> {
        let permit: Arc<dyn Any + Send + Sync> = Arc::new(permit);
        let requests = task.prompts.iter().map(|prompt| {
            means.engine.check(Request {
                prompt: Arc::clone(prompt),
                held: Some(Arc::clone(&permit)),
                ..task.request.clone()
            })
        });
        let requests = requests.collect::<Result<Vec<_>, _>>()?;
        let sources = requests.into_iter().enumerate();
        let sources = sources.map(|(index, request)| Source::start(means, task, (index, request)));
        let sources = sources.collect::<Result<Vec<_>, _>>()?;
        for generation in sources.iter().filter_map(|source| source.generation.as_ref()) {
            listed.add(generation.ids(), generation.canceller());
        }
        let mut outputs = Self {
            sources,
            ready: VecDeque::new(),
            turn: 0,
            over: false,
            engine: means.engine.clone(),
            lifecycle: Arc::clone(means.lifecycle),
            _listed: listed,
            moving: task
                .movable
                .then(|| Box::pin(means.lifecycle.moving_token().cancelled_owned())),
            abort: Box::pin(means.lifecycle.abort_token().cancelled_owned()),
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
            Some(Event::Failed(failure)) => {
                if let Some(reason) = self.engine.fault() {
                    self.lifecycle.fail(&reason);
                }
                self.fail(failure);
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

    /// Ends what is open because it goes on elsewhere. What was not given out is generated again there.
    fn move_on(&mut self) {
        for source in &mut self.sources {
            source.withheld = None;
            for choice in 0..source.choices.len() {
                source.leave(choice, (Piece::default(), FinishReason::Moved), &mut self.ready);
            }
        }
    }

    /// Ends what is open because the server goes down.
    fn abort(&mut self) {
        for source in &mut self.sources {
            let mut ready = std::mem::take(&mut self.ready);
            ready.extend(source.withheld.take().into_iter().flatten());
            for choice in 0..source.choices.len() {
                source.abort(choice, &mut ready);
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
            let moving = this.moving.as_mut();
            if moving.is_some_and(|moving| moving.as_mut().poll(cx).is_ready()) {
                this.moving = None;
                this.move_on();
                continue;
            }
            if this.abort.as_mut().poll(cx).is_ready() {
                match this.lifecycle.phase() {
                    Phase::Failed(reason) => this.fail(Failure::Engine(reason)),
                    Phase::Serving | Phase::Draining => this.abort(),
                }
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

impl Choice {
    /// What was held back of a text that has ended.
    fn rest(&mut self) -> Piece {
        let mut piece = Piece::from(self.text.finish());
        if let Some(steps) = &mut self.steps {
            steps.finish(&mut piece);
        }
        piece
    }
}

impl Source {
    fn start(
        means: &Means<'_>,
        task: &GenerationTask,
        (index, request): (usize, Continuations),
    ) -> Result<Self, RequestError> {
        let (n, prompt_tokens) = (task.n(), task.prompts[index].len());
        let generation = means.engine.start(request)?;
        means.usage.prompt(prompt_tokens);
        let choice = |number| Choice {
            index: index * n + number,
            text: match &task.resumed {
                Some(resumed) => resumed.clone(),
                None => TextDecoder::new(means.tokenizer, task.decoding.clone()),
            },
            resumed: task.request.generated.len(),
            steps: task.request.sampling.origins.then(StepTracker::default),
            stage: Stage::Open,
            first_token: None,
            metrics: means.metrics.choice(prompt_tokens, number == 0),
        };
        Ok(Self {
            prompt: index,
            prompt_tokens,
            started: generation.arrived(),
            generation: Some(generation),
            choices: (0..n).map(choice).collect(),
            prompt_logprobs: Vec::new(),
            withheld: task.request.sampling.prompt_logprobs.map(|_| Vec::new()),
            usage: Arc::clone(means.usage),
        })
    }

    fn take(&mut self, event: Event, ready: &mut VecDeque<Output>) {
        match event {
            Event::Prompt { logprobs, .. } => self.note_prompt(logprobs, ready),
            Event::Delta { choice, output } => self.add(choice, output, ready),
            Event::Finished { choice, finish } => self.end(choice, finish, ready),
            Event::Failed(_) => {}
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

    fn add(&mut self, number: usize, tokens: Tokens, ready: &mut VecDeque<Output>) {
        let elapsed = self.started.elapsed();
        let Some(choice) = self.choices.get_mut(number) else {
            return;
        };
        // Steps count until the engine has ended the choice, whether or not their tokens are part of the reply.
        if let Some(steps) = &mut choice.steps {
            steps.note(tokens.origins);
        }
        if choice.stage != Stage::Open || tokens.ids.is_empty() {
            return;
        }
        choice.first_token.get_or_insert(elapsed);
        let before = choice.text.tokens();
        let mut piece = Piece::from(choice.text.push_all(tokens.ids, tokens.logprobs));
        if let Some(steps) = &mut choice.steps {
            steps.join(&mut piece);
        }
        choice.metrics.tokens(choice.text.tokens() - choice.resumed);
        self.usage.tokens(choice.text.tokens() - before, elapsed);
        let index = choice.index;
        if choice.text.stopped().is_some() {
            // Its end comes within a step, with what it took.
            choice.stage = Stage::Stopping;
            if let Some(generation) = &self.generation {
                generation.stop_choice(number);
            }
        }
        if !piece.is_empty() {
            self.emit(more(index, piece), ready);
        }
    }

    /// The engine ended a choice. Tokens that it had made beyond a stop string depend on how far ahead it was, and are
    /// no part of the reply.
    fn end(&mut self, number: usize, mut finish: Finish, ready: &mut VecDeque<Output>) {
        let choice = self.choices.get_mut(number);
        let Some(choice) = choice.filter(|choice| choice.stage != Stage::Ended) else {
            return;
        };
        let piece = choice.rest();
        if choice.text.stopped().is_some() {
            finish.usage.completion_tokens = choice.text.tokens();
        }
        if number > 0 {
            // The prompt counts once, and what the others find of it is what the first has left there.
            finish.usage.cached_tokens = 0;
        }
        self.usage.cached(finish.usage.cached_tokens);
        self.finish(number, (piece, finish), ready);
    }

    /// A choice is cut off, with what was held back of it.
    fn abort(&mut self, number: usize, ready: &mut VecDeque<Output>) {
        let piece = self.choices[number].rest();
        self.leave(number, (piece, FinishReason::Cancelled), ready);
    }

    /// A choice ends before the engine says so. What it took is counted here.
    fn leave(&mut self, number: usize, (piece, reason): (Piece, FinishReason), ready: &mut VecDeque<Output>) {
        let total = self.started.elapsed();
        let choice = self.choices.get_mut(number);
        let Some(choice) = choice.filter(|choice| choice.stage != Stage::Ended) else {
            return;
        };
        let finish = Finish {
            reason,
            stop: None,
            detail: None,
            usage: Usage {
                prompt_tokens: self.prompt_tokens,
                completion_tokens: choice.text.tokens(),
                first_token: choice.first_token.unwrap_or(total),
                total,
                ..Usage::default()
            },
        };
        self.finish(number, (piece, finish), ready);
    }

    /// Tells the end of a choice, and lets the engine go once that was the last.
    fn finish(&mut self, number: usize, (piece, mut finish): (Piece, Finish), ready: &mut VecDeque<Output>) {
        let choice = &mut self.choices[number];
        choice.stage = Stage::Ended;
        if let Some(stop) = choice.text.stopped() {
            finish.reason = FinishReason::Stop;
            finish.stop = Some(stop.to_owned());
            finish.detail = None;
        }
        if let Some(detail) = &finish.detail {
            self.usage.cut_short(detail);
        }
        choice.metrics.end(finish.reason);
        let choice = choice.index;
        self.usage.ended(choice, self.started, &finish);
        if !piece.is_empty() {
            self.emit(more(choice, piece), ready);
        }
        self.emit(Output::Finished { choice, finish }, ready);
        if self.choices.iter().all(|choice| choice.stage == Stage::Ended) {
            self.generation = None;
        }
    }

    fn emit(&mut self, output: Output, ready: &mut VecDeque<Output>) {
        match &mut self.withheld {
            Some(withheld) => withheld.push(output),
            None => ready.push_back(output),
        }
    }
}

/// More of a choice.
fn more(choice: usize, output: Piece) -> Output {
    Output::Delta { choice, output }
}
