//! What the scheduler has done, in numbers that only grow.

use crate::policy::RowDrafts;
use crate::times::StepTimes;
use paceline_types::{DraftSource, MAX_DRAFTS};

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests that lost their slot and were queued again.
    pub preemptions: u64,
    /// Tokens looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Of these, tokens that need not be run.
    pub prefix_hits: u64,
    /// Places reserved for recurrent states.
    pub snapshots_reserved: u64,
    /// States that the device wrote.
    pub snapshots_written: u64,
    /// States that became part of the prefix cache.
    pub snapshots_published: u64,
    /// Reserved places that went back.
    pub snapshots_released: u64,
    /// Admissions that started from a saved state.
    pub snapshots_used: u64,
    /// Plan rows that did nothing for any request.
    pub wasted_rows: u64,
    /// Tokens that were run for nothing: rejected drafts and the tokens of wasted plan rows.
    pub wasted_tokens: u64,
    /// Drafts verified.
    pub drafts_verified: u64,
    /// Of these, drafts accepted.
    pub drafts_accepted: u64,
    /// Plan rows that verified drafts.
    pub draft_rows: u64,
    /// Drafts verified, by their place in the plan row.
    pub drafted_by_position: [u64; MAX_DRAFTS],
    /// Drafts accepted, by their place in the plan row.
    pub accepted_by_position: [u64; MAX_DRAFTS],
    /// Drafts from the requests' own texts.
    pub ngram: SourceCounters,
    /// Drafts from the neural drafter.
    pub neural: SourceCounters,
    /// Drafts that a grammar left no choice about.
    pub grammar: SourceCounters,
    /// Device time that went into making drafts.
    pub draft_ns: u64,
    /// Passes of the neural drafter that had something to do.
    pub draft_passes: u64,
    /// Device time gained against plain decoding, as estimated; less than 0 if it was lost.
    pub gained_ns: i64,
}

/// Drafts of one source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceCounters {
    /// Drafts verified.
    pub drafted: u64,
    /// Of these, drafts accepted.
    pub accepted: u64,
}

impl Counters {
    /// The drafts of a plan row that is done.
    pub(crate) fn count_drafts(&mut self, drafts: &RowDrafts) {
        let RowDrafts {
            drafted, accepted, ..
        } = *drafts;
        self.drafts_verified += drafted as u64;
        self.drafts_accepted += accepted as u64;
        self.wasted_tokens += (drafted - accepted) as u64;
        self.draft_rows += u64::from(drafted > 0);
        for count in self.drafted_by_position.iter_mut().take(drafted) {
            *count += 1;
        }
        for count in self.accepted_by_position.iter_mut().take(accepted) {
            *count += 1;
        }
        let source = match drafts.source {
            Some(DraftSource::Ngram) => &mut self.ngram,
            Some(DraftSource::Neural) => &mut self.neural,
            Some(DraftSource::Grammar) => &mut self.grammar,
            None => return,
        };
        source.drafted += drafted as u64;
        source.accepted += accepted as u64;
    }

    /// The times of a step that is done, and what it gained.
    pub(crate) fn count_step(&mut self, times: &StepTimes, gained: f64) {
        self.draft_ns += times.draft_ns;
        self.draft_passes += times.draft_passes as u64;
        self.gained_ns += gained.round() as i64;
    }
}
