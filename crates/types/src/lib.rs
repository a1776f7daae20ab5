//! Plain data shared by every crate: element types, sampling parameters, results. No IO, no dependencies.

mod dtype;
mod plan;
mod sampling;

pub use dtype::{DType, UnknownDType};
pub use plan::{
    Admission, BlockId, DraftSource, MAX_DRAFTS, PlanRow, Propose, RowEnd, RowOutput, SlotId, SnapshotId,
    SnapshotPlan, StepOutput, StepPlan, Work,
};
pub use sampling::{FinishReason, SamplingParams, TokenId, TokenLogprobs};
