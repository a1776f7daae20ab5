//! A run as it is kept: in a file for machines, which later runs are compared with.

use super::facts::ServerFacts;
use super::figures::Figures;
use super::plots::Plots;
use super::record::{Outcome, Record};
use crate::flags::BenchServeFlags;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

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
    pub(super) fn read(path: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let name = || format!("--compare {}", path.display());
        let text = std::fs::read_to_string(path).with_context(name)?;
        let head: Head = serde_json::from_str(&text)
            .context("not a report of `paceline bench serve --json`")
            .with_context(name)?;
        if head.format != FORMAT {
            bail!(
                "{}: its format is {}; this program knows {FORMAT}",
                name(),
                head.format
            );
        }
        serde_json::from_str(&text).with_context(name)
    }

    /// Writes it with all requests.
    pub(super) fn write(&self, file: File, records: &[Record]) -> io::Result<()> {
        let whole = Whole {
            report: self,
            requests: records.iter().map(line).collect(),
        };
        let mut out = BufWriter::new(file);
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

/// What was typed. Keys stay out of it: reports are passed on.
pub(super) fn command_line() -> String {
    hide_keys(std::env::args().skip(1))
}

fn hide_keys(arguments: impl Iterator<Item = String>) -> String {
    let mut words = vec!["paceline".to_owned()];
    let mut secret = false;
    for argument in arguments {
        words.push(match (std::mem::take(&mut secret), argument.split_once('=')) {
            (true, _) => "...".to_owned(),
            (_, Some(("--api-key", _))) => "--api-key=...".to_owned(),
            _ if argument.contains([' ', '"', '{']) => format!("'{argument}'"),
            _ => argument.clone(),
        });
        secret = argument == "--api-key";
    }
    words.join(" ")
}

/// The load in a line.
pub(super) fn describe(flags: &BenchServeFlags, limit: Option<usize>) -> String {
    let endpoint = match flags.endpoint.into() {
        paceline_client::Endpoint::Chat => "chat",
        paceline_client::Endpoint::Completions => "completions",
    };
    let arrivals = match (flags.request_rate, flags.concurrency) {
        (Some(rate), _) if rate.is_infinite() => "all at once".to_owned(),
        (Some(rate), _) if (flags.burstiness - 1.0).abs() > f64::EPSILON => {
            format!("{rate} requests/s with burstiness {}", flags.burstiness)
        }
        (Some(rate), _) => format!("{rate} requests/s (Poisson)"),
        (None, given) => format!("{} at a time", given.unwrap_or(super::CONCURRENCY)),
    };
    let most = flags.concurrency.filter(|_| flags.request_rate.is_some());
    let most = most.map_or_else(String::new, |most| format!(", at most {most} at a time"));
    let prompts = match &flags.prompts {
        Some(path) => path.display().to_string(),
        None if flags.prefix_len > 0 => {
            format!(
                "prompts of about {} tokens, {} shared",
                flags.input_len, flags.prefix_len
            )
        }
        None => format!("prompts of about {} tokens", flags.input_len),
    };
    let requests = match (limit, flags.duration) {
        (Some(count), None) => format!("{count} requests"),
        (Some(count), Some(seconds)) => format!("{count} requests or {seconds} s"),
        (None, seconds) => format!("{} s", seconds.unwrap_or(0.0)),
    };
    let eos = if flags.ignore_eos { ", past ends" } else { "" };
    format!(
        "{endpoint}, {arrivals}{most}, {requests}, {prompts}, at most {} to generate{eos}, temperature {}, seed {}",
        flags.output_len, flags.temperature, flags.seed
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_not_told() {
        let words = [
            "bench",
            "serve",
            "--api-key",
            "secret",
            "--api-key=secret",
            "--extra-body",
            "{\"a\": 1}",
        ];
        let line = hide_keys(words.iter().map(|word| (*word).to_owned()));
        assert_eq!(
            line,
            "paceline bench serve --api-key ... --api-key=... --extra-body '{\"a\": 1}'"
        );
    }
}
