//! How an engine is doing.

use paceline_schedule::{Counters, PipelineTotals};
use std::fmt;

/// A snapshot of an engine's numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests in slots.
    pub running: usize,
    /// Requests without one.
    pub waiting: usize,
    /// Pages in use by requests.
    pub blocks_used: usize,
    /// Pages.
    pub blocks: usize,
    /// Saved states in use.
    pub snapshots_used: usize,
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
            "  drafting       {:.1} µs per step, {} passes",
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
            "  steps          {} ({} tokens, {} requests)",
            p.steps, self.tokens, self.finished
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
            "  host waits     collect {} times, {waited:.1} ms; elsewhere never",
            waits.collect
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
