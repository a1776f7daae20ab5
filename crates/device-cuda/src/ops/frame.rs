//! The frame of a step: plan in, record out.

use super::checks::Checks;
use crate::arguments::{Ptr, arguments};
use crate::cuda::Cuda;
use crate::launch::{Grid, Kernel};
use crate::views::{Findings, Matrix, Rings, Slots, Tables};
use paceline_device::abi::{Logprobs, RecordHeader};
use paceline_device::{Accept, PoolStates, Prepare, Publish, StepRecord};

arguments! { "frame.h";
    /// Of `take_plan` and `lay_out_step`.
    struct PrepareArgs {
        rings: Rings,
        slots: Slots,
        step: Tables,
        record: Findings,
        /// Where the plan is copied to.
        plan: Ptr<i32>,
        fault: Ptr<i32>,
        /// The device's clock when it was opened.
        clock: u64,
        /// Words of `plan`.
        room: u32,
    }

    struct AcceptArgs {
        slots: Slots,
        step: Tables,
        record: Findings,
        plan: Ptr<i32>,
        tokens: Ptr<i32>,
        fault: Ptr<i32>,
    }

    struct PoolArgs {
        step: Tables,
        states: Matrix,
        plan: Ptr<i32>,
        sums: Ptr<f32>,
        done: Ptr<f32>,
        /// Vectors that `sums` and `done` have room for.
        vectors: u32,
    }

    struct MarkArgs {
        header: Ptr<RecordHeader>,
        clock: u64,
    }

    struct PublishArgs {
        rings: Rings,
        slots: Slots,
        step: Tables,
        record: Findings,
        plan: Ptr<i32>,
        logprobs: Ptr<Logprobs>,
        /// Vectors that the step has completed, packed.
        done: Ptr<f32>,
        fault: Ptr<i32>,
        clock: u64,
        /// Vectors that `done` has room for.
        vectors: u32,
        /// Elements of a vector.
        width: u32,
    }
}

const TAKE_PLAN: Kernel<PrepareArgs> = Kernel::new("prepare", "take_plan");
const LAY_OUT_STEP: Kernel<PrepareArgs> = Kernel::new("prepare", "lay_out_step");
const ACCEPT: Kernel<AcceptArgs> = Kernel::new("accept", "accept");
const POOL_STATES: Kernel<PoolArgs> = Kernel::new("pool", "pool_states");
const MARK_DRAFTING: Kernel<MarkArgs> = Kernel::new("publish", "mark_drafting");
const PUBLISH: Kernel<PublishArgs> = Kernel::new("publish", "publish");

/// Threads of a block that packs rows: `PACKERS`.
pub(super) const PACKERS: u32 = 1024;
/// Bytes of shared memory per plan row of a block that packs: two sums.
pub(super) const PACKED_ROW: u32 = 8;
/// The thread block that copies a plan: `COPIERS`.
const COPIES: Grid = Grid::new(1, 1024);
/// Elements of a state that one thread block adds up.
const POOLED: usize = 128;

impl Cuda {
    pub(crate) fn enqueue_prepare(&self, args: &Prepare<'_, Self>) {
        let arguments = PrepareArgs {
            rings: Rings::of(args.rings),
            slots: Slots::of(args.slots),
            step: Tables::of(args.step),
            record: Findings::of(args.record),
            plan: args.plan.ptr(),
            fault: self.fault(),
            clock: self.context.clock,
            room: args.plan.len() as u32,
        };
        let shared = args.step.requests.bucket as u32 * PACKED_ROW;
        self.enqueue(&TAKE_PLAN, COPIES, &arguments);
        self.enqueue_fenced(&LAY_OUT_STEP, Grid::new(1, PACKERS).shared(shared), &arguments);
    }

    pub(crate) fn enqueue_accept(&self, args: &Accept<'_, Self>) {
        let check = Checks("accept");
        check.room("tokens", args.tokens, args.step.samples.bucket);
        let arguments = AcceptArgs {
            slots: Slots::of(args.slots),
            step: Tables::of(args.step),
            record: Findings::of(args.record),
            plan: args.plan.ptr(),
            tokens: args.tokens.ptr(),
            fault: self.fault(),
        };
        self.enqueue(&ACCEPT, Grid::new(1, PACKERS), &arguments);
    }

    pub(crate) fn enqueue_pool_states(&self, args: &PoolStates<'_, Self>) {
        let check = Checks("pool_states");
        let (width, rows) = (args.table.width, args.step.requests.bucket);
        check.columns("states", args.states, width);
        let vectors = args.table.sums.len().checked_div(width).unwrap_or(0);
        check.room("done", &args.table.done, vectors * width);
        if width == 0 {
            return;
        }
        let arguments = PoolArgs {
            step: Tables::of(args.step),
            states: Matrix::of(args.states),
            plan: args.plan.ptr(),
            sums: args.table.sums.ptr(),
            done: args.table.done.ptr(),
            vectors: vectors as u32,
        };
        let grid = Grid::of([width.div_ceil(POOLED) as u32, rows as u32, 1], POOLED as u32);
        self.enqueue(&POOL_STATES, grid, &arguments);
    }

    pub(crate) fn enqueue_mark_drafting(&self, record: &StepRecord<Self>) {
        let arguments = MarkArgs {
            header: record.header.ptr(),
            clock: self.context.clock,
        };
        self.enqueue(&MARK_DRAFTING, Grid::new(1, 32), &arguments);
    }

    pub(crate) fn enqueue_publish(&self, args: &Publish<'_, Self>) {
        let check = Checks("publish");
        check.room("logprobs", args.logprobs, args.step.samples.bucket);
        let width = args.pooled.width;
        let arguments = PublishArgs {
            rings: Rings::of(args.rings),
            slots: Slots::of(args.slots),
            step: Tables::of(args.step),
            record: Findings::of(args.record),
            plan: args.plan.ptr(),
            logprobs: args.logprobs.ptr(),
            done: args.pooled.done.ptr(),
            fault: self.fault(),
            clock: self.context.clock,
            vectors: args.pooled.done.len().checked_div(width).unwrap_or(0) as u32,
            width: width as u32,
        };
        self.enqueue(&PUBLISH, Grid::new(1, PACKERS), &arguments);
    }

    /// Where kernels name what they find wrong.
    pub(super) fn fault(&self) -> Ptr<i32> {
        Ptr::new(self.context.fault)
    }
}
