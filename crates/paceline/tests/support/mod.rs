//! Requests through scheduler, pipeline and CPU device, with any drafter: what tests of identity are made of.

#![allow(dead_code, reason = "every test of this folder uses a part of it")]

pub(crate) mod scripted;
pub(crate) mod whimsy;

use paceline::MaskPool;
use paceline_device::{Backend, Checked};
use paceline_device_cpu::{Cpu, CpuOptions, Instructions};
use paceline_models::{Decoder, Eagle3};
use paceline_runner::{
    Chain, DeviceRunner, HeadProposer, ModelProposer, NgramProposer, Proposer, RunnerConfig,
};
use paceline_schedule::{
    CheckedRequest, Counters, DepthControl, DraftPolicy, FixedDrafts, GroupId, Pipeline, PipelineTotals,
    RealClock, RecurrentConfig, RequestId, RequestOutput, Scheduler, SchedulerConfig,
};
use paceline_testkit::{Fixture, random_eagle3, storyteller};
use paceline_types::{Constraint, DraftBudget, FinishReason, SamplingParams, TokenId, TokenLogprobs};
use paceline_weights::Checkpoint;
use scripted::{Script, Scripted, Texts};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// The CPU, with an eye on what is asked of it.
pub(crate) type Device = Checked<Cpu>;

/// Turns of the loop after which a run counts as stuck.
const TURNS: usize = 20_000;

/// The drafter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drafter {
    Off,
    Ngram,
    /// The model's own head, if it has one, else none.
    Mtp,
    /// A head of random weights: mostly wrong, and right by chance.
    Eagle3,
    /// The model itself: right as long as it sees what the model sees.
    Itself,
    /// Another model with the same vocabulary, recurrent if the model is not.
    Other,
    /// n-gram, then the model's own head or the random one.
    Chain,
    /// One that knows the future.
    Scripted(Script),
}

/// A way to run requests.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) model: &'static str,
    pub(crate) drafter: Drafter,
    /// Most drafts per plan row.
    pub(crate) drafts: usize,
    pub(crate) depth_control: bool,
    pub(crate) depth: usize,
    pub(crate) batch: usize,
    pub(crate) budget: usize,
    pub(crate) block_size: usize,
    pub(crate) threads: usize,
    pub(crate) caching: bool,
    /// Blocks beyond what the longest request needs, or plenty.
    pub(crate) spare_blocks: Option<usize>,
    pub(crate) snapshots: usize,
}

impl Setup {
    /// One request at a time, one step in flight, no drafts, no cache.
    pub(crate) fn plain(model: &'static str) -> Self {
        Self {
            model,
            drafter: Drafter::Off,
            drafts: 0,
            depth_control: false,
            depth: 1,
            batch: 1,
            budget: 512,
            block_size: 16,
            threads: 1,
            caching: false,
            spare_blocks: None,
            snapshots: 0,
        }
    }
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) prompt: Vec<TokenId>,
    pub(crate) params: SamplingParams,
    pub(crate) priority: i32,
    /// Turn of the loop it arrives at.
    pub(crate) arrives: usize,
    /// Turns after its arrival that it is cancelled at.
    pub(crate) cancelled: Option<usize>,
    /// A member of a group with this name.
    pub(crate) group: Option<u64>,
    /// What its text must follow, and a name for it.
    pub(crate) constraint: Option<(String, Arc<dyn Constraint>)>,
    /// Takes no drafts, whoever drafts for the others.
    pub(crate) undrafted: bool,
}

