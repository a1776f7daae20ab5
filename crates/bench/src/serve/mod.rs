//! A server with OpenAI's interface under load: latencies, throughput, goodput, errors; and two of them, taking turns
//! ([`compare`]).

mod arrivals;
pub mod compare;
mod driver;
mod facts;
mod figures;
mod html;
mod plots;
mod prompts;
mod ratios;
mod record;
mod report;
mod slo;
mod synthetic;
mod table;
mod verify;

pub use prompts::PromptFile;
pub use report::Earlier;
pub use slo::Slo;

use crate::error::BenchError;
use crate::progress::Progress;
use arrivals::Arrivals;
use driver::{Driver, Load};
use facts::ServerFacts;
use figures::Figures;
use paceline_client::{Client, Endpoint};
use plots::Plots;
use prompts::{Prompts, Template};
use record::{Outcome, Record};
use report::Report;
use serde_json::{Map, Value};
use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use synthetic::Synthetic;
use tokio_util::sync::CancellationToken;

/// Requests under way where nothing else is said.
const CONCURRENCY: usize = 16;
/// Requests where nothing else is said.
const REQUESTS: usize = 100;

/// What is asked.
#[derive(Clone, Debug)]
pub struct RequestConfig {
    /// The interface to ask through.
    pub endpoint: Endpoint,
    /// After which a request is given up.
    pub timeout: Duration,
    /// Requests before the measurement, with prompts of their own.
    pub warmup: usize,
    /// Of prompts and arrivals.
    pub seed: u64,
    /// Where prompts come from.
    pub prompts: PromptSource,
    /// Most tokens to generate.
    pub output_len: usize,
    /// Randomness of the answers.
    pub temperature: f32,
    /// Whether the server goes on past the end of texts.
    pub ignore_eos: bool,
    /// Whether the ids of tokens are asked for.
    pub token_ids: bool,
    /// Further fields of every request; null takes a field out.
    pub extra_body: Map<String, Value>,
}

/// What to ask of a server, and when.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// As typed, for the report; keys have no place in it.
    pub command: String,
    /// The model to ask for; the first that the server lists if it is not given.
    pub model: Option<String>,
    /// What is asked.
    pub requests: RequestConfig,
    /// Requests under way: always, or at most where there is a rate.
    pub concurrency: Option<usize>,
    /// Requests per second on average; infinity sends all at once. Without it the loop is closed.
    pub request_rate: Option<f64>,
    /// Shape of the times between arrivals: 1 is Poisson, less comes in bursts.
    pub burstiness: f64,
    /// Requests in all.
    pub num_prompts: Option<usize>,
    /// Nothing new is sent after this time.
    pub duration: Option<Duration>,
    /// Answers that are asked for again afterwards, alone, and compared.
    pub verify: usize,
    /// Limits that good requests keep.
    pub slo: Option<Slo>,
}

/// Where prompts come from.
#[derive(Clone, Debug)]
pub enum PromptSource {
    /// A file, over again if it has too few.
    File(PromptFile),
    /// Random words.
    Random {
        /// Tokens of a prompt, about.
        input_len: usize,
        /// Tokens at the start that are the same in all, about.
        prefix_len: usize,
    },
}

/// What came of it.
#[derive(Debug)]
pub struct Run {
    report: Report,
    records: Vec<Record>,
    /// Answers that were asked for again and are the same, or one that is not.
    verified: Result<usize, BenchError>,
}

