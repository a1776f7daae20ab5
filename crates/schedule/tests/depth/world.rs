//! A device on virtual time whose costs and whose drafters follow a law that the test knows.

use super::rng::Rng;
use paceline_schedule::{CheckedRequest, DraftPolicy, RequestId, Scheduler, SchedulerConfig};
use paceline_types::{
    DraftBudget, DraftSource, MAX_DRAFTS, PlanRow, RowEnd, RowOutput, SamplingParams, StepOutput, StepPlan,
    Work,
};
use std::collections::VecDeque;
use std::sync::Arc;

/// Where a request is.
#[derive(Clone, Copy)]
pub struct Spot {
    pub request: u64,
    /// Tokens generated.
    pub text: usize,
}

/// What holds in a world. Times are in nanoseconds.
#[derive(Clone, Copy)]
pub struct Law {
    /// Time of a step that runs so many tokens, by its number.
    pub verify: fn(f64, u64) -> f64,
    /// Time of a pass of the neural drafter for so many rows.
    pub pass: fn(f64) -> f64,
    /// The chance that a look-up finds something.
    pub found: fn(Spot) -> f64,
    /// The chance of a draft at a place, given those before it.
    pub chance: fn(Spot, DraftSource, usize) -> f64,
    /// Requests that run at once, by step.
    pub rows: fn(u64) -> usize,
    /// Tokens that each generates.
    pub length: usize,
    pub drafts: usize,
    /// The neural drafter runs and drafts nothing.
    pub silent: bool,
    /// How long the device waits for the host before a step, by its number.
    pub stall: fn(u64) -> f64,
    /// Measured times are off by up to 30 %, and one in a hundred by a factor of five.
    pub noisy: bool,
    /// Others use the machine too: six busy threads on the two cores on which ours are two. A step is held up while it waits
    /// for its turn, and takes twice its time where one of its threads does. What counts is the work all the same, as the
    /// time that all steps get together is in proportion to it.
    pub shared: bool,
}

/// A memory-bound machine with useless drafters.
pub const PLAIN: Law = Law {
    verify: |tokens, _| 1e7 + 1e5 * tokens,
    pass: |_| 4e5,
    found: |_| 0.0,
    chance: |_, _, _| 0.0,
    rows: |_| 1,
    length: 3_000,
    drafts: 8,
    silent: false,
    stall: |_| 0.0,
    noisy: true,
    shared: false,
};

#[derive(Clone, Copy, Default)]
struct Slot {
    request: u64,
    text: usize,
    drafts: usize,
    source: Option<DraftSource>,
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    pub tokens: u64,
    pub ns: f64,
    pub drafted: u64,
    pub accepted: u64,
    /// By the engine's own estimate, and by that of the requests that have ended.
    pub gained: f64,
    pub reported: f64,
}

impl Outcome {
    pub fn rate(&self) -> f64 {
        self.tokens as f64 / self.ns * 1e9
    }

    /// What happened since.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            tokens: self.tokens - before.tokens,
            ns: self.ns - before.ns,
            drafted: self.drafted - before.drafted,
            accepted: self.accepted - before.accepted,
            gained: self.gained - before.gained,
            reported: self.reported - before.reported,
        }
    }
}

/// Time that a thread runs before others have their turn.
const SLICE: f64 = 3e6;
const PROMPT: usize = 8;
const SLOTS: usize = 64;

pub struct World {
    law: Law,
    scheduler: Scheduler,
    slots: Vec<Slot>,
    rng: Rng,
    in_flight: VecDeque<(StepPlan, StepOutput)>,
    names: u64,
    alive: usize,
    steps: u64,
    /// The device's clock.
    clock: f64,
    outcome: Outcome,
}

