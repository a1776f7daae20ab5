//! Slots: what the device knows of each request, and the words host and device exchange about it.
//!
//! Everything is an array of `i32` (floats by their bits), so that a plan is one copy to the device and a record
//! one copy back. The layouts are the modules [`slot`], [`plan`] and [`record`]; both sides use these names.

use crate::{Backend, DeviceError, SamplingRow};
use paceline_types::MAX_DRAFTS;

/// The words of a slot in [`SlotTable::state`].
pub mod slot {
    use super::{MAX_DRAFTS, SamplingRow};

    /// Tells this owner of the slot from the ones before.
    pub const GENERATION: usize = 0;
    /// Tokens known: prompt and text. All but the newest are in the caches.
    pub const LENGTH: usize = 1;
    /// Not 0: plan rows of this slot do nothing.
    pub const FINISHED: usize = 2;
    /// Accepted drafts that are not yet folded into the recurrent state.
    pub const PENDING: usize = 3;
    /// Drafts to verify next.
    pub const DRAFT_COUNT: usize = 4;
    /// The request ends when it is this long.
    pub const MAX_LENGTH: usize = 5;
    /// No stop token is chosen before it is this long.
    pub const MIN_LENGTH: usize = 6;
    /// Tokens of the prompt.
    pub const PROMPT_LENGTH: usize = 7;
    /// Snapshot to start the recurrent state from, or -1. Used once.
    pub const RESTORE: usize = 8;
    /// Where the drafts came from: 0, [`FROM_NGRAM`], [`FROM_NEURAL`] or [`FROM_GRAMMAR`].
    pub const SOURCE: usize = 9;
    /// Tokens whose n-grams are in the index.
    pub const INDEXED: usize = 10;
    /// Not 0: the draft model has missed tokens of this owner, so its recurrent state is of no use.
    pub const MISSED: usize = 11;
    /// A [`SamplingRow`].
    pub const SAMPLING: usize = 12;
    /// Multiplies or divides logits of known tokens; f32.
    pub const REPETITION_PENALTY: usize = SAMPLING + SamplingRow::INTS;
    /// Subtracted for tokens of the text; f32.
    pub const PRESENCE_PENALTY: usize = REPETITION_PENALTY + 1;
    /// Subtracted per occurrence in the text; f32.
    pub const FREQUENCY_PENALTY: usize = PRESENCE_PENALTY + 1;
    /// The newest token. It enters the history when it is run: until then its block may not be there.
    pub const NEWEST: usize = FREQUENCY_PENALTY + 1;
    /// The drafts, right behind the newest token: together they are the text that is not in the history.
    pub const DRAFTS: usize = NEWEST + 1;
    /// Words of a slot.
    pub const INTS: usize = DRAFTS + MAX_DRAFTS;

    /// Drafts from the slot's own text.
    pub const FROM_NGRAM: i32 = 1;
    /// Drafts from a head or a model.
    pub const FROM_NEURAL: i32 = 2;
    /// Drafts that a grammar leaves no choice about.
    pub const FROM_GRAMMAR: i32 = 3;
}

/// A step's plan as one array: [`HEADER`](plan::HEADER) words, then admissions, block updates, plan rows and tokens.
pub mod plan {
    /// Number of admissions. Each is: slot, length of its lists, [`super::slot::INTS`] words of state, the lists.
    pub const ADMISSIONS: usize = 0;
    /// Number of block updates. Each is: slot, index in its table, block.
    pub const BLOCKS: usize = 1;
    /// Number of plan rows, [`ROW`] words each.
    pub const ROWS: usize = 2;
    /// Number of tokens of all plan rows together: those of prefill rows and given drafts.
    pub const TOKENS: usize = 3;
    /// Words before the sections.
    pub const HEADER: usize = 4;

    /// Words of an admission before its lists.
    pub const ADMISSION: usize = 2 + super::slot::INTS;
    /// Words of a block update.
    pub const BLOCK: usize = 3;
    /// Words of a plan row.
    pub const ROW: usize = 12;

