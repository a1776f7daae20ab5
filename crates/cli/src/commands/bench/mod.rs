//! `paceline bench`: flags become the configuration of a measurement, and its results are printed.

mod compare;
mod quality;
mod serve;
mod subject;

use crate::commands::generate::prompts;
use crate::commands::generate::{PromptSource, Settings};
use crate::engine::{self, explain_request};
use crate::flags::{
    BenchCommand, BenchLatencyFlags, BenchPipelineFlags, BenchSpeculationFlags, BenchThroughputFlags,
    WorkloadFlag,
};
use crate::interrupt::Interrupt;
use crate::terminal::Silence;
use crate::ui::Ui;
use crate::{Ending, env};
use anyhow::{Context, Result, anyhow, bail};
use paceline::{Device, EngineConfig, RequestOption, SpeculationMethod};
use paceline_bench::latency::{self, LatencyConfig};
use paceline_bench::ops;
use paceline_bench::pipeline::{self, PipelineConfig};
use paceline_bench::speculation::{self, SpeculationBench, Workload};
use paceline_bench::throughput::{self, Loop, Requests, ThroughputConfig};
use paceline_bench::{BenchError, Results, Subject};
use std::io::{self, Write};
use std::path::Path;
use subject::OpenModel;

/// Requests of `bench throughput` where nothing else is said.
const REQUESTS: usize = 64;
/// Requests under way in `bench throughput` where nothing else is said.
const CONCURRENCY: usize = 16;

/// Runs the command.
pub(crate) fn run(command: &BenchCommand, ui: Ui) -> Result<Ending> {
    // What puts load on a server hears Ctrl-C itself; whatever else is measured ends at once, without a mark on the terminal.
    let _silence = match command {
        BenchCommand::Serve(_) | BenchCommand::Compare(_) => None,
        _ => {
            Interrupt::install()?;
            Silence::begin()
        }
    };
    match command {
        BenchCommand::Latency(flags) => latency(flags, ui)?,
        BenchCommand::Throughput(flags) => throughput(flags, ui)?,
        BenchCommand::Pipeline(flags) => pipeline(flags, ui)?,
        BenchCommand::Speculation(flags) => speculation(flags, ui)?,
        BenchCommand::Serve(flags) => return serve::run(flags, ui),
        BenchCommand::Compare(flags) => return compare::run(flags, ui),
        BenchCommand::Quality(flags) => quality::run(flags, ui)?,
        BenchCommand::Ops(flags) => {
            let default = EngineConfig::default();
            let device = Device::open(&EngineConfig {
                device: engine::device(flags.device)?,
                kernel_cache: env::kernel_cache(),
                threads: flags.threads.unwrap_or(default.threads),
                ..default
            })?;
            print(&ops::run(device, flags.quick, &ui)?, flags.json)?;
        }
    }
    Ok(Ending::Done)
}

fn latency(flags: &BenchLatencyFlags, ui: Ui) -> Result<()> {
    let subject = OpenModel::open(&flags.common, ui)?;
    let config = LatencyConfig {
        batch_sizes: flags.batch_size.clone(),
        input_lens: flags.input_len.clone(),
        output_lens: flags.output_len.clone(),
        repeats: flags.repeats,
        pipeline_depth: flags.depth.pipeline_depth,
    };
    let measured = latency::run(&config, &subject, &ui).map_err(explain)?;
    print(&measured, flags.common.json)
}

fn pipeline(flags: &BenchPipelineFlags, ui: Ui) -> Result<()> {
    let subject = OpenModel::open(&flags.common, ui)?;
    let config = PipelineConfig {
        depths: flags.depth.clone(),
        batch_sizes: flags.batch_size.clone(),
        input_len: flags.input_len,
        output_len: flags.output_len,
    };
    let measured = pipeline::run(&config, &subject, &ui).map_err(explain)?;
    print(&measured, flags.common.json)
}

