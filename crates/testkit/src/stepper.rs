//! A plain way to run a model: the host fills the tables of a step, launches its program and reads the results.
//!
//! Independent of scheduler, slots and pipeline, so it can judge them.

use paceline_device::{
    Backend, DeviceError, Pending, Sampling, Scratch, StepLimits, StepTables, Workspace,
    abi::{LogitsRow, Logprobs, RequestRow, SamplingRow, TokenRow},
};
use paceline_models::{CacheSizes, Caches, Decoder, DraftHead, Forward, ModelError};
use paceline_types::{TokenId, on_state_grid};
use std::collections::HashMap;

/// How much a stepper is built for.
#[derive(Clone, Copy, Debug)]
pub struct StepperConfig {
    /// Bounds of a step.
    pub limits: StepLimits,
    /// Blocks of key and value blocks.
    pub blocks: usize,
    /// Recurrent states.
    pub slots: usize,
}

/// One request's part in a step.
#[derive(Clone, Debug)]
pub struct StepRow<'a> {
    /// Its recurrent state.
    pub slot: usize,
    /// The tokens to run.
    pub tokens: &'a [TokenId],
    /// Position of the first of them.
    pub first_position: usize,
    /// Its blocks, in order of position.
    pub blocks: &'a [u32],
    /// Which of the tokens to sample after.
    pub samples: &'a [SampleRow],
}

/// A position to be sampled.
#[derive(Clone, Copy, Debug)]
pub struct SampleRow {
    /// Index of the token, among the plan row's tokens, whose successor is wanted.
    pub token: usize,
    /// How to choose it.
    pub params: SamplingRow,
}

/// What a step computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Program {
    /// The model.
    Model,
    /// The draft head on the model's states of the last [`Program::Model`] step. The step's tokens are those that
    /// followed.
    Draft,
    /// The draft head on its own states of the last draft step.
    DraftAgain,
}

/// The shape a program is captured for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    program: Program,
    tokens: usize,
    requests: usize,
    samples: usize,
}

/// A draft head with its caches and what is kept for it between steps.
struct Drafter<B: Backend> {
    /// `None`: the model's own.
    head: Option<Box<dyn DraftHead<B>>>,
    caches: Caches<B>,
    /// Of the model, in the rows of its last step.
    states: B::Tensor,
    /// Of the head, in the rows of its last step.
    carried: B::Tensor,
}

/// A model with its caches, ready to run steps.
pub struct Stepper<B: Backend> {
    backend: B,
    model: Decoder<B>,
    caches: Caches<B>,
    drafter: Option<Drafter<B>>,
    tables: StepTables<B>,
    slots: usize,
    workspace: Workspace<B>,
    programs: HashMap<Shape, B::Program>,
    logits: B::Tensor,
    sampled: B::Buffer<i32>,
    logprobs: B::Buffer<Logprobs>,
}

impl<B: Backend> Stepper<B> {
    /// Allocates everything steps will need but their scratch. Draft steps run the model's own head, if it has one.
    pub fn new(backend: B, model: Decoder<B>, config: StepperConfig) -> Result<Self, ModelError> {
        Self::with_head(backend, model, None, config)
    }

    /// The same with a draft head that was loaded for the model.
    pub fn with_head(
        backend: B,
        model: Decoder<B>,
        head: Option<Box<dyn DraftHead<B>>>,
        config: StepperConfig,
    ) -> Result<Self, ModelError> {
        let limits = config.limits;
        let mut tables = StepTables::new(&backend, limits)?;
        tables.block_table = backend.buffer(config.slots * limits.blocks_per_request)?;
        let sizes = CacheSizes {
            blocks: config.blocks,
            block_size: limits.block_size,
            slots: config.slots,
            drafts: 0,
            snapshots: 0,
        };
        let drafter = match head.as_deref().or(model.draft_head()) {
            Some(used) => Some(Drafter {
                caches: used.caches(&backend, &sizes)?,
                states: backend.tensor(&tables.tokens, used.input_width(&model))?,
                carried: backend.tensor(&tables.tokens, used.width())?,
                head,
            }),
            None => None,
        };
        Ok(Self {
            caches: model.caches(&backend, &sizes)?,
            drafter,
            workspace: Workspace::new(backend.clone()),
            programs: HashMap::new(),
            logits: backend.tensor(&tables.samples, model.dims.vocabulary)?,
            sampled: backend.buffer(limits.samples)?,
            logprobs: backend.buffer(limits.samples)?,
            tables,
            slots: config.slots,
            model,
            backend,
        })
    }

