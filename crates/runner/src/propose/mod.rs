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
use paceline_models::{Caches, Decoder, DraftScope};

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

    /// What of its output matrix it reads.
    fn rows_read(&self) -> RowsRead {
        RowsRead::Whole
    }

    /// The caches that it has of its own.
    fn caches(&self) -> Option<&Caches<B>> {
        None
    }

    /// Enqueues the making of drafts.
    fn propose(&self, stage: &Stage<'_, B>) -> Result<(), DeviceError>;
}

/// What a neural drafter reads of its output matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowsRead {
    /// All of it.
    Whole,
    /// This many rows, the first.
    Part(usize),
    /// The same in steps without prompts whose texts have few tokens outside; all of it in others.
    PartWhereItFits(usize),
}

impl RowsRead {
    /// Rows of the part, if there is one.
    fn part(self) -> Option<usize> {
        match self {
            Self::Whole => None,
            Self::Part(rows) | Self::PartWhereItFits(rows) => Some(rows),
        }
    }
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
    /// The tokens that a neural drafter chooses among.
    pub scope: DraftScope,
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

    fn rows_read(&self) -> RowsRead {
        self.then.rows_read()
    }

    fn caches(&self) -> Option<&Caches<B>> {
        self.then.caches()
    }

    fn propose(&self, stage: &Stage<'_, B>) -> Result<(), DeviceError> {
        self.first.propose(stage)?;
        self.then.propose(stage)
    }
}
