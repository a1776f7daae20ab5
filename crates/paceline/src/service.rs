//! The engine's thread: requests in, steps, events out.

use crate::event::{Event, Usage};
use crate::handle::Shared;
use crate::request::{Bounds, Request};
use async_channel::{Sender, TrySendError};
use paceline_schedule::{
    Clock, Delivery, Finish, GroupId, NewRequest, Pipeline, RequestId, RunnerFault, SpeculationReport,
    StepRecord, StepRunner, Stepped,
};
use paceline_types::{FinishReason, Propose, TokenId};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Steps kept for a trace; later ones are dropped.
const TRACE_STEPS: usize = 1 << 20;

/// How long the idle engine sleeps before it looks again for readers that have caught up.
const CATCH_UP: Duration = Duration::from_millis(2);

/// A request on its way in.
pub(crate) struct Job {
    pub(crate) request: Request,
    pub(crate) events: Sender<Event>,
    pub(crate) cancelled: Arc<AtomicBool>,
    pub(crate) arrived: Instant,
}

/// One continuation of a request that the engine works on.
struct Client {
    choice: usize,
    events: Sender<Event>,
    /// Events the reader has not made room for yet; bounded by what the request may generate.
    backlog: VecDeque<Event>,
    cancelled: Arc<AtomicBool>,
    stop_tokens: Vec<TokenId>,
    arrived: Instant,
    /// From its arrival to its first slot.
    queued: Option<Duration>,
    first_token: Option<Duration>,
    prompt_tokens: usize,
    tokens: usize,
}

/// The step loop with its clients.
pub(crate) struct Service<R: StepRunner, C: Clock> {
    pub(crate) pipeline: Pipeline<R, C>,
    pub(crate) clock: C,
    pub(crate) intake: Receiver<Job>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) bounds: Arc<Bounds>,
    pub(crate) tracing: bool,
    clients: HashMap<RequestId, Client>,
    /// Continuations that have ended and whose last events wait for room.
    leaving: Vec<Client>,
    next_id: u64,
}

impl<R: StepRunner, C: Clock> Service<R, C> {
    pub(crate) fn new(
        pipeline: Pipeline<R, C>,
        clock: C,
        intake: Receiver<Job>,
        (shared, bounds): (Arc<Shared>, Arc<Bounds>),
        tracing: bool,
    ) -> Self {
        Self {
            pipeline,
            clock,
            intake,
            shared,
            bounds,
            tracing,
            clients: HashMap::new(),
            leaving: Vec::new(),
            next_id: 0,
        }
    }

    /// Runs until every handle is gone and everything is done, or the device fails.
    pub(crate) fn run(mut self) {
        let outcome = self.serve();
        if let Err(fault) = outcome {
            tracing::error!("engine stopped: {fault}");
            self.fail(&fault.to_string());
        }
    }

    fn serve(&mut self) -> Result<(), RunnerFault> {
        loop {
            if !self.take_in() && self.clients.is_empty() && self.leaving.is_empty() {
                return Ok(());
            }
            self.cancel_flagged();
            let planned = Instant::now();
            let stepped = self.pipeline.step()?;
            self.note_admissions(planned);
            self.hand_out(stepped);
        }
    }

