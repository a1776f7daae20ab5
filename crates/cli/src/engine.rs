//! From flags and a model to a running engine, and the engine's errors in the words of the command line.

use crate::model::LoadedModel;
use crate::ui::{self, Ui};
use anyhow::{Context, Result, anyhow};
use paceline::{EngineConfig, EngineParts, Handle, RequestError, StartError, Stats};
use paceline_device::Recorder;
use paceline_models::{Decoder, ModelDims};
use std::thread;
use std::time::{Duration, Instant};

/// How long to wait for numbers that lag behind.
const SETTLE: Duration = Duration::from_millis(200);

/// What the user said of the engine.
#[derive(Clone, Debug)]
pub(crate) struct EngineOptions {
    /// Everything but the number of slots, which depends on what is asked for unless it is given.
    pub(crate) config: EngineConfig,
    /// As given.
    pub(crate) max_num_seqs: Option<usize>,
}

/// What will be asked of an engine, so that it takes no more memory than it has use for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    /// Continuations that could run at the same time.
    pub(crate) sequences: usize,
    /// Most continuations of one prompt.
    pub(crate) choices: usize,
    /// Tokens of the longest sequence, prompt included.
    pub(crate) longest: usize,
}

/// The model on a device that owns no memory: names and shapes are checked, weights stay where they are.
pub(crate) fn outline(model: &LoadedModel) -> Result<Decoder<Recorder>> {
    let recorder = Recorder::new();
    let checkpoint = &model.checkpoint;
    let has_tensors = checkpoint.raw_tensors().next().is_some();
    let decoder = match checkpoint.config() {
        Some(config) if !has_tensors => paceline_models::load_config_only(&recorder, config),
        _ => paceline_models::load(&recorder, checkpoint, None, &|_| {}),
    };
    decoder.with_context(|| model.source.clone())
}

impl EngineOptions {
    /// The engine's configuration for what is asked of it.
    fn for_demand(&self, demand: Demand, dims: &ModelDims) -> EngineConfig {
        let usual = EngineConfig::default().max_num_seqs;
        let wanted = demand.sequences.clamp(1, usual).max(demand.choices);
        // A sequence is at least a token and the one that follows.
        let longest = demand.longest.max(2).min(dims.max_positions);
        EngineConfig {
            max_num_seqs: self.max_num_seqs.unwrap_or(wanted),
            max_model_len: self.config.max_model_len.or(Some(longest)),
            ..self.config.clone()
        }
    }

    /// Loads the model, with a bar if it takes time, and starts the engine.
    pub(crate) fn start(
        &self,
        model: &LoadedModel,
        dims: &ModelDims,
        demand: Demand,
        ui: Ui,
    ) -> Result<Handle> {
        let checkpoint = &model.checkpoint;
        let total = checkpoint.tensors().map(|tensor| tensor.data.len() as u64).sum();
        let bar = ui.bar(total, ui::LOADING);
        let config = self.for_demand(demand, dims);
        let parts = EngineParts::load(checkpoint, config, &|bytes| bar.advance(bytes));
        drop(bar);
        let handle = parts.and_then(EngineParts::start);
        handle.map_err(|error| explain_start(error, &model.source))
    }
}

/// Why an engine did not start; options are named as they are typed.
pub(crate) fn explain_start(error: StartError, source: &str) -> anyhow::Error {
    match error {
        StartError::Option { option, value, bound } => {
            anyhow!("--{option} is {value}; it must be {bound}")
        }
        StartError::Model(error) => anyhow!(error).context(source.to_owned()),
        other => anyhow!(other),
    }
}

/// Why a request was refused; parameters are named as they are typed: as flags, or as fields of a line.
pub(crate) fn explain_request(error: RequestError, in_file: bool) -> anyhow::Error {
    let RequestError::Parameter { field, value, bound } = error else {
        return anyhow!(error);
    };
    // Lists are given one element at a time.
    let name = match field {
        "stop_tokens" => "stop_token",
        "bad_words" => "bad_word",
        other => other,
    };
    let name = if in_file {
        format!("field `{name}`")
    } else {
        format!("--{}", name.replace('_', "-"))
    };
    anyhow!("{name} is {value}; it must be {bound}")
}

/// The engine's numbers after `requests` have ended: they follow the last event by a moment.
pub(crate) fn settled_stats(handle: &Handle, requests: u64) -> Stats {
    let start = Instant::now();
    loop {
        let stats = handle.stats();
        let settled = stats.finished >= requests && stats.running == 0;
        if settled || start.elapsed() > SETTLE {
            return stats;
        }
        thread::sleep(Duration::from_micros(200));
    }
}