impl Asked {
    pub(crate) fn new(prompt: Vec<TokenId>, params: SamplingParams) -> Self {
        Self {
            prompt,
            params,
            priority: 0,
            arrives: 0,
            cancelled: None,
            group: None,
            constraint: None,
            undrafted: false,
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Finished,
    Cancelled,
    DeadEnd,
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

    /// Every log-probability of the first tokens by its bits.
    pub(crate) fn bits(&self, tokens: usize) -> Vec<u32> {
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

    /// What is wrong with it, if it should be what `alone` gave, or a beginning of it for a cancelled request.
    pub(crate) fn differs_from(&self, alone: &Self) -> Option<String> {
        let length = self.tokens.len();
        let complete = self.ending != Ending::Finished || length == alone.tokens.len();
        let beginning = length <= alone.tokens.len() && self.tokens == alone.tokens[..length];
        let bits = self.bits(length) == alone.bits(length);
        if complete && beginning && bits {
            return None;
        }
        Some(format!(
            "{:?} {:?}\n  alone: {:?}\n  log-probabilities equal: {bits}",
            self.ending, self.tokens, alone.tokens
        ))
    }
}

/// What a run did.
pub(crate) struct Outcome {
    pub(crate) given: Vec<Given>,
    pub(crate) counters: Counters,
    pub(crate) totals: PipelineTotals,
}

/// Checkpoints and solo runs, shared by many runs.
#[derive(Default)]
pub(crate) struct Bench {
    checkpoints: RefCell<HashMap<String, Rc<Checkpoint>>>,
    solo: RefCell<HashMap<String, Rc<Given>>>,
}

impl Bench {
    fn checkpoint(&self, model: &str) -> Rc<Checkpoint> {
        let open = || match model {
            "storyteller" => Rc::new(storyteller()),
            name => Rc::new(Fixture::read(name).checkpoint()),
        };
        let mut checkpoints = self.checkpoints.borrow_mut();
        Rc::clone(checkpoints.entry(model.to_owned()).or_insert_with(open))
    }

    /// Runs requests together.
    pub(crate) fn run(&self, setup: &Setup, requests: &[Asked]) -> Outcome {
        let texts = match setup.drafter {
            Drafter::Scripted(_) => self.texts(setup.model, requests),
            _ => Texts::new(),
        };
        let (mut pipeline, device) = self.pipeline(setup, requests, texts);
        let given = drive(&mut pipeline, requests, most(setup));
        let (counters, totals) = (pipeline.scheduler().counters(), pipeline.totals());
        // Whatever the requests ask for: log-probabilities and drafts under a grammar are in the record, too.
        let waits = totals.waits;
        assert_eq!(
            (waits.collect, waits.elsewhere),
            (totals.steps, 0),
            "one wait per step"
        );
        assert_eq!(device.host_waits(), totals.steps, "and none before the first");
        Outcome {
            given,
            counters,
            totals,
        }
    }

    /// What a request gives alone in a plain loop.
    pub(crate) fn alone(&self, model: &'static str, request: &Asked) -> Rc<Given> {
        let name = request.constraint.as_ref().map(|(name, _)| name);
        let key = format!("{model} {:?} {:?} {name:?}", request.prompt, request.params);
        if let Some(known) = self.solo.borrow().get(&key) {
            return Rc::clone(known);
        }
        let request = Asked {
            constraint: request.constraint.clone(),
            ..Asked::new(request.prompt.clone(), request.params.clone())
        };
        let mut outcome = self.run(&Setup::plain(model), &[request]);
        let given = Rc::new(outcome.given.pop().expect("one request"));
        self.solo.borrow_mut().insert(key, Rc::clone(&given));
        given
    }

    /// The whole texts of requests.
    fn texts(&self, model: &'static str, requests: &[Asked]) -> Texts {
        let text = |request: &Asked| {
            let given = self.alone(model, request);
            let name = (request.params.seed, request.prompt.len());
            (name, [request.prompt.as_slice(), &given.tokens].concat())
        };
        requests.iter().map(text).collect()
    }

    fn pipeline(
        &self,
        setup: &Setup,
        requests: &[Asked],
        texts: Texts,
    ) -> (Pipeline<DeviceRunner<Device>, RealClock>, Device) {
        let backend = Checked::new(Cpu::new(CpuOptions {
            threads: setup.threads,
            instructions: Instructions::detect(),
        }));
        let load = |name: &str| {
            paceline_models::load(&backend, &self.checkpoint(name), None, &|_| {}).expect("the fixture loads")
        };
        let mut model = load(setup.model);
        let other = match setup.drafter {
            Drafter::Itself => Some(load(setup.model)),
            Drafter::Other => Some(load(companion(setup.model))),
            _ => None,
        };
        let has_state = |model: &Decoder<Device>| !model.state_shapes(1).is_empty();
        let recurrent = has_state(&model) || other.as_ref().is_some_and(has_state);
        let config = runner_config(setup, requests, recurrent);
        let checkpoint = self.checkpoint(setup.model);
        let proposer = proposer(
            (&backend, &checkpoint, &mut model),
            other,
            (setup, &config),
            texts,
        );
        let clock = RealClock::since(backend.epoch());
        let device = backend.clone();
        let mut runner = DeviceRunner::new(backend, model, config).expect("memory for a small model");
        if let Some(proposer) = proposer {
            runner = runner.with_proposer(proposer);
        }
        runner.warm_up().expect("memory for a small model");
        device.seal();
        let scheduler = Scheduler::with_policy(scheduler_config(setup, &config, recurrent), policy(setup));
        let mut pipeline = Pipeline::new(scheduler, runner, clock, setup.depth);
        if config.masks > 0 {
            let workers = MaskPool::new(2, setup.batch).expect("threads");
            pipeline = pipeline.with_mask_workers(Box::new(workers));
        }
        (pipeline, device)
    }
}

/// A model with the same vocabulary that drafts for this one; of the other kind where there is one.
fn companion(model: &str) -> &'static str {
    match model {
        "storyteller" => "storyteller",
        "llama" | "qwen3" => "qwen3_5",
        _ => "llama",
    }
}

fn policy(setup: &Setup) -> Box<dyn DraftPolicy> {
    if setup.depth_control {
        Box::new(DepthControl::new())
    } else {
        Box::new(FixedDrafts(most(setup)))
    }
}

/// Most drafts by source.
fn most(setup: &Setup) -> DraftBudget {
    let (ngram, neural) = match setup.drafter {
        Drafter::Off => (0, 0),
        Drafter::Ngram | Drafter::Scripted(_) => (setup.drafts, 0),
        Drafter::Mtp | Drafter::Eagle3 | Drafter::Itself | Drafter::Other => (0, setup.drafts),
        Drafter::Chain => (setup.drafts, setup.drafts),
    };
    DraftBudget { ngram, neural }
}

fn proposer(
    (backend, checkpoint, model): (&Device, &Checkpoint, &mut Decoder<Device>),
    other: Option<Decoder<Device>>,
    (setup, config): (&Setup, &RunnerConfig),
    texts: Texts,
) -> Option<Box<dyn Proposer<Device>>> {
    let ngram = || NgramProposer::new(backend, config, (2, 4)).expect("memory for the index");
    let eagle = |model: &Decoder<Device>| -> Box<dyn Proposer<Device>> {
        let checkpoint = random_eagle3(checkpoint, None, 7);
        let head = Eagle3::load(backend, &checkpoint, model, None, &|_| {}).expect("the head fits");
        Box::new(HeadProposer::new((backend, model), Box::new(head), config).expect("memory for the head"))
    };
    let own = |model: &mut Decoder<Device>| -> Option<Box<dyn Proposer<Device>>> {
        let head = model.mtp.take()?;
        Some(Box::new(
            HeadProposer::new((backend, model), Box::new(head), config).expect("memory for the head"),
        ))
    };
    match setup.drafter {
        Drafter::Off => None,
        Drafter::Ngram => Some(Box::new(ngram())),
        Drafter::Mtp => own(model),
        Drafter::Eagle3 => Some(eagle(model)),
        Drafter::Itself | Drafter::Other => {
            let drafter = other.expect("a draft model");
            Some(Box::new(
                ModelProposer::new(backend, drafter, config).expect("memory for the draft model"),
            ))
        }
        Drafter::Chain => {
            let neural = own(model).unwrap_or_else(|| eagle(model));
            Some(Box::new(Chain::new(ngram(), neural)))
        }
        Drafter::Scripted(script) => Some(Box::new(Scripted::new(script, texts))),
    }
}

fn runner_config(setup: &Setup, requests: &[Asked], recurrent: bool) -> RunnerConfig {
    let longest = requests
        .iter()
        .map(|request| request.prompt.len() + request.params.max_tokens)
        .max()
        .unwrap_or(1);
    let blocks_per_slot = longest.div_ceil(setup.block_size);
    let plenty = 2 * requests.len() * blocks_per_slot + 8;
    RunnerConfig {
        slots: setup.batch,
        tokens: setup.budget,
        samples: setup.budget,
        blocks: setup.spare_blocks.map_or(plenty, |spare| blocks_per_slot + spare),
        blocks_per_slot,
        block_size: setup.block_size,
        snapshots: if recurrent { setup.snapshots } else { 0 },
        drafts: setup.drafts,
        // Few: some constrained plan rows find no room in a step, and wait.
        masks: if requests.iter().any(|request| request.constraint.is_some()) {
            2 + setup.drafts
        } else {
            0
        },
        depth: setup.depth,
    }
}

fn scheduler_config(setup: &Setup, config: &RunnerConfig, recurrent: bool) -> SchedulerConfig {
    SchedulerConfig {
        slots: setup.batch,
        max_batched_tokens: setup.budget,
        max_step_ns: None,
        max_samples: setup.budget,
        max_masks: config.masks,
        block_size: setup.block_size,
        num_blocks: config.blocks,
        blocks_per_request: config.blocks_per_slot,
        max_waiting: 64,
        drafts: setup.drafts,
        recurrent: recurrent.then_some(RecurrentConfig {
            snapshots: config.snapshots,
            interval: 2 * setup.block_size,
        }),
        prefix_caching: setup.caching,
    }
}

fn drive(
    pipeline: &mut Pipeline<DeviceRunner<Device>, RealClock>,
    requests: &[Asked],
    speculation: DraftBudget,
) -> Vec<Given> {
    let mut given = vec![Given::empty(); requests.len()];
    let mut ended = vec![false; requests.len()];
    for turn in 0.. {
        assert!(turn < TURNS, "the loop does not end");
        for (index, request) in requests.iter().enumerate() {
            let id = RequestId(index as u64);
            if request.arrives == turn {
                let new = new_request(id, request, speculation);
                pipeline.scheduler_mut().add(new).expect("the request fits");
            }
            if request
                .cancelled
                .is_some_and(|after| request.arrives + after == turn)
            {
                pipeline.scheduler_mut().cancel(id);
            }
        }
        for request_output in pipeline.step().expect("the device works").request_outputs {
            take(&mut given, &mut ended, request_output);
        }
        pipeline.scheduler().check_integrity();
        let arrived = requests.iter().all(|request| request.arrives <= turn);
        if arrived && ended.iter().all(|ended| *ended) && pipeline.is_idle() {
            break;
        }
    }
    given
}

fn new_request(id: RequestId, request: &Asked, speculation: DraftBudget) -> CheckedRequest {
    let params = request.params.clone();
    CheckedRequest {
        id,
        prompt: request.prompt.as_slice().into(),
        stop_tokens: params.stop_tokens.as_slice().into(),
        max_length: request.prompt.len() + params.max_tokens,
        params: Arc::new(params),
        priority: request.priority,
        deadline: None,
        tenant: 0,
        salt: 0,
        group: request.group.map(GroupId),
        speculation: if request.undrafted {
            DraftBudget::NONE
        } else {
            speculation
        },
        constraint: request.constraint.as_ref().map(|(_, it)| Arc::clone(it)),
        pooling: None,
    }
}

fn take(given: &mut [Given], ended: &mut [bool], request_output: RequestOutput) {
    let index = request_output.id.0 as usize;
    assert!(!ended[index], "request {index} goes on after its end");
    let given = &mut given[index];
    given.tokens.extend(request_output.tokens);
    given.logprobs.extend(request_output.logprobs);
    if let Some(finish) = request_output.finish {
        ended[index] = true;
        given.ending = match finish {
            FinishReason::Stop | FinishReason::Length => Ending::Finished,
            FinishReason::Cancelled | FinishReason::Deadline => Ending::Cancelled,
            FinishReason::Constraint => Ending::DeadEnd,
        };
    }
}
