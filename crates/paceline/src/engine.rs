//! Starting an engine.

use crate::drafter::Drafter;
use crate::handle::{Handle, Shared};
use crate::memory_plan::{Held, mask_rows, sample_rows};
use crate::request::{Bounds, MAX_CHOICES};
use crate::service::Service;
use crate::{
    Device, DeviceInfo, DrafterShape, EngineConfig, EngineLimits, MaskPool, MemoryPlan, Outline, Speculation,
    StartError,
};
use paceline_device::Backend;
use paceline_models::{Decoder, ModelError};
use paceline_runner::{DeviceRunner, ProgramReport, RunnerConfig};
use paceline_schedule::{
    DepthControl, DraftPolicy, FixedDrafts, Pipeline, RealClock, RecurrentConfig, Scheduler, SchedulerConfig,
    StepRunner,
};
use paceline_weights::Checkpoint;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::sync_channel;
use std::thread;

/// An engine's beginning.
pub struct Engine;

/// The checkpoints of an engine.
#[derive(Clone, Copy)]
pub struct ModelFiles<'a> {
    /// Files of the model that answers.
    pub model: &'a Checkpoint,
    /// A model or an EAGLE-3 head that drafts for it.
    pub drafter: Option<&'a Checkpoint>,
}

impl<'a> From<&'a Checkpoint> for ModelFiles<'a> {
    fn from(model: &'a Checkpoint) -> Self {
        Self { model, drafter: None }
    }
}

/// A model on its device with its memory planned: everything an engine needs but its thread.
pub struct EngineParts<B: Backend> {
    backend: B,
    pub(crate) device: DeviceInfo,
    model: Decoder<B>,
    drafter: Drafter<B>,
    pub(crate) speculation: Speculation,
    config: EngineConfig,
    pub(crate) memory: MemoryPlan,
}

impl Engine {
    /// Loads a checkpoint's model on the device that the configuration asks for, and starts the step loop. `progress`
    /// is told the bytes of each tensor as it is loaded.
    ///
    /// ```
    /// use paceline::{DeviceChoice, Engine, EngineConfig};
    /// use std::cell::Cell;
    /// # let checkpoint = paceline_testkit::storyteller();
    ///
    /// let config = EngineConfig {
    ///     device: DeviceChoice::Cpu,
    ///     max_num_seqs: 4,
    ///     max_model_len: Some(256),
    ///     ..EngineConfig::default()
    /// };
    /// let loaded = Cell::new(0);
    /// let engine = Engine::start(&checkpoint, config, &|bytes| loaded.set(loaded.get() + bytes))?;
    /// assert_eq!(engine.max_model_len(), 256);
    /// assert!(loaded.get() > 10_000_000);
    ///
    /// // What cannot be had is an error that names the option and its bound, before anything is loaded.
    /// let too_deep = EngineConfig { pipeline_depth: 9, ..EngineConfig::default() };
    /// let error = Engine::start(&checkpoint, too_deep, &|_| {}).err().ok_or("nine steps in flight")?;
    /// assert!(error.to_string().contains("pipeline-depth"), "{error}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn start<'a>(
        files: impl Into<ModelFiles<'a>>,
        config: EngineConfig,
        progress: &dyn Fn(u64),
    ) -> Result<Handle, StartError> {
        Device::open(&config)?.load(files, config, progress)?.start()
    }
}

