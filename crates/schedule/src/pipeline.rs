//! The one step loop: plan, submit, collect the oldest, deliver. With depth 1 it is the plain loop, with more
//! the host works while the device does; there is no second path.

use crate::clock::Clock;
use crate::constraint::MaskWorkers;
use crate::record::{PipelineTotals, Span, StepRecord};
use crate::report::StepOrigins;
use crate::request::{RequestId, RequestOutput};
use crate::scheduler::Scheduler;
use paceline_types::{StepOutput, StepPlan};
use std::collections::VecDeque;

/// Runs steps, in order.
pub trait StepRunner {
    /// A step on its way: owns what the step needs until it is collected.
    type InFlight;

    /// Hands a step to the device. Must not wait for it.
    fn submit(&mut self, plan: &StepPlan) -> Result<Self::InFlight, RunnerFault>;

    /// Waits for the oldest step in flight. The only call that may block.
    fn collect(&mut self, step: Self::InFlight) -> Result<StepOutput, RunnerFault>;

    /// How often the host has waited for the device so far, counted where the waiting happens.
    fn host_waits(&self) -> u64;

    /// Nobody wants what the caches hold any more: a device that shares its memory with others gives theirs back until
    /// they are written again. Called when no step is in flight.
    fn hand_back(&mut self) {}
}

/// The device failed; no further step can be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device failed: {0}")]
pub struct RunnerFault(pub String);

/// A scheduler, a device and the steps between them.
pub struct Pipeline<R: StepRunner, C: Clock> {
    scheduler: Scheduler,
    runner: R,
    clock: C,
    depth: usize,
    in_flight: VecDeque<Flight<R::InFlight>>,
    /// Computes the masks of constrained requests.
    workers: Option<Box<dyn MaskWorkers>>,
    /// There was nothing to plan after the newest step: what the device idles until the next is no bubble.
    ran_dry: bool,
    /// When the device ended the step collected last.
    device_end: Option<u64>,
    totals: PipelineTotals,
    /// Waits before the first step.
    waits_before: u64,
}

struct Flight<T> {
    plan: StepPlan,
    step: T,
    /// Deciding what it does, and handing it to the device.
    planned: Span,
    submitted: Span,
    /// Steps in flight once it was submitted.
    under_way: usize,
    ran_dry: bool,
}

/// What one turn of the loop did.
#[derive(Debug, Default)]
pub struct Stepped {
    /// For the requests' streams, in order.
    pub request_outputs: Vec<RequestOutput>,
    /// How the tokens in them came, of requests that ask for it, in the same order.
    pub origins: Vec<(RequestId, StepOrigins)>,
    /// A step was submitted.
    pub submitted: bool,
    /// The step that was collected.
    pub collected: Option<StepRecord>,
}

impl Stepped {
    /// Whether nothing was done: there is no work until a request arrives.
    pub fn is_idle(&self) -> bool {
        !self.submitted && self.collected.is_none() && self.request_outputs.is_empty()
    }
}

impl<R: StepRunner, C: Clock> Pipeline<R, C> {
    /// A pipeline with up to `depth` steps in flight, 1 to 4.
    pub fn new(scheduler: Scheduler, runner: R, clock: C, depth: usize) -> Self {
        assert!(
            (1..=4).contains(&depth),
            "pipeline depth {depth} is not within 1..=4"
        );
        Self {
            waits_before: runner.host_waits(),
            scheduler,
            runner,
            clock,
            depth,
            in_flight: VecDeque::with_capacity(depth),
            workers: None,
            ran_dry: true,
            device_end: None,
            totals: PipelineTotals::default(),
        }
    }

    /// The same pipeline with workers for masks; without, masks are computed between steps.
    #[must_use]
    pub fn with_mask_workers(mut self, workers: Box<dyn MaskWorkers>) -> Self {
        self.workers = Some(workers);
        self
    }

