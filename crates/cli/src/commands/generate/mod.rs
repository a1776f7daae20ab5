//! `paceline generate`.

mod prompts;
mod report;
mod settings;
mod text;

pub(crate) use prompts::PromptSource;
pub(crate) use settings::Settings;

use crate::Ending;
use crate::format;
use crate::interrupt::Interrupt;
use crate::model::{LoadedModel, ModelSource};
use crate::ui::{self, Ui};
use anyhow::{Context, Result, anyhow};
use paceline_device_cpu::{Cpu, CpuOptions};
use paceline_engine::{Generator, GeneratorConfig, Sampled};
use paceline_text::Tokenizer;
use paceline_types::{DType, FinishReason};
use prompts::Job;
use report::{GeneratedToken, Report};
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use text::TextStream;

/// Prompt tokens per step.
const CHUNK: usize = 512;

/// What to generate, from what, and how to print it.
#[derive(Debug)]
pub(crate) struct GenerateConfig {
    /// The model.
    pub(crate) model: ModelSource,
    /// The prompts.
    pub(crate) prompts: PromptSource,
    /// System message of chats.
    pub(crate) system: Option<String>,
    /// Sampling, where a prompt does not say otherwise.
    pub(crate) settings: Settings,
    /// All usable cores if `None`.
    pub(crate) threads: Option<usize>,
    /// Convert matrices to this type.
    pub(crate) store_as: Option<DType>,
    /// JSON instead of text.
    pub(crate) json: bool,
}

/// Runs the command.
pub(crate) fn run(config: &GenerateConfig, ui: Ui) -> Result<Ending> {
    let interrupt = Interrupt::install()?;
    let start = Instant::now();
    let prompts = config.prompts.read()?;
    let model = LoadedModel::open(&config.model, ui)?;
    let jobs = prompts::prepare(prompts, config, &model)?;
    let mut session = Session {
        generator: load(config, &model, &jobs, ui)?,
        tokenizer: model.tokenizer.as_ref(),
        load_time: start.elapsed(),
        json: config.json,
        interrupt,
        ui,
    };
    tracing::info!(source = model.source, load_time = ?session.load_time, "model loaded");
    session.interrupt.polite();
    for job in &jobs {
        let place = || job.place.clone().unwrap_or_default();
        let ending = session.run(job, jobs.len());
        let ending = match &job.place {
            Some(_) => ending.with_context(place)?,
            None => ending?,
        };
        if ending == Ending::Cancelled {
            return Ok(Ending::Cancelled);
        }
    }
    Ok(Ending::Done)
}

/// Puts the model on the device, with room for the longest job.
fn load(config: &GenerateConfig, model: &LoadedModel, jobs: &[Job], ui: Ui) -> Result<Generator<Cpu>> {
    let mut options = CpuOptions::default();
    if let Some(threads) = config.threads {
        options.threads = threads;
    }
    let cpu = Cpu::new(options);
    let checkpoint = &model.checkpoint;
    let total = checkpoint.tensors().map(|tensor| tensor.data.len() as u64).sum();
    let bar = ui.bar(total, ui::LOADING);
    let decoder = paceline_models::load(&cpu, checkpoint, config.store_as, &|bytes| bar.advance(bytes))
        .with_context(|| model.source.clone())?;
    drop(bar);
    let longest = jobs
        .iter()
        .map(|job| job.tokens.len().saturating_add(job.params.max_tokens))
        .max();
    let generator = GeneratorConfig {
        context: longest.unwrap_or(1),
        chunk: CHUNK,
    };
    Ok(Generator::new(cpu, decoder, generator)?)
}

/// A loaded model at work.
struct Session<'a> {
    generator: Generator<Cpu>,
    tokenizer: Option<&'a Tokenizer>,
    load_time: Duration,
    json: bool,
    interrupt: Interrupt,
    ui: Ui,
}

impl Session<'_> {
    fn run(&mut self, job: &Job, jobs: usize) -> Result<Ending> {
        if jobs > 1 && !self.json {
            let preview = format::preview(&job.preview, 60);
            self.ui.note(format_args!("[{}/{jobs}] {preview}", job.index + 1));
        }
        let report = self.generate(job)?;
        let mut out = io::stdout().lock();
        if self.json {
            serde_json::to_writer(&mut out, &report.to_json(self.tokenizer)).map_err(io::Error::from)?;
        }
        writeln!(out)?;
        out.flush()?;
        if !self.json {
            for line in report.logprob_lines(self.tokenizer) {
                self.ui.note(line);
            }
            self.ui.note(report.closing_line());
        }
        match report.outcome.finish_reason {
            FinishReason::Cancelled => Ok(Ending::Cancelled),
            _ => Ok(Ending::Done),
        }
    }

    /// Generates for one prompt; in text mode the text is printed as it comes.
    fn generate(&mut self, job: &Job) -> Result<Report> {
        let mut stream = TextStream::new(self.tokenizer, job);
        let mut tokens = Vec::new();
        let mut text = String::new();
        let mut failure = None;
        let (echo, interrupt) = (!self.json, &self.interrupt);
        let on_token = |sampled: Sampled| {
            let piece = stream.push(sampled.token);
            tokens.push(GeneratedToken::from(sampled));
            text.push_str(&piece.text);
            if echo && let Err(error) = print(&piece.text) {
                failure = Some(error);
                return ControlFlow::Break(FinishReason::Cancelled);
            }
            if piece.stopped {
                ControlFlow::Break(FinishReason::Stop)
            } else if interrupt.requested() {
                ControlFlow::Break(FinishReason::Cancelled)
            } else {
                ControlFlow::Continue(())
            }
        };
        let mut outcome = self.generator.generate(&job.tokens, &job.params, on_token)?;
        let rest = stream.finish();
        text.push_str(&rest.text);
        if rest.stopped && outcome.finish_reason == FinishReason::Length {
            outcome.finish_reason = FinishReason::Stop;
        }
        if echo && failure.is_none() {
            failure = print(&rest.text).err();
        }
        match failure {
            Some(error) => Err(anyhow!(error).context("cannot write to stdout")),
            None => Ok(Report {
                index: job.index,
                prompt_tokens: job.tokens.len(),
                params: job.params.clone(),
                tokens,
                text,
                outcome,
                load_time: self.load_time,
            }),
        }
    }
}

fn print(text: &str) -> io::Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