    /// Of a plan row: its slot.
    pub const ROW_SLOT: usize = 0;
    /// Of a plan row: the owner of the slot it is meant for.
    pub const ROW_GENERATION: usize = 1;
    /// Of a plan row: [`PREFILL`] or [`VERIFY`].
    pub const ROW_KIND: usize = 2;
    /// Of a prefill row: position of its first token.
    pub const ROW_START: usize = 3;
    /// Of a prefill row: its tokens. Of a verify row: most drafts.
    pub const ROW_COUNT: usize = 4;
    /// Of a prefill row: [`SAMPLE_LAST`] or [`SAMPLE_ALL`] bits, or one of the `POOL` bits. Of a verify row: [`GIVEN`].
    /// Of both: [`MASKED`].
    pub const ROW_FLAGS: usize = 5;
    /// Of a prefill row: the known token after its last one, or -1.
    pub const ROW_FOLLOWING: usize = 6;
    /// Tokens folded when the state is to be saved, or -1.
    pub const ROW_SNAPSHOT_AT: usize = 7;
    /// Where it is saved.
    pub const ROW_SNAPSHOT: usize = 8;
    /// Most drafts wanted behind the plan row from the slot's own text.
    pub const ROW_NGRAM: usize = 9;
    /// Most drafts wanted behind the plan row from the neural drafter; with 0 it does not see the plan row.
    pub const ROW_NEURAL: usize = 10;
    /// Of a plan row with given drafts: where they came from, see [`super::slot::SOURCE`].
    pub const ROW_SOURCE: usize = 11;

    /// A plan row of known tokens.
    pub const PREFILL: i32 = 0;
    /// A plan row of the newest token and its drafts.
    pub const VERIFY: i32 = 1;
    /// Choose the token after the last one.
    pub const SAMPLE_LAST: i32 = 1;
    /// Report log-probabilities of the known tokens that follow.
    pub const SAMPLE_ALL: i32 = 2;
    /// The drafts are those of the plan, among its tokens, and not those of the slot.
    pub const GIVEN: i32 = 4;
    /// Choices are confined to the slot's masks: the first to the first mask, and so on.
    pub const MASKED: i32 = 8;
    /// Add the states to the slot's sum.
    pub const POOL_SUM: i32 = 16;
    /// Give the mean of all states in the sum.
    pub const POOL_MEAN: i32 = 32;
    /// Give the last state.
    pub const POOL_LAST: i32 = 64;
}

/// What a step leaves for the host: [`HEADER`](record::HEADER) words, then [`ROW`](record::ROW) words per plan row.
pub mod record {
    use super::MAX_DRAFTS;

    /// Clock at the start of the step, low and high word.
    pub const BEGIN: usize = 0;
    /// Clock at the end of the step, low and high word.
    pub const END: usize = 2;
    /// Clock when drafting began, low and high word.
    pub const DRAFTING: usize = 4;
    /// Passes of the neural drafter that had plan rows.
    pub const PASSES: usize = 6;
    /// Words before the plan rows.
    pub const HEADER: usize = 7;

    /// Of a plan row: tokens that became part of the text.
    pub const COUNT: usize = 0;
    /// Of a plan row: 0, [`STOPPED`] or [`FULL`].
    pub const ENDED: usize = 1;
    /// Of a plan row: not 0 if the planned snapshot was written.
    pub const SNAPSHOT: usize = 2;
    /// Of a plan row: drafts verified.
    pub const DRAFTED: usize = 3;
    /// Of a plan row: its first logits row.
    pub const FIRST_SAMPLE: usize = 4;
    /// Of a plan row: where the drafts came from, see [`super::slot::SOURCE`].
    pub const SOURCE: usize = 5;
    /// Of a plan row: the tokens, the rest -1.
    pub const TOKENS: usize = 6;
    /// Words of a plan row.
    pub const ROW: usize = TOKENS + MAX_DRAFTS + 1;

    /// The request ended with a stop token.
    pub const STOPPED: i32 = 1;
    /// The request is as long as it may be.
    pub const FULL: i32 = 2;
}

/// Words for the lists of a slot: stop tokens, logit biases, bad words. Each list is its number of entries and
/// then the entries: a token; a token and a bias; a length and that many tokens.
pub const LIST_INTS: usize = 1024;