impl<B: Backend> EngineParts<B> {
    /// Loads a checkpoint's model and its drafter on a device, and plans the memory.
    pub fn load<'a>(
        backend: B,
        files: impl Into<ModelFiles<'a>>,
        config: EngineConfig,
        progress: &dyn Fn(u64),
    ) -> Result<Self, StartError> {
        let of_model = backend.clone();
        Self::load_with((backend, &of_model), files, config, progress)
    }

    /// The same where the model's weights are made in another way than the drafter's.
    pub(crate) fn load_with<'a>(
        (backend, of_model): (B, &B),
        files: impl Into<ModelFiles<'a>>,
        config: EngineConfig,
        progress: &dyn Fn(u64),
    ) -> Result<Self, StartError> {
        config.check()?;
        let (files, device) = (files.into(), backend.info());
        // What does not fit is known before anything is loaded.
        let (config, speculation, memory) = plan((&backend, &device), files, config)?;
        let model = load_model(of_model, files.model, &config, progress)?;
        let place = (&backend, &model);
        let drafter = Drafter::load(place, files.drafter, (&speculation, &config), progress)?;
        Ok(Self {
            backend,
            device,
            model,
            drafter,
            speculation,
            config,
            memory,
        })
    }

    /// Starts the step loop on its own thread, with a runner of the caller's around that of the device: an instrument
    /// that watches steps, or one that lets them fail.
    pub fn start_around<R>(self, around: impl FnOnce(DeviceRunner<B>) -> R) -> Result<Handle, StartError>
    where
        R: StepRunner + Send + 'static,
        R::InFlight: Send,
    {
        let Self {
            backend,
            device,
            model,
            drafter,
            speculation,
            config,
            memory,
        } = self;
        let clock = RealClock::since(backend.epoch());
        let bounds = Arc::new(Bounds {
            vocabulary: model.dims.vocabulary,
            width: model.dims.hidden,
            max_model_len: memory.max_model_len,
            max_choices: config.max_num_seqs.min(MAX_CHOICES),
            eos: model.dims.eos.clone(),
            speculation,
            constraints: config.constraints,
            clock,
            next_id: AtomicU64::new(0),
        });
        let shape = drafter.shape(&model, &speculation, config.block_size);
        let samples = sample_rows(&config, speculation.draft_tokens, model.dims.vocabulary);
        let masks = mask_rows(&config, speculation.draft_tokens, model.dims.vocabulary);
        let rows = (samples, masks);
        let limits = scheduler_config((&model, &shape), (&config, &speculation), &memory, rows);
        let scheduler = Scheduler::with_policy(limits, draft_policy(&speculation));
        if let Some(feed) = &config.cache_feed {
            scheduler.tell_cache_changes(feed.clone());
        }
        let runner_config = runner_config((&config, &speculation), &memory, rows);
        let (runner, programs) = build_runner(backend, (model, drafter), &speculation, runner_config)?;
        let mut pipeline = Pipeline::new(scheduler, around(runner), clock, config.pipeline_depth);
        if config.constraints {
            // Masks take little time next to steps; a few threads do for many requests.
            let threads = config.threads.div_ceil(4).min(4);
            pipeline = pipeline.with_mask_workers(Box::new(MaskPool::new(threads, memory.slots)?));
        }
        let shared = Arc::new(Shared::new((memory.blocks, memory.snapshot_count), config.trace));
        let limits = engine_limits(&config, &bounds, programs);
        let max_open = config.max_waiting + config.max_num_seqs;
        let (intake, jobs) = sync_channel(max_open);
        let told = Arc::clone(&shared);
        let hand_back_after = config.hand_back_after.filter(|_| device.shares_host_memory);
        let service = Service::new(pipeline, jobs, told).hand_back_after(hand_back_after);
        thread::Builder::new()
            .name("paceline-engine".to_owned())
            .spawn(move || service.run())?;
        Ok(Handle {
            intake,
            shared,
            bounds,
            device: Arc::new(device),
            memory,
            limits,
            max_open,
            packed: config.packed.map(|packed| packed.path().into()),
        })
    }
}

/// Plans the memory, for as much at a time as fits.
fn plan<B: Backend>(
    (backend, device): (&B, &DeviceInfo),
    files: ModelFiles<'_>,
    mut config: EngineConfig,
) -> Result<(EngineConfig, Speculation, MemoryPlan), StartError> {
    loop {
        let outline = Outline::load(files, &config, device)?;
        let speculation = *outline.speculation();
        let measure = |runner| rehearse(backend, files, &config, (&speculation, runner));
        match MemoryPlan::new(outline, &config, device, &measure) {
            Err(StartError::Memory(_)) if config.lower() => {}
            planned => return Ok((config, speculation, planned?)),
        }
    }
}

