//! Passes of neural drafters.

use crate::cpu::Cpu;
use paceline_device::{PrepareDrafts, TakeDrafts};

impl Cpu {
    pub(crate) fn enqueue_prepare_drafts(&self, _args: &PrepareDrafts<'_, Self>) {
        unimplemented!("in the making")
    }

    pub(crate) fn enqueue_take_drafts(&self, _args: &TakeDrafts<'_, Self>) {
        unimplemented!("in the making")
    }
}
