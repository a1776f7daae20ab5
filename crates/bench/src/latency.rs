//! Batches of equal requests: first token, step, tokens per second.

use crate::error::BenchError;
use crate::format::{Column, Table};
use crate::load::{Random, ms, percentile, run_together, token_ms};
use crate::progress::{Progress, Unit};
use crate::subject::{EngineSetup, Subject, check_lengths};
use crate::{Results, load};
use paceline::{Handle, Usage};
use serde::Serialize;
use std::io::{self, Write};

/// What to measure: every combination of batch size, input and output length, once to warm up and then measured.
/// Prompts are random tokens, so that no cache helps.
#[derive(Clone, Debug)]
pub struct LatencyConfig {
    /// Requests at a time.
    pub batch_sizes: Vec<usize>,
    /// Tokens of a prompt.
    pub input_lens: Vec<usize>,
    /// Tokens to generate.
    pub output_lens: Vec<usize>,
    /// Measured runs of each; the medians are reported.
    pub repeats: usize,
    /// Steps in flight.
    pub pipeline_depth: usize,
}

/// What came of it.
#[derive(Serialize)]
pub struct Measurements {
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
    /// Time between tokens of the request that began last, when no prompts were left: the median over runs.
    step_ms: f64,
    /// Of all requests together while they decode.
    decode_tok_s: f64,
    /// Generated tokens of a run over its whole time, prompts included.
    output_tok_s: f64,
}

/// Measures all cases with one engine.
pub fn run(
    config: &LatencyConfig,
    subject: &dyn Subject,
    progress: &dyn Progress,
) -> Result<Measurements, BenchError> {
    let mut cases = Vec::new();
    for batch in &config.batch_sizes {
        for input in &config.input_lens {
            for output in &config.output_lens {
                check_lengths(subject, *input, *output)?;
                cases.push((*batch, *input, *output));
            }
        }
    }
    let handle = subject.start(&EngineSetup {
        pipeline_depth: config.pipeline_depth,
        sequences: cases.iter().map(|case| case.0).max().unwrap_or(1),
        choices: 1,
        longest: cases.iter().map(|case| case.1 + case.2).max().unwrap_or(2),
        drafts: true,
    })?;
    let bar = progress.bar((cases.len() * (1 + config.repeats)) as u64, Unit::Tasks);
    let mut bench = Bench {
        handle: &handle,
        vocabulary: subject.vocabulary(),
        random: Random(0),
    };
    let mut rows = Vec::new();
    for case in cases {
        bar.name(format!("batch {}, {} + {} tokens", case.0, case.1, case.2));
        rows.push(bench.measure(case, config.repeats, &|| bar.advance(1))?);
    }
    Ok(Measurements {
        model: subject.name().to_owned(),
        threads: subject.threads(),
        pipeline_depth: config.pipeline_depth,
        cases: rows,
    })
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
    ) -> Result<Row, BenchError> {
        let (mut ttft, mut steps, mut rates) = (Vec::new(), Vec::new(), Vec::new());
        for run in 0..=repeats {
            let mut request = || self.random.request(input, output, self.vocabulary);
            let requests = (0..batch).map(|_| request()).collect();
            let load::Batch { usages, elapsed, .. } = run_together(self.handle, requests)?;
            done();
            // The first run warms up.
            if run > 0 {
                ttft.extend(usages.iter().map(|usage| ms(usage.first_token)));
                steps.extend(decode_step_ms(&usages));
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

/// Milliseconds per decode step of a batch. They are those of the request that began last: from its first token on no
/// prompt was left, while the others' tokens waited for prompts.
fn decode_step_ms(usages: &[Usage]) -> Option<f64> {
    token_ms(usages.iter().max_by_key(|usage| usage.first_token)?)
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
        let columns: [Column<'_, Row>; 7] = [
            ("batch", |row| row.batch_size.to_string()),
            ("input", |row| row.input_len.to_string()),
            ("output", |row| row.output_len.to_string()),
            ("TTFT ms", |row| format!("{:.2}", row.ttft_ms)),
            ("ms/step", |row| format!("{:.3}", row.step_ms)),
            ("decode tok/s", |row| format!("{:.1}", row.decode_tok_s)),
            ("output tok/s", |row| format!("{:.1}", row.output_tok_s)),
        ];
        Table::of(cases, columns).write(&mut out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_step_is_timed_by_the_request_that_began_last() {
        let usage = |first_token: u64, total: u64, completion_tokens: usize| Usage {
            first_token: Duration::from_millis(first_token),
            total: Duration::from_millis(total),
            completion_tokens,
            ..Usage::default()
        };
        // Those that began before it waited for its prompt; it is neither the first nor the last of them.
        let step = |usages: &[Usage]| decode_step_ms(usages).map(|ms| ms.round() as u64);
        let usages = [usage(10, 400, 11), usage(300, 400, 11), usage(150, 400, 11)];
        assert_eq!(step(&usages), Some(10));
        // One token has no step behind it.
        assert_eq!(step(&[usage(300, 300, 1)]), None);
        assert_eq!(step(&[]), None);
    }
}
