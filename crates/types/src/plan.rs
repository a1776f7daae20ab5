//! A step as the host plans it and as the device reports it. Plain values, no device types.
//!
//! The host plans before it knows how earlier steps ended. It assumes that every draft is accepted, and uses
//! that bound only to reserve blocks; lengths, positions and tokens are the device's own.

use crate::{SamplingParams, TokenId, TokenLogprobs, TokenMask};
use std::sync::Arc;

/// A place on the device that a request owns from admission to release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// A block: keys, values and token ids of consecutive positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

/// A saved recurrent state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SnapshotId(pub u32);

/// Most drafts that a row can verify.
pub const MAX_DRAFTS: usize = 15;

/// Recurrent states stand at positions that are multiples of this, and nowhere else.
pub const STATE_GRID: usize = 16;

/// The last multiple of [`STATE_GRID`] at or before a position.
pub const fn on_state_grid(position: usize) -> usize {
    position / STATE_GRID * STATE_GRID
}

/// Work for the device.
#[derive(Clone, Debug, Default)]
pub struct StepPlan {
    /// Number of the step, counted from 1.
    pub step: u64,
    /// Requests that take over a slot with this step.
    pub admissions: Vec<Admission>,
    /// What to compute, at most one row per slot; decodes first.
    pub rows: Vec<PlanRow>,
}

impl StepPlan {
    /// Most tokens the step can run.
    pub fn tokens(&self) -> usize {
        self.rows.iter().map(|row| row.work.tokens()).sum()
    }

    /// Most positions the step can sample.
    pub fn samples(&self) -> usize {
        self.rows.iter().map(|row| row.work.samples()).sum()
    }
}

/// A request's start in a slot, for the first time or after it was preempted.
#[derive(Clone, Debug)]
pub struct Admission {
    /// Slot that the request gets.
    pub slot: SlotId,
    /// Tells this owner of the slot from the ones before.
    pub generation: u32,
    /// How to choose tokens.
    pub params: Arc<SamplingParams>,
    /// Tokens of the request's own prompt; those behind it were generated (before a preemption).
    pub prompt_tokens: usize,
    /// Positions already in the caches: the first token to be run is at this position.
    pub cached_tokens: usize,
    /// The request ends when it is this long.
    pub max_length: usize,
    /// No stop token ends it before it is this long.
    pub min_length: usize,
    /// Tokens that end it.
    pub stop_tokens: Vec<TokenId>,
    /// The recurrent state at `cached_tokens`; `None` at position 0 and for models without such state.
    pub restore: Option<SnapshotId>,
}

/// One request's part in a step.
#[derive(Clone, Debug)]
pub struct PlanRow {
    /// Slot of the request.
    pub slot: SlotId,
    /// Which owner of the slot.
    pub generation: u32,
    /// What the row computes.
    pub work: Work,
    /// Blocks added to the slot's table before the work: (index in the table, block).
    pub new_blocks: Vec<(u32, BlockId)>,
    /// Where to save the recurrent state, should the row's committed tokens reach a position.
    pub snapshot: Option<SnapshotPlan>,
    /// Drafts wanted behind the row, for the row after it to verify.
    pub propose: DraftBudget,
    /// The host wants to see the drafts made behind the row.
    pub show_drafts: bool,
    /// What the tokens that the row chooses are confined to, if anything.
    pub constraint: Option<RowConstraint>,
}

impl PlanRow {
    /// Masks that come with it: for the token behind its known text, and behind each draft.
    pub fn masks(&self) -> usize {
        self.constraint
            .as_ref()
            .map_or(0, |constraint| constraint.drafts.len() + 1)
    }
}

/// The part of a constraint that a row needs. The host has seen the drafts: they are given, and the device's own are not
/// verified.
#[derive(Clone, Debug)]
pub struct RowConstraint {
    /// The drafts of a verify row, all of them.
    pub drafts: Vec<TokenId>,
    /// Where they came from; `None` if there are none.
    pub source: Option<DraftSource>,
    /// Tokens that may come: behind the known text, and behind each draft. There may be more.
    pub masks: Arc<[TokenMask]>,
}

