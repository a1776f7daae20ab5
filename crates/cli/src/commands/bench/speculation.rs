//! `paceline bench speculation`: two engines in one process, one that drafts and one that does not, take turns at the
//! same requests, so that what the machine does meanwhile falls on both.

mod report;
mod workloads;

use super::load::Subject;
use crate::engine::{Demand, explain_request, settled_stats};
use crate::flags::{BenchSpeculationFlags, Workload};
use crate::streams::Streams;
use crate::ui::{self, Ui};
use anyhow::{Result, anyhow, bail};
use paceline::{Event, Handle, Request, SpeculationMethod, Stats, Usage};
use paceline_types::TokenId;
use report::{Measurements, Row, Runs};
use std::time::{Duration, Instant};
use workloads::Prompts;

/// How long to sleep at most between events.
const PATIENCE: Duration = Duration::from_secs(1);

/// Runs the command.
pub(super) fn run(flags: &BenchSpeculationFlags, ui: Ui) -> Result<()> {
    let subject = Subject::open(&flags.model, &flags.engine, ui)?;
    if subject.options.config.speculation.method == SpeculationMethod::Off {
        bail!("--speculation is off; it must be something to compare with off");
    }
    let workloads = flags.workloads();
    let mut prompts = Vec::new();
    for workload in &workloads {
        prompts.push(workloads::prompts(*workload, flags, &subject)?);
    }
    let mut bench = Bench::start(&subject, flags, &prompts, ui)?;
    let runs = workloads.len() * flags.batch_size.len() * (1 + flags.repeats);
    let bar = ui.bar(runs as u64, ui::TASKS);
    let mut rows = Vec::new();
    for (workload, prompts) in workloads.iter().zip(prompts) {
        bar.name(workload.name().to_owned());
        let requests = bench.requests(prompts, &subject)?;
        for batch in &flags.batch_size {
            bar.name(format!("{}, batch {batch}", workload.name()));
            rows.push(bench.measure(*workload, (&requests, *batch), flags.repeats, &|| bar.advance(1))?);
        }
    }
    drop(bar);
    let measurements = Measurements {
        model: subject.model.source.clone(),
        threads: subject.options.config.threads,
        pipeline_depth: flags.pipeline_depth,
        speculation: bench.on.handle.speculation().to_string(),
        output_len: flags.output_len,
        repeats: flags.repeats,
        cases: rows,
    };
    super::print(&measurements, flags.json)
}

/// The two engines.
struct Bench {
    off: Side,
    on: Side,
}

/// An engine and how much it has done.
struct Side {
    handle: Handle,
    requests: u64,
}

/// What became of a set of requests.
#[derive(Default)]
struct Outcome {
    /// By request.
    tokens: Vec<Vec<TokenId>>,
    usages: Vec<Usage>,
    /// How long each turn took.
    turns: Vec<Duration>,
}

impl Bench {
    fn start(subject: &Subject, flags: &BenchSpeculationFlags, prompts: &[Prompts], ui: Ui) -> Result<Self> {
        let demand = Demand {
            sequences: flags.batch_size.iter().copied().max().unwrap_or(1),
            choices: 1,
            longest: prompts.iter().map(Prompts::longest).max().unwrap_or(2),
        };
        let on = subject.start(flags.pipeline_depth, demand, ui)?;
        let off = subject.start_without_drafts(flags.pipeline_depth, demand, ui)?;
        let side = |handle| Side { handle, requests: 0 };
        Ok(Self {
            off: side(off),
            on: side(on),
        })
    }

    /// The requests to measure with.
    fn requests(&mut self, prompts: Prompts, subject: &Subject) -> Result<Vec<Request>> {
        let first = match prompts {
            Prompts::Known(requests) => return Ok(requests),
            Prompts::FirstTurns(first) => first,
        };
        let requests: Vec<Request> = first.iter().map(|(_, request)| request.clone()).collect();
        let stories = self.off.run(&requests)?.tokens;
        let both = first.iter().zip(&stories);
        both.map(|(first, story)| workloads::again(first, story, subject))
            .collect()
    }

