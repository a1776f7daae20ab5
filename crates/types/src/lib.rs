//! Plain data shared by every crate: element types, sampling parameters, results. No IO, no dependencies.

mod dtype;
mod sampling;

pub use dtype::{DType, UnknownDType};
pub use sampling::{FinishReason, SamplingParams, TokenId, TokenLogprobs};
