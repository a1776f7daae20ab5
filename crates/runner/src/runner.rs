//! The device side of the step loop.

use crate::decode::{RowNote, decode, decode_drafts, decode_embeddings};
use crate::encode::{encode, mask_words};
use crate::propose::{Proposer, Stage};
use paceline_device::{
    Accept, Backend, DeviceError, LIST_INTS, MaskTable, Pending, PoolStates, PoolTable, Prepare,
    SAMPLE_FLOATS, Sample, SampledText, SlotLimits, SlotTable, StepLimits, StepTables, Workspace, plan,
    record, slot,
};
use paceline_models::{Caches, Decoder, Forward, ModelError};
use paceline_schedule::{RunnerFault, StepRunner};
use paceline_types::{DraftBudget, MAX_DRAFTS, PlanRow, SamplingParams, StepOutput, StepPlan, Work};
use std::collections::HashMap;
use std::sync::Arc;

/// How much a runner is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunnerConfig {
    /// Requests that can be in slots at a time.
    pub slots: usize,
    /// Most tokens of a step.
    pub tokens: usize,
    /// Most sampled positions of a step.
    pub samples: usize,
    /// Blocks in all.
    pub blocks: usize,
    /// Blocks of one request.
    pub blocks_per_slot: usize,
    /// Tokens of a block.
    pub block_size: usize,
    /// Saved recurrent states.
    pub snapshots: usize,
    /// Most drafts of a plan row.
    pub drafts: usize,
    /// Whether plan rows may have constraints: their masks take memory.
    pub constraints: bool,
}

/// The shape a program is captured for. What a program does depends on nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    tokens: usize,
    requests: usize,
    samples: usize,
    /// Of the neural drafter.
    draft_forwards: usize,
    /// Some states are pooled.
    pools: bool,
}

/// A step on the device. It owns the read of its own record, so no two steps share a host buffer.
pub struct InFlight<B: Backend> {
    step: u64,
    record: B::Read<i32>,
    logprobs: Option<B::Read<f32>>,
    /// The slots behind the step, if the host has to see drafts.
    slots: Option<B::Read<i32>>,
    /// Vectors that the step completes.
    embeddings: Option<B::Read<f32>>,
    notes: Vec<RowNote>,
}

/// A model, its caches and its slots, ready to run plans.
pub struct DeviceRunner<B: Backend> {
    backend: B,
    model: Decoder<B>,
    proposer: Option<Box<dyn Proposer<B>>>,
    caches: Caches<B>,
    slots: SlotTable<B>,
    tables: StepTables<B>,
    workspace: Workspace<B>,
    programs: HashMap<Shape, B::Program>,
    plan: B::Buffer<i32>,
    record: B::Buffer<i32>,
    sampled: B::Buffer<i32>,
    logprobs: B::Buffer<f32>,
    pooled: PoolTable<B>,
    params: Vec<Option<Arc<SamplingParams>>>,
    words: Vec<i32>,
    config: RunnerConfig,
}

impl<B: Backend> DeviceRunner<B> {
    /// Allocates everything steps need.
    pub fn new(backend: B, model: Decoder<B>, config: RunnerConfig) -> Result<Self, ModelError> {
        let RunnerConfig {
            slots,
            tokens,
            samples,
            blocks,
            blocks_per_slot,
            block_size,
            ..
        } = config;
        assert!(
            config.drafts <= MAX_DRAFTS,
            "{} drafts of at most {MAX_DRAFTS}",
            config.drafts
        );
        let requests = slots;
        let limits = StepLimits {
            tokens: config.table_tokens(),
            requests,
            samples,
            blocks_per_request: blocks_per_slot,
            block_size,
        };
        let slot_limits = SlotLimits {
            slots,
            blocks_per_slot,
            blocks,
            block_size,
            snapshots: config.snapshots,
        };
        let mut slot_table = SlotTable::new(&backend, slot_limits)?;
        if config.constraints {
            let vocabulary = model.dims.vocabulary;
            slot_table.masks = MaskTable::new(&backend, slots, 1 + config.drafts, vocabulary)?;
        }
        let mut tables = StepTables::new(&backend, limits)?;
        tables.block_table = slot_table.block_table.clone();
        let updates = (tokens + slots * MAX_DRAFTS).div_ceil(block_size) + 2 * slots + blocks;
        let plan_words =
            plan::HEADER + slots * (plan::ADMISSION + LIST_INTS + plan::ROW) + updates * plan::BLOCK + tokens;
        let caches = model.caches(&backend, &config.cache_sizes())?;
        Ok(Self {
            caches,
            slots: slot_table,
            tables,
            workspace: Workspace::new(backend.clone()),
            programs: HashMap::new(),
            plan: backend.buffer(plan_words)?,
            record: backend.buffer(record::HEADER + slots * record::ROW)?,
            sampled: backend.buffer(samples)?,
            logprobs: backend.buffer(samples * SAMPLE_FLOATS)?,
            pooled: PoolTable::new(&backend, slots, model.dims.hidden)?,
            params: vec![None; slots],
            words: Vec::new(),
            config,
            proposer: None,
            model,
            backend,
        })
    }

