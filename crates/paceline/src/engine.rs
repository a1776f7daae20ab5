//! Starting an engine.

use crate::handle::{Handle, Shared};
use crate::memory_plan::sample_rows;
use crate::request::Bounds;
use crate::service::Service;
use crate::{EngineConfig, MemoryPlan, StartError, Stats};
use paceline_device_cpu::{Cpu, CpuOptions, Instructions};
use paceline_models::{Decoder, ModelError};
use paceline_runner::{DeviceRunner, RunnerConfig};
use paceline_schedule::{Pipeline, RealClock, RecurrentConfig, Scheduler, SchedulerConfig};
use paceline_weights::Checkpoint;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread;

/// An engine's beginning.
pub struct Engine;

/// A model on its device with its memory planned: everything an engine needs but its thread.
pub struct EngineParts {
    backend: Cpu,
    model: Decoder<Cpu>,
    config: EngineConfig,
    memory: MemoryPlan,
}

impl Engine {
    /// Loads a checkpoint's model and starts the step loop. `progress` is told the bytes of each tensor as it is
    /// loaded.
    pub fn start(
        checkpoint: &Checkpoint,
        config: EngineConfig,
        progress: &dyn Fn(u64),
    ) -> Result<Handle, StartError> {
        EngineParts::load(checkpoint, config, progress)?.start()
    }
}

impl EngineParts {
    /// Loads a checkpoint's model and plans the memory.
    pub fn load(
        checkpoint: &Checkpoint,
        config: EngineConfig,
        progress: &dyn Fn(u64),
    ) -> Result<Self, StartError> {
        config.check()?;
        let backend = Cpu::new(CpuOptions {
            threads: config.threads,
            instructions: Instructions::detect(),
        });
        let model = paceline_models::load(&backend, checkpoint, config.dtype, progress)?;
        let memory = MemoryPlan::new(&model, &config)?;
        Ok(Self {
            backend,
            model,
            config,
            memory,
        })
    }

    /// The memory the engine will take.
    pub fn memory(&self) -> &MemoryPlan {
        &self.memory
    }

    /// Starts the step loop on its own thread.
    pub fn start(self) -> Result<Handle, StartError> {
        let Self {
            backend,
            model,
            config,
            memory,
        } = self;
        let bounds = Arc::new(Bounds {
            vocabulary: model.dims.vocabulary,
            max_model_len: memory.max_model_len,
            max_choices: config.max_num_seqs.min(128),
            eos: model.dims.eos.clone(),
        });
        let scheduler = Scheduler::new(scheduler_config(&model, &config, &memory));
        let runner_config = runner_config(&model, &config, &memory);
        let clock = RealClock::since(backend.started());
        let mut runner = DeviceRunner::new(backend, model, runner_config)?;
        runner.warm_up().map_err(ModelError::from)?;
        let pipeline = Pipeline::new(scheduler, runner, clock, config.pipeline_depth);
        let shared = Arc::new(Shared {
            stats: Mutex::new(Stats {
                blocks: memory.blocks,
                snapshots: memory.snapshot_count,
                ..Stats::default()
            }),
            trace: Mutex::default(),
            open: AtomicUsize::new(0),
            stopped: Mutex::default(),
        });
        let max_open = config.max_waiting + config.max_num_seqs;
        let (intake, jobs) = sync_channel(max_open);
        let parts = (Arc::clone(&shared), Arc::clone(&bounds));
        let service = Service::new(pipeline, clock, jobs, parts, config.trace);
        thread::Builder::new()
            .name("paceline-engine".to_owned())
            .spawn(move || service.run())?;
        Ok(Handle {
            intake,
            shared,
            bounds,
            memory,
            max_open,
        })
    }
}

fn runner_config(model: &Decoder<Cpu>, config: &EngineConfig, memory: &MemoryPlan) -> RunnerConfig {
    RunnerConfig {
        slots: memory.slots,
        tokens: config.max_num_batched_tokens,
        samples: sample_rows(config, model.dims.vocabulary),
        blocks: memory.blocks,
        blocks_per_slot: memory.blocks_per_slot,
        block_size: memory.block_size,
        snapshots: memory.snapshot_count,
        drafts: config.max_drafts,
    }
}

fn scheduler_config(model: &Decoder<Cpu>, config: &EngineConfig, memory: &MemoryPlan) -> SchedulerConfig {
    let recurrent = !model.state_shapes(1).is_empty();
    let interval = config.snapshot_interval.next_multiple_of(config.block_size);
    SchedulerConfig {
        slots: memory.slots,
        max_batched_tokens: config.max_num_batched_tokens,
        max_samples: sample_rows(config, model.dims.vocabulary),
        block_size: memory.block_size,
        num_blocks: memory.blocks,
        blocks_per_request: memory.blocks_per_slot,
        max_waiting: config.max_waiting + config.max_num_seqs,
        drafts: config.max_drafts,
        recurrent: recurrent.then_some(RecurrentConfig {
            snapshots: memory.snapshot_count,
            interval,
        }),
        prefix_caching: config.prefix_caching,
    }
}
