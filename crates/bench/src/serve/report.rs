//! A run as it is kept: in a file for machines, which later runs are compared with.

use super::facts::ServerFacts;
use super::figures::Figures;
use super::plots::Plots;
use super::record::{Outcome, Record};
use super::{PromptSource, RequestConfig, ServeConfig};
use crate::error::BenchError;
use paceline_client::Endpoint;
use serde::{Deserialize, Serialize};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Of the file. A reader of another number does not know what it reads.
pub(super) const FORMAT: u32 = 1;

/// Everything but the single requests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) format: u32,
    pub(super) started_unix: u64,
    /// As typed, without keys.
    pub(super) command: String,
    /// What was asked of the server.
    pub(super) load: String,
    /// Of prompts and arrivals; reports of early versions do not have it.
    #[serde(default)]
    pub(super) seed: Option<u64>,
    pub(super) server: ServerFacts,
    /// The user ended the run early.
    pub(super) interrupted: bool,
    pub(super) figures: Figures,
    pub(super) plots: Plots,
}

/// A request in the file.
#[derive(Serialize)]
struct RequestLine<'a> {
    index: usize,
    start_s: f64,
    outcome: &'a str,
    ttft_ms: Option<f64>,
    tpot_ms: Option<f64>,
    e2e_ms: f64,
    stall_ms: Option<f64>,
    prompt_tokens: Option<u64>,
    output_tokens: u64,
    chunks: usize,
    finish_reason: Option<&'a str>,
}

#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    report: &'a Report,
    requests: Vec<RequestLine<'a>>,
}

impl Report {
    /// Reads what an earlier run wrote.
    fn read(path: &Path) -> Result<Self, BenchError> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let refuse = |problem: String| BenchError::input(&path.display(), &problem);
        let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
        let head: Head = serde_json::from_str(&text)
            .map_err(|error| refuse(format!("not a report of `paceline bench serve --json`: {error}")))?;
        if head.format != FORMAT {
            return Err(refuse(format!(
                "its format is {}; this program knows {FORMAT}",
                head.format
            )));
        }
        serde_json::from_str(&text).map_err(|error| refuse(error.to_string()))
    }

    /// Writes it with all requests.
    pub(super) fn write(&self, out: &mut dyn Write, records: &[Record]) -> io::Result<()> {
        let whole = Whole {
            report: self,
            requests: records.iter().map(line).collect(),
        };
        let mut out = BufWriter::new(out);
        serde_json::to_writer_pretty(&mut out, &whole)?;
        writeln!(out)?;
        out.flush()
    }
}

fn line(record: &Record) -> RequestLine<'_> {
    let times = record.times();
    RequestLine {
        index: record.index,
        start_s: record.start,
        outcome: match &record.outcome {
            Outcome::Completed => "completed",
            Outcome::Failed { kind, .. } => kind,
            Outcome::Cancelled => "cancelled",
        },
        ttft_ms: times.ttft,
        tpot_ms: times.tpot,
        e2e_ms: times.e2e,
        stall_ms: times.stall,
        prompt_tokens: record.usage.map(|usage| usage.prompt_tokens),
        output_tokens: record.tokens().0,
        chunks: record.pieces.len(),
        finish_reason: record.finish_reason.as_deref(),
    }
}

/// A run of an earlier time.
#[derive(Clone, Debug)]
pub struct Earlier {
    path: PathBuf,
    pub(super) report: Report,
}

impl Earlier {
    /// Reads what a run wrote as JSON.
    pub fn read(path: &Path) -> Result<Self, BenchError> {
        Ok(Self {
            path: path.to_owned(),
            report: Report::read(path)?,
        })
    }

    /// The path, as it was given.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The name of the file alone.
    pub(super) fn file_name(&self) -> String {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str());
        name.to_string_lossy().into_owned()
    }
}

/// The load in a line.
pub(super) fn describe(config: &ServeConfig, limit: Option<usize>) -> String {
    let arrivals = match (config.request_rate, config.concurrency) {
        (Some(rate), _) if rate.is_infinite() => "all at once".to_owned(),
        (Some(rate), _) if (config.burstiness - 1.0).abs() > f64::EPSILON => {
            format!("{rate} requests/s with burstiness {}", config.burstiness)
        }
        (Some(rate), _) => format!("{rate} requests/s (Poisson)"),
        (None, given) => format!("{} at a time", given.unwrap_or(super::CONCURRENCY)),
    };
    let most = config.concurrency.filter(|_| config.request_rate.is_some());
    let most = most.map_or_else(String::new, |most| format!(", at most {most} at a time"));
    let seconds = config.duration.map(|duration| duration.as_secs_f64());
    let requests = match (limit, seconds) {
        (Some(count), None) => format!("{count} requests"),
        (Some(count), Some(seconds)) => format!("{count} requests or {seconds} s"),
        (None, seconds) => format!("{} s", seconds.unwrap_or(0.0)),
    };
    format!(
        "{arrivals}{most}, {requests}, {}",
        describe_requests(&config.requests)
    )
}

/// What is asked, in a line.
pub(super) fn describe_requests(config: &RequestConfig) -> String {
    let endpoint = match config.endpoint {
        Endpoint::Chat => "chat",
        Endpoint::Completions => "completions",
    };
    let prompts = match &config.prompts {
        PromptSource::File(file) => file.name().to_owned(),
        PromptSource::Random {
            input_len,
            prefix_len: 0,
        } => format!("prompts of about {input_len} tokens"),
        PromptSource::Random {
            input_len,
            prefix_len,
        } => format!("prompts of about {input_len} tokens, {prefix_len} shared"),
    };
    let eos = if config.ignore_eos { ", past ends" } else { "" };
    format!(
        "{endpoint}, {prompts}, at most {} to generate{eos}, temperature {}, seed {}",
        config.output_len, config.temperature, config.seed
    )
}
