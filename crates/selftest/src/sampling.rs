//! Choices of tokens: every option at every position, masks, known tokens, and what is reported about them.
//!
//! A choice is the reference's, unless the reference makes it too when temperature and bounds are changed in the sixth
//! place: exponentials and logarithms are rounded differently, and now and then two tokens are that close. Such near ties
//! are counted, and must be few.

use crate::compare::{Limit, Output, Values};
use crate::judge::{Case, Judge};
use crate::rig::Rig;
use crate::rows::joined;
use crate::scene::{Nudge, Request, Sampler, Scene};
use paceline_device::abi::{Logprobs, MAX_LOGPROBS};
use paceline_device::{
    Backend, DeviceError, Epilogue, SampleOptions, SampledProduct, SampledText, Sampling, StepTables,
};
use paceline_testkit::Matrix;
use paceline_types::DType;

/// Of this many choices one may be a near tie.
const RARE: usize = 200;
/// Another sum of exponentials.
const TOLERANCE: f64 = 1e-5;
/// Output of tokens, and of their log-probabilities.
const TOKENS: usize = 0;
const CHOSEN: usize = 1;

pub(crate) fn judge<B: Backend>(judge: &mut Judge<'_, B>) {
    for (vocabulary, rows) in [(97, 300), (2048, 100), (1000, 200), (151_936, 12)] {
        for text in [SampledText::Step, SampledText::Drafts] {
            compare_logits(judge, (vocabulary, vocabulary), rows, text);
        }
    }
    // Drafts from the first rows of an output matrix.
    for (vocabulary, logits, rows) in [(97, 23, 300), (1000, 33, 200), (151_936, 38_912, 12)] {
        compare_logits(judge, (vocabulary, logits), rows, SampledText::Drafts);
    }
    for dtype in [None, Some(DType::F32), Some(DType::BF16)] {
        let scene = Scene {
            vocabulary: 256,
            logits: 256,
            rows: 160,
            text: SampledText::Step,
            plain: dtype == Some(DType::BF16),
            nudge: Nudge::NONE,
        };
        let choice = Choice::new(scene, dtype);
        let operation = match dtype {
            None => "sample".to_owned(),
            Some(dtype) => format!("sample_states {}", dtype.name().to_lowercase()),
        };
        let case = "160 rows of 256 logits";
        compare_choices(judge, &operation, case, &choice);
        let cuts = [usize::MAX, 1, 3, 8];
        let variants = cuts.map(|batch| {
            let name = match batch {
                usize::MAX => "all requests together".to_owned(),
                batch => format!("{batch} requests at a time"),
            };
            (name, Choice { batch, ..choice })
        });
        judge.law(&operation, case, variants);
    }
}

/// Choices from logits as they are, of all tokens or of the first ones.
fn compare_logits<B: Backend>(
    judge: &mut Judge<'_, B>,
    (vocabulary, logits): (usize, usize),
    rows: usize,
    text: SampledText,
) {
    let scene = Scene {
        vocabulary,
        logits,
        rows,
        text,
        plain: false,
        nudge: Nudge::NONE,
    };
    let case = format!("{rows} rows of {logits} of {vocabulary} logits, {text:?}");
    compare_choices(judge, "sample", &case, &Choice::new(scene, None));
}

/// Compares what was chosen, with near ties taken for what they are.
fn compare_choices<B: Backend>(judge: &mut Judge<'_, B>, operation: &str, name: &str, choice: &Choice) {
    let near = |judge: &Judge<'_, B>, row: usize, token: i32| {
        Nudge::all().any(|nudge| {
            let scene = Scene {
                nudge,
                ..choice.scene
            };
            let outputs = judge.run_reference(&Choice { scene, ..*choice });
            outputs.is_ok_and(|outputs| token_of(&outputs, row) == Some(token))
        })
    };
    judge.compare_with(operation, name, choice, |judge, found, expected| {
        let mut ties = 0;
        let rows = choice.scene.rows;
        for row in differing(found, expected) {
            let token = token_of(found, row).unwrap_or(-1);
            if ties <= rows / RARE && near(judge, row, token) {
                ties += 1;
                adopt(found, expected, row);
            }
        }
        ties
    });
}

fn tokens(outputs: &[Output]) -> &[i32] {
    match outputs.get(TOKENS).map(|output| &output.values) {
        Some(Values::Words(words)) => words,
        _ => &[],
    }
}

fn token_of(outputs: &[Output], row: usize) -> Option<i32> {
    tokens(outputs).get(row).copied()
}

/// Rows whose tokens differ.
fn differing(found: &[Output], expected: &[Output]) -> Vec<usize> {
    let pairs = tokens(found).iter().zip(tokens(expected));
    let differing = pairs.enumerate().filter(|(_, (a, b))| a != b);
    differing.map(|(row, _)| row).collect()
}

/// Takes what is expected of a row for what was found.
fn adopt(found: &mut [Output], expected: &[Output], row: usize) {
    for output in [TOKENS, CHOSEN] {
        match (&mut found[output].values, &expected[output].values) {
            (Values::Words(found), Values::Words(expected)) => found[row] = expected[row],
            (Values::Numbers(found), Values::Numbers(expected)) => found[row] = expected[row],
            _ => {}
        }
    }
}

/// Choices of all requests of a scene, some of them at a time.
#[derive(Clone, Copy)]
struct Choice {
    scene: Scene,
    /// The type of the output matrix that logits come from; logits as they are without.
    product: Option<DType>,
    batch: usize,
}

impl Choice {
    const fn new(scene: Scene, product: Option<DType>) -> Self {
        Self {
            scene,
            product,
            batch: usize::MAX,
        }
    }
}

