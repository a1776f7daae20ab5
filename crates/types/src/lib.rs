//! Plain data shared by every crate: element types, sampling parameters, plans, results, and what a constraint is. No
//! IO, no dependencies.

mod constraint;
mod dtype;
mod plan;
mod sampling;

pub use constraint::{Constraint, ConstraintError, Matcher, TokenMask};
pub use dtype::{DType, UnknownDType};
pub use plan::{
    Admission, BlockId, DraftBudget, DraftSource, MAX_DRAFTS, PlanRow, Pooling, RowConstraint, RowEnd,
    RowOutput, STATE_GRID, SlotId, SnapshotId, SnapshotPlan, StepOutput, StepPlan, Work, on_state_grid,
};
pub use sampling::{FinishReason, SamplingParams, TokenId, TokenLogprobs};