    /// The same runner with a proposer.
    #[must_use]
    pub fn with_proposer(mut self, proposer: Box<dyn Proposer<B>>) -> Self {
        self.programs.clear();
        self.proposer = Some(proposer);
        self
    }

    /// The model.
    pub fn model(&self) -> &Decoder<B> {
        &self.model
    }

    /// Captures the program of the largest shape, so that all scratch exists before the first request.
    pub fn warm_up(&mut self) -> Result<(), DeviceError> {
        let limits = self.tables.limits;
        let shape = Shape {
            tokens: self.config.tokens,
            requests: limits.requests,
            samples: limits.samples,
            draft_forwards: self.draft_forwards(self.config.drafts),
            // Pooling takes no scratch.
            pools: false,
        };
        self.program(shape).map(|_| ())
    }

    fn program(&mut self, shape: Shape) -> Result<B::Program, DeviceError> {
        if let Some(program) = self.programs.get(&shape) {
            return Ok(program.clone());
        }
        self.backend.begin_capture();
        let outcome = self.record_step(shape);
        let program = self.backend.end_capture();
        outcome?;
        self.programs.insert(shape, program.clone());
        Ok(program)
    }

    /// The whole step: prepare, forward, sample, accept, draft.
    fn record_step(&self, shape: Shape) -> Result<(), DeviceError> {
        let backend = &self.backend;
        let step = self
            .tables
            .with_buckets(shape.tokens, shape.requests, shape.samples);
        backend.timestamp(&self.record, record::BEGIN);
        backend.prepare(Prepare {
            plan: &self.plan,
            slots: &self.slots,
            step: &step,
        });
        let mut cx = Forward::new(backend, &step, &self.workspace, &self.caches);
        let taps = self.proposer.as_ref().map_or(&[][..], |proposer| proposer.taps());
        let (hidden, tapped) = self.model.forward_tapped(&mut cx, taps)?;
        if shape.pools {
            backend.pool_states(PoolStates {
                plan: &self.plan,
                step: &step,
                states: &hidden,
                table: &self.pooled,
            });
        }
        if shape.samples > 0 {
            let logits = self.model.logits(&cx, &hidden)?;
            backend.sample(Sample {
                logits: &logits,
                step: &step,
                slots: Some(&self.slots),
                text: SampledText::Step,
                tokens: &self.sampled,
                logprobs: &self.logprobs,
            });
        }
        backend.accept(Accept {
            plan: &self.plan,
            slots: &self.slots,
            step: &step,
            tokens: &self.sampled,
            record: &self.record,
        });
        backend.timestamp(&self.record, record::DRAFTING);
        if let Some(proposer) = &self.proposer {
            proposer.propose(&Stage {
                backend,
                model: &self.model,
                workspace: &self.workspace,
                plan: &self.plan,
                slots: &self.slots,
                step: &step,
                record: &self.record,
                states: tapped.as_ref().unwrap_or(&hidden),
                draft_forwards: shape.draft_forwards,
            })?;
        }
        backend.timestamp(&self.record, record::END);
        Ok(())
    }

    /// Passes that a program has for plan rows that want up to `drafts` drafts from the neural drafter. There are
    /// fewer programs than numbers of draft forwards: one too many finds no plan rows and costs next to nothing.
    fn draft_forwards(&self, drafts: usize) -> usize {
        match drafts {
            _ if !self
                .proposer
                .as_ref()
                .is_some_and(|proposer| proposer.is_neural()) =>
            {
                0
            }
            0..=4 => drafts,
            5..=6 => 6,
            7..=8 => 8,
            _ => MAX_DRAFTS,
        }
        .min(self.config.drafts)
    }

    /// Most drafts wanted behind any plan row. A plan row that chooses no token has none, but is to be seen.
    fn wanted_drafts(step: &StepPlan) -> usize {
        let wanted = step.rows.iter().map(|row| match row.work {
            Work::Prefill { last: false, .. } => row.propose.neural.min(1),
            _ => row.propose.neural,
        });
        wanted.max().unwrap_or(0)
    }

    fn note(&self, row: &PlanRow) -> RowNote {
        let params = self.params[row.slot.0 as usize].as_ref();
        let prompt_rows = match &row.work {
            Work::Prefill {
                tokens,
                last,
                prompt_logprobs: true,
                ..
            } => tokens.len() - usize::from(*last),
            _ => 0,
        };
        let prompt = params
            .and_then(|params| params.prompt_logprobs)
            .filter(|_| prompt_rows > 0);
        RowNote {
            logprobs: params
                .and_then(|params| params.logprobs)
                .filter(|_| row.work.samples() > 0),
            prompt_logprobs: prompt.map(|count| (count, prompt_rows)),
            embeds: matches!(row.work, Work::Embed { last: true, .. }),
            shows_drafts: (row.constraint.is_some() && row.propose != DraftBudget::NONE)
                .then_some(row.slot.0 as usize),
        }
    }