/// How many drafts are wanted, by where they come from. The device takes them from the request's own text if that
/// has a good match, and else from the neural drafter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftBudget {
    /// Most drafts from the text.
    pub ngram: usize,
    /// Most drafts from the neural drafter. With 0 it does not even see the row's tokens, and costs nothing.
    pub neural: usize,
}

impl DraftBudget {
    /// No drafts at all.
    pub const NONE: Self = Self { ngram: 0, neural: 0 };

    /// Most drafts that there can be.
    pub fn most(self) -> usize {
        self.ngram.max(self.neural)
    }
}

/// Where drafts came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DraftSource {
    /// The request's own text.
    Ngram,
    /// A head or a model.
    Neural,
    /// A grammar that leaves no choice.
    Grammar,
}

impl DraftSource {
    /// Name in replies and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ngram => "ngram",
            Self::Neural => "neural",
            Self::Grammar => "grammar",
        }
    }
}

/// A reserved place for a state and the position it is wanted at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotPlan {
    /// Tokens folded into the state.
    pub position: usize,
    /// Where it goes.
    pub id: SnapshotId,
}

/// How the states of a text's tokens become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// Their mean, added up in order.
    Mean,
    /// The last one.
    Last,
}

/// What a row computes.
#[derive(Clone, Debug)]
pub enum Work {
    /// Known tokens from a position on.
    Prefill {
        /// Position of the first.
        start: usize,
        /// Tokens of the chunk.
        tokens: Vec<TokenId>,
        /// They end with the last known token: choose the next one.
        last: bool,
        /// The known token behind them, if any.
        following: Option<TokenId>,
        /// Report log-probabilities of the prompt's tokens.
        prompt_logprobs: bool,
    },
    /// The newest token and up to this many drafts, as many as the device has.
    Verify {
        /// Draft tokens that may be verified.
        drafts: usize,
    },
    /// Tokens of a text that is to become one vector, from a position on. Nothing is chosen.
    Embed {
        /// Position of the first.
        start: usize,
        /// Tokens of the chunk.
        tokens: Vec<TokenId>,
        /// They end with the last one: give the vector.
        last: bool,
        /// How it is made of the tokens' final states.
        pooling: Pooling,
    },
}

impl Work {
    /// Most tokens run.
    pub fn tokens(&self) -> usize {
        match self {
            Self::Prefill { tokens, .. } | Self::Embed { tokens, .. } => tokens.len(),
            Self::Verify { drafts } => 1 + drafts,
        }
    }

    /// Most positions sampled.
    pub fn samples(&self) -> usize {
        match self {
            Self::Prefill {
                tokens,
                prompt_logprobs: true,
                ..
            } => tokens.len(),
            Self::Prefill { last, .. } => usize::from(*last),
            Self::Verify { drafts } => 1 + drafts,
            Self::Embed { .. } => 0,
        }
    }
}

/// What a step did.
#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    /// Number of the step.
    pub step: u64,
    /// One per row of the plan, in its order.
    pub rows: Vec<RowOutput>,
    /// Device clock when the step began and ended, in nanoseconds.
    pub device_ns: (u64, u64),
    /// Of this time, what went into drafts for the next step.
    pub draft_ns: u64,
    /// Passes of the neural drafter that had something to do.
    pub draft_passes: usize,
}

/// What a row did. A row whose slot had finished or changed hands did nothing.
#[derive(Clone, Debug, Default)]
pub struct RowOutput {
    /// Tokens that became part of the text, in order; the last may be a stop token.
    pub tokens: Vec<TokenId>,
    /// Why the request ended with them.
    pub end: Option<RowEnd>,
    /// The planned snapshot was written.
    pub snapshot_written: bool,
    /// Drafts that were verified.
    pub drafted: usize,
    /// Where they came from; `None` if there were none.
    pub source: Option<DraftSource>,
    /// Of a row that shows them: the drafts made behind it, and where they came from.
    pub made: (Vec<TokenId>, Option<DraftSource>),
    /// Of `tokens`, where asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// Of the prompt's tokens that follow the row's, where asked for.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// The vector of a text that has been run to its end, and else empty.
    pub embedding: Vec<f32>,
}

/// Why the device ended a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowEnd {
    /// The last token is a stop token.
    StopToken,
    /// It is as long as it may be.
    Length,
}
