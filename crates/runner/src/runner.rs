//! The device side of the step loop.

use crate::decode::{RowNote, decode};
use crate::encode::encode;
use crate::programs::{ProgramReport, ProgramSet, Shape};
use crate::propose::{Proposer, RowsRead, Stage};
use crate::text_fit::TextFit;
use paceline_device::abi::{Logprobs, PlanLimits, PlanMessage, RecordLimits};
use paceline_device::{
    Accept, Backend, DeviceError, FreePlaces, Pending, PoolStates, PoolTable, Prepare, Publish, RingPlace,
    SampleOptions, SampledText, Sampling, SlotLimits, SlotTable, StepLimits, StepRecord, StepRings,
    StepTables, Workspace,
};
use paceline_models::{Caches, Decoder, DraftScope, Forward, ModelError};
use paceline_schedule::{RunnerFault, StepRunner};
use paceline_types::{MAX_DRAFTS, PlanRow, SamplingParams, StepOutput, StepPlan, Work};
use std::sync::Arc;
use std::time::Instant;

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
    /// Most masks of a step: a constrained plan row has one more than drafts. 0 if none may be constrained.
    pub masks: usize,
    /// Most steps in flight.
    pub depth: usize,
}

/// A step on the device. It owns its place in the rings, so no two steps share one.
pub struct InFlight<B: Backend> {
    step: u64,
    /// The step as the device counts it.
    number: u64,
    place: RingPlace,
    record: B::Arrival,
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
    programs: ProgramSet<B>,
    rings: StepRings<B>,
    /// Places of the rings that no step in flight has.
    free: FreePlaces,
    /// Per place: what the host remembers of the plan rows until their record arrives.
    notes: Vec<Vec<RowNote>>,
    /// Steps submitted.
    submitted: u64,
    /// The plan of the running step, in device memory.
    plan: B::Buffer<i32>,
    record: StepRecord<B>,
    sampled: B::Buffer<i32>,
    logprobs: B::Buffer<Logprobs>,
    pooled: PoolTable<B>,
    params: Vec<Option<Arc<SamplingParams>>>,
    /// Of a proposer that has the choice between its output matrix and a part of it.
    text_fit: Option<TextFit>,
    message: PlanMessage,
    config: RunnerConfig,
}