impl World {
    pub fn new(law: Law, policy: Box<dyn DraftPolicy>, seed: u64) -> Self {
        let blocks = (PROMPT + law.length).div_ceil(16);
        let config = SchedulerConfig {
            slots: SLOTS,
            max_batched_tokens: 2048,
            max_step_ns: None,
            max_samples: 2048,
            max_masks: 64,
            block_size: 16,
            num_blocks: blocks * (SLOTS + 1),
            blocks_per_request: blocks,
            max_waiting: SLOTS,
            drafts: law.drafts,
            recurrent: None,
            prefix_caching: false,
        };
        Self {
            law,
            scheduler: Scheduler::with_policy(config, policy),
            slots: vec![Slot::default(); SLOTS],
            rng: Rng::new(seed),
            in_flight: VecDeque::new(),
            names: 1,
            alive: 0,
            steps: 0,
            clock: 0.0,
            outcome: Outcome::default(),
        }
    }

    /// Runs steps for so much time on the device; returns what they came to.
    pub fn run_for(&mut self, ns: f64) -> Outcome {
        let before = self.outcome;
        while self.outcome.ns < before.ns + ns {
            self.run(1);
        }
        self.outcome.since(&before)
    }

    /// Runs some steps, two of them in flight at a time; returns what they came to.
    pub fn run(&mut self, steps: u64) -> Outcome {
        let before = self.outcome;
        let end = self.steps + steps;
        while self.steps < end {
            while self.alive < (self.law.rows)(self.steps) {
                self.arrive();
            }
            let plan = self.scheduler.plan(0);
            let dry = plan.is_none();
            if let Some(plan) = plan {
                let output = self.submit(&plan);
                self.in_flight.push_back((plan, output));
            }
            if dry || self.in_flight.len() == 2 {
                self.collect();
            }
        }
        self.outcome.since(&before)
    }

    fn arrive(&mut self) {
        let new = CheckedRequest {
            id: RequestId(self.names),
            prompt: vec![1; PROMPT].into(),
            generated: Arc::default(),
            params: Arc::new(SamplingParams {
                seed: self.names,
                ..SamplingParams::default()
            }),
            stop_tokens: Arc::default(),
            priority: 0,
            deadline: None,
            tenant: 0,
            salt: 0,
            max_length: PROMPT + self.law.length,
            group: None,
            speculation: CheckedRequest::ANY_DRAFTS,
            constraint: None,
            pooling: None,
        };
        self.scheduler.add(new).expect("there is room");
        self.names += 1;
        self.alive += 1;
    }

    fn submit(&mut self, plan: &StepPlan) -> StepOutput {
        self.steps += 1;
        for admission in &plan.admissions {
            self.slots[admission.slot.0 as usize] = Slot {
                request: admission.params.seed,
                ..Slot::default()
            };
        }
        let (mut tokens, mut draft_forwards, mut drafting) = (0, 0, 0);
        let mut rows = Vec::with_capacity(plan.rows.len());
        for row in &plan.rows {
            let (done, run) = self.run_row(row);
            tokens += run;
            let slot = &self.slots[row.slot.0 as usize];
            if run > 0 && row.propose.neural > 0 {
                drafting += 1;
                // It sees the row even if drafts were found.
                draft_forwards = draft_forwards.max(1);
                if slot.source == Some(DraftSource::Neural) {
                    draft_forwards = draft_forwards.max(slot.drafts);
                }
            }
            rows.push(done);
        }
        let verify = (self.law.verify)(tokens as f64, self.steps);
        let draft = draft_forwards as f64 * (self.law.pass)(f64::from(drafting));
        self.outcome.ns += verify + draft;
        let (verify, draft) = (self.measured(verify), self.measured(draft));
        let begin = self.clock + (self.law.stall)(self.steps);
        self.clock = begin + verify + draft;
        StepOutput {
            step: plan.step,
            rows,
            device_ns: (begin as u64, begin as u64 + (verify + draft) as u64),
            draft_ns: draft as u64,
            draft_passes: draft_forwards,
        }
    }