    /// Both engines in turn, once to warm up and then as often as asked. Their turns are as short as a batch, and
    /// each is as often first as second, so that a machine that is busy for a while is busy for both.
    fn measure(
        &mut self,
        workload: Workload,
        (requests, batch): (&[Request], usize),
        repeats: usize,
        done: &dyn Fn(),
    ) -> Result<Row> {
        let mut runs = Runs::default();
        let mut before = self.on.stats();
        for run in 0..=repeats {
            let (mut off, mut on) = (Outcome::default(), Outcome::default());
            for (turn, requests) in requests.chunks(batch).enumerate() {
                if (run + turn) % 2 == 0 {
                    off.add(self.off.run(requests)?);
                    on.add(self.on.run(requests)?);
                } else {
                    on.add(self.on.run(requests)?);
                    off.add(self.off.run(requests)?);
                }
            }
            done();
            compare(workload, &off, &on)?;
            // The first run captures programs, and the engine learns what steps take.
            if run == 0 {
                before = self.on.stats();
                continue;
            }
            runs.off_tok_s.push(off.rate());
            runs.on_tok_s.push(on.rate());
            runs.gains.push(off.seconds() / on.seconds());
            runs.quickest_off.take(off.turns);
            runs.quickest_on.take(on.turns);
            runs.usages.extend(on.usages);
        }
        let after = self.on.stats();
        Ok(Row::new((workload, batch), runs, (&before, &after)))
    }
}

impl Side {
    /// The engine's numbers, once they count everything that was run.
    fn stats(&self) -> Stats {
        settled_stats(&self.handle, self.requests)
    }

    /// Runs requests all at once.
    fn run(&mut self, requests: &[Request]) -> Result<Outcome> {
        let mut outcome = Outcome {
            tokens: vec![Vec::new(); requests.len()],
            ..Outcome::default()
        };
        let start = Instant::now();
        let mut streams = Streams::default();
        for request in requests {
            let generation = self.handle.generate(request.clone());
            streams.add(generation.map_err(|error| explain_request(error, false))?);
        }
        while !streams.is_empty() {
            match streams.next(Instant::now() + PATIENCE) {
                Some((index, Some(Event::Tokens { tokens, .. }))) => outcome.tokens[index].extend(tokens),
                Some((_, Some(Event::Finished { usage, .. }))) => outcome.usages.push(usage),
                Some((_, Some(Event::Failed { message }))) => return Err(anyhow!(message)),
                _ => {}
            }
        }
        outcome.turns.push(start.elapsed());
        self.requests += requests.len() as u64;
        Ok(outcome)
    }
}

impl Outcome {
    /// Takes in what came of further requests.
    fn add(&mut self, other: Self) {
        self.tokens.extend(other.tokens);
        self.usages.extend(other.usages);
        self.turns.extend(other.turns);
    }

    /// Tokens per second.
    fn rate(&self) -> f64 {
        let tokens: usize = self.tokens.iter().map(Vec::len).sum();
        tokens as f64 / self.seconds()
    }

    /// Of all turns.
    fn seconds(&self) -> f64 {
        self.turns.iter().sum::<Duration>().as_secs_f64()
    }
}

/// Drafts must not change what is generated.
fn compare(workload: Workload, off: &Outcome, on: &Outcome) -> Result<()> {
    let both = off.tokens.iter().zip(&on.tokens);
    let Some((index, (off, on))) = both.enumerate().find(|(_, (off, on))| off != on) else {
        return Ok(());
    };
    let same = off.iter().zip(on).take_while(|(off, on)| off == on).count();
    bail!(
        "{} {index}: with speculation the text differs from token {same} on: {:?} instead of {:?}",
        workload.name(),
        on.get(same),
        off.get(same)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(tokens: &[&[TokenId]]) -> Outcome {
        Outcome {
            tokens: tokens.iter().map(|tokens| tokens.to_vec()).collect(),
            usages: Vec::new(),
            turns: vec![Duration::from_millis(500), Duration::from_millis(1500)],
        }
    }

    #[test]
    fn a_text_that_differs_is_an_error_that_says_where() {
        let off = outcome(&[&[1, 2], &[3, 4, 5]]);
        assert!(compare(Workload::Random, &off, &outcome(&[&[1, 2], &[3, 4, 5]])).is_ok());
        for other in [&[3, 4, 6][..], &[3, 4], &[3, 4, 6, 7]] {
            let error = compare(Workload::Random, &off, &outcome(&[&[1, 2], other])).unwrap_err();
            assert!(error.to_string().contains("random 1"), "{error}");
            assert!(error.to_string().contains("from token 2 on"), "{error}");
        }
        assert!((off.rate() - 2.5).abs() < 1e-9);
    }
}
