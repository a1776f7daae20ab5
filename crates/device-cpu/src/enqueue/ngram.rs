//! Drafts from the slots' own texts.

use super::frame::{plan_view, slot_views, whole};
use crate::checks::Checks;
use crate::cpu::Cpu;
use crate::ops::ngram::{self, Index, Proposal};
use paceline_device::{NgramIndex, ProposeNgram};

impl Cpu {
    pub(crate) fn enqueue_propose_ngram(&self, args: &ProposeNgram<'_, Self>) {
        let check = Checks("propose_ngram");
        let words = args.index.buckets * NgramIndex::<Self>::WAYS * 2;
        check.length("entries", &args.index.entries, words);
        check.room("request rows", &args.step.request_rows, args.step.requests.bucket);
        let (plan, slots, index) = (args.plan.clone(), args.slots.clone(), args.index.clone());
        let (requests, chain_min) = (args.step.request_rows.clone(), args.chain_min);
        self.stream.enqueue(move |_| {
            // SAFETY: the plan, the slots, the request rows and the index are distinct buffers that this operation
            // alone touches.
            let proposal = unsafe {
                Proposal {
                    plan: plan_view(&plan),
                    slots: slot_views(&slots),
                    requests: requests.read(),
                    index: Index::new(whole(&index.entries), (index.min, index.max)),
                    chain_min,
                }
            };
            ngram::propose(proposal);
        });
    }
}