    fn measured(&mut self, ns: f64) -> f64 {
        let ns = if self.law.shared { self.held_up(ns) } else { ns };
        if !self.law.noisy {
            return ns;
        }
        let off = 0.7 + 0.6 * self.rng.below(1000) as f64 / 1000.0;
        let outlier = if self.rng.below(100) == 0 { 5.0 } else { 1.0 };
        ns * off * outlier
    }

    /// Time of a step that takes turns with others.
    fn held_up(&mut self, ns: f64) -> f64 {
        let mut left = ns * if self.happens(0.5) { 2.0 } else { 1.0 };
        let (mut took, mut slice) = (0.0, SLICE * self.rng.below(1000) as f64 / 1000.0);
        while left > slice {
            took += slice + 3.0 * SLICE;
            left -= slice;
            slice = SLICE;
        }
        took + left
    }

    fn run_row(&mut self, row: &PlanRow) -> (RowOutput, usize) {
        let index = row.slot.0 as usize;
        let mut slot = self.slots[index];
        let left = self.law.length - slot.text;
        if left == 0 {
            return (RowOutput::default(), 0);
        }
        let mut output = RowOutput::default();
        let run = match &row.work {
            Work::Prefill { tokens, .. } | Work::Embed { tokens, .. } => tokens.len(),
            Work::Verify { drafts } => {
                output.drafted = slot.drafts.min(*drafts);
                output.source = slot.source.filter(|_| output.drafted > 0);
                1 + output.drafted
            }
        };
        let spot = Self::spot(&slot);
        let mut accepted = 0;
        if let Some(source) = output.source {
            let law = self.law.chance;
            while accepted < output.drafted && self.happens(law(spot, source, accepted)) {
                accepted += 1;
            }
        }
        output.tokens = vec![7; (1 + accepted).min(left)];
        slot.text += output.tokens.len();
        output.end = (slot.text == self.law.length).then_some(RowEnd::Length);
        self.outcome.tokens += output.tokens.len() as u64;
        self.outcome.drafted += output.drafted as u64;
        self.outcome.accepted += accepted as u64;
        self.draft(&mut slot, row.propose);
        self.slots[index] = slot;
        (output, run)
    }

    fn draft(&mut self, slot: &mut Slot, propose: DraftBudget) {
        let found = self.happens((self.law.found)(Self::spot(slot)));
        (slot.drafts, slot.source) = if propose.ngram > 0 && found {
            (propose.ngram, Some(DraftSource::Ngram))
        } else if propose.neural > 0 && !self.law.silent {
            (propose.neural, Some(DraftSource::Neural))
        } else {
            (0, None)
        };
    }

    fn spot(slot: &Slot) -> Spot {
        Spot {
            request: slot.request,
            text: slot.text,
        }
    }

    fn happens(&mut self, chance: f64) -> bool {
        (self.rng.below(1 << 20) as f64) < chance * f64::from(1 << 20)
    }

    fn collect(&mut self) {
        let Some((plan, output)) = self.in_flight.pop_front() else {
            return;
        };
        let request_outputs = self.scheduler.collect(&plan, output);
        self.outcome.gained = self.scheduler.counters().gained_ns as f64;
        for report in request_outputs
            .iter()
            .filter_map(|request_output| request_output.speculation.as_ref())
        {
            assert_eq!(report.tokens + 1, self.law.length as u64);
            assert_eq!(
                report.tokens,
                report.steps + report.accepted_by_position.iter().sum::<u64>()
            );
            assert_eq!(report.wasted, report.drafted - report.accepted);
            self.outcome.reported += report.gained_ns as f64;
        }
        self.alive -= request_outputs
            .iter()
            .filter(|request_output| request_output.finish.is_some())
            .count();
    }
}

/// The same depth for everyone, from each source.
pub fn fixed(ngram: usize, neural: usize) -> Box<dyn DraftPolicy> {
    assert!(ngram.max(neural) <= MAX_DRAFTS);
    Box::new(paceline_schedule::FixedDrafts(DraftBudget { ngram, neural }))
}
