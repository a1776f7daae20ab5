//! How an engine is doing.

use crate::Histogram;
use paceline_runner::ProgramReport;
use paceline_schedule::{Counters, PipelineTotals};
use std::fmt;
use std::time::{Duration, Instant};

/// A snapshot of an engine's numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests in slots.
    pub running: usize,
    /// Requests without one.
    pub waiting: usize,
    /// Blocks in use by requests.
    pub blocks_used: usize,
    /// Blocks there are, in use or free.
    pub blocks: usize,
    /// Places for saved states that hold one or are reserved for one.
    pub snapshots_used: usize,
    /// Those that running requests have reserved; none when nothing runs.
    pub snapshots_reserved: usize,
    /// Places for saved states.
    pub snapshots: usize,
    /// Tokens handed to requests.
    pub tokens: u64,
    /// Requests that ended.
    pub finished: u64,
    /// What the scheduler counted.
    pub counters: Counters,
    /// Times summed over all steps.
    pub pipeline: PipelineTotals,
    /// When the oldest request that waits for a slot arrived.
    pub oldest_waiting: Option<Instant>,
    /// What is counted by size.
    pub sizes: Sizes,
    /// How often queues, slots, blocks and states were found to agree, which is looked at when nothing runs.
    pub integrity_checks: u64,
    /// How often cached texts were forgotten and their memory given back to the system after a long pause.
    pub hand_backs: u64,
}

/// Sizes and times of single steps and requests. A request with several continuations counts as several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Tokens run by a step.
    pub step_tokens: Histogram,
    /// Nanoseconds from a request's arrival to its first slot.
    pub queued_ns: Histogram,
    /// Nanoseconds from there to its first token.
    pub prefill_ns: Histogram,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            step_tokens: Histogram::new(&STEP_TOKENS),
            queued_ns: Histogram::new(&REQUEST_NS),
            prefill_ns: Histogram::new(&REQUEST_NS),
        }
    }
}

/// Bounds of a step's tokens; those of vLLM.
const STEP_TOKENS: [u64; 13] = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];

const MS: u64 = 1_000_000;

/// Bounds of times of requests; those of vLLM, and below them some for small models.
const REQUEST_NS: [u64; 28] = [
    MS,
    5 * MS,
    10 * MS,
    20 * MS,
    50 * MS,
    100 * MS,
    200 * MS,
    300 * MS,
    500 * MS,
    800 * MS,
    1000 * MS,
    1500 * MS,
    2000 * MS,
    2500 * MS,
    5000 * MS,
    10_000 * MS,
    15_000 * MS,
    20_000 * MS,
    30_000 * MS,
    40_000 * MS,
    50_000 * MS,
    60_000 * MS,
    120_000 * MS,
    240_000 * MS,
    480_000 * MS,
    960_000 * MS,
    1_920_000 * MS,
    7_680_000 * MS,
];

/// How an engine was set up, as far as it bounds what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineLimits {
    /// Steps in flight.
    pub pipeline_depth: usize,
    /// Tokens of a step.
    pub max_num_batched_tokens: usize,
    /// Requests that may wait.
    pub max_waiting: usize,
    /// Continuations of a request.
    pub max_choices: usize,
    /// Whether shared beginnings are kept and reused.
    pub prefix_caching: bool,
    /// Threads that operations are spread over.
    pub threads: usize,
    /// The programs of its steps, all of which were captured at start.
    pub programs: ProgramReport,
}

impl Stats {
    /// Share of the device's time that it was idle although there was work.
    pub fn bubble_share(&self) -> f64 {
        let total = self.pipeline.device_ns + self.pipeline.bubble_ns;
        if total == 0 {
            0.0
        } else {
            self.pipeline.bubble_ns as f64 / total as f64
        }
    }

    /// How long the oldest request that waits for a slot has waited; zero if none does.
    pub fn queue_age(&self) -> Duration {
        self.oldest_waiting
            .map_or(Duration::ZERO, |arrived| arrived.elapsed())
    }

    /// Device time that did not go into making drafts.
    pub fn verify_ns(&self) -> u64 {
        self.pipeline.device_ns.saturating_sub(self.counters.draft_ns)
    }

    /// Tokens per plan row that verified drafts; 1 without any accepted. `None` before the first.
    pub fn mean_length(&self) -> Option<f64> {
        let rows = self.counters.draft_rows;
        (rows > 0).then(|| 1.0 + self.counters.drafts_accepted as f64 / rows as f64)
    }
}

impl Stats {
    /// What drafts did, if there were any.
    fn write_speculation(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (p, c) = (&self.pipeline, &self.counters);
        if c.drafts_verified == 0 {
            return Ok(());
        }
        let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
        writeln!(
            f,
            "\n  drafts         {} verified, {} accepted ({:.0} %): n-gram {} of {}, neural {} of {}",
            c.drafts_verified,
            c.drafts_accepted,
            percent(c.drafts_accepted, c.drafts_verified),
            c.ngram.accepted,
            c.ngram.drafted,
            c.neural.accepted,
            c.neural.drafted
        )?;
        let places = c.drafted_by_position.iter().zip(&c.accepted_by_position);
        let places = places.take_while(|(drafted, _)| **drafted > 0);
        let rates: Vec<String> = places
            .map(|(drafted, accepted)| format!("{:.0}", percent(*accepted, *drafted)))
            .collect();
        writeln!(f, "  by place       {} %", rates.join(" / "))?;
        writeln!(
            f,
            "  drafting       {:.1} µs per step, {} draft_forwards",
            c.draft_ns as f64 / p.steps.max(1) as f64 / 1000.0,
            c.draft_passes
        )?;
        write!(
            f,
            "  gained         {:.1} ms of device time against plain decoding, as estimated",
            c.gained_ns as f64 / 1e6
        )
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (p, c) = (&self.pipeline, &self.counters);
        let per_step = |ns: u64| ns as f64 / p.steps.max(1) as f64 / 1000.0;
        writeln!(
            f,
            "  steps          {} ({} tokens, {} request{})",
            p.steps,
            self.tokens,
            self.finished,
            if self.finished == 1 { "" } else { "s" }
        )?;
        writeln!(
            f,
            "  per step       plan {:.1} µs, submit {:.1} µs, collect {:.1} µs, device {:.1} µs",
            per_step(p.plan_ns),
            per_step(p.submit_ns),
            per_step(p.collect_ns),
            per_step(p.device_ns)
        )?;
        writeln!(
            f,
            "  device idle    {:.2} % ({:.1} µs per step)",
            100.0 * self.bubble_share(),
            per_step(p.bubble_ns)
        )?;
        let waits = &p.waits;
        let waited = waits.collect_ns as f64 / 1e6;
        writeln!(
            f,
            "  host waits     collect {} times, {waited:.1} ms; elsewhere {}",
            waits.collect, waits.elsewhere
        )?;
        writeln!(
            f,
            "  prefix cache   {} of {} tokens",
            c.prefix_hits, c.prefix_queries
        )?;
        writeln!(
            f,
            "  snapshots      {} reserved, {} written, {} published, {} released, {} used",
            c.snapshots_reserved,
            c.snapshots_written,
            c.snapshots_published,
            c.snapshots_released,
            c.snapshots_used
        )?;
        writeln!(f, "  preemptions    {}", c.preemptions)?;
        write!(
            f,
            "  wasted         {} rows, {} tokens",
            c.wasted_rows, c.wasted_tokens
        )?;
        self.write_speculation(f)
    }
}
