//! Pipeline depths: how long the device waits for the host between steps.

use crate::Results;
use crate::error::BenchError;
use crate::format::{Column, Table};
use crate::load::{Random, run_together, settled_stats};
use crate::progress::{Progress, Unit};
use crate::subject::{EngineSetup, Subject, check_lengths};
use paceline::{Handle, PipelineTotals};
use serde::Serialize;
use std::io::{self, Write};

/// What to measure.
#[derive(Clone, Debug)]
pub struct PipelineConfig {
    /// Steps in flight.
    pub depths: Vec<usize>,
    /// Requests at a time.
    pub batch_sizes: Vec<usize>,
    /// Tokens of a prompt.
    pub input_len: usize,
    /// Tokens to generate.
    pub output_len: usize,
}

/// What came of it.
#[derive(Serialize)]
pub struct Measurements {
    model: String,
    threads: usize,
    input_len: usize,
    output_len: usize,
    cases: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    pipeline_depth: usize,
    batch_size: usize,
    steps: u64,
    /// Of the device's time, how much it was idle although there was work.
    idle_share: f64,
    /// The following are means per step, in microseconds.
    idle_us: f64,
    device_us: f64,
    plan_us: f64,
    submit_us: f64,
    collect_us: f64,
    /// The host waiting for the device.
    wait_us: f64,
    /// How often it did, per step: once, if all is well.
    waits: f64,
    output_tok_s: f64,
}

/// Measures every depth with an engine of its own.
pub fn run(
    config: &PipelineConfig,
    subject: &dyn Subject,
    progress: &dyn Progress,
) -> Result<Measurements, BenchError> {
    check_lengths(subject, config.input_len, config.output_len)?;
    let bar = progress.bar(
        (config.depths.len() * config.batch_sizes.len()) as u64,
        Unit::Tasks,
    );
    let mut cases = Vec::new();
    for depth in &config.depths {
        let handle = subject.start(&EngineSetup {
            pipeline_depth: *depth,
            sequences: config.batch_sizes.iter().copied().max().unwrap_or(1),
            choices: 1,
            longest: config.input_len + config.output_len,
            drafts: true,
        })?;
        let mut bench = Bench {
            handle: &handle,
            random: Random(0),
            vocabulary: subject.vocabulary(),
            requests: 0,
        };
        for batch in &config.batch_sizes {
            bar.name(format!("depth {depth}, batch {batch}"));
            cases.push(bench.measure((*depth, *batch), config)?);
            bar.advance(1);
        }
    }
    Ok(Measurements {
        model: subject.name().to_owned(),
        threads: subject.threads(),
        input_len: config.input_len,
        output_len: config.output_len,
        cases,
    })
}

struct Bench<'a> {
    handle: &'a Handle,
    random: Random,
    vocabulary: usize,
    /// Run so far.
    requests: u64,
}

impl Bench<'_> {
    fn measure(
        &mut self,
        (depth, batch): (usize, usize),
        config: &PipelineConfig,
    ) -> Result<Row, BenchError> {
        // Programs are captured when a shape first comes up; that is no part of a step.
        self.run(batch, config.input_len, config.output_len.min(8))?;
        let before = settled_stats(self.handle, self.requests).pipeline;
        let output_tok_s = self.run(batch, config.input_len, config.output_len)?;
        let after = settled_stats(self.handle, self.requests).pipeline;
        Ok(Row::new((depth, batch), (&before, &after), output_tok_s))
    }

    /// Tokens per second of a batch.
    fn run(&mut self, batch: usize, input: usize, output: usize) -> Result<f64, BenchError> {
        let mut request = || self.random.request(input, output, self.vocabulary);
        let requests = (0..batch).map(|_| request()).collect();
        let elapsed = run_together(self.handle, requests)?.elapsed;
        self.requests += batch as u64;
        Ok((batch * output) as f64 / elapsed.as_secs_f64())
    }
}

impl Row {
    fn new(
        (pipeline_depth, batch_size): (usize, usize),
        (before, after): (&PipelineTotals, &PipelineTotals),
        output_tok_s: f64,
    ) -> Self {
        let steps = after.steps - before.steps;
        let spent = |time: fn(&PipelineTotals) -> u64| (time(after) - time(before)) as f64;
        let per_step = |time: fn(&PipelineTotals) -> u64| spent(time) / steps.max(1) as f64 / 1e3;
        let idle = spent(|totals| totals.bubble_ns);
        let device = spent(|totals| totals.device_ns);
        Self {
            pipeline_depth,
            batch_size,
            steps,
            idle_share: idle / (idle + device).max(1.0),
            idle_us: per_step(|totals| totals.bubble_ns),
            device_us: per_step(|totals| totals.device_ns),
            plan_us: per_step(|totals| totals.plan_ns),
            submit_us: per_step(|totals| totals.submit_ns),
            collect_us: per_step(|totals| totals.collect_ns),
            wait_us: per_step(|totals| totals.waits.collect_ns),
            waits: spent(|totals| totals.waits.collect + totals.waits.elsewhere) / steps.max(1) as f64,
            output_tok_s,
        }
    }
}

impl Results for Measurements {
    fn write(&self, mut out: &mut dyn Write) -> io::Result<()> {
        let Self {
            model,
            threads,
            input_len,
            output_len,
            cases,
        } = self;
        writeln!(
            out,
            "{model}, threads {threads}, prompts of {input_len} tokens, {output_len} generated; µs per step\n"
        )?;
        let columns: [Column<'_, Row>; 12] = [
            ("depth", |row| row.pipeline_depth.to_string()),
            ("batch", |row| row.batch_size.to_string()),
            ("steps", |row| row.steps.to_string()),
            ("idle", |row| format!("{:.2} %", 100.0 * row.idle_share)),
            ("idle µs", |row| format!("{:.1}", row.idle_us)),
            ("device", |row| format!("{:.1}", row.device_us)),
            ("plan", |row| format!("{:.1}", row.plan_us)),
            ("submit", |row| format!("{:.1}", row.submit_us)),
            ("collect", |row| format!("{:.1}", row.collect_us)),
            ("wait", |row| format!("{:.1}", row.wait_us)),
            ("waits", |row| format!("{:.2}", row.waits)),
            ("tok/s", |row| format!("{:.1}", row.output_tok_s)),
        ];
        Table::of(cases, columns).write(&mut out)
    }
}
