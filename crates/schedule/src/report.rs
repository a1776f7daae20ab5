//! What speculation did for a request.

use paceline_types::{DraftSource, MAX_DRAFTS, TokenId};

/// A request's drafts, from its start to its end, over all its turns in a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpeculationReport {
    /// Decode plan rows: steps that it took for the tokens behind the first.
    pub steps: u64,
    /// Tokens that they yielded.
    pub tokens: u64,
    /// Drafts verified.
    pub drafted: u64,
    /// Of these, drafts accepted.
    pub accepted: u64,
    /// Drafts accepted, by their place in the plan row.
    pub accepted_by_position: [u64; MAX_DRAFTS],
    /// Tokens that were run for nothing: rejected drafts.
    pub wasted: u64,
    /// Device time gained against plain decoding, as estimated; less than 0 if it was lost. Its share of the steps
    /// that it was part of.
    pub gained_ns: i64,
}

impl SpeculationReport {
    /// Tokens per decode row; 1 without drafts. `None` before the first of them.
    pub fn mean_length(&self) -> Option<f64> {
        (self.steps > 0).then(|| self.tokens as f64 / self.steps as f64)
    }

    /// Share of the drafts that were accepted; `None` if there were none.
    pub fn acceptance(&self) -> Option<f64> {
        (self.drafted > 0).then(|| self.accepted as f64 / self.drafted as f64)
    }

    /// Takes in a row of a decode: the tokens that it yielded, and what became of its drafts.
    pub(crate) fn add(&mut self, tokens: usize, drafted: usize, accepted: usize, gained: f64) {
        self.steps += 1;
        self.tokens += tokens as u64;
        self.drafted += drafted as u64;
        self.accepted += accepted as u64;
        for count in self.accepted_by_position.iter_mut().take(accepted) {
            *count += 1;
        }
        self.wasted += (drafted - accepted) as u64;
        self.gained_ns += gained.round() as i64;
    }
}

/// How the tokens came that one step brought a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepOrigins {
    /// The step decoded; otherwise it ended the prompt, and its token is not among those that
    /// [`SpeculationReport`] counts.
    pub decode: bool,
    /// Tokens of the text that it brought.
    pub tokens: usize,
    /// Where the drafts came from that it verified; `None` if there were none.
    pub source: Option<DraftSource>,
    /// Drafts accepted: the first tokens of the step. What follows them was sampled.
    pub accepted: usize,
    /// The other drafts, from the first one on that was not what the model chose.
    pub rejected: Vec<TokenId>,
}
