//! Many requests, in a closed or an open loop: tokens and requests per second, and how long requests take.

use crate::Results;
use crate::error::BenchError;
use crate::format::{Facts, Table};
use crate::load::{PATIENCE, Random, ms, percentile, token_ms, usage};
use crate::progress::{Bar, Progress, Unit};
use crate::subject::{EngineSetup, Subject, check_lengths};
use paceline::{Handle, Request, RequestError, Streams, Usage};
use serde::Serialize;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Slots of an engine for an open loop, in which any number of requests may be under way.
const OPEN_LOOP_SLOTS: usize = 16;

/// What to measure.
#[derive(Clone, Debug)]
pub struct ThroughputConfig {
    /// What is asked.
    pub requests: Requests,
    /// When it is asked.
    pub load: Loop,
    /// Of random prompts and of arrivals.
    pub seed: u64,
    /// Steps in flight.
    pub pipeline_depth: usize,
}

/// What is asked.
#[derive(Clone, Debug)]
pub enum Requests {
    /// Prompts of random tokens.
    Random {
        /// Requests in all.
        count: usize,
        /// Tokens of a prompt.
        input_len: usize,
        /// Tokens to generate.
        output_len: usize,
    },
    /// These, one after the other.
    Given(Vec<Request>),
}

/// What came of it.
#[derive(Serialize)]
pub struct Measurements {
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
#[derive(Clone, Copy, Debug)]
pub enum Loop {
    /// A new one whenever one ends: this number is always under way.
    Closed(usize),
    /// At random moments, this number per second on average.
    Open(f64),
}

/// Sends all requests and measures until the last has ended.
pub fn run(
    config: ThroughputConfig,
    subject: &dyn Subject,
    progress: &dyn Progress,
) -> Result<Measurements, BenchError> {
    let mut random = Random(config.seed);
    let requests = match config.requests {
        Requests::Given(requests) => requests,
        Requests::Random {
            count,
            input_len,
            output_len,
        } => {
            check_lengths(subject, input_len, output_len)?;
            let request = |_| random.request(input_len, output_len, subject.vocabulary());
            (0..count).map(request).collect()
        }
    };
    let length = |request: &Request| request.prompt.len() + request.sampling.max_tokens;
    let handle = subject.start(&EngineSetup {
        pipeline_depth: config.pipeline_depth,
        sequences: match config.load {
            Loop::Closed(concurrency) => concurrency.min(requests.len()),
            Loop::Open(_) => OPEN_LOOP_SLOTS,
        },
        choices: requests.iter().filter_map(|request| request.n).max().unwrap_or(1),
        longest: requests.iter().map(length).max().unwrap_or(2),
        drafts: true,
    })?;
    let count = requests.len();
    let bar = progress.bar(count as u64, Unit::Tasks);
    let mut driver = Driver {
        handle: &handle,
        streams: Streams::default(),
        waits: Vec::with_capacity(count),
        usages: Vec::with_capacity(count),
        bar: &*bar,
    };
    let start = Instant::now();
    driver.run(requests, config.load, &mut random)?;
    let elapsed = start.elapsed().as_secs_f64();
    let mut measurements = Measurements::new(&driver.usages, elapsed, count);
    subject.name().clone_into(&mut measurements.model);
    measurements.threads = subject.threads();
    measurements.pipeline_depth = config.pipeline_depth;
    match config.load {
        Loop::Closed(concurrency) => measurements.concurrency = Some(concurrency),
        Loop::Open(rate) => measurements.rate = Some(rate),
    }
    Ok(measurements)
}

/// Sends requests and gathers what they took.
struct Driver<'a> {
    handle: &'a Handle,
    streams: Streams,
    /// By request: how long it waited to be sent after it was due.
    waits: Vec<Duration>,
    usages: Vec<Usage>,
    bar: &'a dyn Bar,
}

impl Driver<'_> {
    fn run(&mut self, requests: Vec<Request>, load: Loop, random: &mut Random) -> Result<(), BenchError> {
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
    fn send(&mut self, request: &Request, due: Instant) -> Result<(), BenchError> {
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
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn listen(&mut self, until: Instant) -> Result<(), BenchError> {
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
        let rows = [
            ("first token", &self.ttft_ms),
            ("per token", &self.token_ms),
            ("request", &self.latency_ms),
        ];
        let rows = rows.map(|(name, Percentiles { p50, p90, p99, max })| {
            let [p50, p90, p99, max] = [p50, p90, p99, max].map(|value| format!("{value:.2}"));
            [name.to_owned(), p50, p90, p99, max]
        });
        Table::new(["ms", "p50", "p90", "p99", "max"], rows).write(&mut out)
    }
}
