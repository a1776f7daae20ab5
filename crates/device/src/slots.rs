//! Slots on the device, and the operations that make a step of them: plans in, records out.

use crate::abi::{LIST_WORDS, RecordHeader, RecordRow, Slot};
use crate::{Backend, DeviceError, PoolTable, StepRings};

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
    /// Per slot.
    pub state: B::Buffer<Slot>,
    /// `[slots, LIST_WORDS]`, see [`SlotLists`](crate::abi::SlotLists).
    pub lists: B::Buffer<i32>,
    /// `[slots, blocks_per_slot]`, in order of position.
    pub block_table: B::Buffer<i32>,
    /// Token ids in blocks: `[blocks, block_size]`.
    pub history: B::Buffer<i32>,
    /// Per snapshot: not 0 if it holds the state of the draft model too.
    pub drafter_saved: B::Buffer<i32>,
}

impl<B: Backend> SlotTable<B> {
    /// Slots without owners.
    pub fn new(backend: &B, limits: SlotLimits) -> Result<Self, DeviceError> {
        Ok(Self {
            limits,
            state: backend.buffer(limits.slots)?,
            lists: backend.buffer(limits.slots * LIST_WORDS)?,
            block_table: backend.buffer(limits.slots * limits.blocks_per_slot)?,
            history: backend.buffer(limits.blocks * limits.block_size)?,
            drafter_saved: backend.buffer(limits.snapshots)?,
        })
    }
}

/// What a step has found out so far.
#[derive(Clone)]
pub struct StepRecord<B: Backend> {
    /// One element.
    pub header: B::Buffer<RecordHeader>,
    /// Per plan row.
    pub rows: B::Buffer<RecordRow>,
}

impl<B: Backend> StepRecord<B> {
    /// Room for `rows` plan rows.
    pub fn new(backend: &B, rows: usize) -> Result<Self, DeviceError> {
        Ok(Self {
            header: backend.buffer(1)?,
            rows: backend.buffer(rows)?,
        })
    }
}

/// Arguments of [`Backend::prepare`].
///
/// Counts the step, copies its plan from its place in the ring to device memory and starts its record. A plan that is
/// not that step's, or that does not fit, sets the error word, and the step goes on as one without plan rows: nothing
/// of it is applied.
///
/// Applies the plan's admissions and block updates to the slots, writes prefill tokens to the history, and fills the
/// step's tables: a prefill row runs its tokens; a verify row runs the newest token and its drafts, no more than
/// planned, which the plan may give in place of the slot's own; a plan row whose slot has another owner or has
/// finished has no tokens. Token rows, request rows and rows of logits are packed; every plan row has a request row.
pub struct Prepare<'a, B: Backend> {
    /// Where the plan arrives, and the step's number.
    pub rings: &'a StepRings<B>,
    /// Where the plan is copied to, see [`Plan`](crate::abi::Plan).
    pub plan: &'a B::Buffer<i32>,
    /// The slots.
    pub slots: &'a SlotTable<B>,
    /// The tables that the step's operations read; all of them are written.
    pub step: &'a crate::StepTables<B>,
    /// The step's record, started anew.
    pub record: &'a StepRecord<B>,
}

/// Arguments of [`Backend::accept`].
///
/// For each plan row, counts how many drafts equal the tokens sampled before them: `a`. The first `a + 1` samples
/// become part of the text, cut after the first stop token and at the length limit. All but the newest are appended
/// to the history, the slot's length grows by them, and the record gets the tokens, contiguous from 0, the rest -1.
pub struct Accept<'a, B: Backend> {
    /// The plan.
    pub plan: &'a B::Buffer<i32>,
    /// The slots.
    pub slots: &'a SlotTable<B>,
    /// The step's tables.
    pub step: &'a crate::StepTables<B>,
    /// The sampled tokens.
    pub tokens: &'a B::Buffer<i32>,
    /// A row per plan row is written.
    pub record: &'a StepRecord<B>,
}

/// Arguments of [`Backend::publish`].
///
/// The last operation of a step: writes the record to the step's place in the ring, with what the plan rows ask for
/// packed behind it: the log-probabilities of rows of logits whose request wants them, the drafts that slots hold
/// where the host has to see them, and the vectors that the step completed.
pub struct Publish<'a, B: Backend> {
    /// Where the record goes.
    pub rings: &'a StepRings<B>,
    /// The plan.
    pub plan: &'a B::Buffer<i32>,
    /// The slots.
    pub slots: &'a SlotTable<B>,
    /// The step's tables.
    pub step: &'a crate::StepTables<B>,
    /// What [`Backend::accept`] and the drafters found.
    pub record: &'a StepRecord<B>,
    /// Per row of logits.
    pub logprobs: &'a B::Buffer<crate::abi::Logprobs>,
    /// The vectors.
    pub pooled: &'a PoolTable<B>,
}
