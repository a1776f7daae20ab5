//! `paceline bench serve`.

mod arrivals;
mod driver;
mod facts;
mod figures;
mod html;
mod plots;
mod prompts;
mod record;
mod report;
mod slo;
mod synthetic;
mod table;

pub(crate) use slo::Slo;

use crate::flags::BenchServeFlags;
use crate::ui::Ui;
use crate::{Ending, env};
use anyhow::{Context, Result, anyhow, bail};
use arrivals::Arrivals;
use driver::{Driver, Load};
use facts::ServerFacts;
use figures::Figures;
use paceline_client::{Client, ClientError};
use plots::Plots;
use prompts::{Prompts, Template};
use record::{Outcome, Record};
use report::Report;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use synthetic::Synthetic;

/// Requests under way where nothing else is said.
const CONCURRENCY: usize = 16;
/// Requests where nothing else is said.
const REQUESTS: usize = 100;

/// Runs the command.
pub(super) fn run(flags: &BenchServeFlags, ui: Ui) -> Result<Ending> {
    // What was typed wrongly should not cost a run.
    let file = flags.prompts.as_deref().map(prompts::read).transpose()?;
    let other = flags.compare.as_deref().map(Report::read).transpose()?;
    let json = flags.json.as_deref().map(create).transpose()?;
    let html = flags.html.as_deref().map(create).transpose()?;
    let key = flags
        .api_key
        .clone()
        .map_or_else(env::api_key, |key| Ok(Some(key)))?;
    let client = crate::client::open(&flags.base_url, key.as_deref(), flags.ca_file.as_deref())?;
    // One thread: it waits most of the time, and the server may need the others.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the clock of the benchmark")?;
    let measured = runtime.block_on(measure(flags, &client, file, ui))?;
    let (report, records) = measured;
    if let Some((file, path)) = json {
        report
            .write(file, &records)
            .with_context(|| path.display().to_string())?;
    }
    if let Some((file, path)) = html {
        let name = flags.compare.as_deref().map(file_name);
        html::write(file, &report, other.as_ref().zip(name)).with_context(|| path.display().to_string())?;
    }
    // Last: who reads the table may stop in the middle of it.
    table::print(
        &report,
        other.as_ref().map(|other| (other, flags.compare.as_deref())),
    )?;
    ending(&report, &records)
}

fn create(path: &Path) -> Result<(File, &Path)> {
    let file = File::create(path).with_context(|| path.display().to_string())?;
    Ok((file, path))
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned()
}

/// A run without a single answer is a failure, whatever was reported.
fn ending(report: &Report, records: &[Record]) -> Result<Ending> {
    if report.interrupted {
        return Ok(Ending::Cancelled);
    }
    let failure = records.iter().find_map(|record| match &record.outcome {
        Outcome::Failed { kind, message } => Some((kind, message)),
        Outcome::Completed | Outcome::Cancelled => None,
    });
    match failure {
        Some((kind, message)) if report.figures.completed == 0 => {
            bail!("no request got its answer; the first ended with {kind}: {message}")
        }
        _ => Ok(Ending::Done),
    }
}

async fn measure(
    flags: &BenchServeFlags,
    client: &Client,
    file: Option<Prompts>,
    ui: Ui,
) -> Result<(Report, Vec<Record>)> {
    let facts = ServerFacts::ask(client, flags.model.as_deref())
        .await
        .map_err(|error| explain(error, client))?;
    let template = Template::new(flags, &facts.model);
    let timeout = Duration::from_secs_f64(flags.timeout);
    let synthetic = Synthetic::new(flags.seed);
    let prompts = if let Some(prompts) = file {
        prompts
    } else {
        let scale = driver::scale(client, &template, &synthetic, timeout).await?;
        if scale.is_none() {
            ui.note("the server does not count tokens: lengths of prompts are guessed");
        }
        Prompts::Synthetic {
            words: synthetic.clone(),
            scale: scale.unwrap_or_default(),
            input: flags.input_len,
            prefix: flags.prefix_len,
        }
    };
    prompts.check(template.endpoint)?;
    driver::warm_up(client, &template, &synthetic, (flags.warmup, timeout)).await?;
    let limit = match (flags.num_prompts, flags.duration) {
        (Some(count), _) => Some(count),
        (None, Some(_)) => None,
        (None, None) => Some(prompts.lines().unwrap_or(REQUESTS)),
    };
    let load = Load {
        arrivals: flags
            .request_rate
            .map(|rate| Arrivals::new(rate, flags.burstiness, flags.seed)),
        most: match (flags.request_rate, flags.concurrency) {
            (None, given) => given.unwrap_or(CONCURRENCY),
            (Some(_), given) => given.unwrap_or(usize::MAX),
        },
        limit,
        duration: flags.duration.map(Duration::from_secs_f64),
        timeout,
    };
    let started = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs());
    let run = Driver::new(client, &template, &prompts, load).run(ui).await?;
    let figures = Figures::of(&run.records, flags.slo.as_ref());
    let report = Report {
        format: report::FORMAT,
        started_unix: started,
        command: report::command_line(),
        load: report::describe(flags, limit),
        server: facts,
        interrupted: run.interrupted,
        plots: Plots::of(&run.records),
        figures,
    };
    Ok((report, run.records))
}

/// Why the server could not be asked, and what to do about it.
fn explain(error: ClientError, client: &Client) -> anyhow::Error {
    let root = client.root();
    match &error {
        ClientError::Connect { .. } => anyhow!(
            "{error}; start a server there, for instance with `paceline serve`, or name another with --base-url"
        ),
        ClientError::Status {
            status: 401 | 403, ..
        } => {
            anyhow!("{root}: {error}; give the key with --api-key or PACELINE_API_KEY")
        }
        _ => anyhow!(error).context(root.to_owned()),
    }
}
