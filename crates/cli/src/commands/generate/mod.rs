//! `paceline generate`.

mod batch;
mod continuation;
pub(crate) mod prompts;
mod report;
mod settings;

pub(crate) use prompts::PromptSource;
pub(crate) use settings::Settings;

use crate::Ending;
use crate::engine::{self, EngineOptions};
use crate::env;
use crate::interrupt::Interrupt;
use crate::model::{LoadedModel, ModelSource};
use crate::terminal::Silence;
use crate::ui::Ui;
use anyhow::{Context, Result};
use batch::{Batch, Printing};
use paceline::{Counters, Handle, Speculation};
use paceline_bench::settled_stats;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What to generate, from what, and how to print it.
#[derive(Debug)]
pub(crate) struct GenerateConfig {
    pub(crate) model: ModelSource,
    pub(crate) prompts: PromptSource,
    /// System message of chats.
    pub(crate) system: Option<String>,
    /// Sampling, where a prompt does not say otherwise.
    pub(crate) settings: Settings,
    /// How the engine is set up.
    pub(crate) engine: EngineOptions,
    /// JSON instead of text.
    pub(crate) json: bool,
    /// Tell the engine's numbers at the end.
    pub(crate) stats: bool,
    /// Where to write the times of all steps.
    pub(crate) trace: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(config: &GenerateConfig, ui: Ui) -> Result<Ending> {
    let interrupt = Interrupt::install()?;
    let start = Instant::now();
    let prompts = config.prompts.read()?;
    let trace = TraceFile::create(config.trace.as_deref())?;
    let model = LoadedModel::open(&config.model, ui)?;
    let jobs = prompts::prepare(prompts, &model, &config.settings, config.system.as_deref())?;
    let outline = engine::outline(&model)?;
    let limit = config
        .engine
        .config
        .max_model_len
        .unwrap_or(outline.dims.max_positions);
    for job in &jobs {
        job.check_length(limit).map_err(|error| job.failure(error))?;
    }
    let demand = prompts::demand(&jobs);
    let handle = config.engine.start((&model, &outline), demand, ui)?;
    let load_time = start.elapsed();
    tracing::info!(source = model.source, ?load_time, "model loaded");
    interrupt.polite();
    let printing = Printing {
        tokenizer: model.tokenizer.as_ref(),
        json: config.json,
        terminal: io::stdout().is_terminal().then(env::colours),
        load_time,
        ui,
    };
    let mut batch = Batch::new(&handle, &jobs, printing);
    let silence = Silence::begin();
    let ending = batch.run(&interrupt)?;
    drop(silence);
    let ended = batch.submitted() as u64;
    finish(config, &handle, ended, (trace, ui))?;
    Ok(ending)
}

/// Tells how the engine did, where that was asked for.
fn finish(
    config: &GenerateConfig,
    handle: &Handle,
    ended: u64,
    (trace, ui): (Option<TraceFile>, Ui),
) -> Result<()> {
    if !config.stats && trace.is_none() {
        return Ok(());
    }
    let stats = settled_stats(handle, ended);
    if config.stats {
        let drafts = stats_lines(handle.speculation(), &stats.counters);
        ui.note(format_args!(
            "memory\n{}\nengine\n{stats}\n{drafts}",
            handle.memory()
        ));
    }
    match trace {
        Some(trace) => trace.write(&handle.trace(usize::MAX)),
        None => Ok(()),
    }
}

/// The lines of `--stats` that the engine's numbers do not tell by themselves: the drafters, and what a step yields.
fn stats_lines(speculation: &Speculation, counters: &Counters) -> String {
    let drafters = format!("  speculation    {speculation}");
    let rows = counters.draft_rows;
    if rows == 0 {
        return drafters;
    }
    let length = 1.0 + counters.drafts_accepted as f64 / rows as f64;
    format!(
        "{drafters}\n  length         {length:.2} tokens per decode with drafts (mean acceptance length), {rows} of them"
    )
}

/// The file of a trace, opened before the work so that a bad name does not cost it.
struct TraceFile {
    file: File,
    name: String,
}

impl TraceFile {
    fn create(path: Option<&Path>) -> Result<Option<Self>> {
        let Some(path) = path else {
            return Ok(None);
        };
        let name = path.display().to_string();
        let file = File::create(path).with_context(|| format!("--trace {name}"))?;
        Ok(Some(Self { file, name }))
    }

    fn write(mut self, trace: &str) -> Result<()> {
        let written = self.file.write_all(trace.as_bytes());
        written.with_context(|| format!("--trace {}", self.name))
    }
}
