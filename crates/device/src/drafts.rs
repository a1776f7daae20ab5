//! Drafting: the operations between the acceptance of one step's tokens and the next step.

use crate::{Backend, DeviceError, SlotTable, StepRecord, StepTables};

/// Where n-grams of the slots' texts were seen, shared by all slots.
///
/// A hash table of positions whose size follows from the number of tokens that blocks can hold, so memory is
/// proportional to them. Entries are named by the n-gram and by the slot's first block: requests that share a cached
/// beginning share its entries, and a hit brings them with it. An entry proves nothing by itself; a look-up
/// compares the tokens in its own history, so entries of former owners do no harm and need not be removed: newer ones
/// push them out.
#[derive(Clone)]
pub struct NgramIndex<B: Backend> {
    /// Shortest match.
    pub min: usize,
    /// Longest match looked for.
    pub max: usize,
    /// Buckets of [`WAYS`](Self::WAYS) entries, newest first: a tag, then one more than the position of the n-gram's
    /// last token, 0 for none.
    pub entries: B::Buffer<i32>,
    /// Any number.
    pub buckets: usize,
}

impl<B: Backend> NgramIndex<B> {
    /// Entries of a bucket: 64 bytes, a cache line, so that a look-up costs one miss.
    pub const WAYS: usize = 8;
    /// Entries of a bucket that one n-gram may take. The latest is what its own text needs; the others serve
    /// requests that have the first block in common and went different ways.
    pub const SAME: usize = 4;
    /// Longest n-gram that can be looked for.
    pub const LONGEST: usize = 8;
    /// Most tokens of a plan row that enter the index in one step, so that a long text that has not been indexed
    /// holds up no step for long. What is left enters in the steps that follow.
    pub const PER_STEP: usize = 4096;

    /// An empty index for texts of `tokens` tokens together, and matches of `min` to `max` tokens.
    pub fn new(backend: &B, tokens: usize, (min, max): (usize, usize)) -> Result<Self, DeviceError> {
        assert!(
            (1..=max).contains(&min) && max <= Self::LONGEST,
            "n-grams of {min} to {max} tokens"
        );
        let buckets = Self::buckets(tokens, (min, max));
        Ok(Self {
            min,
            max,
            entries: backend.buffer(buckets * Self::WAYS * 2)?,
            buckets,
        })
    }

    /// Buckets for `tokens` tokens: two entries per token and length of n-gram. Buckets fill unevenly; at half the
    /// entries they have, one n-gram in a hundred finds its bucket full.
    fn buckets(tokens: usize, (min, max): (usize, usize)) -> usize {
        (2 * tokens * (max - min + 1)).div_ceil(Self::WAYS).max(1)
    }

    /// Bytes of an index: 16 per token and length of n-gram.
    pub fn bytes(tokens: usize, lengths: (usize, usize)) -> u64 {
        (Self::buckets(tokens, lengths) * Self::WAYS * 2 * 4) as u64
    }
}

/// Arguments of [`Backend::propose_ngram`].
///
/// For each plan row of the plan that ran tokens of its owner: the n-grams that end at known tokens from
/// [`INDEXED`](crate::abi::Slot::indexed) on enter the index, all but the newest token's, whose follower is not known, and
/// [`NgramIndex::PER_STEP`] at most. That goes for plan rows that want no drafts and for requests that have just
/// ended, too: their blocks may become another request's beginning.
///
/// If the plan row chose a token, its request goes on and it wants drafts from the text, the longest n-gram that the
/// text ends with and that occurred before is looked up, the latest occurrence of the longest; what followed there
/// becomes the drafts. Past the end of the text the drafts go on with themselves. They stop before a stop token, and
/// where only one more token has room. An occurrence that has been pushed out of the index is not found; what is
/// found is an occurrence.
pub struct ProposeNgram<'a, B: Backend> {
    /// The plan.
    pub plan: &'a B::Buffer<i32>,
    /// The slots, after [`Backend::accept`].
    pub slots: &'a SlotTable<B>,
    /// The step's tables.
    pub step: &'a StepTables<B>,
    /// Where n-grams were seen.
    pub index: &'a NgramIndex<B>,
    /// Plan rows that want drafts from a neural drafter too leave it matches shorter than this.
    pub chain_min: usize,
}

