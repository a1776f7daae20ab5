//! The frame of a step: plans in, records out.

use crate::checks::Checks;
use crate::cpu::Cpu;
use crate::ops::accept::{self, Outcome};
use crate::ops::pooling::{self, Pooled};
use crate::ops::prepare::{self, Frame, SlotViews, TableViews};
use crate::storage::CpuBuffer;
use paceline_device::{Accept, PoolStates, PoolTable, Prepare, SlotTable, StepTables};

/// All of a buffer, for writing.
///
/// # Safety
/// Only on the stream, in an operation that reaches the buffer through this slice alone.
#[expect(
    clippy::mut_from_ref,
    reason = "exclusive by the stream's order, not by borrow"
)]
pub(super) unsafe fn whole(buffer: &CpuBuffer<i32>) -> &mut [i32] {
    // SAFETY: forwarded.
    unsafe { buffer.storage.slice_mut(0..buffer.storage.len()) }
}

/// # Safety
/// Only on the stream, in an operation that reaches the slots through these views alone.
pub(super) unsafe fn slot_views(slots: &SlotTable<Cpu>) -> SlotViews<'_> {
    // SAFETY: forwarded.
    unsafe {
        SlotViews {
            state: whole(&slots.state),
            lists: whole(&slots.lists),
            block_table: whole(&slots.block_table),
            history: whole(&slots.history),
            drafter_saved: whole(&slots.drafter_saved),
            blocks_per_slot: slots.limits.blocks_per_slot,
            block_size: slots.limits.block_size,
        }
    }
}

/// # Safety
/// Only on the stream, in an operation that reaches the tables through these views alone.
pub(super) unsafe fn table_views(step: &StepTables<Cpu>) -> TableViews<'_> {
    // SAFETY: forwarded; the buffers of a step are distinct.
    unsafe {
        TableViews {
            live_tokens: &mut whole(&step.tokens.live)[0],
            live_requests: &mut whole(&step.requests.live)[0],
            live_samples: &mut whole(&step.samples.live)[0],
            ids: whole(&step.ids),
            positions: whole(&step.positions),
            request_of: whole(&step.request_of),
            first_token: whole(&step.first_token),
            token_count: whole(&step.token_count),
            state_slot: whole(&step.state_slot),
            replay: whole(&step.replay),
            drafts: whole(&step.drafts),
            ahead: whole(&step.ahead),
            snapshot_after: whole(&step.snapshot_after),
            snapshot_slot: whole(&step.snapshot_slot),
            restore: whole(&step.restore),
            sample_token: whole(&step.sample_token),
            sample_position: whole(&step.sample_position),
            sample_request: whole(&step.sample_request),
            sample_known: whole(&step.sample_known),
            sample_mask: whole(&step.sample_mask),
            sampling: whole(&step.sampling),
        }
    }
}

impl Cpu {
    pub(crate) fn enqueue_prepare(&self, args: &Prepare<'_, Self>) {
        let (plan, slots, step) = (args.plan.clone(), args.slots.clone(), args.step.clone());
        self.stream.enqueue(move |_| {
            // SAFETY: the plan, the slots and the tables are distinct buffers that this operation alone touches.
            let frame = unsafe {
                Frame {
                    plan: plan.read(),
                    slots: slot_views(&slots),
                    tables: table_views(&step),
                }
            };
            prepare::prepare(frame);
        });
    }

    pub(crate) fn enqueue_accept(&self, args: &Accept<'_, Self>) {
        let check = Checks("accept");
        check.room("tokens", args.tokens, args.step.samples.bucket);
        let (plan, slots, step) = (args.plan.clone(), args.slots.clone(), args.step.clone());
        let (tokens, record) = (args.tokens.clone(), args.record.clone());
        self.stream.enqueue(move |_| {
            // SAFETY: as in `prepare`; the tables are only read here.
            let outcome = unsafe {
                Outcome {
                    plan: plan.read(),
                    slots: slot_views(&slots),
                    token_count: step.token_count.read(),
                    drafts: step.drafts.read(),
                    snapshot_after: step.snapshot_after.read(),
                    sampled: tokens.read(),
                    record: whole(&record),
                }
            };
            accept::accept(outcome);
        });
    }

    pub(crate) fn enqueue_pool_states(&self, args: &PoolStates<'_, Self>) {
        let check = Checks("pool_states");
        check.columns("states", args.states, args.table.width);
        let (plan, step, states) = (args.plan.clone(), args.step.clone(), args.states.clone());
        let PoolTable { sums, done, .. } = args.table.clone();
        self.stream.enqueue(move |_| {
            // SAFETY: on the stream; only the sums and the vectors are written, two buffers of the table's own.
            let mut pooled = unsafe {
                Pooled {
                    plan: plan.read(),
                    first_token: step.first_token.read(),
                    token_count: step.token_count.read(),
                    states: states.read(),
                    sums: sums.storage.slice_mut(0..sums.storage.len()),
                    done: done.storage.slice_mut(0..done.storage.len()),
                }
            };
            pooling::pool_states(&mut pooled);
        });
    }

    pub(crate) fn enqueue_timestamp(&self, record: &CpuBuffer<i32>, at: usize) {
        let (record, start) = (record.clone(), self.started);
        self.stream.enqueue(move |_| {
            let nanoseconds = start.elapsed().as_nanos() as u64;
            // SAFETY: on the stream; no other view of the record exists now.
            let words = unsafe { &mut whole(&record)[at..at + 2] };
            words[0] = nanoseconds as u32 as i32;
            words[1] = (nanoseconds >> 32) as u32 as i32;
        });
    }
}

impl Cpu {
    /// Enqueues a function of some buffers, as part of a program like any operation. The buffers must be distinct and not
    /// held by anyone outside the stream. For instruments and tests: no other device has it.
    pub fn host_function<const N: usize>(
        &self,
        buffers: [&CpuBuffer<i32>; N],
        function: impl Fn([&mut [i32]; N]) + Send + Sync + 'static,
    ) {
        let buffers = buffers.map(Clone::clone);
        for (index, buffer) in buffers.iter().enumerate() {
            let twice = buffers[..index]
                .iter()
                .any(|other| std::ptr::eq(&raw const *other.storage, &raw const *buffer.storage));
            assert!(!twice, "host_function: buffer {index} is given twice");
        }
        self.stream.enqueue(move |_| {
            // SAFETY: on the stream, and the buffers are distinct.
            let views = std::array::from_fn(|index| unsafe { whole(&buffers[index]) });
            function(views);
        });
    }
}