    /// One turn: plans and submits a step if there is work, then collects the oldest one if the pipeline is full
    /// or there was nothing to plan. If all work waits for masks, it waits for one of them.
    // By itself, so that what goes on around it can be counted: `crates/paceline/src/service/turns.rs`.
    #[inline(never)]
    pub fn step(&mut self) -> Result<Stepped, RunnerFault> {
        self.take_masks();
        let mut stepped = Stepped {
            submitted: self.submit()?,
            ..Stepped::default()
        };
        // Before the host waits for the device, so that workers have all that time.
        self.start_masks();
        if (self.in_flight.len() == self.depth || !stepped.submitted)
            && let Some(oldest) = self.in_flight.pop_front()
        {
            self.collect(oldest, &mut stepped)?;
        }
        self.start_masks();
        if !stepped.submitted && stepped.collected.is_none() && self.scheduler.awaits_masks() {
            self.workers
                .as_mut()
                .into_iter()
                .for_each(|workers| workers.wait());
        }
        stepped.request_outputs.extend(self.scheduler.take_deliveries());
        Ok(stepped)
    }

    /// Takes in the masks that are done.
    fn take_masks(&mut self) {
        while let Some(result) = self.workers.as_mut().and_then(|workers| workers.done()) {
            self.scheduler.take_masks(result);
        }
    }

    /// Hands out the masks that are due, as many as the workers take.
    fn start_masks(&mut self) {
        while let Some(job) = self.scheduler.next_mask_job() {
            let Some(workers) = &mut self.workers else {
                self.scheduler.take_masks(job.run());
                continue;
            };
            if let Some(job) = workers.start(job) {
                self.scheduler.return_mask_job(job);
                return;
            }
        }
    }

    fn submit(&mut self) -> Result<bool, RunnerFault> {
        let begin = self.clock.now_ns();
        let Some(plan) = self.scheduler.plan(begin) else {
            self.ran_dry = true;
            return Ok(false);
        };
        let planned = self.clock.now_ns();
        let step = self.runner.submit(&plan)?;
        let submitted = self.clock.now_ns();
        self.in_flight.push_back(Flight {
            plan,
            step,
            planned: Span { begin, end: planned },
            submitted: Span {
                begin: planned,
                end: submitted,
            },
            under_way: self.in_flight.len() + 1,
            ran_dry: std::mem::take(&mut self.ran_dry),
        });
        Ok(true)
    }

    fn collect(&mut self, flight: Flight<R::InFlight>, stepped: &mut Stepped) -> Result<(), RunnerFault> {
        let (begin, waits) = (self.clock.now_ns(), self.runner.host_waits());
        let output = self.runner.collect(flight.step)?;
        let waited = self.clock.now_ns();
        let record = stepped.collected.insert(StepRecord {
            step: flight.plan.step,
            rows: flight.plan.rows.len(),
            tokens: flight.plan.tokens(),
            in_flight: flight.under_way,
            plan: flight.planned,
            submit: flight.submitted,
            waits: self.runner.host_waits() - waits,
            wait: Span { begin, end: waited },
            device: output.device_ns,
            ..StepRecord::default()
        });
        if !flight.ran_dry {
            record.bubble_ns = self.device_end.map(|end| record.device.0.saturating_sub(end));
        }
        self.device_end = Some(record.device.1);
        stepped.request_outputs = self.scheduler.collect(&flight.plan, output);
        stepped.origins = self.scheduler.take_origins();
        record.take(self.scheduler.last_step());
        record.collect = Span {
            begin: waited,
            end: self.clock.now_ns(),
        };
        self.totals.add(record);
        Ok(())
    }

    /// The scheduler.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The scheduler, to add, cancel and stop requests.
    pub fn scheduler_mut(&mut self) -> &mut Scheduler {
        &mut self.scheduler
    }

    /// Forgets what is cached and gives the memory of all caches back to the system, as far as the device can. Panics
    /// unless nothing runs.
    pub fn hand_back(&mut self) {
        assert!(self.is_idle(), "requests hold what would be forgotten");
        self.scheduler.forget();
        self.runner.hand_back();
    }

    /// The device.
    pub fn runner(&self) -> &R {
        &self.runner
    }

    /// The device, to look at or to tune.
    pub fn runner_mut(&mut self) -> &mut R {
        &mut self.runner
    }

    /// The time by its clock.
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Steps in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether there is no work and nothing in flight.
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.scheduler.is_idle()
    }

    /// Sums over all steps.
    pub fn totals(&self) -> PipelineTotals {
        let mut totals = self.totals;
        let waits = self.runner.host_waits() - self.waits_before;
        totals.waits.elsewhere = waits - totals.waits.collect;
        totals
    }
}