/// Elements of a state.
const INPUTS: usize = 64;

impl Case for Choice {
    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<Vec<Output>, DeviceError> {
        let requests = self.scene.requests(rig.seed);
        let sampler = Sampler::new(rig, self.scene, &requests)?;
        let (device, step, vocabulary) = (rig.device, &sampler.step, self.scene.logits);
        let samples = step.limits.samples;
        let (tokens, logprobs) = (device.buffer(samples)?, device.buffer(samples)?);
        let sampling = || Sampling {
            step,
            options: (!self.scene.plain).then_some(SampleOptions {
                slots: &sampler.slots,
                plan: &sampler.plan,
            }),
            text: self.scene.text,
            tokens: &tokens,
            logprobs: &logprobs,
        };
        let logits = device.tensor(&step.samples, vocabulary)?;
        let source = Source::new(rig, samples, vocabulary)?;
        let product = self
            .product
            .map(|dtype| OutputMatrix::new(rig, step, dtype, vocabulary));
        let product = product.transpose()?;
        let program = rig.program(|device| match &product {
            None => {
                source.enqueue(device, &logits);
                device.sample(&logits, sampling());
            }
            Some(product) => {
                device.embed(step, &product.table, 1.0, &mut product.states.clone());
                let sampled = SampledProduct {
                    states: &mut product.sampled.clone(),
                    w: &product.weight,
                    epilogue: Epilogue::NONE,
                    logits: &mut logits.clone(),
                };
                device.sample_states(&product.states, sampled, sampling());
            }
        });
        let (mut first, mut first_row) = (0, 0);
        let mut batches = Vec::new();
        for some in requests.chunks(self.batch.min(requests.len())) {
            sampler.write(first, some);
            let rows: usize = some.iter().map(|request| request.rows().len()).sum();
            source.write(rig, first_row, rows);
            program.launch();
            let reported = rig.read(&logprobs, rows)?;
            let wanted = some.iter().flat_map(Request::rows);
            let wanted: Vec<i32> = wanted.map(|row| row.sampling.logprobs).collect();
            batches.push(self.outputs(rig.read(&tokens, rows)?, &reported, &wanted));
            (first, first_row) = (first + some.len(), first_row + rows);
        }
        Ok(joined(batches))
    }
}

impl Choice {
    fn outputs(&self, tokens: Vec<i32>, reported: &[Logprobs], wanted: &[i32]) -> Vec<Output> {
        let coarse = self.product.is_some_and(|dtype| dtype != DType::F32);
        let limit = Limit::Within(if coarse { 1e-3 } else { TOLERANCE });
        let chosen = reported.iter().zip(wanted);
        let chosen = chosen.map(|(report, wanted)| if *wanted < 0 { 0.0 } else { report.chosen });
        let chosen = Output::numbers("log-probability", chosen.collect(), limit);
        let top = reported.iter().zip(wanted).flat_map(|(report, wanted)| {
            let wanted = usize::try_from(*wanted).unwrap_or(0).min(MAX_LOGPROBS);
            report.top[..wanted].iter()
        });
        let likely = Output::numbers(
            "top log-probability",
            top.clone().map(|top| top.logprob).collect(),
            limit,
        );
        if coarse {
            // Of two tokens that are as likely up to rounding either will do.
            return vec![chosen, likely];
        }
        let names = Output::words("top token", top.map(|top| top.token).collect());
        vec![Output::words("token", tokens), chosen, names, likely]
    }
}

/// Logits as they are: rows of a table.
struct Source<B: Backend> {
    step: StepTables<B>,
    table: B::Weight,
    x: B::Tensor,
    index: B::Buffer<i32>,
}

impl<B: Backend> Source<B> {
    fn new(rig: &Rig<'_, B>, samples: usize, vocabulary: usize) -> Result<Self, DeviceError> {
        let step = rig.token_tables(samples)?;
        let mut numbers = rig.random("logits").numbers(samples * vocabulary, 4.0);
        // Half of the rows have ties.
        for row in numbers.chunks_mut(vocabulary).step_by(2) {
            for logit in row {
                *logit = (*logit * 8.0).round() / 8.0;
            }
        }
        let index: Vec<i32> = (0..samples as i32).collect();
        Ok(Self {
            table: rig.table(&numbers, vocabulary)?,
            x: rig.device.tensor(&step.tokens, vocabulary)?,
            index: rig.device.buffer_from(&index)?,
            step,
        })
    }

    fn enqueue(&self, device: &B, logits: &B::Tensor) {
        device.embed(&self.step, &self.table, 1.0, &mut self.x.clone());
        device.gather(&self.x, &self.index, &mut logits.clone());
    }

    fn write(&self, rig: &Rig<'_, B>, first: usize, rows: usize) {
        rig.write_ids(&self.step, first..first + rows);
    }
}

/// An output matrix, and states of tokens by their ids.
struct OutputMatrix<B: Backend> {
    table: B::Weight,
    states: B::Tensor,
    sampled: B::Tensor,
    weight: B::Weight,
}

impl<B: Backend> OutputMatrix<B> {
    fn new(
        rig: &Rig<'_, B>,
        step: &StepTables<B>,
        dtype: DType,
        vocabulary: usize,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            table: rig.inputs("states", (vocabulary, INPUTS), (3.0, dtype != DType::F32))?,
            states: rig.device.tensor(&step.tokens, INPUTS)?,
            sampled: rig.device.tensor(&step.samples, INPUTS)?,
            weight: rig.weight("output", Matrix::new(dtype, vocabulary, INPUTS))?,
        })
    }
}
