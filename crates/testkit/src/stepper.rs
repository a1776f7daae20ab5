//! A plain way to run a model: the host fills the tables of a step, launches its program and reads the results.
//!
//! Independent of scheduler, slots and pipeline, so it can judge them.

use paceline_device::{
    Backend, DeviceError, Pending, Rows, SAMPLE_FLOATS, Sample, SamplingRow, StepLimits, StepTables,
    Workspace,
};
use paceline_models::{CacheSizes, Caches, Decoder, Forward, ModelError};
use paceline_types::TokenId;
use std::collections::HashMap;

/// How much a stepper is built for.
#[derive(Clone, Copy, Debug)]
pub struct StepperConfig {
    /// Bounds of a step.
    pub limits: StepLimits,
    /// Blocks of key and value pages.
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
    /// Its pages, in order of position.
    pub blocks: &'a [u32],
    /// Which of the tokens to sample after.
    pub samples: &'a [SampleRow],
}

/// A position to be sampled.
#[derive(Clone, Copy, Debug)]
pub struct SampleRow {
    /// Index of the token, among the row's tokens, whose successor is wanted.
    pub token: usize,
    /// How to choose it.
    pub params: SamplingRow,
}

/// What a step computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Program {
    /// The model.
    Model,
    /// The draft head on the model's hidden states of the last [`Program::Model`] step. The step's tokens are
    /// those that followed.
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

/// A model with its caches, ready to run steps.
pub struct Stepper<B: Backend> {
    backend: B,
    model: Decoder<B>,
    caches: Caches<B>,
    tables: StepTables<B>,
    workspace: Workspace<B>,
    programs: HashMap<Shape, B::Program>,
    hidden: B::Tensor,
    draft_hidden: B::Tensor,
    logits: B::Tensor,
    sampled: B::Buffer<i32>,
    logprobs: B::Buffer<f32>,
}

