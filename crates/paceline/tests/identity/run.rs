//! Runs cases on the CPU device through the scheduler and the pipeline.

use crate::case::{Case, CaseRequest};
use paceline_device_cpu::{Cpu, CpuOptions, Instructions};
use paceline_runner::{DeviceRunner, RunnerConfig};
use paceline_schedule::{
    Delivery, Finish, GroupId, NewRequest, Pipeline, RealClock, RecurrentConfig, RequestId, Scheduler,
    SchedulerConfig,
};
use paceline_testkit::{Fixture, storyteller};
use paceline_types::{SamplingParams, TokenId, TokenLogprobs};
use paceline_weights::Checkpoint;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

/// Turns of the loop after which a case counts as stuck.
const TURNS: usize = 20_000;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Finished,
    Cancelled,
}

/// What a request gave.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) logprobs: Vec<TokenLogprobs>,
    pub(crate) ending: Ending,
}

impl Given {
    fn empty() -> Self {
        Self {
            tokens: Vec::new(),
            logprobs: Vec::new(),
            ending: Ending::Cancelled,
        }
    }

    /// Every log-probability by its bits.
    pub(crate) fn bits(&self) -> Vec<u32> {
        self.bits_of(self.tokens.len())
    }

    /// Those of the first tokens.
    pub(crate) fn bits_of(&self, tokens: usize) -> Vec<u32> {
        let rows = self.logprobs.iter().take(tokens);
        rows.flat_map(|row| {
            let top = row
                .top
                .iter()
                .flat_map(|(token, value)| [*token, value.to_bits()]);
            std::iter::once(row.chosen.to_bits())
                .chain(top)
                .collect::<Vec<_>>()
        })
        .collect()
    }
}

type Solo = HashMap<String, Arc<Given>>;

/// Checkpoints, solo runs and a count of comparisons, shared by all cases.
#[derive(Default)]
pub(crate) struct Bench {
    checkpoints: RefCell<HashMap<&'static str, Arc<Checkpoint>>>,
    solo: RefCell<Solo>,
    compared: Cell<u64>,
}

impl Bench {
    pub(crate) fn compared(&self) -> u64 {
        self.compared.get()
    }

    fn checkpoint(&self, model: &'static str) -> Arc<Checkpoint> {
        let open = || match model {
            "storyteller" => Arc::new(storyteller()),
            name => Arc::new(Fixture::read(name).checkpoint()),
        };
        Arc::clone(self.checkpoints.borrow_mut().entry(model).or_insert_with(open))
    }

    /// Runs the requests of a case together.
    pub(crate) fn run(&self, case: &Case) -> Vec<Given> {
        let given = run(&self.checkpoint(case.model), case);
        self.compared.set(self.compared.get() + given.len() as u64);
        given
    }

    /// What a request gives alone, in a plain loop with one step in flight, whole prompts and no cache.
    pub(crate) fn alone(&self, case: &Case, request: &CaseRequest) -> Arc<Given> {
        let request = CaseRequest {
            arrives: 0,
            cancelled: None,
            sibling: false,
            priority: 0,
            ..request.clone()
        };
        let key = format!("{} {:?} {:?}", case.model, request.prompt, request.params);
        if let Some(known) = self.solo.borrow().get(&key) {
            return Arc::clone(known);
        }
        let plain = Case {
            depth: 1,
            batch: 1,
            budget: 512,
            block_size: 16,
            threads: 1,
            caching: false,
            spare_blocks: None,
            snapshots: 0,
            requests: vec![request],
            ..case.clone()
        };
        let mut given = run(&self.checkpoint(case.model), &plain);
        let given = Arc::new(given.pop().expect("one request"));
        self.solo.borrow_mut().insert(key, Arc::clone(&given));
        given
    }
}

type CpuPipeline = Pipeline<DeviceRunner<Cpu>, RealClock>;