fn throughput(flags: &BenchThroughputFlags, ui: Ui) -> Result<()> {
    let subject = OpenModel::open(&flags.common, ui)?;
    let config = ThroughputConfig {
        requests: match &flags.prompts {
            Some(file) => Requests::Given(requests_of_file(file, flags, &subject)?),
            None => Requests::Random {
                count: flags.requests.unwrap_or(REQUESTS),
                input_len: flags.input_len,
                output_len: flags.output_len,
            },
        },
        load: match flags.rate {
            Some(rate) => Loop::Open(rate),
            None => Loop::Closed(flags.concurrency.unwrap_or(CONCURRENCY)),
        },
        seed: flags.seed,
        pipeline_depth: flags.depth.pipeline_depth,
    };
    let measured = throughput::run(config, &subject, &ui).map_err(|error| match error {
        BenchError::Request(error) => explain_request(error, true),
        other => explain(other),
    })?;
    print(&measured, flags.common.json)
}

/// The lines of a file, over and over.
fn requests_of_file(
    file: &Path,
    flags: &BenchThroughputFlags,
    subject: &OpenModel,
) -> Result<Vec<paceline::Request>> {
    let lines = PromptSource::File(file.to_owned()).read()?;
    let mut settings = Settings::default();
    if let Some(option) = RequestOption::named("max_tokens") {
        settings.options.set(option, &flags.output_len.into())?;
    }
    let jobs = prompts::prepare(lines, &subject.model, &settings, None)?;
    for job in &jobs {
        let fits = job.check_length(subject.context());
        fits.map_err(|error| job.failure(error))?;
    }
    let count = flags.requests.unwrap_or(jobs.len());
    Ok(jobs
        .iter()
        .cycle()
        .take(count)
        .map(|job| job.request.clone())
        .collect())
}

fn speculation(flags: &BenchSpeculationFlags, ui: Ui) -> Result<()> {
    let subject = OpenModel::open(&flags.common, ui)?;
    if subject.options.config.speculation.method == SpeculationMethod::Off {
        bail!("--speculation is off; it must be something to compare with off");
    }
    let workload = |flag| {
        Ok(match flag {
            WorkloadFlag::Stories => Workload::Stories,
            WorkloadFlag::Again => Workload::Again,
            WorkloadFlag::Random => Workload::Random,
            WorkloadFlag::Code => Workload::Code,
            WorkloadFlag::Rename => Workload::Rename,
            WorkloadFlag::File => {
                let path = flags.prompts.clone();
                Workload::File(path.context("--workload file needs --prompts FILE")?)
            }
        })
    };
    let config = SpeculationBench {
        workloads: flags
            .workloads()
            .into_iter()
            .map(workload)
            .collect::<Result<_>>()?,
        requests: flags.requests,
        batch_sizes: flags.batch_size.clone(),
        output_len: flags.output_len,
        repeats: flags.repeats,
        pipeline_depth: flags.depth.pipeline_depth,
    };
    let measured = speculation::run(&config, &subject, &ui).map_err(explain)?;
    print(&measured, flags.common.json)
}

/// Why something could not be measured; options are named as they are typed.
fn explain(error: BenchError) -> anyhow::Error {
    match error {
        BenchError::Subject(error) => anyhow!(error),
        BenchError::Request(error) => explain_request(error, false),
        BenchError::Lengths { input, output, limit } => anyhow!(
            "--input-len {input} and --output-len {output} are {} tokens together; the context holds {limit}",
            input + output
        ),
        BenchError::TooLong { longest, limit } => {
            anyhow!("a prompt and --output-len are {longest} tokens together; the context holds {limit}")
        }
        other => anyhow!(other),
    }
}

fn print<R: Results>(results: &R, json: bool) -> Result<()> {
    let mut out = io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, results).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        results.write(&mut out)?;
    }
    out.flush()?;
    Ok(())
}
