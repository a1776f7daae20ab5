//! Every program of a runner, each launched with plan rows that fill it.

use super::{Bench, Devices, Drafter, Engine, Setup, Texts};
use paceline_runner::{RowsRead, RunnerConfig, Shape};
use paceline_schedule::StepRunner;
use paceline_types::{
    Admission, BlockId, DType, DraftBudget, PlanRow, Pooling, RowOutput, SamplingParams, SlotId, StepPlan,
    TokenId, Work,
};
use std::sync::Arc;

/// Most drafts of a plan row.
const DRAFTS: usize = 3;
const BLOCK_SIZE: usize = 16;
/// Tokens of a prompt that a text goes on from.
const PROMPT: usize = 6;
/// Most prompts of a step: one is long.
const PROMPTS: usize = 5;

/// Which model, and how large its programs are.
#[derive(Clone, Copy, Debug)]
pub struct Programs {
    /// A reference model, or `storyteller`.
    pub model: &'static str,
    /// The type that its weights are converted to, if any.
    pub dtype: Option<DType>,
    /// What the neural drafter reads of its output matrix.
    pub rows_read: RowsRead,
    /// Most tokens of a step, a power of two.
    pub tokens: usize,
    /// Requests at a time, a power of two.
    pub slots: usize,
}

/// What a launch said: for which program, and every row of its record with numbers as bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// The program that it was part of.
    pub shape: Shape,
    /// The rows.
    pub rows: Vec<String>,
}

impl<D: Devices> Bench<D> {
    /// Launches every program of a model with all its drafters, and returns what each said. What fails is said in words.
    pub fn every_program(&self, programs: &Programs) -> Result<Vec<Said>, String> {
        let blocks_per_slot = (programs.tokens + 8 * (1 + DRAFTS)).div_ceil(BLOCK_SIZE);
        let config = RunnerConfig {
            slots: programs.slots,
            tokens: programs.tokens,
            samples: programs.slots * (1 + DRAFTS),
            blocks: programs.slots * blocks_per_slot,
            blocks_per_slot,
            block_size: BLOCK_SIZE,
            snapshots: 0,
            drafts: DRAFTS,
            masks: 0,
            depth: 1,
        };
        let setup = Setup {
            dtype: programs.dtype,
            drafter: Drafter::Chain,
            drafts: DRAFTS,
            rows_read: programs.rows_read,
            ..Setup::plain(programs.model)
        };
        let mut engine = Engine::new(self, &setup, config, Texts::new());
        let runner = engine.pipeline.runner_mut();
        let shapes = runner.programs().shapes().to_vec();
        let mut course = Course {
            runner,
            config,
            step: 0,
            generation: 0,
        };
        let mut said = Vec::new();
        for shape in shapes {
            let launches = course.launch(shape).map_err(|why| format!("{shape:?}: {why}"))?;
            said.extend(launches.into_iter().map(|rows| Said { shape, rows }));
        }
        Ok(said)
    }
}

/// Steps one after the other, each collected before the next.
struct Course<'a, R> {
    runner: &'a mut R,
    config: RunnerConfig,
    step: u64,
    /// Of the owners of all slots.
    generation: u32,
}

