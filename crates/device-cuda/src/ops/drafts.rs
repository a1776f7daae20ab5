//! Drafting: draft forwards and what they start from.

use super::checks::Checks;
use super::frame::{PACKED_ROW, PACKERS};
use super::tokens::per_row;
use crate::arguments::{Ptr, arguments};
use crate::cuda::Cuda;
use crate::launch::{Grid, Kernel};
use crate::views::{Findings, KvView, Matrix, Slots, Tables};
use paceline_device::{ClearKv, DraftForward, GatherStates, KeepBlockEnds, PrepareDrafts, TakeDrafts};
use paceline_types::MAX_DRAFTS;

arguments! { "drafts.h";
    /// Of all kernels that lay out a draft forward.
    struct DraftArgs {
        slots: Slots,
        step: Tables,
        /// The tables of the draft forward before, or the step's.
        before: Tables,
        draft: Tables,
        record: Findings,
        plan: Ptr<i32>,
        source: Ptr<i32>,
        fault: Ptr<i32>,
        /// Drafts made so far.
        place: i32,
    }

    struct TakeArgs {
        slots: Slots,
        draft: Tables,
        tokens: Ptr<i32>,
        place: i32,
    }

    struct KeepArgs {
        step: Tables,
        states: Matrix,
        kept: Ptr<f32>,
        fault: Ptr<i32>,
        /// Blocks that `kept` has room for.
        blocks: u32,
        /// Rows of the block table.
        table_rows: u32,
    }

    struct StatesArgs {
        states: Matrix,
        out: Matrix,
        kept: Ptr<f32>,
        source: Ptr<i32>,
        fault: Ptr<i32>,
        blocks: u32,
    }

    struct ClearArgs {
        step: Tables,
        cache: KvView,
        plan: Ptr<i32>,
        fault: Ptr<i32>,
    }
}

const BEHIND: Kernel<DraftArgs> = Kernel::new("drafts", "prepare_behind");
const ALONG: Kernel<DraftArgs> = Kernel::new("drafts", "prepare_along");
const ALONG_RECURRENT: Kernel<DraftArgs> = Kernel::new("drafts", "prepare_along_recurrent");
const AGAIN: Kernel<DraftArgs> = Kernel::new("drafts", "prepare_again");
const AHEAD: Kernel<DraftArgs> = Kernel::new("drafts", "prepare_ahead");
const TAKE_DRAFTS: Kernel<TakeArgs> = Kernel::new("drafts", "take_drafts");
const KEEP_BLOCK_ENDS: Kernel<KeepArgs> = Kernel::new("drafts", "keep_block_ends");
const GATHER_STATES: Kernel<StatesArgs> = Kernel::new("drafts", "gather_states");
const CLEAR_KV: Kernel<ClearArgs> = Kernel::new("drafts", "clear_kv");

/// Threads of a block that takes drafts.
const TAKERS: u32 = 128;

impl Cuda {
    pub(crate) fn enqueue_prepare_drafts(&self, args: &PrepareDrafts<'_, Self>) {
        let check = Checks("prepare_drafts");
        check.room("source", args.source, args.draft.tokens.bucket);
        let (kernel, place) = match args.pass {
            DraftForward::Behind => (&BEHIND, 0),
            DraftForward::Along { recurrent: false } => (&ALONG, 0),
            DraftForward::Along { recurrent: true } => (&ALONG_RECURRENT, 0),
            DraftForward::Again { place } => (&AGAIN, place),
            DraftForward::Ahead { place } => (&AHEAD, place),
        };
        assert!(
            place < MAX_DRAFTS && (!matches!(args.pass, DraftForward::Again { .. }) || place > 0),
            "prepare_drafts: {:?}",
            args.pass
        );
        assert!(
            args.before.is_some() || !matches!(args.pass, DraftForward::Again { .. }),
            "prepare_drafts: {:?} without the draft forward before",
            args.pass
        );
        let arguments = DraftArgs {
            slots: Slots::of(args.slots),
            step: Tables::of(args.step),
            before: Tables::of(args.before.unwrap_or(args.step)),
            draft: Tables::of(args.draft),
            record: Findings::of(args.record),
            plan: args.plan.ptr(),
            source: args.source.ptr(),
            fault: self.fault(),
            place: place as i32,
        };
        let shared = args.draft.requests.bucket as u32 * PACKED_ROW;
        self.enqueue_fenced(kernel, Grid::new(1, PACKERS).shared(shared), &arguments);
    }

    pub(crate) fn enqueue_take_drafts(&self, args: &TakeDrafts<'_, Self>) {
        let check = Checks("take_drafts");
        let rows = args.draft.samples.bucket;
        check.room("tokens", args.tokens, rows);
        assert!(args.place < MAX_DRAFTS, "take_drafts: behind {}", args.place);
        let arguments = TakeArgs {
            slots: Slots::of(args.slots),
            draft: Tables::of(args.draft),
            tokens: args.tokens.ptr(),
            place: args.place as i32,
        };
        self.enqueue(
            &TAKE_DRAFTS,
            Grid::new((rows as u32).div_ceil(TAKERS), TAKERS),
            &arguments,
        );
    }

    pub(crate) fn enqueue_keep_block_ends(&self, args: &KeepBlockEnds<'_, Self>) {
        let check = Checks("keep_block_ends");
        check.room("token rows", &args.step.token_rows, args.states.bucket);
        let arguments = KeepArgs {
            step: Tables::of(args.step),
            states: Matrix::of(args.states),
            kept: args.kept.ptr(),
            fault: self.fault(),
            blocks: blocks(args.kept.len(), args.states.columns),
            table_rows: (args.step.block_table.len() / args.step.limits.blocks_per_request.max(1)) as u32,
        };
        self.enqueue(&KEEP_BLOCK_ENDS, per_row(args.states.bucket), &arguments);
    }

    pub(crate) fn enqueue_gather_states(&self, args: &GatherStates<'_, Self>) {
        let check = Checks("gather_states");
        check.room("source", args.source, args.out.bucket);
        check.columns("out", args.out, args.states.columns);
        check.apart(args.out, &[args.states]);
        let arguments = StatesArgs {
            states: Matrix::of(args.states),
            out: Matrix::of(args.out),
            kept: args.kept.ptr(),
            source: args.source.ptr(),
            fault: self.fault(),
            blocks: blocks(args.kept.len(), args.out.columns),
        };
        self.enqueue(&GATHER_STATES, per_row(args.out.bucket), &arguments);
    }

    pub(crate) fn enqueue_clear_kv(&self, args: &ClearKv<'_, Self>) {
        let arguments = ClearArgs {
            step: Tables::of(args.step),
            cache: KvView::of(args.cache, args.step),
            plan: args.plan.ptr(),
            fault: self.fault(),
        };
        self.enqueue_fenced(&CLEAR_KV, per_row(args.step.tokens.bucket), &arguments);
    }
}

/// Blocks that a buffer of states has room for.
fn blocks(elements: usize, columns: usize) -> u32 {
    elements.checked_div(columns).unwrap_or(0) as u32
}
