//! From the states of a text to one vector.

use crate::{Backend, DeviceError, StepTables};

/// Where states are pooled.
#[derive(Clone)]
pub struct PoolTable<B: Backend> {
    /// `[slots, width]`: the states of each slot's text so far, added up.
    pub sums: B::Buffer<f32>,
    /// `[slots, width]`: the vectors that a step has completed, packed, in the order of its plan rows.
    pub done: B::Buffer<f32>,
    /// Elements of a state.
    pub width: usize,
}

impl<B: Backend> PoolTable<B> {
    /// Room for one text in each of `slots` slots.
    pub fn new(backend: &B, slots: usize, width: usize) -> Result<Self, DeviceError> {
        Ok(Self {
            sums: backend.buffer(slots * width)?,
            done: backend.buffer(slots * width)?,
            width,
        })
    }

    /// Bytes that it takes.
    pub const fn bytes(slots: usize, width: usize) -> u64 {
        (2 * slots * width * size_of::<f32>()) as u64
    }
}

/// Arguments of [`Backend::pool_states`].
///
/// The flags of a plan row say what becomes of its states: [`POOL_SUM`](crate::abi::PlanRow::POOL_SUM) adds them to
/// the slot's sum, one token after the other in f32, so that the sum does not depend on how the text was cut into
/// plan rows; a plan row that begins at position 0 begins a new sum. [`POOL_MEAN`](crate::abi::PlanRow::POOL_MEAN) then gives
/// the sum, divided by the number of its tokens; [`POOL_LAST`](crate::abi::PlanRow::POOL_LAST) gives the state of the row's
/// last token. A plan row that gives something has a place in `done` even if it did not run.
pub struct PoolStates<'a, B: Backend> {
    /// The plan.
    pub plan: &'a B::Buffer<i32>,
    /// The step's tables.
    pub step: &'a StepTables<B>,
    /// `[T, width]`, a state per token of the step.
    pub states: &'a B::Tensor,
    /// Sums and finished vectors, both updated.
    pub table: &'a PoolTable<B>,
}
