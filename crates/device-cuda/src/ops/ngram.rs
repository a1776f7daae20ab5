//! Drafts from the text.

use super::checks::Checks;
use super::frame::PACKERS;
use crate::arguments::{Ptr, arguments};
use crate::cuda::Cuda;
use crate::launch::{Grid, Kernel};
use crate::views::{Slots, Tables};
use paceline_device::{NgramIndex, ProposeNgram};

arguments! { "ngram.h";
    struct NgramArgs {
        slots: Slots,
        step: Tables,
        plan: Ptr<i32>,
        entries: Ptr<i32>,
        buckets: u64,
        /// Shortest and longest match.
        min: i32,
        max: i32,
        chain_min: i32,
    }
}

const PROPOSE_NGRAM: Kernel<NgramArgs> = Kernel::new("ngram", "propose_ngram");

/// Bytes of shared memory per plan row: `Row`.
const ROW: u32 = 24;

impl Cuda {
    pub(crate) fn enqueue_propose_ngram(&self, args: &ProposeNgram<'_, Self>) {
        let check = Checks("propose_ngram");
        let index = args.index;
        check.length(
            "entries",
            &index.entries,
            index.buckets * NgramIndex::<Self>::WAYS * 2,
        );
        check.room("request rows", &args.step.request_rows, args.step.requests.bucket);
        assert!(
            (1..=index.max).contains(&index.min)
                && index.max <= NgramIndex::<Self>::LONGEST
                && index.buckets > 0,
            "n-grams of {} to {} tokens in {} buckets",
            index.min,
            index.max,
            index.buckets
        );
        let arguments = NgramArgs {
            slots: Slots::of(args.slots),
            step: Tables::of(args.step),
            plan: args.plan.ptr(),
            entries: index.entries.ptr(),
            buckets: index.buckets as u64,
            min: index.min as i32,
            max: index.max as i32,
            chain_min: args.chain_min as i32,
        };
        let shared = args.step.requests.bucket as u32 * ROW;
        self.enqueue(&PROPOSE_NGRAM, Grid::new(1, PACKERS).shared(shared), &arguments);
    }
}
