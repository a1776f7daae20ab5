//! What tests of the scheduler start from.

use paceline_schedule::{CheckedRequest, RequestId, SchedulerConfig};
use paceline_types::{Constraint, ConstraintError, Matcher, TokenId, TokenMask};
use std::sync::Arc;

pub(crate) const CONFIG: SchedulerConfig = SchedulerConfig {
    slots: 4,
    max_batched_tokens: 64,
    max_step_ns: None,
    max_samples: 64,
    max_masks: 64,
    block_size: 16,
    num_blocks: 100,
    blocks_per_request: 100,
    max_waiting: 8,
    drafts: 0,
    recurrent: None,
    prefix_caching: false,
};

/// A request of nobody in particular with so many tokens in its prompt, of any drafts, until it has `max_length` tokens.
pub(crate) fn request(id: u64, prompt: usize, max_length: usize) -> CheckedRequest {
    CheckedRequest {
        id: RequestId(id),
        prompt: vec![3; prompt].into(),
        generated: Arc::default(),
        params: Arc::default(),
        stop_tokens: Arc::default(),
        priority: 0,
        deadline: None,
        tenant: 0,
        salt: 0,
        max_length,
        group: None,
        speculation: CheckedRequest::ANY_DRAFTS,
        constraint: None,
        pooling: None,
    }
}

/// Allows every token.
#[derive(Debug)]
pub(crate) struct Free;

impl Constraint for Free {
    fn matcher(&self) -> Box<dyn Matcher> {
        Box::new(Self)
    }
}

impl Matcher for Free {
    fn commit(&mut self, _: &[TokenId]) -> Result<(), ConstraintError> {
        Ok(())
    }

    fn forced(&mut self, _: usize) -> Result<Vec<TokenId>, ConstraintError> {
        Ok(Vec::new())
    }

    fn masks(&mut self, drafts: &[TokenId]) -> Result<Vec<TokenMask>, ConstraintError> {
        Ok(vec![TokenMask::new([u32::MAX]); drafts.len() + 1])
    }

    fn is_finished(&self) -> bool {
        false
    }
}