impl<B: Backend> Stepper<B> {
    /// Allocates everything steps will need but their scratch.
    pub fn new(backend: B, model: Decoder<B>, config: StepperConfig) -> Result<Self, ModelError> {
        let limits = config.limits;
        let tables = StepTables::new(&backend, limits)?;
        let caches = model.caches(
            &backend,
            &CacheSizes {
                blocks: config.blocks,
                block_size: limits.block_size,
                slots: config.slots,
                drafts: 0,
                snapshots: 0,
            },
        )?;
        let hidden = model.dims.hidden;
        Ok(Self {
            caches,
            workspace: Workspace::new(backend.clone()),
            programs: HashMap::new(),
            hidden: backend.tensor(&tables.tokens, hidden)?,
            draft_hidden: backend.tensor(&tables.tokens, hidden)?,
            logits: backend.tensor(&tables.samples, model.dims.vocabulary)?,
            sampled: backend.buffer(limits.samples)?,
            logprobs: backend.buffer(limits.samples * SAMPLE_FLOATS)?,
            tables,
            model,
            backend,
        })
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

    fn write_tables(&self, program: Program, rows: &[StepRow<'_>]) -> Shape {
        let tables = HostTables::new(self.tables.limits, rows);
        tables.write(&self.backend, &self.tables);
        let limits = self.tables.limits;
        Shape {
            program,
            tokens: bucket(tables.ids.len(), limits.tokens),
            requests: bucket(rows.len(), limits.requests),
            samples: bucket(tables.sample_token.len(), limits.samples),
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
        let mut cx = Forward::new(&self.backend, &tables, &self.workspace, &self.caches);
        let view = |tensor: &B::Tensor, rows: &Rows<B>, columns| self.backend.reshape(tensor, rows, columns);
        let width = self.model.dims.hidden;
        let hidden = match shape.program {
            Program::Model => {
                let hidden = self.model.forward(&mut cx)?;
                if self.model.mtp.is_some() {
                    self.backend
                        .copy(&hidden, &mut view(&self.hidden, &tables.tokens, width));
                }
                hidden
            }
            Program::Draft | Program::DraftAgain => {
                let Some(mtp) = &self.model.mtp else {
                    return Err(DeviceError::Failed("the model has no draft head".to_owned()));
                };
                let again = shape.program == Program::DraftAgain;
                let from = if again { &self.draft_hidden } else { &self.hidden };
                let hidden = mtp.forward(&self.model, &mut cx, &view(from, &tables.tokens, width))?;
                self.backend
                    .copy(&hidden, &mut view(&self.draft_hidden, &tables.tokens, width));
                hidden
            }
        };
        if shape.samples == 0 {
            return Ok(());
        }
        let logits = self.model.logits(&cx, &hidden)?;
        let mut kept = view(&self.logits, &tables.samples, self.model.dims.vocabulary);
        self.backend.copy(&logits, &mut kept);
        let (step, tokens, logprobs) = (&tables, &self.sampled, &self.logprobs);
        self.backend.sample(Sample {
            logits: &kept,
            step,
            slots: None,
            text: paceline_device::SampledText::Step,
            tokens,
            logprobs,
        });
        Ok(())
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
struct HostTables {
    ids: Vec<i32>,
    positions: Vec<i32>,
    request_of: Vec<i32>,
    first_token: Vec<i32>,
    token_count: Vec<i32>,
    state_slot: Vec<i32>,
    block_table: Vec<i32>,
    sample_token: Vec<i32>,
    sample_position: Vec<i32>,
    sampling: Vec<i32>,
}

impl HostTables {
    fn new(limits: StepLimits, rows: &[StepRow<'_>]) -> Self {
        let mut tables = Self {
            ids: Vec::new(),
            positions: Vec::new(),
            request_of: Vec::new(),
            first_token: Vec::new(),
            token_count: Vec::new(),
            state_slot: Vec::new(),
            block_table: vec![0; rows.len() * limits.blocks_per_request],
            sample_token: Vec::new(),
            sample_position: Vec::new(),
            sampling: Vec::new(),
        };
        for (request, row) in rows.iter().enumerate() {
            tables.push(limits, request, row);
        }
        assert!(
            tables.ids.len() <= limits.tokens,
            "{} tokens in a step of {}",
            tables.ids.len(),
            limits.tokens
        );
        assert!(
            rows.len() <= limits.requests,
            "{} requests in a step of {}",
            rows.len(),
            limits.requests
        );
        assert!(
            tables.sample_token.len() <= limits.samples,
            "too many positions to sample"
        );
        tables
    }

    fn push(&mut self, limits: StepLimits, request: usize, row: &StepRow<'_>) {
        let end = row.first_position + row.tokens.len();
        assert!(
            end <= row.blocks.len() * limits.block_size,
            "the request's pages end before position {end}"
        );
        let first = self.ids.len();
        self.first_token.push(first as i32);
        self.token_count.push(row.tokens.len() as i32);
        self.state_slot.push(row.slot as i32);
        for (offset, token) in row.tokens.iter().enumerate() {
            self.ids.push(*token as i32);
            self.positions.push((row.first_position + offset) as i32);
            self.request_of.push(request as i32);
        }
        let table = &mut self.block_table[request * limits.blocks_per_request..];
        for (entry, block) in table.iter_mut().zip(row.blocks) {
            *entry = *block as i32;
        }
        for sample in row.samples {
            self.sample_token.push((first + sample.token) as i32);
            self.sample_position
                .push((row.first_position + sample.token + 1) as i32);
            self.sampling.extend(sample.params.encode());
        }
    }

    fn write<B: Backend>(&self, backend: &B, tables: &StepTables<B>) {
        backend.write(&tables.tokens.live, &[self.ids.len() as i32]);
        backend.write(&tables.requests.live, &[self.first_token.len() as i32]);
        backend.write(&tables.samples.live, &[self.sample_token.len() as i32]);
        let columns = [
            (&tables.ids, &self.ids),
            (&tables.positions, &self.positions),
            (&tables.request_of, &self.request_of),
            (&tables.first_token, &self.first_token),
            (&tables.token_count, &self.token_count),
            (&tables.state_slot, &self.state_slot),
            (&tables.block_table, &self.block_table),
            (&tables.sample_token, &self.sample_token),
            (&tables.sample_position, &self.sample_position),
            (&tables.sampling, &self.sampling),
        ];
        for (buffer, values) in columns {
            backend.write(buffer, values);
        }
    }
}