impl<R: StepRunner> Course<'_, R> {
    /// A step that fills this program, and the one that has to be before it.
    fn launch(&mut self, shape: Shape) -> Result<Vec<Vec<String>>, String> {
        let slots = self.config.slots.min(shape.tokens);
        if shape.prompts {
            let count = slots.min(PROMPTS);
            let short = |index: usize| if shape.tokens < 16 { 1 } else { 1 + index % 3 };
            let others: Vec<usize> = (1..count).map(short).collect();
            let long = shape.tokens - others.iter().sum::<usize>();
            let lengths = [vec![long], others].concat();
            return Ok(vec![self.begin(&lengths, shape.draft_forwards, true)?]);
        }
        let lengths = vec![PROMPT.min(self.config.tokens / slots); slots];
        let begun = self.begin(&lengths, DRAFTS, false)?;
        // The first verifies what the prompts' step has drafted, the second what this program has.
        let first = self.go_on(shape, slots)?;
        Ok(vec![begun, first, self.go_on(shape, slots)?])
    }

    /// New requests in the first slots, with prompts of these lengths; the last may become a vector.
    fn begin(&mut self, lengths: &[usize], neural: usize, embeds: bool) -> Result<Vec<String>, String> {
        self.generation += 1;
        let (mut plan, last) = (StepPlan::default(), lengths.len() - 1);
        for (index, length) in lengths.iter().enumerate() {
            let tokens = (0..*length).map(|at| self.token(index, at)).collect();
            let vector = embeds && index == last && index > 0;
            let first = index * self.config.blocks_per_slot;
            let blocks = (0..self.config.blocks_per_slot).map(|at| (at as u32, BlockId((first + at) as u32)));
            plan.admissions.push(self.admission(index, *length));
            plan.rows.push(PlanRow {
                new_blocks: blocks.collect(),
                ..self.row(index, prompt(tokens, vector), if vector { 0 } else { neural })
            });
        }
        self.run(plan)
    }

    /// Their newest tokens and drafts, as many as fill the program.
    fn go_on(&mut self, shape: Shape, slots: usize) -> Result<Vec<String>, String> {
        let (mut plan, mut room) = (StepPlan::default(), shape.tokens - slots);
        for index in 0..slots {
            let drafts = room.min(DRAFTS);
            room -= drafts;
            let row = self.row(index, Work::Verify { drafts }, shape.draft_forwards);
            plan.rows.push(row);
        }
        self.run(plan)
    }

    fn run(&mut self, mut plan: StepPlan) -> Result<Vec<String>, String> {
        self.step += 1;
        plan.step = self.step;
        let flight = self.runner.submit(&plan).map_err(|fault| fault.to_string())?;
        let output = self.runner.collect(flight).map_err(|fault| fault.to_string())?;
        Ok(output.rows.iter().map(bits).collect())
    }

    /// A token that every model knows; texts repeat themselves, so that there are n-grams.
    fn token(&self, index: usize, at: usize) -> TokenId {
        ((self.generation as usize * 31 + index * 17 + at % 11 * 7) % 250) as TokenId
    }

    fn row(&self, index: usize, work: Work, neural: usize) -> PlanRow {
        PlanRow {
            slot: SlotId(index as u32),
            generation: self.generation,
            work,
            new_blocks: Vec::new(),
            snapshot: None,
            propose: DraftBudget {
                ngram: neural.min(index % 3),
                neural,
            },
            constraint: None,
            show_drafts: true,
        }
    }

    fn admission(&self, index: usize, length: usize) -> Admission {
        let params = SamplingParams {
            temperature: if index.is_multiple_of(2) { 0.0 } else { 0.9 },
            seed: index as u64,
            logprobs: Some(3),
            top_k: 40 * (index as u32 % 3),
            ..SamplingParams::default()
        };
        Admission {
            slot: SlotId(index as u32),
            generation: self.generation,
            params: Arc::new(params),
            prompt_tokens: length,
            cached_tokens: 0,
            max_length: self.config.blocks_per_slot * BLOCK_SIZE,
            min_length: 0,
            stop_tokens: Vec::new(),
            restore: None,
        }
    }
}

fn prompt(tokens: Vec<TokenId>, vector: bool) -> Work {
    if vector {
        Work::Embed {
            start: 0,
            tokens,
            last: true,
            pooling: Pooling::Mean,
        }
    } else {
        Work::Prefill {
            start: 0,
            tokens,
            last: true,
            following: None,
            prompt_logprobs: false,
        }
    }
}

fn bits(row: &RowOutput) -> String {
    let logprobs: Vec<_> = row
        .logprobs
        .iter()
        .map(|at| {
            let top: Vec<_> = at.top.iter().map(|(token, x)| (*token, x.to_bits())).collect();
            (at.chosen.to_bits(), top)
        })
        .collect();
    let vector: Vec<u32> = row.embedding.iter().map(|x| x.to_bits()).collect();
    let (tokens, drafted, made) = (&row.tokens, row.drafted, &row.made);
    format!(
        "{tokens:?} behind {drafted} drafts {:?}, drafts {made:?}, log-probabilities {logprobs:x?}, vector {vector:x?}",
        row.source
    )
}
