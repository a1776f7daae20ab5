//! `paceline bench throughput`.

use super::Results;
use super::load::{Random, Subject, ms, percentile, token_ms, usage};
use crate::commands::generate::prompts;
use crate::commands::generate::{PromptSource, Settings};
use crate::engine::{Demand, explain_request};
use crate::flags::BenchThroughputFlags;
use crate::format::{Facts, Table};
use crate::streams::Streams;
use crate::ui::{self, LateBar, Ui};
use anyhow::Result;
use paceline::{Handle, Request, RequestError, Usage};
use serde::Serialize;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Requests where nothing else is said.
const REQUESTS: usize = 64;
/// Requests under way where nothing else is said.
const CONCURRENCY: usize = 16;
/// How long to sleep at most between events.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Serialize)]
struct Measurements {
    model: String,
    threads: usize,
    pipeline_depth: usize,
    /// Under way at a time, in a closed loop.
    concurrency: Option<usize>,
    /// Arrivals per second, in an open loop.
    rate: Option<f64>,
    requests: usize,
    prompt_tokens: usize,
    output_tokens: usize,
    elapsed_s: f64,
    requests_s: f64,
    output_tok_s: f64,
    total_tok_s: f64,
    /// From arrival to first token.
    ttft_ms: Percentiles,
    /// Between tokens.
    token_ms: Percentiles,
    /// From arrival to end.
    latency_ms: Percentiles,
}

#[derive(Serialize)]
struct Percentiles {
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

/// When requests are sent.
#[derive(Clone, Copy)]
enum Loop {
    /// So many are under way.
    Closed(usize),
    /// So many arrive per second.
    Open(f64),
}

/// Runs the command.
pub(super) fn run(flags: &BenchThroughputFlags, ui: Ui) -> Result<()> {
    let subject = Subject::open(&flags.model, &flags.engine, ui)?;
    let mut random = Random(flags.seed);
    let requests = requests(flags, &subject, &mut random)?;
    let length = |request: &Request| request.prompt.len() + request.sampling.max_tokens;
    let load = match flags.rate {
        Some(rate) => Loop::Open(rate),
        None => Loop::Closed(flags.concurrency.unwrap_or(CONCURRENCY)),
    };
    let demand = Demand {
        sequences: match load {
            Loop::Closed(concurrency) => concurrency.min(requests.len()),
            Loop::Open(_) => CONCURRENCY,
        },
        choices: requests.iter().filter_map(|request| request.n).max().unwrap_or(1),
        longest: requests.iter().map(length).max().unwrap_or(2),
    };
    let handle = subject.start(flags.pipeline_depth, demand, ui)?;
    let count = requests.len();
    let bar = ui.bar(count as u64, ui::TASKS);
    let mut driver = Driver {
        handle: &handle,
        streams: Streams::default(),
        waits: Vec::with_capacity(count),
        usages: Vec::with_capacity(count),
        bar: &bar,
    };
    let start = Instant::now();
    driver.run(requests, load, &mut random)?;
    let elapsed = start.elapsed().as_secs_f64();
    let usages = driver.usages;
    drop(bar);
    let mut measurements = Measurements::new(&usages, elapsed, count);
    measurements.model.clone_from(&subject.model.source);
    measurements.threads = subject.options.config.threads;
    measurements.pipeline_depth = flags.pipeline_depth;
    match load {
        Loop::Closed(concurrency) => measurements.concurrency = Some(concurrency),
        Loop::Open(rate) => measurements.rate = Some(rate),
    }
    super::print(&measurements, flags.json)
}

/// The lines of the file over and over, or random prompts.
fn requests(flags: &BenchThroughputFlags, subject: &Subject, random: &mut Random) -> Result<Vec<Request>> {
    let Some(file) = &flags.prompts else {
        subject.check_lengths(flags.input_len, flags.output_len)?;
        let vocabulary = subject.outline.dims.vocabulary;
        let count = flags.requests.unwrap_or(REQUESTS);
        let request = |_| random.request(flags.input_len, flags.output_len, vocabulary);
        return Ok((0..count).map(request).collect());
    };
    let lines = PromptSource::File(file.clone()).read()?;
    let settings = Settings {
        max_tokens: Some(flags.output_len),
        ..Settings::default()
    };
    let jobs = prompts::prepare(lines, &subject.model, &settings, None)?;
    let limit = subject.options.config.max_model_len;
    for job in &jobs {
        job.check_length(limit.unwrap_or(subject.outline.dims.max_positions))
            .map_err(|error| job.failure(error))?;
    }
    let count = flags.requests.unwrap_or(jobs.len());
    Ok(jobs
        .iter()
        .cycle()
        .take(count)
        .map(prompts::Job::request)
        .collect())
}

/// Sends requests and gathers what they took.
struct Driver<'a> {
    handle: &'a Handle,
    streams: Streams,
    /// By request: how long it waited to be sent after it was due.
    waits: Vec<Duration>,
    usages: Vec<Usage>,
    bar: &'a LateBar,
}

