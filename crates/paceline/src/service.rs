//! The engine's thread: requests in, steps, events out.

#[cfg(test)]
mod turns;

use crate::cancel_flags::{CancelFlag, CancelFlags};
use crate::client::{Answer, Client};
use crate::handle::Shared;
use crate::stats::Stats;
use crate::watch::WatchedStep;
use async_channel::Sender;
use paceline_schedule::{
    CheckedRequest, Clock, Pipeline, RequestId, RequestOutput, RequestStatus, RunnerFault, Span, StepOrigins,
    StepRecord, StepRunner, Stepped,
};
use paceline_types::MAX_DRAFTS;
use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the engine must have had nothing to do before it checks that its parts agree. A request that comes right
/// behind another one does not wait for that.
const QUIET: Duration = Duration::from_secs(1);

/// What the engine's thread is told.
pub(crate) enum Message {
    /// Work.
    Job(Job),
    /// Tell where every request stands.
    Look(Sender<Vec<RequestStatus>>),
}

/// Requests on their way in: the continuations of one prompt, or a text that becomes a vector.
pub(crate) struct Job {
    pub(crate) requests: Vec<CheckedRequest>,
    pub(crate) answer: Answer,
    pub(crate) cancel_flags: Arc<CancelFlags>,
    pub(crate) arrived: Instant,
}

/// What the engine's thread does when it has nothing else to do.
enum Chore {
    CheckIntegrity,
    HandBack,
}

/// The step loop with its clients.
pub(crate) struct Service<R: StepRunner, C: Clock> {
    pub(crate) pipeline: Pipeline<R, C>,
    pub(crate) intake: Receiver<Message>,
    pub(crate) shared: Arc<Shared>,
    clients: HashMap<RequestId, Client>,
    /// Something has run since the parts were last found to agree.
    unchecked: bool,
    /// Something has run since the memory of the caches was last given back.
    unreturned: bool,
    hand_back_after: Option<Duration>,
    /// When there was last something to do.
    idle_since: Instant,
    shown: Shown,
}

/// What had been counted when viewers were last shown something.
#[derive(Clone, Copy, Default)]
struct Shown {
    steps: u64,
    accepted_by_position: [u64; MAX_DRAFTS],
}

impl<R: StepRunner, C: Clock> Service<R, C> {
    pub(crate) fn new(pipeline: Pipeline<R, C>, intake: Receiver<Message>, shared: Arc<Shared>) -> Self {
        Self {
            pipeline,
            intake,
            shared,
            clients: HashMap::new(),
            unchecked: false,
            unreturned: false,
            hand_back_after: None,
            idle_since: Instant::now(),
            shown: Shown::default(),
        }
    }

    /// Forgets what is cached and gives its memory back to the system when nothing has run for this long.
    pub(crate) fn hand_back_after(mut self, pause: Option<Duration>) -> Self {
        self.hand_back_after = pause;
        self
    }

    /// Runs until every handle is gone and everything is done, or something fails: the device, or an invariant of the
    /// engine. Whatever it was, every waiting client is told.
    pub(crate) fn run(mut self) {
        // What a panic leaves half done is not looked at again, but for the readers.
        let outcome = catch_unwind(AssertUnwindSafe(|| self.serve()));
        let fault = match outcome {
            Ok(Ok(())) => return,
            Ok(Err(fault)) => fault.to_string(),
            Err(panic) => format!("its thread panicked: {}", panic_message(panic.as_ref())),
        };
        tracing::error!("the engine has stopped: {fault}");
        self.fail(&fault);
    }

    fn serve(&mut self) -> Result<(), RunnerFault> {
        while let Some(message) = self.wait() {
            self.take(message);
            self.attend(&Stepped::default());
            if !self.pipeline.is_idle() {
                self.work()?;
            }
        }
        Ok(())
    }

    /// Steps until there is nothing to do.
    fn work(&mut self) -> Result<(), RunnerFault> {
        while !self.pipeline.is_idle() {
            self.turn()?;
        }
        (self.unchecked, self.unreturned) = (true, true);
        self.idle_since = Instant::now();
        Ok(())
    }