impl<B: Backend> DeviceRunner<B> {
    /// Allocates everything steps need.
    pub fn new(backend: B, model: Decoder<B>, config: RunnerConfig) -> Result<Self, ModelError> {
        let RunnerConfig {
            slots,
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
        let slot_table = SlotTable::new(&backend, slot_limits)?;
        let mut tables = StepTables::new(&backend, limits)?;
        tables.block_table = slot_table.block_table.clone();
        let (plan_words, record_words) = config.message_words(&model);
        let caches = model.caches(&backend, &config.cache_sizes())?;
        Ok(Self {
            caches,
            slots: slot_table,
            tables,
            workspace: Workspace::new(backend.clone()),
            programs: ProgramSet::new(&config, None),
            rings: StepRings::new(&backend, config.depth, (plan_words, record_words))?,
            free: FreePlaces::new(config.depth),
            notes: vec![Vec::new(); config.depth],
            submitted: 0,
            plan: backend.buffer(plan_words)?,
            record: StepRecord::new(&backend, slots)?,
            sampled: backend.buffer(samples)?,
            logprobs: backend.buffer(samples)?,
            pooled: PoolTable::new(&backend, slots, model.dims.hidden)?,
            params: vec![None; slots],
            text_fit: None,
            message: PlanMessage::new(mask_words(&model)),
            config,
            proposer: None,
            model,
            backend,
        })
    }

    /// The same runner with a proposer.
    #[must_use]
    pub fn with_proposer(mut self, proposer: Box<dyn Proposer<B>>) -> Self {
        let read = proposer.rows_read();
        self.programs = ProgramSet::new(&self.config, proposer.is_neural().then_some(read));
        self.text_fit = match read {
            RowsRead::PartWhereItFits(part) => Some(TextFit::new(part, self.config.slots)),
            RowsRead::Whole | RowsRead::Part(_) => None,
        };
        self.proposer = Some(proposer);
        self
    }

    /// The model.
    pub fn model(&self) -> &Decoder<B> {
        &self.model
    }

    /// The programs.
    pub fn programs(&self) -> &ProgramSet<B> {
        &self.programs
    }

    /// Captures all programs, the largest first: it takes all scratch there will be. Nothing is allocated or captured
    /// after that.
    pub fn warm_up(&mut self) -> Result<ProgramReport, DeviceError> {
        let (started, before) = (Instant::now(), self.backend.allocated());
        for shape in self.programs.missing() {
            let program = self.capture(shape)?;
            self.programs.insert(shape, program);
        }
        let scratch = self.backend.allocated().saturating_sub(before);
        Ok(self.programs.complete(started.elapsed(), scratch))
    }

    fn capture(&self, shape: Shape) -> Result<B::Program, DeviceError> {
        self.backend.begin_capture();
        let outcome = self.record_step(shape);
        let program = self.backend.end_capture();
        outcome.map(|()| program)
    }

    /// The program of a shape. One that is missing is captured now, and counted: that happens only to a runner that was
    /// not warmed up.
    fn program(&mut self, shape: Shape) -> Result<B::Program, DeviceError> {
        if let Some(program) = self.programs.get(shape) {
            return Ok(program.clone());
        }
        let program = self.capture(shape)?;
        self.programs.insert(shape, program.clone());
        Ok(program)
    }

    /// The tables of a step of this shape.
    fn step_tables(&self, shape: Shape) -> StepTables<B> {
        let limits = self.tables.limits;
        // Every plan row runs a token, and rows of logits come from tokens.
        let (requests, samples) = (
            shape.tokens.min(limits.requests),
            shape.tokens.min(limits.samples),
        );
        let tables = self.tables.with_buckets(shape.tokens, requests, samples);
        tables.with_prompts(shape.prompts)
    }

    /// The whole step: prepare, forward, sample, accept, draft, publish.
    fn record_step(&self, shape: Shape) -> Result<(), DeviceError> {
        let backend = &self.backend;
        let step = self.step_tables(shape);
        backend.prepare(Prepare {
            rings: &self.rings,
            plan: &self.plan,
            slots: &self.slots,
            step: &step,
            record: &self.record,
        });
        let mut cx = Forward::new(backend, &step, &self.workspace, &self.caches);
        let taps = self.proposer.as_ref().map_or(&[][..], |proposer| proposer.taps());
        let (hidden, tapped) = self.model.forward_tapped(&mut cx, taps)?;
        if shape.prompts {
            backend.pool_states(PoolStates {
                plan: &self.plan,
                step: &step,
                states: &hidden,
                table: &self.pooled,
            });
        }
        let sampling = Sampling {
            step: &step,
            options: Some(SampleOptions {
                slots: &self.slots,
                plan: &self.plan,
            }),
            text: SampledText::Step,
            tokens: &self.sampled,
            logprobs: &self.logprobs,
        };
        self.model.sample(&cx, &hidden, sampling)?;
        backend.accept(Accept {
            plan: &self.plan,
            slots: &self.slots,
            step: &step,
            tokens: &self.sampled,
            record: &self.record,
        });
        backend.mark_drafting(&self.record);
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
                scope: shape.scope,
            })?;
        }
        backend.publish(Publish {
            rings: &self.rings,
            plan: &self.plan,
            slots: &self.slots,
            step: &step,
            record: &self.record,
            logprobs: &self.logprobs,
            pooled: &self.pooled,
        });
        Ok(())
    }

    /// Takes in what the plan tells of texts, and says which tokens drafts are to be chosen among.
    fn draft_scope(&mut self, step: &StepPlan) -> DraftScope {
        let Some(fit) = &mut self.text_fit else {
            return DraftScope::Whole;
        };
        for admission in &step.admissions {
            fit.forget(admission.slot);
        }
        for row in &step.rows {
            if let Work::Prefill { tokens, .. } = &row.work {
                fit.see(row.slot, tokens);
            }
        }
        fit.scope(&step.rows)
    }

    /// Most drafts wanted behind any plan row. A plan row that chooses no token has none, but is to be seen.
    fn wanted_drafts(step: &StepPlan) -> usize {
        let wanted = step.rows.iter().map(|row| match row.work {
            Work::Prefill { last: false, .. } => row.propose.neural.min(1),
            _ => row.propose.neural,
        });
        wanted.max().unwrap_or(0)
    }
}