    /// Takes in what has arrived; waits for something if there is nothing else to do. False: no handle is left.
    fn take_in(&mut self) -> bool {
        let idle = self.pipeline.is_idle();
        if idle {
            self.catch_up();
        }
        let mut open = true;
        let first = if idle { self.wait() } else { self.poll() };
        let mut next = first;
        loop {
            match next {
                Ok(job) => self.admit(&job),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    open = false;
                    break;
                }
            }
            next = self.poll();
        }
        open
    }

    fn poll(&self) -> Result<Job, TryRecvError> {
        self.intake.try_recv()
    }

    fn wait(&self) -> Result<Job, TryRecvError> {
        if self.leaving.is_empty() {
            return self.intake.recv().map_err(|_| TryRecvError::Disconnected);
        }
        self.intake.recv_timeout(CATCH_UP).map_err(|error| match error {
            RecvTimeoutError::Timeout => TryRecvError::Empty,
            RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
        })
    }

    fn admit(&mut self, job: &Job) {
        let count = job.request.count();
        let prompt: Arc<[TokenId]> = job.request.prompt.as_slice().into();
        let deadline = job.request.deadline.map(|wait| {
            let spent = job.arrived.elapsed();
            self.clock.now_ns() + wait.saturating_sub(spent).as_nanos() as u64
        });
        let group = (count > 1).then_some(GroupId(self.next_id));
        // Checked when the request was handed in.
        let speculation = self
            .bounds
            .drafts(&job.request.speculation)
            .unwrap_or(Propose::NONE);
        for choice in 0..count {
            let params = job.request.params_of(choice);
            let stop_tokens = self.bounds.stop_tokens(&params);
            let id = RequestId(self.next_id);
            self.next_id += 1;
            let max_length = (prompt.len() + params.max_tokens).min(self.bounds.max_model_len);
            let client = Client {
                choice,
                events: job.events.clone(),
                backlog: VecDeque::new(),
                cancelled: Arc::clone(&job.cancelled),
                stop_tokens: stop_tokens.clone(),
                arrived: job.arrived,
                queued: None,
                first_token: None,
                prompt_tokens: prompt.len(),
                tokens: 0,
            };
            let request = NewRequest {
                id,
                prompt: Arc::clone(&prompt),
                params,
                stop_tokens,
                priority: job.request.priority,
                deadline,
                salt: 0,
                max_length,
                group,
                speculation,
                constraint: job.request.constraint.clone(),
            };
            match self.pipeline.scheduler_mut().add(request) {
                Ok(()) => {
                    self.clients.insert(id, client);
                }
                Err(rejection) => self.refuse(client, rejection.to_string()),
            }
        }
    }

    /// The checks of the handle leave nothing for the scheduler to refuse but a full queue.
    fn refuse(&mut self, mut client: Client, message: String) {
        client.backlog.push_back(Event::Failed { message });
        self.leave(client);
    }

    fn cancel_flagged(&mut self) {
        let flagged = self
            .clients
            .iter()
            .filter(|(_, client)| client.cancelled.load(Ordering::Acquire));
        let ids: Vec<RequestId> = flagged.map(|(id, _)| *id).collect();
        for id in ids {
            self.pipeline.scheduler_mut().cancel(id);
        }
    }

    /// Those who got a slot in a plan made at `planned` have waited until then.
    fn note_admissions(&mut self, planned: Instant) {
        for id in self.pipeline.scheduler().admissions() {
            if let Some(client) = self.clients.get_mut(id).filter(|client| client.queued.is_none()) {
                let queued = planned.saturating_duration_since(client.arrived);
                client.queued = Some(queued);
                let mut stats = self.shared.stats.lock().unwrap_or_else(PoisonError::into_inner);
                stats.sizes.queued_ns.record(queued.as_nanos() as u64);
            }
        }
    }

    fn hand_out(&mut self, stepped: Stepped) {
        let mut tokens = 0;
        let mut finished = 0;
        for delivery in stepped.deliveries {
            tokens += delivery.tokens.len() as u64;
            finished += u64::from(delivery.finish.is_some());
            self.deliver(delivery);
        }
        // Before the events go out, so that whoever has seen a request's end finds it in the numbers.
        self.publish(tokens, finished, stepped.collected);
        self.catch_up();
    }

    fn deliver(&mut self, mut delivery: Delivery) {
        let id = delivery.id;
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let finish = delivery.finish;
        let report = delivery.speculation.take();
        let waits = client.first_token.is_none();
        client.take(delivery);
        if let Some(first) = client.first_token.filter(|_| waits) {
            let prefill = first.saturating_sub(client.queued.unwrap_or_default());
            let mut stats = self.shared.stats.lock().unwrap_or_else(PoisonError::into_inner);
            stats.sizes.prefill_ns.record(prefill.as_nanos() as u64);
        }
        if let Some(finish) = finish
            && let Some(mut client) = self.clients.remove(&id)
        {
            client.finish(finish, report.map(|report| *report).unwrap_or_default());
            self.leave(client);
        }
    }

    fn leave(&mut self, client: Client) {
        self.shared.open.fetch_sub(1, Ordering::Relaxed);
        self.leaving.push(client);
    }

    /// Sends what readers have room for.
    fn catch_up(&mut self) {
        for client in self.clients.values_mut() {
            client.flush();
        }
        self.leaving.retain_mut(|client| {
            client.flush();
            !client.backlog.is_empty()
        });
    }

    fn publish(&mut self, tokens: u64, finished: u64, collected: Option<StepRecord>) {
        let scheduler = self.pipeline.scheduler();
        let usage = scheduler.cache_use();
        let oldest = scheduler.oldest_waiting().and_then(|id| self.clients.get(&id));
        let mut stats = self.shared.stats.lock().unwrap_or_else(PoisonError::into_inner);
        stats.running = scheduler.running();
        stats.waiting = scheduler.waiting();
        stats.blocks_used = stats.blocks - usage.free_blocks;
        stats.snapshots_used = stats.snapshots - usage.free_snapshots;
        stats.snapshots_reserved = usage.reserved_snapshots;
        stats.tokens += tokens;
        stats.finished += finished;
        stats.counters = scheduler.counters();
        stats.pipeline = self.pipeline.totals();
        stats.oldest_waiting = oldest.map(|client| client.arrived);
        if let Some(record) = &collected {
            stats.sizes.step_tokens.record(record.tokens_run as u64);
        }
        drop(stats);
        if let Some(record) = collected.filter(|_| self.tracing) {
            let mut trace = self.shared.trace.lock().unwrap_or_else(PoisonError::into_inner);
            if trace.len() < TRACE_STEPS {
                trace.push(record);
            }
        }
    }

    /// Tells everyone that it is over.
    fn fail(&mut self, message: &str) {
        *self.shared.stopped.lock().unwrap_or_else(PoisonError::into_inner) = Some(message.to_owned());
        for (_, client) in self.clients.drain() {
            // The reader may be gone or slow; closing the channel ends its stream either way.
            let _ = client.events.try_send(Event::Failed {
                message: message.to_owned(),
            });
        }
    }
}

