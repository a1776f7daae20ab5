//! How drafts fared, as it is told.

use paceline::{Counters, SpeculationReport};
use serde::Serialize;

/// The drafts of one continuation or of many, for machines.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DraftFigures {
    /// Steps it took for the tokens behind the first.
    pub(crate) steps: u64,
    /// Tokens these steps yielded.
    #[serde(skip)]
    tokens: u64,
    /// Drafts that were verified.
    pub drafted: u64,
    pub(crate) accepted: u64,
    /// How often the first, second, … draft was accepted.
    accepted_by_position: Vec<u64>,
    /// Tokens per step; nothing if there was none.
    pub mean_acceptance_length: Option<f64>,
    /// Drafts run for nothing.
    wasted: u64,
    /// Estimated, against one token per step.
    gained_ms: f64,
}

impl DraftFigures {
    /// Adds what speculation did for a continuation.
    pub fn add(&mut self, report: &SpeculationReport) {
        self.steps += report.steps;
        self.tokens += report.tokens;
        self.drafted += report.drafted;
        self.accepted += report.accepted;
        self.wasted += report.wasted;
        self.gained_ms += report.gained_ns as f64 / 1e6;
        let positions = reached(&report.accepted_by_position);
        let longest = positions.len().max(self.accepted_by_position.len());
        self.accepted_by_position.resize(longest, 0);
        for (sum, count) in self.accepted_by_position.iter_mut().zip(positions) {
            *sum += count;
        }
        self.mean_acceptance_length = (self.steps > 0).then(|| self.tokens as f64 / self.steps as f64);
    }
}

impl From<&SpeculationReport> for DraftFigures {
    fn from(report: &SpeculationReport) -> Self {
        let mut figures = Self::default();
        figures.add(report);
        figures
    }
}

/// Counts up to the last that is not nothing.
fn reached(counts: &[u64]) -> &[u64] {
    let end = counts.iter().rposition(|count| *count > 0);
    &counts[..end.map_or(0, |last| last + 1)]
}

/// The same between two looks at an engine's counters.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct DraftCounts {
    /// Steps of requests that verified drafts.
    pub(crate) rows: u64,
    pub(crate) drafted: u64,
    pub(crate) accepted: u64,
    pub(crate) ngram_drafted: u64,
    pub(crate) ngram_accepted: u64,
    pub(crate) neural_drafted: u64,
    pub(crate) neural_accepted: u64,
    /// How often there was a first, second, … draft.
    pub(crate) drafted_by_position: Vec<u64>,
    /// How often it was accepted.
    pub(crate) accepted_by_position: Vec<u64>,
    /// Device time that went into drafts.
    pub(crate) draft_ns: u64,
    /// Passes of the neural drafter.
    pub(crate) draft_passes: u64,
}

impl DraftCounts {
    /// What happened between two looks.
    pub(crate) fn between(before: &Counters, after: &Counters) -> Self {
        let positions = |of: fn(&Counters) -> &[u64]| -> Vec<u64> {
            let both = of(after).iter().zip(of(before));
            let counts: Vec<u64> = both.map(|(after, before)| after - before).collect();
            reached(&counts).to_vec()
        };
        let count = |of: fn(&Counters) -> u64| of(after) - of(before);
        Self {
            rows: count(|c| c.draft_rows),
            drafted: count(|c| c.drafts_verified),
            accepted: count(|c| c.drafts_accepted),
            ngram_drafted: count(|c| c.ngram.drafted),
            ngram_accepted: count(|c| c.ngram.accepted),
            neural_drafted: count(|c| c.neural.drafted),
            neural_accepted: count(|c| c.neural.accepted),
            drafted_by_position: positions(|c| &c.drafted_by_position),
            accepted_by_position: positions(|c| &c.accepted_by_position),
            draft_ns: count(|c| c.draft_ns),
            draft_passes: count(|c| c.draft_passes),
        }
    }

    /// Share of the plan rows with drafts in which the first, second, … draft was accepted.
    pub(crate) fn by_position(&self) -> Vec<f64> {
        let counts = self.accepted_by_position.iter();
        counts.map(|count| share(*count, self.rows)).collect()
    }
}

/// A part of a whole; 0 of nothing.
pub(crate) fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// Shares as a short list.
pub(crate) fn short_list(shares: &[f64]) -> String {
    if shares.is_empty() {
        return "-".to_owned();
    }
    let shares: Vec<String> = shares.iter().map(|share| format!("{share:.2}")).collect();
    shares.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_add_up() {
        let mut report = SpeculationReport {
            steps: 4,
            tokens: 7,
            drafted: 8,
            accepted: 3,
            wasted: 5,
            gained_ns: -1_500_000,
            ..SpeculationReport::default()
        };
        report.accepted_by_position[..2].copy_from_slice(&[2, 1]);
        let mut figures = DraftFigures::from(&report);
        assert_eq!(figures.accepted_by_position, [2, 1]);
        assert_eq!(figures.mean_acceptance_length, Some(1.75));
        report.accepted_by_position[2] = 1;
        figures.add(&report);
        assert_eq!(figures.accepted_by_position, [4, 2, 1]);
        assert_eq!((figures.steps, figures.drafted, figures.wasted), (8, 16, 10));
        assert!((figures.gained_ms + 3.0).abs() < 1e-9);
        assert_eq!(DraftFigures::default().mean_acceptance_length, None);
    }

    #[test]
    fn counts_are_differences() {
        let mut before = Counters {
            draft_rows: 1,
            ..Counters::default()
        };
        before.accepted_by_position[0] = 1;
        let mut after = before;
        after.draft_rows = 5;
        after.accepted_by_position[0] = 4;
        after.accepted_by_position[1] = 2;
        let counts = DraftCounts::between(&before, &after);
        assert_eq!(counts.accepted_by_position, [3, 2]);
        assert_eq!(short_list(&counts.by_position()), "0.75 0.50");
    }
}