/// How much slots there are and how large they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLimits {
    /// Requests that can be on the device at a time.
    pub slots: usize,
    /// Blocks of one slot.
    pub blocks_per_slot: usize,
    /// Blocks in all.
    pub blocks: usize,
    /// Tokens of a block.
    pub block_size: usize,
    /// Saved recurrent states.
    pub snapshots: usize,
}

/// The device-resident state of all slots.
#[derive(Clone)]
pub struct SlotTable<B: Backend> {
    /// What the tables were allocated for.
    pub limits: SlotLimits,
    /// `[slots, slot::INTS]`.
    pub state: B::Buffer<i32>,
    /// `[slots, LIST_INTS]`.
    pub lists: B::Buffer<i32>,
    /// `[slots, blocks_per_slot]`, in order of position.
    pub block_table: B::Buffer<i32>,
    /// Token ids in blocks: `[blocks, block_size]`.
    pub history: B::Buffer<i32>,
    /// Per snapshot: not 0 if it holds the state of the draft model too.
    pub drafter_saved: B::Buffer<i32>,
    /// Which tokens may be chosen.
    pub masks: MaskTable<B>,
}

/// Masks of tokens: `[slots, positions, words]`, a bit per token, lowest token in the lowest bit. The host writes
/// those of a plan row before the step that reads them.
#[derive(Clone)]
pub struct MaskTable<B: Backend> {
    /// Masks per slot; 0 if no plan row may be masked.
    pub positions: usize,
    /// Words of a mask.
    pub words: usize,
    /// The bits.
    pub bits: B::Buffer<i32>,
}

impl<B: Backend> MaskTable<B> {
    /// Room for the masks of `slots` slots with `positions` choices out of `vocabulary` tokens each.
    pub fn new(backend: &B, slots: usize, positions: usize, vocabulary: usize) -> Result<Self, DeviceError> {
        let words = vocabulary.div_ceil(32);
        Ok(Self {
            positions,
            words,
            bits: backend.buffer(slots * positions * words)?,
        })
    }
}

impl<B: Backend> SlotTable<B> {
    /// Slots without owners and without masks.
    pub fn new(backend: &B, limits: SlotLimits) -> Result<Self, DeviceError> {
        Ok(Self {
            limits,
            state: backend.buffer(limits.slots * slot::INTS)?,
            lists: backend.buffer(limits.slots * LIST_INTS)?,
            block_table: backend.buffer(limits.slots * limits.blocks_per_slot)?,
            history: backend.buffer(limits.blocks * limits.block_size)?,
            drafter_saved: backend.buffer(limits.snapshots)?,
            masks: MaskTable::new(backend, limits.slots, 0, 0)?,
        })
    }
}

/// Arguments of [`Backend::prepare`].
///
/// Applies the plan's admissions and block updates to the slots, writes prefill tokens to the history, and fills the
/// step's tables: a prefill row runs its tokens; a verify row runs the newest token and its drafts, no more than
/// planned, which the plan may give in place of the slot's own; a plan row whose slot has another owner or has
/// finished has no tokens. Token rows, request rows and plan rows of logits are packed; every plan row has a request
/// row.
pub struct Prepare<'a, B: Backend> {
    /// The plan, see [`plan`].
    pub plan: &'a B::Buffer<i32>,
    /// The slots.
    pub slots: &'a SlotTable<B>,
    /// The tables that the step's operations read; all of them are written.
    pub step: &'a crate::StepTables<B>,
}

/// Arguments of [`Backend::accept`].
///
/// For each plan row, counts how many drafts equal the tokens sampled before them: `a`. The first `a + 1` samples
/// become part of the text, cut after the first stop token and at the length limit. All but the newest are appended
/// to the history, the slot's length grows by them, `a` drafts (fewer if cut) wait to be folded, and the record gets
/// the tokens, contiguous from 0, the rest -1.
pub struct Accept<'a, B: Backend> {
    /// The plan.
    pub plan: &'a B::Buffer<i32>,
    /// The slots.
    pub slots: &'a SlotTable<B>,
    /// The step's tables.
    pub step: &'a crate::StepTables<B>,
    /// The sampled tokens.
    pub tokens: &'a B::Buffer<i32>,
    /// See [`record`].
    pub record: &'a B::Buffer<i32>,
}
