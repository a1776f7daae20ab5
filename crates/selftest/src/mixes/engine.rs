//! Engines for mixes: a runner on a device, a scheduler, and the loop that feeds them.

use super::{Asked, Bench, Devices, Drafter, Ending, Given, Setup, Texts};
use paceline::MaskPool;
use paceline_device::Backend;
use paceline_models::{Decoder, DraftHead, Eagle3};
use paceline_runner::{
    Chain, DeviceRunner, HeadProposer, ModelProposer, NgramProposer, Proposer, RunnerConfig,
};
use paceline_schedule::{
    CheckedRequest, DepthControl, DraftPolicy, FixedDrafts, GroupId, Pipeline, RealClock, RecurrentConfig,
    RequestId, RequestOutput, Scheduler, SchedulerConfig, StepRecord,
};
use paceline_testkit::random_eagle3;
use paceline_types::{DType, DraftBudget, FinishReason};
use paceline_weights::Checkpoint;
use std::sync::Arc;

/// Turns of the loop after which a run counts as stuck.
const TURNS: usize = 20_000;

/// A step loop and the device it runs on.
pub(super) struct Engine<B: Backend> {
    pub(super) pipeline: Pipeline<DeviceRunner<B>, RealClock>,
    pub(super) device: B,
    /// How often the host waited for the device while it was opened and loaded.
    pub(super) waits_before: u64,
}

impl<B: Backend> Engine<B> {
    /// For one request after the other, each of up to `longest` tokens.
    pub(super) fn plain<D: Devices<Device = B>>(bench: &Bench<D>, setup: &Setup, longest: usize) -> Self {
        let blocks_per_slot = longest.div_ceil(setup.block_size);
        let config = RunnerConfig {
            slots: 1,
            tokens: setup.budget,
            samples: setup.budget,
            blocks: blocks_per_slot + 8,
            blocks_per_slot,
            block_size: setup.block_size,
            snapshots: 0,
            drafts: 0,
            masks: 2,
            depth: 1,
        };
        Self::new(bench, setup, config, Texts::new())
    }

    /// For requests that were counted into `config`.
    pub(super) fn new<D: Devices<Device = B>>(
        bench: &Bench<D>,
        setup: &Setup,
        mut config: RunnerConfig,
        texts: Texts,
    ) -> Self {
        // As weights are stored: the reference models' in f32, the default model's in bf16.
        let kv = match setup.dtype {
            Some(dtype) => dtype,
            None if setup.model == "storyteller" => DType::BF16,
            None => DType::F32,
        };
        let backend = bench.devices.open(setup.threads, kv).expect("a device");
        let load = |name: &str| {
            let checkpoint = bench.checkpoint(name);
            paceline_models::load(&backend, &checkpoint, setup.dtype, &|_| {}).expect("the fixture loads")
        };
        let mut model = load(setup.model);
        let other = match setup.drafter {
            Drafter::Itself => Some(load(setup.model)),
            Drafter::Other => Some(load(companion(setup.model))),
            _ => None,
        };
        let has_state = |model: &Decoder<B>| !model.state_shapes(1).is_empty();
        let recurrent = has_state(&model) || other.as_ref().is_some_and(has_state);
        if !recurrent {
            config.snapshots = 0;
        }
        let checkpoint = bench.checkpoint(setup.model);
        let proposer = match setup.drafter {
            Drafter::Scripted(script) => bench.devices.scripted(script, texts),
            _ => proposer((&backend, &checkpoint, &mut model), other, (setup, &config)),
        };
        let clock = RealClock::since(backend.epoch());
        let device = backend.clone();
        let mut runner = DeviceRunner::new(backend, model, config).expect("memory for a small model");
        if let Some(proposer) = proposer {
            runner = runner.with_proposer(proposer);
        }
        runner.warm_up().expect("memory for a small model");
        bench.devices.started(&device);
        let waits_before = device.host_waits();
        let scheduler = Scheduler::with_policy(scheduler_config(setup, &config, recurrent), policy(setup));
        let mut pipeline = Pipeline::new(scheduler, runner, clock, setup.depth);
        if config.masks > 0 {
            let workers = MaskPool::new(2, setup.batch).expect("threads");
            pipeline = pipeline.with_mask_workers(Box::new(workers));
        }
        Self {
            pipeline,
            device,
            waits_before,
        }
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
        Box::new(FixedDrafts(budget(setup)))
    }
}

