//! `paceline bench latency`.

use super::Results;
use super::load::{Random, Subject, ms, percentile, run_together, token_ms};
use crate::engine::Demand;
use crate::flags::BenchLatencyFlags;
use crate::format::Table;
use crate::ui::{self, Ui};
use anyhow::Result;
use paceline::Handle;
use serde::Serialize;
use std::io::{self, Write};

#[derive(Serialize)]
struct Measurements {
    model: String,
    threads: usize,
    pipeline_depth: usize,
    cases: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    batch_size: usize,
    input_len: usize,
    output_len: usize,
    /// Median over requests, from a request's arrival.
    ttft_ms: f64,
    /// Median over requests of the time between tokens.
    step_ms: f64,
    /// Of all requests together while they decode.
    decode_tok_s: f64,
    /// Generated tokens of a run over its whole time, prompts included.
    output_tok_s: f64,
}

/// Runs the command.
pub(super) fn run(flags: &BenchLatencyFlags, ui: Ui) -> Result<()> {
    let subject = Subject::open(&flags.model, &flags.engine, ui)?;
    let mut cases = Vec::new();
    for batch in &flags.batch_size {
        for input in &flags.input_len {
            for output in &flags.output_len {
                subject.check_lengths(*input, *output)?;
                cases.push((*batch, *input, *output));
            }
        }
    }
    let demand = Demand {
        sequences: cases.iter().map(|case| case.0).max().unwrap_or(1),
        choices: 1,
        longest: cases.iter().map(|case| case.1 + case.2).max().unwrap_or(2),
    };
    let handle = subject.start(flags.pipeline_depth, demand, ui)?;
    let bar = ui.bar((cases.len() * (1 + flags.repeats)) as u64, ui::TASKS);
    let mut bench = Bench {
        handle: &handle,
        vocabulary: subject.outline.dims.vocabulary,
        random: Random(0),
    };
    let mut rows = Vec::new();
    for case in cases {
        bar.name(format!("batch {}, {} + {} tokens", case.0, case.1, case.2));
        rows.push(bench.measure(case, flags.repeats, &|| bar.advance(1))?);
    }
    drop(bar);
    let measurements = Measurements {
        model: subject.model.source.clone(),
        threads: subject.options.config.threads,
        pipeline_depth: flags.pipeline_depth,
        cases: rows,
    };
    super::print(&measurements, flags.json)
}

struct Bench<'a> {
    handle: &'a Handle,
    vocabulary: usize,
    random: Random,
}

impl Bench<'_> {
    fn measure(
        &mut self,
        (batch, input, output): (usize, usize, usize),
        repeats: usize,
        done: &dyn Fn(),
    ) -> Result<Row> {
        let (mut ttft, mut steps, mut rates) = (Vec::new(), Vec::new(), Vec::new());
        for run in 0..=repeats {
            let mut request = || self.random.request(input, output, self.vocabulary);
            let requests = (0..batch).map(|_| request()).collect();
            let (usages, elapsed) = run_together(self.handle, requests)?;
            done();
            // The first run warms up.
            if run > 0 {
                ttft.extend(usages.iter().map(|usage| ms(usage.first_token)));
                steps.extend(usages.iter().filter_map(token_ms));
                rates.push((batch * output) as f64 / elapsed.as_secs_f64());
            }
        }
        let step_ms = percentile(&mut steps, 0.5);
        let decode_tok_s = if step_ms > 0.0 {
            batch as f64 * 1e3 / step_ms
        } else {
            0.0
        };
        Ok(Row {
            batch_size: batch,
            input_len: input,
            output_len: output,
            ttft_ms: percentile(&mut ttft, 0.5),
            step_ms,
            decode_tok_s,
            output_tok_s: percentile(&mut rates, 0.5),
        })
    }
}

impl Results for Measurements {
    fn write(&self, mut out: &mut dyn Write) -> io::Result<()> {
        let Self {
            model,
            threads,
            pipeline_depth,
            cases,
        } = self;
        writeln!(
            out,
            "{model}, threads {threads}, pipeline depth {pipeline_depth}\n"
        )?;
        let columns = [
            "batch",
            "input",
            "output",
            "TTFT ms",
            "ms/step",
            "decode tok/s",
            "output tok/s",
        ];
        let mut table = Table::new(&columns);
        for row in cases {
            table.row(vec![
                row.batch_size.to_string(),
                row.input_len.to_string(),
                row.output_len.to_string(),
                format!("{:.2}", row.ttft_ms),
                format!("{:.3}", row.step_ms),
                format!("{:.1}", row.decode_tok_s),
                format!("{:.1}", row.output_tok_s),
            ]);
        }
        table.write(&mut out)
    }
}
