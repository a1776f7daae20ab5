//! Convolutions and recurrent layers.

use crate::arguments::arguments;
use crate::cuda::Cuda;
use paceline_device::{CausalConv, DeltaRule, StateSpace};

arguments! { "recurrence.h"; }

impl Cuda {
    pub(crate) fn enqueue_causal_conv(&self, _args: &CausalConv<'_, Self>) {
        self.missing("causal_conv");
    }

    pub(crate) fn enqueue_delta_rule(&self, _args: &DeltaRule<'_, Self>) {
        self.missing("delta_rule");
    }

    pub(crate) fn enqueue_state_space(&self, _args: &StateSpace<'_, Self>) {
        self.missing("state_space");
    }
}