    /// Brings the masks of the step's plan rows to their slots. The stream is in order, so those of steps in flight
    /// have been read by then.
    fn write_masks(&self, step: &StepPlan) {
        let MaskTable {
            positions,
            words,
            bits,
        } = &self.slots.masks;
        for row in &step.rows {
            let Some(constraint) = &row.constraint else {
                continue;
            };
            let count = constraint.drafts.len() + 1;
            assert!(
                count <= *positions && count <= constraint.masks.len(),
                "{count} masks wanted, {} made, {positions} possible",
                constraint.masks.len()
            );
            let masks = mask_words(constraint.masks.iter().take(count), *words);
            self.backend
                .write_at(bits, row.slot.0 as usize * positions * words, &masks);
        }
    }
}

impl RunnerConfig {
    /// Tokens that tables and scratch have room for: a step's, and one more per slot for a draft head. Both have the
    /// same size, so that they share scratch.
    pub(crate) fn table_tokens(&self) -> usize {
        self.tokens + self.slots
    }

    pub(crate) fn cache_sizes(&self) -> paceline_models::CacheSizes {
        paceline_models::CacheSizes {
            blocks: self.blocks,
            block_size: self.block_size,
            slots: self.slots,
            drafts: self.drafts,
            snapshots: self.snapshots,
        }
    }
}

/// Programs are captured for powers of two; a step runs the smallest that holds it.
fn bucket(count: usize, limit: usize) -> usize {
    if count == 0 {
        0
    } else {
        count.next_power_of_two().min(limit)
    }
}

impl<B: Backend> StepRunner for DeviceRunner<B> {
    type InFlight = InFlight<B>;

    /// Writes the plan and launches its program. Never waits for the device.
    fn submit(&mut self, step: &StepPlan) -> Result<InFlight<B>, RunnerFault> {
        let fault = |error: &dyn std::fmt::Display| RunnerFault(error.to_string());
        for admission in &step.admissions {
            self.params[admission.slot.0 as usize] = Some(Arc::clone(&admission.params));
        }
        let mut words = std::mem::take(&mut self.words);
        encode(step, &mut words).map_err(|error| fault(&error))?;
        self.backend.write(&self.plan, &words);
        self.words = words;
        self.write_masks(step);
        let limits = self.tables.limits;
        let samples = step.samples();
        let shape = Shape {
            tokens: bucket(step.tokens(), self.config.tokens),
            requests: bucket(step.rows.len(), limits.requests),
            samples: bucket(samples, limits.samples),
            draft_forwards: self.draft_forwards(Self::wanted_drafts(step)),
            pools: step.rows.iter().any(|row| matches!(row.work, Work::Embed { .. })),
        };
        let program = self.program(shape).map_err(|error| fault(&error))?;
        self.backend.launch(&program);
        let notes: Vec<RowNote> = step.rows.iter().map(|row| self.note(row)).collect();
        let wanted = notes
            .iter()
            .any(|note| note.logprobs.is_some() || note.prompt_logprobs.is_some());
        let shown = notes.iter().filter_map(|note| note.shows_drafts).max();
        let embeddings = notes.iter().filter(|note| note.embeds).count();
        let record_words = record::HEADER + step.rows.len() * record::ROW;
        Ok(InFlight {
            step: step.step,
            record: self.backend.read(&self.record, record_words),
            logprobs: wanted.then(|| self.backend.read(&self.logprobs, samples * SAMPLE_FLOATS)),
            slots: shown.map(|slot| self.backend.read(&self.slots.state, (slot + 1) * slot::INTS)),
            embeddings: (embeddings > 0).then(|| {
                self.backend
                    .read(&self.pooled.done, embeddings * self.pooled.width)
            }),
            notes,
        })
    }

    /// Waits for a step's record: the one place where the host waits for the device.
    fn collect(&mut self, step: InFlight<B>) -> Result<StepOutput, RunnerFault> {
        let fault = |error: DeviceError| RunnerFault(error.to_string());
        let words = step.record.wait().map_err(fault)?;
        let floats = step.logprobs.map(Pending::wait).transpose().map_err(fault)?;
        let mut output = decode(step.step, &words, floats.as_deref(), &step.notes);
        if let Some(slots) = step.slots {
            decode_drafts(&mut output, &slots.wait().map_err(fault)?, &step.notes);
        }
        if let Some(embeddings) = step.embeddings {
            let floats = embeddings.wait().map_err(fault)?;
            decode_embeddings(&mut output, &floats, &step.notes, self.pooled.width);
        }
        Ok(output)
    }
}