/// What a draft forward of a neural drafter runs over. Only plan rows that want neural drafts take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftForward {
    /// A head behind the step: for each token that is certain now, the token that followed it, at the position of
    /// the former. `source` is the former's plan row. Plan rows that chose a token sample behind their last one.
    ///
    /// A piece of a prompt that begins with a block has the token before it too, whose follower may be another than
    /// that of the request which filled the block before. Its state was kept with that block `p`: `source` is `-1 -
    /// p`.
    Behind,
    /// A draft model along with the step: the step's own tokens, drafts included, with the step's own rollback.
    /// Nothing is sampled.
    Along {
        /// It has recurrent layers: once it has missed tokens of a request, it is of no use to it.
        recurrent: bool,
    },
    /// A head fed with its own draft: one token per slot that has `place` drafts and wants more, at the position
    /// before its own. `source` is the plan row of the draft forward before.
    Again {
        /// Drafts made so far; at least 1.
        place: usize,
    },
    /// A draft model on the newest token or its own draft, at its own position, whose states stay where they are: one
    /// token per slot that has `place` drafts and wants more.
    Ahead {
        /// Drafts made so far.
        place: usize,
    },
}

/// Arguments of [`Backend::prepare_drafts`].
pub struct PrepareDrafts<'a, B: Backend> {
    /// What to lay out.
    pub pass: DraftForward,
    /// The plan.
    pub plan: &'a B::Buffer<i32>,
    /// The slots, after [`Backend::accept`] (before it for [`DraftForward::Along`]).
    pub slots: &'a SlotTable<B>,
    /// The step's tables.
    pub step: &'a StepTables<B>,
    /// The step's record; counts the draft forward if it has plan rows. Accepted tokens are read from it.
    pub record: &'a StepRecord<B>,
    /// For [`DraftForward::Again`]: the tables of the draft forward before.
    pub before: Option<&'a StepTables<B>>,
    /// The tables of the draft forward; all of them are written.
    pub draft: &'a StepTables<B>,
    /// Per token row of `draft`: where its hidden state comes from.
    pub source: &'a B::Buffer<i32>,
}

/// Arguments of [`Backend::keep_block_ends`].
pub struct KeepBlockEnds<'a, B: Backend> {
    /// A plan row per token of the step.
    pub states: &'a B::Tensor,
    /// The step.
    pub step: &'a StepTables<B>,
    /// `[blocks, columns of states]`.
    pub kept: &'a B::Buffer<f32>,
}

/// Arguments of [`Backend::gather_states`].
pub struct GatherStates<'a, B: Backend> {
    /// A plan row per token of the step.
    pub states: &'a B::Tensor,
    /// See [`KeepBlockEnds`].
    pub kept: &'a B::Buffer<f32>,
    /// Per plan row of `out`: a plan row of `states`, or `-1 - p` for what was kept with block `p`.
    pub source: &'a B::Buffer<i32>,
    /// One state per token row of the draft forward.
    pub out: &'a mut B::Tensor,
}

/// Arguments of [`Backend::take_drafts`].
///
/// Each plan row of logits of the draft forward belongs to a slot that has `place` drafts; its token becomes the next, unless
/// it is a stop token, which ends the drafts: the model itself chooses it without help.
pub struct TakeDrafts<'a, B: Backend> {
    /// Drafts made so far.
    pub place: usize,
    /// The slots.
    pub slots: &'a SlotTable<B>,
    /// The tables of the draft forward.
    pub draft: &'a StepTables<B>,
    /// The tokens chosen.
    pub tokens: &'a B::Buffer<i32>,
}

/// Arguments of [`Backend::clear_kv`].
///
/// For each plan row of the plan that ran tokens of its owner and wants no neural drafts: the drafter's keys and
/// values at the positions of the row's tokens become zero, so that requests that share the blocks find no leftovers
/// there.
pub struct ClearKv<'a, B: Backend> {
    /// The plan.
    pub plan: &'a B::Buffer<i32>,
    /// The step's tables.
    pub step: &'a StepTables<B>,
    /// The drafter's blocks.
    pub cache: &'a B::KvCache,
}