impl Client {
    /// Turns a delivery into events. A stop token is not part of the text.
    fn take(&mut self, mut delivery: Delivery) {
        if self.first_token.is_none() && !delivery.tokens.is_empty() {
            self.first_token = Some(self.arrived.elapsed());
        }
        if delivery.finish == Some(Finish::Stop)
            && delivery
                .tokens
                .last()
                .is_some_and(|token| self.stop_tokens.contains(token))
        {
            delivery.tokens.pop();
            delivery.logprobs.truncate(delivery.tokens.len());
        }
        if !delivery.prompt_logprobs.is_empty() {
            self.backlog.push_back(Event::Prompt {
                logprobs: delivery.prompt_logprobs,
            });
        }
        if delivery.tokens.is_empty() {
            return;
        }
        self.tokens += delivery.tokens.len();
        if let Some(Event::Tokens { tokens, logprobs, .. }) = self.backlog.back_mut() {
            tokens.extend(delivery.tokens);
            logprobs.extend(delivery.logprobs);
            return;
        }
        let (choice, tokens, logprobs) = (self.choice, delivery.tokens, delivery.logprobs);
        self.backlog.push_back(Event::Tokens {
            choice,
            tokens,
            logprobs,
        });
    }

    fn finish(&mut self, finish: Finish, speculation: SpeculationReport) {
        let reason = match finish {
            Finish::Stop => FinishReason::Stop,
            Finish::Length => FinishReason::Length,
            Finish::Cancelled => FinishReason::Cancelled,
            Finish::Deadline => FinishReason::Deadline,
            Finish::Constraint => FinishReason::Constraint,
        };
        let total = self.arrived.elapsed();
        let usage = Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.tokens,
            first_token: self.first_token.unwrap_or(total),
            total,
            speculation,
        };
        self.backlog.push_back(Event::Finished {
            choice: self.choice,
            reason,
            usage,
        });
    }

    /// Sends as much of the backlog as there is room for; a reader that is gone wants none of it.
    fn flush(&mut self) {
        while let Some(event) = self.backlog.pop_front() {
            match self.events.try_send(event) {
                Ok(()) => {}
                Err(TrySendError::Full(event)) => {
                    self.backlog.push_front(event);
                    return;
                }
                Err(TrySendError::Closed(_)) => {
                    self.cancelled.store(true, Ordering::Release);
                    self.backlog.clear();
                }
            }
        }
    }
}