/// Most drafts by source.
pub(super) fn budget(setup: &Setup) -> DraftBudget {
    let (ngram, neural) = match setup.drafter {
        Drafter::Off => (0, 0),
        Drafter::Ngram | Drafter::Scripted(_) => (setup.drafts, 0),
        Drafter::Mtp | Drafter::Eagle3 | Drafter::Itself | Drafter::Other => (0, setup.drafts),
        Drafter::Chain => (setup.drafts, setup.drafts),
    };
    DraftBudget { ngram, neural }
}

fn proposer<B: Backend>(
    (backend, checkpoint, model): (&B, &Checkpoint, &mut Decoder<B>),
    other: Option<Decoder<B>>,
    (setup, config): (&Setup, &RunnerConfig),
) -> Option<Box<dyn Proposer<B>>> {
    let ngram = || NgramProposer::new(backend, config, (2, 4)).expect("memory for the index");
    let eagle = |model: &Decoder<B>| -> Box<dyn Proposer<B>> {
        let checkpoint = random_eagle3(checkpoint, None, 7);
        let head = Eagle3::load(backend, &checkpoint, model, None, &|_| {}).expect("the head fits");
        head_proposer((backend, model), Box::new(head), (setup, config))
    };
    let own = |model: &mut Decoder<B>| -> Option<Box<dyn Proposer<B>>> {
        let head = model.mtp.take()?;
        Some(head_proposer((backend, model), Box::new(head), (setup, config)))
    };
    match setup.drafter {
        Drafter::Off | Drafter::Scripted(_) => None,
        Drafter::Ngram => Some(Box::new(ngram())),
        Drafter::Mtp => own(model),
        Drafter::Eagle3 => Some(eagle(model)),
        Drafter::Itself | Drafter::Other => {
            let drafter = other.expect("a draft model");
            let proposer = ModelProposer::new(backend, drafter, config);
            let proposer = proposer.expect("memory for the draft model");
            let proposer = proposer.reading(backend, setup.rows_read);
            Some(Box::new(proposer.expect("memory for the draft model")))
        }
        Drafter::Chain => {
            let neural = own(model).unwrap_or_else(|| eagle(model));
            Some(Box::new(Chain::new(ngram(), neural)))
        }
    }
}

fn head_proposer<B: Backend>(
    place: (&B, &Decoder<B>),
    head: Box<dyn DraftHead<B>>,
    (setup, config): (&Setup, &RunnerConfig),
) -> Box<dyn Proposer<B>> {
    let proposer = HeadProposer::new(place, head, config).expect("memory for the head");
    Box::new(
        proposer
            .reading(place, setup.rows_read)
            .expect("memory for the head"),
    )
}

/// Room for requests. Snapshots are for models that have states.
pub(super) fn runner_config(setup: &Setup, requests: &[Asked]) -> RunnerConfig {
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
        snapshots: setup.snapshots,
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

pub(super) fn drive<B: Backend>(
    pipeline: &mut Pipeline<DeviceRunner<B>, RealClock>,
    requests: &[Asked],
    speculation: DraftBudget,
) -> Vec<Given> {
    watch(pipeline, requests, speculation, &mut |_| {})
}

/// The same; `seen` is told of every step.
pub(super) fn watch<B: Backend>(
    pipeline: &mut Pipeline<DeviceRunner<B>, RealClock>,
    requests: &[Asked],
    speculation: DraftBudget,
    seen: &mut dyn FnMut(StepRecord),
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
        let stepped = pipeline.step().expect("the device works");
        stepped.collected.into_iter().for_each(&mut *seen);
        for request_output in stepped.request_outputs {
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
        generated: Arc::default(),
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
            FinishReason::Cancelled | FinishReason::Deadline | FinishReason::Moved => Ending::Cancelled,
            FinishReason::Constraint => Ending::DeadEnd,
        };
    }
}
