//! The frame of a step: plan in, record out.

use crate::arguments::arguments;
use crate::cuda::Cuda;
use paceline_device::{Accept, PoolStates, Prepare, Publish, StepRecord};

arguments! { "frame.h"; }

impl Cuda {
    pub(crate) fn enqueue_prepare(&self, _args: &Prepare<'_, Self>) {
        self.missing("prepare");
    }

    pub(crate) fn enqueue_accept(&self, _args: &Accept<'_, Self>) {
        self.missing("accept");
    }

    pub(crate) fn enqueue_publish(&self, _args: &Publish<'_, Self>) {
        self.missing("publish");
    }

    pub(crate) fn enqueue_mark_drafting(&self, _record: &StepRecord<Self>) {
        self.missing("mark_drafting");
    }

    pub(crate) fn enqueue_pool_states(&self, _args: &PoolStates<'_, Self>) {
        self.missing("pool_states");
    }
}