    /// A step, with what goes before it and behind it. Whoever wants something, be it a request that comes or a viewer of
    /// steps, is seen to if one number is not zero: the steps of an engine that nobody looks at have nothing to do with viewers.
    // By itself, so that what it costs can be counted: `service/turns.rs`.
    #[inline(never)]
    fn turn(&mut self) -> Result<(), RunnerFault> {
        self.cancel_flagged();
        let planned = Instant::now();
        // Used where it lies, as it is large: taken out of the result, it would be copied in every turn.
        let mut stepped = self.pipeline.step();
        let stepped = stepped.as_mut().map_err(|fault| fault.clone())?;
        self.note_admissions(planned);
        self.hand_out(stepped);
        if self.shared.calls.any() {
            self.attend(stepped);
        }
        Ok(())
    }

    /// Shows what was just done to those who look, and takes in what has arrived.
    #[inline(never)]
    fn attend(&mut self, stepped: &Stepped) {
        if self.shared.watch.is_on() {
            self.show(stepped.collected.as_ref());
        }
        while let Ok(message) = self.intake.try_recv() {
            self.take(message);
        }
    }

    fn take(&mut self, message: Message) {
        self.shared.calls.end();
        match message {
            Message::Job(job) => self.admit(job),
            // A caller that has gone does not want it any more.
            Message::Look(answer) => drop(answer.try_send(self.pipeline.scheduler().statuses())),
        }
    }

    /// Waits for a request when nothing runs; `None` if no handle is left. If none comes for a while, the time is used for what is due.
    fn wait(&mut self) -> Option<Message> {
        while let Some((pause, chore)) = self.chore() {
            let left = pause.saturating_sub(self.idle_since.elapsed());
            match self.intake.recv_timeout(left) {
                Ok(message) => return Some(message),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => match chore {
                    Chore::CheckIntegrity => self.check_integrity(),
                    Chore::HandBack => self.hand_back(),
                },
            }
        }
        self.intake.recv().ok()
    }

    /// What is to be done next when nothing runs, and how long that must have lasted.
    fn chore(&self) -> Option<(Duration, Chore)> {
        if self.unchecked {
            return Some((QUIET, Chore::CheckIntegrity));
        }
        let pause = self.hand_back_after.filter(|_| self.unreturned)?;
        Some((pause, Chore::HandBack))
    }

    /// Forgets what is cached and gives its memory back to the system.
    fn hand_back(&mut self) {
        self.pipeline.hand_back();
        self.unreturned = false;
        self.stats().hand_backs += 1;
    }

    /// Checks that nothing was lost or counted twice; what is wrong ends the engine here rather than a request later.
    fn check_integrity(&mut self) {
        self.pipeline.scheduler().check_integrity();
        self.unchecked = false;
        self.stats().integrity_checks += 1;
    }

    fn stats(&self) -> MutexGuard<'_, Stats> {
        self.shared.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(&mut self, job: Job) {
        for (choice, request) in job.requests.into_iter().enumerate() {
            let client = Client::new(
                &request,
                choice,
                job.answer.clone(),
                (&job.cancel_flags, job.arrived),
            );
            self.add(request, client);
        }
    }

    fn add(&mut self, request: CheckedRequest, client: Client) {
        let id = request.id;
        match self.pipeline.scheduler_mut().add(request) {
            Ok(()) => {
                self.clients.insert(id, client);
            }
            // The handle lets in no more than the scheduler's queue holds.
            Err(full) => {
                self.shared.open.fetch_sub(1, Ordering::Relaxed);
                client.answer.fail(full.to_string());
            }
        }
    }

    fn cancel_flagged(&mut self) {
        let cancel_flags = self
            .clients
            .iter()
            .filter_map(|(id, client)| Some((*id, client.cancel_flag()?)));
        let cancel_flags: Vec<(RequestId, CancelFlag)> = cancel_flags.collect();
        let scheduler = self.pipeline.scheduler_mut();
        for (id, cancel_flag) in cancel_flags {
            match cancel_flag {
                CancelFlag::Stop => scheduler.stop(id),
                CancelFlag::Cancel => scheduler.cancel(id),
            };
        }
    }

