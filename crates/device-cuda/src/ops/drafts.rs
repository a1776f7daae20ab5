//! Drafting: draft forwards and what they start from.

use crate::arguments::arguments;
use crate::cuda::Cuda;
use crate::storage::{CudaBuffer, CudaTensor};
use paceline_device::{ClearKv, GatherStates, KeepBlockEnds, PrepareDrafts, TakeDrafts};

arguments! { "drafts.h"; }

impl Cuda {
    pub(crate) fn enqueue_prepare_drafts(&self, _args: &PrepareDrafts<'_, Self>) {
        self.missing("prepare_drafts");
    }

    pub(crate) fn enqueue_take_drafts(&self, _args: &TakeDrafts<'_, Self>) {
        self.missing("take_drafts");
    }

    pub(crate) fn enqueue_keep_block_ends(&self, _args: &KeepBlockEnds<'_, Self>) {
        self.missing("keep_block_ends");
    }

    pub(crate) fn enqueue_gather_states(&self, _args: &GatherStates<'_, Self>) {
        self.missing("gather_states");
    }

    pub(crate) fn enqueue_clear_kv(&self, _args: &ClearKv<'_, Self>) {
        self.missing("clear_kv");
    }

    pub(crate) fn enqueue_spread(&self, _x: &CudaTensor, _columns: &CudaBuffer<i32>, _out: &CudaTensor) {
        self.missing("spread");
    }
}
