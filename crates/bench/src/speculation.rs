//! What speculation gains: two engines in one process, one that drafts and one that does not, take turns at the
//! same requests, so that what the machine does meanwhile falls on both.

mod code;
mod report;
mod workloads;

pub use report::Measurements;

use crate::error::BenchError;
use crate::load::{Batch, run_together, settled_stats};
use crate::progress::{Progress, Unit};
use crate::subject::{EngineSetup, Subject};
use paceline::{Handle, Request, Stats, Usage};
use paceline_types::TokenId;
use report::{Row, Runs};
use std::path::PathBuf;
use std::time::Duration;
use workloads::Prompts;

/// What to measure.
#[derive(Clone, Debug)]
pub struct SpeculationBench {
    /// What is generated.
    pub workloads: Vec<Workload>,
    /// Requests of a workload; of a file, the first of this number.
    pub requests: usize,
    /// Requests at a time.
    pub batch_sizes: Vec<usize>,
    /// Most tokens to generate for a request.
    pub output_len: usize,
    /// Measured runs of each engine.
    pub repeats: usize,
    /// Steps in flight.
    pub pipeline_depth: usize,
}

/// What is generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Beginnings of stories, continued greedily.
    Stories,
    /// Chats in which a story was told, greedily, and is asked for again. As in a chat, what was said is in the prefix cache of either
    /// engine when the question comes.
    Again,
    /// Random tokens, continued at random, so that drafts are of no use.
    Random,
    /// Signatures of functions with what they do, continued greedily.
    Code,
    /// Chats that ask for a program again with a name changed, answered greedily.
    Rename,
    /// The prompts of a file of JSON lines with a field `prompt`, continued greedily.
    File(PathBuf),
}

impl Workload {
    /// Name in results and messages.
    fn name(&self) -> &'static str {
        match self {
            Self::Stories => "stories",
            Self::Again => "again",
            Self::Random => "random",
            Self::Code => "code",
            Self::Rename => "rename",
            Self::File(_) => "file",
        }
    }

    /// Whether its prompts go on with a text that the engine has just run.
    fn goes_on(&self) -> bool {
        *self == Self::Again
    }
}

/// Measures every workload with both engines; texts that differ are an error.
pub fn run(
    config: &SpeculationBench,
    subject: &dyn Subject,
    progress: &dyn Progress,
) -> Result<Measurements, BenchError> {
    let mut prompts = Vec::new();
    for workload in &config.workloads {
        prompts.push(workloads::prompts(workload, config, subject)?);
    }
    let mut bench = Bench::start(subject, config, &prompts)?;
    let runs = config.workloads.len() * config.batch_sizes.len() * (1 + config.repeats);
    let bar = progress.bar(runs as u64, Unit::Tasks);
    let mut rows = Vec::new();
    for (workload, prompts) in config.workloads.iter().zip(prompts) {
        bar.name(workload.name().to_owned());
        let requests = bench.requests(prompts, subject)?;
        for batch in &config.batch_sizes {
            bar.name(format!("{}, batch {batch}", workload.name()));
            rows.push(bench.measure(workload, (&requests, *batch), config.repeats, &|| bar.advance(1))?);
        }
    }
    Ok(Measurements {
        model: subject.name().to_owned(),
        threads: subject.threads(),
        pipeline_depth: config.pipeline_depth,
        speculation: bench.on.handle.speculation().to_string(),
        output_len: config.output_len,
        repeats: config.repeats,
        cases: rows,
    })
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
    fn start(
        subject: &dyn Subject,
        config: &SpeculationBench,
        prompts: &[Prompts],
    ) -> Result<Self, BenchError> {
        let side = |drafts| -> Result<Side, BenchError> {
            let handle = subject.start(&EngineSetup {
                pipeline_depth: config.pipeline_depth,
                sequences: config.batch_sizes.iter().copied().max().unwrap_or(1),
                choices: 1,
                longest: prompts.iter().map(Prompts::longest).max().unwrap_or(2),
                drafts,
            })?;
            Ok(Side { handle, requests: 0 })
        };
        Ok(Self {
            on: side(true)?,
            off: side(false)?,
        })
    }

    /// The requests to measure with.
    fn requests(&mut self, prompts: Prompts, subject: &dyn Subject) -> Result<Vec<Request>, BenchError> {
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
        workload: &Workload,
        (requests, batch): (&[Request], usize),
        repeats: usize,
        done: &dyn Fn(),
    ) -> Result<Row, BenchError> {
        let mut runs = Runs::default();
        let mut before = self.on.stats();
        for run in 0..=repeats {
            let (mut off, mut on) = (Outcome::default(), Outcome::default());
            for (turn, requests) in requests.chunks(batch).enumerate() {
                let [first, second] = if (run + turn) % 2 == 0 {
                    [(&mut self.off, &mut off), (&mut self.on, &mut on)]
                } else {
                    [(&mut self.on, &mut on), (&mut self.off, &mut off)]
                };
                for (side, outcome) in [first, second] {
                    if workload.goes_on() {
                        side.run_prompts(requests)?;
                    }
                    outcome.add(side.run(requests)?);
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

    /// Leaves the prompts of requests in the prefix cache.
    fn run_prompts(&mut self, requests: &[Request]) -> Result<(), BenchError> {
        let mut prompts = requests.to_vec();
        for prompt in &mut prompts {
            prompt.sampling_mut().max_tokens = 1;
        }
        self.run(&prompts).map(drop)
    }

    /// Runs requests all at once.
    fn run(&mut self, requests: &[Request]) -> Result<Outcome, BenchError> {
        let Batch {
            tokens,
            usages,
            elapsed,
        } = run_together(&self.handle, requests.to_vec())?;
        self.requests += requests.len() as u64;
        Ok(Outcome {
            tokens,
            usages,
            turns: vec![elapsed],
        })
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
fn compare(workload: &Workload, off: &Outcome, on: &Outcome) -> Result<(), BenchError> {
    let both = off.tokens.iter().zip(&on.tokens);
    let Some((index, (off, on))) = both.enumerate().find(|(_, (off, on))| off != on) else {
        return Ok(());
    };
    let position = off.iter().zip(on).take_while(|(off, on)| off == on).count();
    Err(BenchError::Differs {
        workload: workload.name(),
        index,
        position,
        with: on.get(position).copied(),
        without: off.get(position).copied(),
    })
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
        assert!(compare(&Workload::Random, &off, &outcome(&[&[1, 2], &[3, 4, 5]])).is_ok());
        for other in [&[3, 4, 6][..], &[3, 4], &[3, 4, 6, 7]] {
            let error = compare(&Workload::Random, &off, &outcome(&[&[1, 2], other])).unwrap_err();
            assert!(error.to_string().contains("random 1"), "{error}");
            assert!(error.to_string().contains("from token 2 on"), "{error}");
        }
        assert!((off.rate() - 2.5).abs() < 1e-9);
    }
}
