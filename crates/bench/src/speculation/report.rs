//! The figures of `bench speculation`.

use super::Workload;
use crate::Results;
use crate::drafts::{DraftCounts, DraftFigures, share, short_list};
use crate::format::{Column, Table};
use crate::load::percentile;
use paceline::{Stats, Usage};
use serde::Serialize;
use std::io::{self, Write};
use std::time::Duration;

/// What came of it.
#[derive(Serialize)]
pub struct Measurements {
    pub(super) model: String,
    pub(super) threads: usize,
    pub(super) pipeline_depth: usize,
    /// The drafters.
    pub(super) speculation: String,
    pub(super) output_len: usize,
    pub(super) repeats: usize,
    pub(super) cases: Vec<Row>,
}

#[derive(Serialize)]
pub(super) struct Row {
    workload: &'static str,
    batch_size: usize,
    /// Medians over the repetitions.
    off_tok_s: f64,
    on_tok_s: f64,
    /// Median over the repetitions of time without drafts over time with them.
    gain: f64,
    /// Of each repetition.
    gains: Vec<f64>,
    /// The same if every turn had taken what its quickest repetition took: the gain on a machine that has nothing
    /// else to do, as far as it can be known.
    quickest_gain: f64,
    /// Of the prompts' tokens, how many were in the prefix cache of the engine that drafts.
    cached_prompt_share: f64,
    /// Of the drafts, how many were accepted.
    acceptance: f64,
    /// Of the steps of requests that had drafts, in how many the first, second, … was accepted.
    acceptance_by_position: Vec<f64>,
    /// Of the device's time, how much went into drafts.
    draft_time_share: f64,
    /// Per step of the engine.
    draft_us_per_step: f64,
    device_us_per_step: f64,
    /// The requests' own reports, summed over the repetitions.
    drafts: DraftFigures,
    /// The engine's counters over the repetitions.
    counts: DraftCounts,
}

/// What the repetitions gave, without drafts and with them.
#[derive(Default)]
pub(super) struct Runs {
    /// Tokens per second.
    pub(super) off_tok_s: Vec<f64>,
    pub(super) on_tok_s: Vec<f64>,
    /// Time without drafts over time with them.
    pub(super) gains: Vec<f64>,
    /// What requests took that were drafted for.
    pub(super) usages: Vec<Usage>,
    pub(super) quickest_off: Quickest,
    pub(super) quickest_on: Quickest,
}

/// The shortest time that each turn took.
#[derive(Default)]
pub(super) struct Quickest(Vec<Duration>);

impl Quickest {
    /// Takes the turns of a repetition in.
    pub(super) fn take(&mut self, turns: Vec<Duration>) {
        if self.0.is_empty() {
            self.0 = turns;
            return;
        }
        for (quickest, turn) in self.0.iter_mut().zip(turns) {
            *quickest = turn.min(*quickest);
        }
    }

    fn seconds(&self) -> f64 {
        self.0.iter().sum::<Duration>().as_secs_f64()
    }
}

impl Row {
    /// From all repetitions, and the drafting engine's numbers before and after them.
    pub(super) fn new(
        (workload, batch_size): (&Workload, usize),
        mut runs: Runs,
        (before, after): (&Stats, &Stats),
    ) -> Self {
        let mut drafts = DraftFigures::default();
        let (mut prompt_tokens, mut cached_tokens) = (0, 0);
        for usage in &runs.usages {
            drafts.add(&usage.speculation);
            prompt_tokens += usage.prompt_tokens as u64;
            cached_tokens += usage.cached_tokens as u64;
        }
        let counts = DraftCounts::between(&before.counters, &after.counters);
        let steps = after.pipeline.steps - before.pipeline.steps;
        let device = after.pipeline.device_ns - before.pipeline.device_ns;
        Self {
            workload: workload.name(),
            batch_size,
            off_tok_s: percentile(&mut runs.off_tok_s, 0.5),
            on_tok_s: percentile(&mut runs.on_tok_s, 0.5),
            gain: percentile(&mut runs.gains.clone(), 0.5),
            gains: runs.gains,
            quickest_gain: runs.quickest_off.seconds() / runs.quickest_on.seconds(),
            cached_prompt_share: share(cached_tokens, prompt_tokens),
            acceptance: share(counts.accepted, counts.drafted),
            acceptance_by_position: counts.by_position(),
            draft_time_share: share(counts.draft_ns, device),
            draft_us_per_step: share(counts.draft_ns, steps) / 1e3,
            device_us_per_step: share(device, steps) / 1e3,
            drafts,
            counts,
        }
    }
}

impl Results for Measurements {
    fn write(&self, mut out: &mut dyn Write) -> io::Result<()> {
        let Self {
            model,
            threads,
            pipeline_depth,
            speculation,
            output_len,
            repeats,
            cases,
        } = self;
        writeln!(
            out,
            "{model}, threads {threads}, pipeline depth {pipeline_depth}\n\
             speculation: {speculation}\n\
             up to {output_len} tokens per request; medians of {repeats} repetitions of each engine, in turns\n"
        )?;
        let columns: [Column<'_, Row>; 11] = [
            ("workload", |row| row.workload.to_owned()),
            ("batch", |row| row.batch_size.to_string()),
            ("off tok/s", |row| format!("{:.1}", row.off_tok_s)),
            ("on tok/s", |row| format!("{:.1}", row.on_tok_s)),
            ("gain", |row| format!("{:.3}×", row.gain)),
            ("quickest", |row| format!("{:.3}×", row.quickest_gain)),
            ("drafted", |row| row.counts.drafted.to_string()),
            ("accepted", |row| format!("{:.1} %", 100.0 * row.acceptance)),
            ("by position", |row| short_list(&row.acceptance_by_position)),
            ("tokens/step", |row| {
                format!("{:.2}", row.drafts.mean_acceptance_length.unwrap_or(1.0))
            }),
            ("draft time", |row| {
                format!("{:.1} %", 100.0 * row.draft_time_share)
            }),
        ];
        Table::of(cases, columns).write(&mut out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quickest_of_each_turn_is_kept() {
        let mut quickest = Quickest::default();
        let turns = |times: [u64; 2]| times.map(Duration::from_secs).to_vec();
        quickest.take(turns([3, 5]));
        quickest.take(turns([4, 2]));
        assert_eq!(quickest.0, turns([3, 2]));
        assert!((quickest.seconds() - 5.0).abs() < 1e-9);
    }
}