/// Measures. A run that `stop` ends early has what came until then.
pub async fn run(
    config: &ServeConfig,
    client: &Client,
    stop: CancellationToken,
    progress: &dyn Progress,
) -> Result<Run, BenchError> {
    let requests = &config.requests;
    let facts = ServerFacts::ask(client, config.model.as_deref())
        .await
        .map_err(BenchError::Server)?;
    let template = Template::new(requests, &facts.model, config.verify > 0);
    let prompts = prompts(requests, (client, &template), progress).await?;
    driver::warm_up(client, &template, requests).await?;
    let limit = match (config.num_prompts, config.duration) {
        (Some(count), _) => Some(count),
        (None, Some(_)) => None,
        (None, None) => Some(prompts.lines().unwrap_or(REQUESTS)),
    };
    let started = SystemTime::now().duration_since(UNIX_EPOCH);
    let driver = Driver::new(client, (&template, &prompts), load(config, limit), stop);
    let run = driver.run(progress).await?;
    let report = Report {
        format: report::FORMAT,
        started_unix: started.map_or(0, |time| time.as_secs()),
        command: config.command.clone(),
        load: report::describe(config, limit),
        seed: Some(requests.seed),
        server: facts,
        interrupted: run.interrupted,
        plots: Plots::of(&run.records),
        figures: Figures::of(&run.records, config.slo.as_ref()),
    };
    let what = (&template, &prompts);
    let asked = (if run.interrupted { 0 } else { config.verify }, requests.timeout);
    let verified = verify::verify(client, what, &run.records, asked, progress).await;
    Ok(Run {
        report,
        records: run.records,
        verified,
    })
}

/// Where prompts come from; the server is asked how many tokens words have.
async fn prompts<'a>(
    requests: &'a RequestConfig,
    (client, template): (&Client, &Template),
    progress: &dyn Progress,
) -> Result<Prompts<'a>, BenchError> {
    let prompts = match &requests.prompts {
        PromptSource::File(file) => Prompts::File(file),
        PromptSource::Random {
            input_len,
            prefix_len,
        } => {
            let words = Synthetic::new(requests.seed);
            let scale = driver::scale(client, template, &words, requests.timeout).await?;
            if scale.is_none() {
                progress.note(&"the server does not count tokens: lengths of prompts are guessed");
            }
            Prompts::Synthetic {
                words,
                scale: scale.unwrap_or_default(),
                input: *input_len,
                prefix: *prefix_len,
            }
        }
    };
    prompts.check(template.endpoint)?;
    Ok(prompts)
}

fn load(config: &ServeConfig, limit: Option<usize>) -> Load {
    Load {
        arrivals: config
            .request_rate
            .map(|rate| Arrivals::new(rate, config.burstiness, config.requests.seed)),
        most: match (config.request_rate, config.concurrency) {
            (None, given) => given.unwrap_or(CONCURRENCY),
            (Some(_), given) => given.unwrap_or(usize::MAX),
        },
        first: 0,
        limit,
        duration: config.duration,
        timeout: config.requests.timeout,
    }
}

impl Run {
    /// Writes everything that was measured, as JSON; an [`Earlier`] reads it.
    pub fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        self.report.write(out, &self.records)
    }

    /// Writes a page with plots, with an earlier run beside this one.
    pub fn write_html(&self, out: &mut dyn Write, other: Option<&Earlier>) -> io::Result<()> {
        html::write(out, &self.report, other)
    }

    /// Writes a table, with an earlier run beside this one.
    pub fn write_table(&self, out: &mut dyn Write, other: Option<&Earlier>) -> io::Result<()> {
        table::write(out, &self.report, other)?;
        match self.verified {
            Ok(count @ 1..) => writeln!(
                out,
                "{count} answers asked again, alone and without drafts: the same"
            ),
            _ => Ok(()),
        }
    }

    /// Whether it was ended early.
    pub fn interrupted(&self) -> bool {
        self.report.interrupted
    }

    /// A run without a single answer is a failure, whatever was reported, and so is one with an answer that comes out
    /// otherwise when it is asked for again.
    pub fn check(self) -> Result<(), BenchError> {
        let failure = self.records.iter().find_map(|record| match &record.outcome {
            Outcome::Failed { kind, message } => Some((kind.clone(), message.clone())),
            Outcome::Completed | Outcome::Cancelled => None,
        });
        match failure {
            Some((kind, message)) if self.report.figures.completed == 0 => {
                Err(BenchError::NoAnswer { kind, message })
            }
            _ => self.verified.map(|_| ()),
        }
    }
}