/// What an engine would hold on a device, if the device can tell.
pub(crate) fn rehearse<B: Backend>(
    backend: &B,
    files: ModelFiles<'_>,
    config: &EngineConfig,
    (speculation, runner): (&Speculation, RunnerConfig),
) -> Option<Result<Held, StartError>> {
    let device = backend.rehearsal()?;
    let held = || {
        let model = load_model(&device, files.model, config, &|_| {})?;
        let drafter = Drafter::load((&device, &model), files.drafter, (speculation, config), &|_| {})?;
        let weights = device.allocated();
        let _runner = build_runner(device.clone(), (model, drafter), speculation, runner)?;
        Ok(Held {
            weights,
            all: device.allocated(),
        })
    };
    Some(held())
}

/// The model that answers, with its weights or with some that are made up.
pub(crate) fn load_model<B: Backend>(
    backend: &B,
    checkpoint: &Checkpoint,
    config: &EngineConfig,
    progress: &dyn Fn(u64),
) -> Result<Decoder<B>, ModelError> {
    match checkpoint.config().filter(|_| config.random_weights) {
        Some(json) => paceline_models::load_random(backend, json, config.weight_types(), progress),
        None => paceline_models::load(backend, checkpoint, config.weight_types(), progress),
    }
}

fn engine_limits(config: &EngineConfig, bounds: &Bounds, programs: ProgramReport) -> EngineLimits {
    EngineLimits {
        pipeline_depth: config.pipeline_depth,
        max_num_batched_tokens: config.max_num_batched_tokens,
        max_waiting: config.max_waiting,
        max_choices: bounds.max_choices,
        prefix_caching: config.prefix_caching,
        threads: config.threads,
        programs,
    }
}

/// A runner with all that it needs: nothing is allocated after this.
pub(crate) fn build_runner<B: Backend>(
    backend: B,
    (mut model, drafter): (Decoder<B>, Drafter<B>),
    speculation: &Speculation,
    config: RunnerConfig,
) -> Result<(DeviceRunner<B>, ProgramReport), ModelError> {
    let proposer = drafter.proposer((&backend, &mut model), speculation, &config)?;
    let mut runner = DeviceRunner::new(backend, model, config)?;
    if let Some(proposer) = proposer {
        runner = runner.with_proposer(proposer);
    }
    let programs = runner.warm_up()?;
    Ok((runner, programs))
}

fn draft_policy(speculation: &Speculation) -> Box<dyn DraftPolicy> {
    if speculation.depth_control {
        Box::new(DepthControl::new())
    } else {
        Box::new(FixedDrafts(speculation.most()))
    }
}

pub(crate) fn runner_config(
    (config, speculation): (&EngineConfig, &Speculation),
    memory: &MemoryPlan,
    (samples, masks): (usize, usize),
) -> RunnerConfig {
    RunnerConfig {
        slots: memory.slots,
        tokens: config.max_num_batched_tokens,
        samples,
        blocks: memory.blocks,
        blocks_per_slot: memory.blocks_per_slot,
        block_size: memory.block_size,
        snapshots: memory.snapshot_count,
        drafts: speculation.draft_tokens,
        masks,
        depth: config.pipeline_depth,
    }
}

fn scheduler_config<B: Backend>(
    (model, drafter): (&Decoder<B>, &DrafterShape),
    (config, speculation): (&EngineConfig, &Speculation),
    memory: &MemoryPlan,
    (samples, masks): (usize, usize),
) -> SchedulerConfig {
    // A recurrent drafter of a model that is not needs its states saved all the same.
    let recurrent = !model.state_shapes(1).is_empty() || !drafter.states.is_empty();
    SchedulerConfig {
        slots: memory.slots,
        max_batched_tokens: config.max_num_batched_tokens,
        max_step_ns: config
            .max_step
            .map(|limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)),
        max_samples: samples,
        max_masks: masks,
        block_size: memory.block_size,
        num_blocks: memory.blocks,
        blocks_per_request: memory.blocks_per_slot,
        max_waiting: config.max_waiting + config.max_num_seqs,
        drafts: speculation.draft_tokens,
        recurrent: recurrent.then_some(RecurrentConfig {
            snapshots: memory.snapshot_count,
            // A plan row passes one point to save at: points are no closer than lets a step be a full one.
            interval: config.snapshot_interval.max(config.max_num_batched_tokens),
        }),
        prefix_caching: config.prefix_caching,
    }
}
