//! How many drafts are made behind a plan row, and how many a plan row verifies.

use crate::costs::StepCosts;
use crate::request::RequestId;
use crate::times::StepTimes;
use paceline_types::{DraftBudget, DraftSource};

/// Where a request is with a plan row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A piece of its prompt with more to come. Drafts are not made behind it; with `neural` above 0 the neural
    /// drafter sees its tokens.
    Prompt,
    /// The last piece of its prompt: drafts behind it are for the first decode row.
    PromptEnd,
    /// The newest token and drafts.
    Decode,
}

/// What a policy may know of a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestView {
    /// The request that drafts are planned for.
    pub id: RequestId,
    /// Where it is.
    pub stage: Stage,
    /// Tokens known to the host.
    pub known: usize,
    /// Most tokens there can be once all planned steps are done.
    pub upper_bound: usize,
    /// Drafts that there may be for the plan row: what was asked for behind the one before, cut to what fits.
    pub ready: usize,
    /// Most drafts that can be asked for behind the plan row, by source; more are cut.
    pub most: DraftBudget,
}

/// What a policy wants for a plan row. Both are cut to what fits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Most drafts to verify, of those that there are.
    pub verify: usize,
    /// Drafts to make behind the plan row.
    pub propose: DraftBudget,
}

/// How the drafts of a plan row fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowDrafts {
    /// Most drafts that it was to verify.
    pub planned: usize,
    /// Drafts that there were.
    pub drafted: usize,
    /// Of these, drafts accepted.
    pub accepted: usize,
    /// Where they came from; `None` if there were none.
    pub source: Option<DraftSource>,
}

/// Chooses the number of drafts per plan row, and learns how they fared and what steps took. All of it runs between
/// steps on the host: it must be quick.
pub trait DraftPolicy: Send {
    /// A step is being planned in which `decodes` requests decode; the costs are those measured so far.
    fn begin_step(&mut self, _decodes: usize, _costs: &StepCosts) {}

    /// Drafts for a plan row. Called once per plan row, decodes first.
    fn choose(&mut self, request: &RequestView) -> Choice;

    /// A verify row of the request is done.
    fn observe_row(&mut self, _id: RequestId, _drafts: &RowDrafts) {}

    /// A step is done; its plan rows have been observed.
    fn observe_step(&mut self, _times: &StepTimes) {}

    /// The request has ended.
    fn forget(&mut self, _id: RequestId) {}
}

/// The same number of drafts for every request and step.
#[derive(Clone, Copy, Debug)]
pub struct FixedDrafts(pub DraftBudget);

impl FixedDrafts {
    /// This many, from wherever there are some.
    pub fn any(drafts: usize) -> Self {
        Self(DraftBudget {
            ngram: drafts,
            neural: drafts,
        })
    }
}

impl DraftPolicy for FixedDrafts {
    fn choose(&mut self, request: &RequestView) -> Choice {
        Choice {
            verify: request.ready,
            propose: self.0,
        }
    }
}

/// No more than `most` of each.
pub(crate) fn cut(propose: DraftBudget, most: DraftBudget) -> DraftBudget {
    DraftBudget {
        ngram: propose.ngram.min(most.ngram),
        neural: propose.neural.min(most.neural),
    }
}

/// The same number of each.
pub(crate) fn both(drafts: usize) -> DraftBudget {
    DraftBudget {
        ngram: drafts,
        neural: drafts,
    }
}