fn pipeline(checkpoint: &Checkpoint, case: &Case) -> CpuPipeline {
    let options = CpuOptions {
        threads: case.threads,
        instructions: Instructions::detect(),
    };
    let backend = Cpu::new(options);
    let model = paceline_models::load(&backend, checkpoint, None, &|_| {}).expect("the fixture loads");
    let longest = case
        .requests
        .iter()
        .map(|r| r.prompt.len() + r.params.max_tokens)
        .max()
        .unwrap_or(1);
    let blocks_per_slot = longest.div_ceil(case.block_size);
    let plenty = 2 * case.requests.len() * blocks_per_slot + 8;
    let blocks = case.spare_blocks.map_or(plenty, |spare| blocks_per_slot + spare);
    let recurrent = !model.state_shapes(1).is_empty();
    let snapshots = if recurrent { case.snapshots } else { 0 };
    let config = RunnerConfig {
        slots: case.batch,
        tokens: case.budget,
        samples: case.budget,
        blocks,
        blocks_per_slot,
        block_size: case.block_size,
        snapshots,
        drafts: 0,
    };
    let scheduler = Scheduler::new(SchedulerConfig {
        slots: case.batch,
        max_batched_tokens: case.budget,
        max_samples: case.budget,
        block_size: case.block_size,
        num_blocks: blocks,
        blocks_per_request: blocks_per_slot,
        max_waiting: 64,
        drafts: 0,
        recurrent: recurrent.then_some(RecurrentConfig {
            snapshots,
            interval: 2 * case.block_size,
        }),
        prefix_caching: case.caching,
    });
    let clock = RealClock::since(backend.started());
    let runner = DeviceRunner::new(backend, model, config).expect("memory for a small model");
    Pipeline::new(scheduler, runner, clock, case.depth)
}

fn run(checkpoint: &Checkpoint, case: &Case) -> Vec<Given> {
    let mut pipeline = pipeline(checkpoint, case);
    let mut given = vec![Given::empty(); case.requests.len()];
    let mut ended = vec![false; case.requests.len()];
    for turn in 0.. {
        assert!(turn < TURNS, "the loop does not end");
        for (index, request) in case.requests.iter().enumerate() {
            let id = RequestId(index as u64);
            if request.arrives == turn {
                pipeline
                    .scheduler_mut()
                    .add(new_request(id, request))
                    .expect("the request fits");
            }
            if request
                .cancelled
                .is_some_and(|after| request.arrives + after == turn)
            {
                pipeline.scheduler_mut().cancel(id);
            }
        }
        let stepped = pipeline.step().expect("the device works");
        for delivery in stepped.deliveries {
            take(&mut given, &mut ended, delivery);
        }
        pipeline.scheduler().check_integrity();
        let arrived = case.requests.iter().all(|request| request.arrives <= turn);
        if arrived && ended.iter().all(|ended| *ended) && pipeline.is_idle() {
            break;
        }
    }
    assert_eq!(
        pipeline.totals().waits.collect,
        pipeline.totals().steps,
        "one wait per step"
    );
    given
}

fn new_request(id: RequestId, request: &CaseRequest) -> NewRequest {
    let params: SamplingParams = request.params.clone();
    NewRequest {
        id,
        prompt: request.prompt.as_slice().into(),
        stop_tokens: params.stop_tokens.clone(),
        max_length: request.prompt.len() + params.max_tokens,
        params: Arc::new(params),
        priority: request.priority,
        deadline: None,
        salt: 0,
        group: request.sibling.then_some(GroupId(id.0)),
        speculation: NewRequest::ANY_DRAFTS,
    }
}

fn take(given: &mut [Given], ended: &mut [bool], delivery: Delivery) {
    let index = delivery.id.0 as usize;
    assert!(!ended[index], "request {index} goes on after its end");
    let given = &mut given[index];
    given.tokens.extend(delivery.tokens);
    given.logprobs.extend(delivery.logprobs);
    if let Some(finish) = delivery.finish {
        ended[index] = true;
        given.ending = match finish {
            Finish::Stop | Finish::Length => Ending::Finished,
            Finish::Cancelled | Finish::Deadline => Ending::Cancelled,
        };
    }
}
