//! From flags and a model to a running engine, and the engine's errors in the words of the command line.

use crate::env;
use crate::flags::DraftModel;
use crate::model::{self, LoadedModel};
use crate::packed;
use crate::ui::{self, LateBar, Ui};
use anyhow::{Context, Result, anyhow};
use paceline::{
    Device, DeviceChoice, DeviceInfo, EngineConfig, Handle, LoadedEngine, ModelFiles, NeuralDrafter,
    RequestError, RequestOption, Speculation, StartError, UsualLoad,
};
use paceline_device::Recorder;
use paceline_models::{Decoder, Eagle3, ModelDims};
use paceline_weights::Checkpoint;
use std::cell::Cell;

/// What the user said of the engine.
#[derive(Clone, Debug)]
pub(crate) struct EngineOptions {
    /// Everything but the device, and how much it does at a time, which depends on the device and on what is asked for unless
    /// it is given.
    pub(crate) config: EngineConfig,
    /// `--device`, if it is given.
    pub(crate) device: Option<DeviceChoice>,
    /// `--max-num-seqs`, if it is given.
    pub(crate) max_num_seqs: Option<usize>,
    /// `--max-num-batched-tokens`, if it is given.
    pub(crate) max_num_batched_tokens: Option<usize>,
    /// What drafts, if it comes in files of its own.
    pub(crate) draft_model: Option<DraftModel>,
    /// What the user should know of how the flags were read.
    pub(crate) warnings: Vec<String>,
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
    outline_on(&Recorder::silent(), model)
}

/// The same on a device like one that there is.
pub(crate) fn outline_on(recorder: &Recorder, model: &LoadedModel) -> Result<Decoder<Recorder>> {
    let checkpoint = &model.checkpoint;
    let has_tensors = checkpoint.raw_tensors().next().is_some();
    let decoder = match checkpoint.config() {
        Some(config) if !has_tensors => paceline_models::load_config_only(recorder, config),
        _ => paceline_models::load(recorder, checkpoint, None, &|_| {}),
    };
    decoder.with_context(|| model.source.clone())
}

impl EngineOptions {
    /// The engine's configuration for what is asked of it.
    fn for_demand(&self, demand: Demand, dims: &ModelDims, device: &DeviceInfo) -> EngineConfig {
        let (usual, small) = (device.usual, UsualLoad::SMALL);
        let wanted = demand.sequences.clamp(1, usual.sequences).max(demand.choices);
        // A sequence is at least a token and the one that follows.
        let longest = demand.longest.max(2).min(dims.max_positions);
        // Programs for more tokens than there will ever be only take time to capture.
        let all = wanted.saturating_mul(longest).checked_next_power_of_two();
        let tokens = all.unwrap_or(usual.tokens).clamp(small.tokens, usual.tokens);
        let lowest = UsualLoad {
            sequences: self.max_num_seqs.unwrap_or(small.sequences.max(demand.choices)),
            tokens: self.max_num_batched_tokens.unwrap_or(small.tokens),
        };
        EngineConfig {
            max_num_seqs: self.max_num_seqs.unwrap_or(wanted),
            max_num_batched_tokens: self.max_num_batched_tokens.unwrap_or(tokens),
            lowest: Some(lowest),
            max_model_len: self.config.max_model_len.or(Some(longest)),
            ..self.config.clone()
        }
    }

    /// Loads the model and its drafter, each with a bar if it takes time, and starts the engine.
    pub(crate) fn start(
        &self,
        (model, outline): (&LoadedModel, &Decoder<Recorder>),
        demand: Demand,
        ui: Ui,
    ) -> Result<Handle> {
        for warning in &self.warnings {
            ui.note(format_args!("warning: --speculative-config: {warning}"));
        }
        let explain = |error| explain_start(error, &model.source);
        let device = Device::open(&EngineConfig {
            device: device(self.device)?,
            kernel_cache: env::kernel_cache(),
            kernel_times: env::kernel_times(),
            ..self.config.clone()
        });
        let device = device.map_err(explain)?;
        let mut config = self.for_demand(demand, &outline.dims, &device.info());
        if let (Device::Cpu(_), Some(path)) = (&device, &model.path) {
            config.packed = packed::find(path, config.dtype, ui);
        }
        let drafter = self.open_drafter(&mut config, ui)?;
        // What cannot be had is known before anything is loaded.
        let given = drafter.as_ref().map(kind);
        Speculation::resolve(&config.speculation, outline.mtp.is_some(), given).map_err(explain)?;
        let files = ModelFiles {
            model: &model.checkpoint,
            drafter: drafter.as_ref(),
        };
        let bars = Loading::new(files, ui);
        let loaded = device.load(files, config, &|bytes| bars.advance(bytes));
        drop(bars);
        loaded
            .map_err(explain)
            .and_then(|loaded| launch(loaded, &explain))
    }

    /// Opens the files of the drafter. One that drafts alone settles the method.
    fn open_drafter(&self, config: &mut EngineConfig, ui: Ui) -> Result<Option<Checkpoint>> {
        let Some(DraftModel { source, alone }) = &self.draft_model else {
            return Ok(None);
        };
        let checkpoint = match source.resolve(ui).context("draft model")? {
            Some(path) => Checkpoint::open(&path).context("draft model")?,
            None => model::embedded()?,
        };
        if *alone {
            config.speculation.method = kind(&checkpoint).method();
        }
        Ok(Some(checkpoint))
    }
}

/// The device that is asked for: by the flag, or else by the environment.
pub(crate) fn device(given: Option<DeviceChoice>) -> Result<DeviceChoice> {
    let choice = given.map_or_else(env::device, |choice| Ok(Some(choice)));
    Ok(choice?.unwrap_or_default())
}

/// Starts the engine. A build for tests lets it fail where the environment says so.
fn launch(loaded: Box<dyn LoadedEngine>, explain: &dyn Fn(StartError) -> anyhow::Error) -> Result<Handle> {
    #[cfg(debug_assertions)]
    if let Some((fault, step)) = env::fault()? {
        return loaded.start_failing(fault, step).map_err(explain);
    }
    loaded.start().map_err(explain)
}

/// What a checkpoint that is given as a drafter holds.
fn kind(checkpoint: &Checkpoint) -> NeuralDrafter {
    if checkpoint.config().is_some_and(Eagle3::<Recorder>::recognises) {
        NeuralDrafter::Eagle3
    } else {
        NeuralDrafter::Draft
    }
}

/// Bars for a model and for its drafter, which is loaded after it.
struct Loading {
    model: LateBar,
    drafter: LateBar,
    /// Bytes of the model that are still to come.
    left: Cell<u64>,
}

impl Loading {
    fn new(files: ModelFiles<'_>, ui: Ui) -> Self {
        let size =
            |checkpoint: &Checkpoint| checkpoint.tensors().map(|tensor| tensor.data.len() as u64).sum();
        let total = size(files.model);
        Self {
            model: ui.bar(total, ui::LOADING),
            drafter: ui.bar(files.drafter.map_or(0, size), ui::LOADING_DRAFTER),
            left: Cell::new(total),
        }
    }

    fn advance(&self, bytes: u64) {
        match self.left.get() {
            0 => self.drafter.advance(bytes),
            left => {
                self.left.set(left.saturating_sub(bytes));
                self.model.advance(bytes);
            }
        }
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
    let single = RequestOption::named(field).and_then(|option| option.single);
    let name = single.unwrap_or(field);
    let name = if in_file {
        format!("field `{name}`")
    } else {
        format!("--{}", name.replace('_', "-"))
    };
    anyhow!("{name} is {value}; it must be {bound}")
}