impl Driver<'_> {
    fn run(&mut self, requests: Vec<Request>, load: Loop, random: &mut Random) -> Result<()> {
        let mut due = Instant::now();
        for request in requests {
            match load {
                Loop::Closed(concurrency) => {
                    while self.streams.len() >= concurrency {
                        self.listen(Instant::now() + PATIENCE)?;
                    }
                    due = Instant::now();
                }
                Loop::Open(_) => {
                    while Instant::now() < due {
                        self.listen(due)?;
                    }
                }
            }
            self.send(&request, due)?;
            if let Loop::Open(rate) = load {
                // Times between arrivals that know nothing of each other are distributed exponentially.
                due += Duration::from_secs_f64(-random.share().ln() / rate);
            }
        }
        while !self.streams.is_empty() {
            self.listen(Instant::now() + PATIENCE)?;
        }
        Ok(())
    }

    /// Sends a request, if need be once the queue has room.
    fn send(&mut self, request: &Request, due: Instant) -> Result<()> {
        loop {
            match self.handle.generate(request.clone()) {
                Ok(generation) => {
                    self.streams.add(generation);
                    self.waits.push(due.elapsed());
                    return Ok(());
                }
                Err(RequestError::QueueFull { .. }) if !self.streams.is_empty() => {
                    self.listen(Instant::now() + PATIENCE)?;
                }
                Err(error) => return Err(explain_request(error, true)),
            }
        }
    }

    fn listen(&mut self, until: Instant) -> Result<()> {
        match self.streams.next(until) {
            Some((index, Some(event))) => {
                let waited = self.waits[index];
                self.usages.extend(usage(event)?.map(|usage| Usage {
                    first_token: usage.first_token + waited,
                    total: usage.total + waited,
                    ..usage
                }));
            }
            Some((_, None)) => self.bar.advance(1),
            None => {}
        }
        Ok(())
    }
}

impl Measurements {
    fn new(usages: &[Usage], elapsed: f64, requests: usize) -> Self {
        let prompt_tokens = usages.iter().map(|usage| usage.prompt_tokens).sum::<usize>();
        let output_tokens = usages.iter().map(|usage| usage.completion_tokens).sum::<usize>();
        Self {
            model: String::new(),
            threads: 0,
            pipeline_depth: 0,
            concurrency: None,
            rate: None,
            requests,
            prompt_tokens,
            output_tokens,
            elapsed_s: elapsed,
            requests_s: requests as f64 / elapsed,
            output_tok_s: output_tokens as f64 / elapsed,
            total_tok_s: (prompt_tokens + output_tokens) as f64 / elapsed,
            ttft_ms: Percentiles::of(usages.iter().map(|usage| ms(usage.first_token))),
            token_ms: Percentiles::of(usages.iter().filter_map(token_ms)),
            latency_ms: Percentiles::of(usages.iter().map(|usage| ms(usage.total))),
        }
    }
}

impl Percentiles {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        Self {
            p50: percentile(&mut values, 0.5),
            p90: percentile(&mut values, 0.9),
            p99: percentile(&mut values, 0.99),
            max: percentile(&mut values, 1.0),
        }
    }
}

impl Results for Measurements {
    fn write(&self, mut out: &mut dyn Write) -> io::Result<()> {
        let load = match (self.concurrency, self.rate) {
            (Some(concurrency), _) => format!("{concurrency} requests under way"),
            (_, rate) => format!("{} requests/s arriving", rate.unwrap_or(0.0)),
        };
        let mut facts = Facts::default();
        facts.add("model", &self.model);
        facts.add(
            "load",
            format!(
                "{load}, threads {}, pipeline depth {}",
                self.threads, self.pipeline_depth
            ),
        );
        facts.add(
            "work",
            format!(
                "{} requests, {} prompt + {} generated tokens in {:.2} s",
                self.requests, self.prompt_tokens, self.output_tokens, self.elapsed_s
            ),
        );
        facts.add(
            "throughput",
            format!(
                "{:.1} generated tok/s, {:.1} tok/s with prompts, {:.2} requests/s",
                self.output_tok_s, self.total_tok_s, self.requests_s
            ),
        );
        facts.write(&mut out)?;
        writeln!(out)?;
        let mut table = Table::new(&["ms", "p50", "p90", "p99", "max"]);
        for (name, Percentiles { p50, p90, p99, max }) in [
            ("first token", &self.ttft_ms),
            ("per token", &self.token_ms),
            ("request", &self.latency_ms),
        ] {
            let cells = [p50, p90, p99, max].map(|value| format!("{value:.2}"));
            table.row([name.to_owned()].into_iter().chain(cells).collect());
        }
        table.write(&mut out)
    }
}
