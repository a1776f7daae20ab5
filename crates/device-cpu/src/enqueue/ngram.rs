//! Drafts from the slots' own texts.

use crate::cpu::Cpu;
use paceline_device::ProposeNgram;

impl Cpu {
    pub(crate) fn enqueue_propose_ngram(&self, _args: &ProposeNgram<'_, Self>) {
        unimplemented!("in the making")
    }
}
