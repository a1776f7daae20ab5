//! Requests to measure with, and the little statistics that measurements need.

use crate::engine::{self, Demand, EngineOptions, explain_request};
use crate::flags::{EngineFlags, ModelFlags};
use crate::model::LoadedModel;
use crate::streams::Streams;
use crate::ui::Ui;
use anyhow::{Result, anyhow};
use paceline::{Event, Handle, Request, SpeculationMethod, Usage};
use paceline_device::Recorder;
use paceline_models::Decoder;
use paceline_types::{SamplingParams, TokenId};
use std::time::{Duration, Instant};

/// How long to sleep at most between events.
const PATIENCE: Duration = Duration::from_secs(1);

/// A model to measure and how its engine is set up.
pub(super) struct Subject {
    pub(super) model: LoadedModel,
    pub(super) outline: Decoder<Recorder>,
    pub(super) options: EngineOptions,
}

impl Subject {
    /// Opens the model.
    pub(super) fn open(model: &ModelFlags, engine: &EngineFlags, ui: Ui) -> Result<Self> {
        let options = engine.options(model);
        let model = LoadedModel::open(&model.source(), ui)?;
        let outline = engine::outline(&model)?;
        Ok(Self {
            model,
            outline,
            options,
        })
    }

    /// Starts an engine with this many steps in flight.
    pub(super) fn start(&self, depth: usize, demand: Demand, ui: Ui) -> Result<Handle> {
        self.start_with(self.options.clone(), depth, demand, ui)
    }

    /// The same without drafts.
    pub(super) fn start_without_drafts(&self, depth: usize, demand: Demand, ui: Ui) -> Result<Handle> {
        let mut options = self.options.clone();
        options.config.speculation.method = SpeculationMethod::Off;
        options.draft_model = None;
        options.warnings.clear();
        self.start_with(options, depth, demand, ui)
    }

    fn start_with(&self, mut options: EngineOptions, depth: usize, demand: Demand, ui: Ui) -> Result<Handle> {
        options.config.pipeline_depth = depth;
        // What is measured is what was asked for, not what usually makes sense.
        options.max_num_seqs = options.max_num_seqs.or(Some(demand.sequences));
        options.start((&self.model, &self.outline), demand, ui)
    }

    /// Checks that input and output fit the model.
    pub(super) fn check_lengths(&self, input: usize, output: usize) -> Result<()> {
        let limit = self
            .options
            .config
            .max_model_len
            .unwrap_or(self.outline.dims.max_positions);
        if input + output > limit {
            return Err(anyhow!(
                "--input-len {input} and --output-len {output} are {} tokens together; the context holds {limit}",
                input + output
            ));
        }
        Ok(())
    }
}

/// Random numbers that are the same on every run.
pub(super) struct Random(pub(super) u64);

impl Random {
    /// The next number: a counter, mixed until its bits look unrelated.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 (excluded) to 1.
    pub(super) fn share(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// A request of exactly these lengths with a prompt of random tokens.
    pub(super) fn request(&mut self, input: usize, output: usize, vocabulary: usize) -> Request {
        let token = |number: u64| (number % vocabulary as u64) as TokenId;
        Request {
            prompt: (0..input).map(|_| token(self.next())).collect(),
            sampling: SamplingParams {
                temperature: 0.0,
                max_tokens: output,
                ignore_eos: true,
                ..SamplingParams::default()
            },
            ..Request::default()
        }
    }
}

/// Runs requests all at once. Returns what each took, and the time until the last ended.
pub(super) fn run_together(handle: &Handle, requests: Vec<Request>) -> Result<(Vec<Usage>, Duration)> {
    let start = Instant::now();
    let mut streams = Streams::default();
    for request in requests {
        let generation = handle.generate(request);
        streams.add(generation.map_err(|error| explain_request(error, false))?);
    }
    let mut usages = Vec::new();
    while !streams.is_empty() {
        if let Some((_, Some(event))) = streams.next(Instant::now() + PATIENCE) {
            usages.extend(usage(event)?);
        }
    }
    Ok((usages, start.elapsed()))
}

/// What an ended continuation took.
pub(super) fn usage(event: Event) -> Result<Option<Usage>> {
    match event {
        Event::Finished { usage, .. } => Ok(Some(usage)),
        Event::Failed { message } => Err(anyhow!(message)),
        Event::Prompt { .. } | Event::Tokens { .. } => Ok(None),
    }
}

/// Milliseconds between the tokens of a continuation; none if there is only one.
pub(super) fn token_ms(usage: &Usage) -> Option<f64> {
    let gaps = usage.completion_tokens.checked_sub(1).filter(|gaps| *gaps > 0)?;
    Some(ms(usage.total.saturating_sub(usage.first_token)) / gaps as f64)
}

/// Milliseconds.
pub(super) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The value that this share of the values does not exceed; 0 of none.
pub(super) fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.max(1) - 1).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occur() {
        let mut values = [4.0, 1.0, 3.0, 2.0];
        for (share, expected) in [(0.0, 1.0), (0.5, 2.0), (0.9, 4.0), (1.0, 4.0)] {
            assert!(
                (percentile(&mut values, share) - expected).abs() < f64::EPSILON,
                "{share}"
            );
        }
        assert!(percentile(&mut [], 0.5).abs() < f64::EPSILON);
    }

    #[test]
    fn prompts_differ_and_stay_within_the_vocabulary() {
        let mut random = Random(0);
        let (one, two) = (random.request(50, 2, 10), random.request(50, 2, 10));
        assert_ne!(one.prompt, two.prompt);
        assert!(one.prompt.iter().all(|token| *token < 10));
        assert!((0..1000).all(|_| (f64::MIN_POSITIVE..=1.0).contains(&random.share())));
    }
}