    /// The draft head that draft steps run.
    pub fn head(&self) -> Option<&dyn DraftHead<B>> {
        let drafter = self.drafter.as_ref()?;
        drafter.head.as_deref().or(self.model.draft_head())
    }

    /// The model.
    pub fn model(&self) -> &Decoder<B> {
        &self.model
    }

    /// Enqueues a step. Never waits for the device.
    pub fn submit(&mut self, program: Program, rows: &[StepRow<'_>]) -> Result<(), DeviceError> {
        let shape = self.write_tables(program, rows);
        if !self.programs.contains_key(&shape) {
            let captured = self.capture(shape)?;
            self.programs.insert(shape, captured);
        }
        self.backend.launch(&self.programs[&shape]);
        Ok(())
    }

    /// Waits for the last step's tokens.
    pub fn sampled(&self, count: usize) -> Result<Vec<TokenId>, DeviceError> {
        let tokens = self.backend.read(&self.sampled, count).wait()?;
        Ok(tokens.into_iter().map(|token| token as TokenId).collect())
    }

    /// Waits for the last step's logits, row by row.
    pub fn logits(&self) -> Result<Vec<f32>, DeviceError> {
        self.backend.read_tensor(&self.logits).wait()
    }

    /// Waits for what the last [`Program::Model`] step left for the draft head, row by row. Nothing without a head.
    pub fn states(&self) -> Result<Vec<f32>, DeviceError> {
        match &self.drafter {
            Some(drafter) => self.backend.read_tensor(&drafter.states).wait(),
            None => Ok(Vec::new()),
        }
    }

    fn write_tables(&self, program: Program, rows: &[StepRow<'_>]) -> Shape {
        let tables = HostTables::new(self.tables.limits, self.slots, rows);
        tables.write(&self.backend, &self.tables);
        let limits = self.tables.limits;
        Shape {
            program,
            tokens: bucket(tables.tokens.len(), limits.tokens),
            requests: bucket(rows.len(), limits.requests),
            samples: bucket(tables.logits.len(), limits.samples),
        }
    }

    /// Captures the program of a shape. What it does depends on the shape alone; see [`Backend`].
    fn capture(&self, shape: Shape) -> Result<B::Program, DeviceError> {
        self.backend.begin_capture();
        let outcome = self.record(shape);
        let program = self.backend.end_capture();
        outcome.map(|()| program)
    }

    fn record(&self, shape: Shape) -> Result<(), DeviceError> {
        let tables = self
            .tables
            .with_buckets(shape.tokens, shape.requests, shape.samples);
        let logits = match shape.program {
            Program::Model => self.record_model(&tables)?,
            Program::Draft | Program::DraftAgain => self.record_draft(shape.program, &tables)?,
        };
        let Some(logits) = logits else {
            return Ok(());
        };
        let mut kept = self
            .backend
            .reshape(&self.logits, &tables.samples, self.model.dims.vocabulary);
        self.backend.copy(&logits, &mut kept);
        let (step, tokens, logprobs) = (&tables, &self.sampled, &self.logprobs);
        let sampling = Sampling {
            step,
            options: None,
            text: paceline_device::SampledText::Step,
            tokens,
            logprobs,
        };
        self.backend.sample(&kept, sampling);
        Ok(())
    }

    /// A step of the model, which keeps what a draft head would start from. Logits if any are wanted.
    fn record_model(&self, tables: &StepTables<B>) -> Result<Option<Scratch<B>>, DeviceError> {
        let mut cx = Forward::new(&self.backend, tables, &self.workspace, &self.caches);
        let taps = self.head().map_or(&[][..], |head| head.taps());
        let (hidden, tapped) = self.model.forward_tapped(&mut cx, taps)?;
        if let (Some(drafter), Some(head)) = (&self.drafter, self.head()) {
            let columns = head.input_width(&self.model);
            let mut kept = self.backend.reshape(&drafter.states, &tables.tokens, columns);
            self.backend.copy(tapped.as_ref().unwrap_or(&hidden), &mut kept);
        }
        let wanted = tables.samples.bucket > 0;
        wanted.then(|| self.model.logits(&cx, &hidden)).transpose()
    }

    /// A step of the draft head.
    fn record_draft(
        &self,
        program: Program,
        tables: &StepTables<B>,
    ) -> Result<Option<Scratch<B>>, DeviceError> {
        let (Some(drafter), Some(head)) = (&self.drafter, self.head()) else {
            return Err(DeviceError::Failed("the model has no draft head".to_owned()));
        };
        let mut cx = Forward::new(&self.backend, tables, &self.workspace, &drafter.caches);
        let mut carried = self
            .backend
            .reshape(&drafter.carried, &tables.tokens, head.width());
        let states = if program == Program::DraftAgain {
            head.again(&self.model, &mut cx, &carried)?
        } else {
            let columns = head.input_width(&self.model);
            let from = self.backend.reshape(&drafter.states, &tables.tokens, columns);
            head.first(&self.model, &mut cx, &from)?
        };
        self.backend.copy(states.carried(), &mut carried);
        let wanted = tables.samples.bucket > 0;
        let logits = || head.logits(&self.model, &cx, &states.normed);
        wanted.then(logits).transpose()
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

/// A step's tables on their way to the device.
#[derive(Default)]
struct HostTables {
    tokens: Vec<TokenRow>,
    requests: Vec<RequestRow>,
    logits: Vec<LogitsRow>,
    block_table: Vec<i32>,
}

impl HostTables {
    fn new(limits: StepLimits, slots: usize, rows: &[StepRow<'_>]) -> Self {
        let mut tables = Self {
            block_table: vec![0; slots * limits.blocks_per_request],
            ..Self::default()
        };
        for (request, row) in rows.iter().enumerate() {
            tables.push(limits, request, row);
        }
        assert!(
            tables.tokens.len() <= limits.tokens,
            "{} tokens in a step of {}",
            tables.tokens.len(),
            limits.tokens
        );
        assert!(
            rows.len() <= limits.requests,
            "{} requests in a step of {}",
            rows.len(),
            limits.requests
        );
        assert!(
            tables.logits.len() <= limits.samples,
            "too many positions to sample"
        );
        tables
    }

    fn push(&mut self, limits: StepLimits, request: usize, row: &StepRow<'_>) {
        let end = row.first_position + row.tokens.len();
        assert!(
            end <= row.blocks.len() * limits.block_size,
            "the request's blocks end before position {end}"
        );
        let first = self.tokens.len();
        self.requests.push(RequestRow {
            first_token: first as i32,
            token_count: row.tokens.len() as i32,
            slot: row.slot as i32,
            state_at: on_state_grid(row.first_position) as i32,
            state_end: on_state_grid(end) as i32,
            ..RequestRow::default()
        });
        self.tokens
            .extend(row.tokens.iter().enumerate().map(|(offset, token)| TokenRow {
                id: *token as i32,
                position: (row.first_position + offset) as i32,
                request: request as i32,
            }));
        let table = &mut self.block_table[row.slot * limits.blocks_per_request..];
        for (entry, block) in table.iter_mut().zip(row.blocks) {
            *entry = *block as i32;
        }
        self.logits.extend(row.samples.iter().map(|sample| LogitsRow {
            token: (first + sample.token) as i32,
            position: (row.first_position + sample.token + 1) as i32,
            request: request as i32,
            known: 0,
            mask: 0,
            sampling: sample.params,
        }));
    }

    fn write<B: Backend>(&self, backend: &B, tables: &StepTables<B>) {
        backend.write(&tables.tokens.live, &[self.tokens.len() as i32]);
        backend.write(&tables.requests.live, &[self.requests.len() as i32]);
        backend.write(&tables.samples.live, &[self.logits.len() as i32]);
        backend.write(&tables.token_rows, &self.tokens);
        backend.write(&tables.request_rows, &self.requests);
        backend.write(&tables.logits_rows, &self.logits);
        backend.write(&tables.block_table, &self.block_table);
    }
}
