//! Proposers, which make drafts. A proposer runs at the end of a step, on the device and as part of its program, and
//! leaves drafts in the slots for the next step to verify. How many it may make for a plan row stands in the plan;
//! how many there are, the host never asks.

mod draft_forwards;
mod head;
mod model;
mod ngram;

pub use head::HeadProposer;
pub use model::ModelProposer;
pub use ngram::NgramProposer;

use paceline_device::{Backend, DeviceError, SlotTable, StepRecord, StepTables, Workspace};
use paceline_models::Decoder;

/// Makes drafts.
///
/// Drafts change what a step costs, never what it yields. A proposer may keep caches of its own, in the blocks and slots
/// of the requests; like everything in a program it depends on shapes alone when it is enqueued.
pub trait Proposer<B: Backend>: Send {
    /// Layers of the model whose input states it starts from; none: it starts from the final states, or from none.
    fn taps(&self) -> &[usize] {
        &[]
    }

    /// Whether it runs as many draft forwards as drafts are wanted, each of which costs.
    fn is_neural(&self) -> bool;

    /// Enqueues the making of drafts.
    fn propose(&self, stage: &Stage<'_, B>) -> Result<(), DeviceError>;
}

/// The end of a step, as a proposer finds it: tokens are accepted, slots have advanced.
pub struct Stage<'a, B: Backend> {
    /// The device.
    pub backend: &'a B,
    /// The model that the drafts are for.
    pub model: &'a Decoder<B>,
    /// Scratch tensors.
    pub workspace: &'a Workspace<B>,
    /// The plan.
    pub plan: &'a B::Buffer<i32>,
    /// The slots.
    pub slots: &'a SlotTable<B>,
    /// The step's tables.
    pub step: &'a StepTables<B>,
    /// The step's record.
    pub record: &'a StepRecord<B>,
    /// The states that it starts from, a plan row per token of the step; see [`Proposer::taps`].
    pub states: &'a B::Tensor,
    /// Most drafts that any plan row wants from a neural drafter; 0 if none is to see any token.
    pub draft_forwards: usize,
}

/// The text first; a neural drafter where the text has no match, or a short one.
pub struct Chain<B: Backend> {
    first: NgramProposer<B>,
    then: Box<dyn Proposer<B>>,
}

impl<B: Backend> Chain<B> {
    /// A chain of these two.
    pub fn new(first: NgramProposer<B>, then: Box<dyn Proposer<B>>) -> Self {
        Self { first, then }
    }
}

impl<B: Backend> Proposer<B> for Chain<B> {
    fn taps(&self) -> &[usize] {
        self.then.taps()
    }

    fn is_neural(&self) -> bool {
        self.then.is_neural()
    }

    fn propose(&self, stage: &Stage<'_, B>) -> Result<(), DeviceError> {
        self.first.propose(stage)?;
        self.then.propose(stage)
    }
}