    /// Requests that got a slot in a plan made at `planned` have waited until then.
    fn note_admissions(&mut self, planned: Instant) {
        for id in self.pipeline.scheduler().admissions() {
            if let Some(client) = self.clients.get_mut(id).filter(|client| client.queued.is_none()) {
                let queued = planned.saturating_duration_since(client.arrived);
                client.queued = Some(queued);
                self.stats().sizes.queued_ns.record(queued.as_nanos() as u64);
            }
        }
    }

    /// Hands on what a step brought.
    fn hand_out(&mut self, stepped: &mut Stepped) {
        let mut tokens = 0;
        let mut finished = 0;
        for request_output in &stepped.request_outputs {
            tokens += request_output.tokens.len() as u64;
            finished += usize::from(request_output.finish.is_some());
            self.note_first_token(request_output);
        }
        // Before the events go out, so that a client that has seen a request's end finds it in the numbers.
        self.shared.open.fetch_sub(finished, Ordering::Relaxed);
        self.publish(tokens, finished as u64, stepped.collected.as_ref());
        let mut origins = stepped.origins.drain(..).peekable();
        for request_output in stepped.request_outputs.drain(..) {
            let own = origins.next_if(|(id, _)| *id == request_output.id);
            self.deliver(request_output, own.map(|(_, origins)| origins));
        }
    }

    /// Shows a step to viewers once its outputs are handed out. What it did to counters that only grow is known if those
    /// before it were looked at; so a viewer that comes between two steps sees the next but one first. Reads the published
    /// numbers: a second caller of what publishes them would keep it from being inlined there, where every step goes by.
    fn show(&mut self, collected: Option<&StepRecord>) {
        let stats = self.stats();
        let now = Shown {
            steps: stats.pipeline.steps,
            accepted_by_position: stats.counters.accepted_by_position,
        };
        drop(stats);
        let before = std::mem::replace(&mut self.shown, now);
        let Some(record) = collected.filter(|_| before.steps + 1 == now.steps) else {
            return;
        };
        self.shared.watch.push(WatchedStep {
            record: *record,
            prompt_tokens: self.pipeline.scheduler().last_step().prompt_tokens,
            accepted_by_position: std::array::from_fn(|place| {
                (now.accepted_by_position[place] - before.accepted_by_position[place]) as u32
            }),
            emit: Span {
                begin: record.collect.end,
                end: self.pipeline.now_ns(),
            },
        });
    }

    fn note_first_token(&mut self, request_output: &RequestOutput) {
        let Some(client) = self.clients.get_mut(&request_output.id) else {
            return;
        };
        if let Some(first) = client.note_first_token(request_output) {
            let prefill = first.saturating_sub(client.queued.unwrap_or_default());
            self.stats().sizes.prefill_ns.record(prefill.as_nanos() as u64);
        }
    }

    fn deliver(&mut self, request_output: RequestOutput, origins: Option<StepOrigins>) {
        let (id, ends) = (request_output.id, request_output.finish.is_some());
        if let Some(client) = self.clients.get_mut(&id) {
            client.deliver(request_output, origins);
        }
        if ends {
            self.clients.remove(&id);
        }
    }

    /// Brings the numbers up to date.
    fn publish(&self, tokens: u64, finished: u64, collected: Option<&StepRecord>) {
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
        if let Some(record) = collected {
            stats.sizes.step_tokens.record(record.tokens_run as u64);
        }
    }

    /// Tells every client that it is over: of running requests and of those in the queue. A reader that is slow finds
    /// it behind what it has yet to read.
    fn fail(&mut self, message: &str) {
        *self.shared.stopped.lock().unwrap_or_else(PoisonError::into_inner) = Some(message.to_owned());
        let mut stats = self.stats();
        (stats.running, stats.waiting) = (0, 0);
        drop(stats);
        self.shared.open.store(0, Ordering::Relaxed);
        for (_, client) in self.clients.drain() {
            client.answer.fail(message.to_owned());
        }
        while let Ok(told) = self.intake.try_recv() {
            if let Message::Job(job) = told {
                job.answer.fail(message.to_owned());
            }
        }
    }
}

/// What a panic said.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}