impl RunnerConfig {
    /// Tokens that tables and scratch have room for: a step's, and one more per slot for a draft head. Both have the
    /// same size, so that they share scratch.
    pub(crate) fn table_tokens(&self) -> usize {
        self.tokens + self.slots
    }

    /// Words of the largest plan and of the largest record.
    fn message_words<B: Backend>(&self, model: &Decoder<B>) -> (usize, usize) {
        let plan = PlanLimits {
            slots: self.slots,
            tokens: self.tokens,
            block_size: self.block_size,
            blocks: self.blocks,
            masks: self.masks,
            mask_words: mask_words(model),
        };
        let record = RecordLimits {
            rows: self.slots,
            samples: self.samples,
            embedding_width: model.dims.hidden,
        };
        (plan.words(), record.words())
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

/// What has to be known of a plan row to read its record, with the parameters of each slot.
fn note(row: &PlanRow, params: &[Option<Arc<SamplingParams>>]) -> RowNote {
    let params = params[row.slot.0 as usize].as_ref();
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
        slot: row.slot,
        logprobs: params
            .and_then(|params| params.logprobs)
            .filter(|_| row.work.samples() > 0),
        prompt_logprobs: prompt.map(|count| (count, prompt_rows)),
        embeds: matches!(row.work, Work::Embed { last: true, .. }),
        shows_drafts: row.show_drafts,
    }
}

/// Words of a mask: a bit per token.
fn mask_words<B: Backend>(model: &Decoder<B>) -> usize {
    model.dims.vocabulary.div_ceil(32)
}

impl<B: Backend> StepRunner for DeviceRunner<B> {
    type InFlight = InFlight<B>;

    /// Writes the plan to its place in the ring and launches its program. Never waits for the device.
    fn submit(&mut self, step: &StepPlan) -> Result<InFlight<B>, RunnerFault> {
        let fault = |error: &dyn std::fmt::Display| RunnerFault(error.to_string());
        for admission in &step.admissions {
            self.params[admission.slot.0 as usize] = Some(Arc::clone(&admission.params));
        }
        let prompts = |row: &PlanRow| !matches!(row.work, Work::Verify { .. });
        let scope = self.draft_scope(step);
        let shape = self.programs.shape(
            step.tokens(),
            Self::wanted_drafts(step),
            step.rows.iter().any(prompts),
            scope,
        );
        let program = self.program(shape).map_err(|error| fault(&error))?;
        encode(step, &mut self.message).map_err(|error| fault(&error))?;
        let place = self.free.take();
        let place = place.ok_or_else(|| fault(&"more steps in flight than the rings have places"))?;
        let notes = &mut self.notes[place.index()];
        notes.clear();
        notes.extend(step.rows.iter().map(|row| note(row, &self.params)));
        self.submitted += 1;
        let words = self.message.encode(self.submitted);
        self.backend.post(&self.rings.plans, &place, words);
        self.backend.launch(&program);
        Ok(InFlight {
            step: step.step,
            number: self.submitted,
            record: self.backend.arrival(&self.rings.records, &place),
            place,
        })
    }

    /// Waits for a step's record, once: the one place where the host waits for the device.
    fn collect(&mut self, step: InFlight<B>) -> Result<StepOutput, RunnerFault> {
        let words = step
            .record
            .wait()
            .map_err(|error| RunnerFault(error.to_string()))?;
        let notes = &self.notes[step.place.index()];
        let output = decode((step.step, step.number), &words, notes);
        if let (Some(fit), Ok(output)) = (&mut self.text_fit, &output) {
            for (row, note) in output.rows.iter().zip(notes) {
                fit.see(note.slot, &row.tokens);
            }
        }
        self.free.put_back(step.place);
        output
    }

    fn host_waits(&self) -> u64 {
        self.backend.host_waits()
    }

    fn hand_back(&mut self) {
        let of_drafter = self.proposer.as_ref().and_then(|proposer| proposer.caches());
        for caches in [Some(&self.caches), of_drafter].into_iter().flatten() {
            self.backend.hand_back(&caches.kv, &caches.states);
        }
    }
}
