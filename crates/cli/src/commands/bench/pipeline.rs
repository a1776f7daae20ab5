//! `paceline bench pipeline`.

use super::Results;
use super::load::{Random, Subject, run_together};
use crate::engine::{Demand, settled_stats};
use crate::flags::BenchPipelineFlags;
use crate::format::Table;
use crate::ui::{self, Ui};
use anyhow::Result;
use paceline::{Handle, PipelineTotals};
use serde::Serialize;
use std::io::{self, Write};

#[derive(Serialize)]
struct Measurements {
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
    output_tok_s: f64,
}

/// Runs the command.
pub(super) fn run(flags: &BenchPipelineFlags, ui: Ui) -> Result<()> {
    let subject = Subject::open(&flags.model, &flags.engine, ui)?;
    subject.check_lengths(flags.input_len, flags.output_len)?;
    let demand = Demand {
        sequences: flags.batch_size.iter().copied().max().unwrap_or(1),
        choices: 1,
        longest: flags.input_len + flags.output_len,
    };
    let bar = ui.bar((flags.depth.len() * flags.batch_size.len()) as u64, ui::TASKS);
    let mut cases = Vec::new();
    for depth in &flags.depth {
        let handle = subject.start(*depth, demand, ui)?;
        let mut bench = Bench {
            handle: &handle,
            random: Random(0),
            vocabulary: subject.outline.dims.vocabulary,
            requests: 0,
        };
        for batch in &flags.batch_size {
            bar.name(format!("depth {depth}, batch {batch}"));
            cases.push(bench.measure((*depth, *batch), flags)?);
            bar.advance(1);
        }
    }
    drop(bar);
    let measurements = Measurements {
        model: subject.model.source.clone(),
        threads: subject.options.config.threads,
        input_len: flags.input_len,
        output_len: flags.output_len,
        cases,
    };
    super::print(&measurements, flags.json)
}

struct Bench<'a> {
    handle: &'a Handle,
    random: Random,
    vocabulary: usize,
    /// Run so far.
    requests: u64,
}

impl Bench<'_> {
    fn measure(&mut self, (depth, batch): (usize, usize), flags: &BenchPipelineFlags) -> Result<Row> {
        // Programs are captured when a shape first comes up; that is no part of a step.
        self.run(batch, flags.input_len, flags.output_len.min(8))?;
        let before = settled_stats(self.handle, self.requests).pipeline;
        let output_tok_s = self.run(batch, flags.input_len, flags.output_len)?;
        let after = settled_stats(self.handle, self.requests).pipeline;
        Ok(Row::new((depth, batch), (&before, &after), output_tok_s))
    }

    /// Tokens per second of a batch.
    fn run(&mut self, batch: usize, input: usize, output: usize) -> Result<f64> {
        let mut request = || self.random.request(input, output, self.vocabulary);
        let requests = (0..batch).map(|_| request()).collect();
        let (_, elapsed) = run_together(self.handle, requests)?;
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
        let columns = [
            "depth", "batch", "steps", "idle", "idle µs", "device", "plan", "submit", "collect", "wait",
            "tok/s",
        ];
        let mut table = Table::new(&columns);
        for row in cases {
            let times = [
                row.idle_us,
                row.device_us,
                row.plan_us,
                row.submit_us,
                row.collect_us,
                row.wait_us,
                row.output_tok_s,
            ];
            let numbers = [row.pipeline_depth.to_string(), row.batch_size.to_string()];
            let shares = [row.steps.to_string(), format!("{:.2} %", 100.0 * row.idle_share)];
            let times = times.map(|time| format!("{time:.1}"));
            table.row(numbers.into_iter().chain(shares).chain(times).collect());
        }
        table.write(&mut out)
    }
}
