//! The frame of a step: plans in, records out.

use crate::checks::Checks;
use crate::cpu::Cpu;
use crate::ops::accept::{self, Outcome};
use crate::ops::pooling::{self, Pooled};
use crate::ops::prepare::{self, Frame, SlotViews, TableViews};
use crate::ops::publish::{self, Publication};
use crate::storage::CpuBuffer;
use paceline_device::abi::{Plan, PlanHeader, PlanRow, RecordHeader};
use paceline_device::{
    Accept, Element, PoolStates, PoolTable, Prepare, Publish, SlotTable, StepRecord, StepTables,
};
use std::time::Instant;

/// All of a buffer, for writing.
///
/// # Safety
/// Only on the stream, in an operation that reaches the buffer through this slice alone.
#[expect(
    clippy::mut_from_ref,
    reason = "exclusive by the stream's order, not by borrow"
)]
pub(super) unsafe fn whole<T: Element>(buffer: &CpuBuffer<T>) -> &mut [T] {
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
            tokens: whole(&step.token_rows),
            requests: whole(&step.request_rows),
            logits: whole(&step.logits_rows),
        }
    }
}

/// The plan of the step that is running.
///
/// # Safety
/// Only on the stream, in an operation that does not write the plan.
pub(super) unsafe fn plan_view(plan: &CpuBuffer<i32>) -> Plan<'_> {
    // SAFETY: forwarded.
    let words = unsafe { plan.read() };
    Plan::parse(words).expect("`prepare` leaves a plan that fits")
}

/// Nanoseconds since the device was made.
fn clock(start: Instant) -> u64 {
    start.elapsed().as_nanos() as u64
}

/// What is wrong with the words found in step `number`'s place, as the record's error word; 0 for nothing.
fn fault(words: &[i32], number: u64, tables: &StepTables<Cpu>, room: usize) -> i32 {
    let Some(plan) = Plan::parse(words) else {
        return RecordHeader::BAD_PLAN;
    };
    if u64::from(plan.header.step) != number {
        return RecordHeader::WRONG_STEP;
    }
    let tokens = |row: &PlanRow| row.count.max(0) as usize + usize::from(row.kind == PlanRow::VERIFY);
    let samples = |row: &PlanRow| match row.kind {
        PlanRow::PREFILL if !row.is(PlanRow::SAMPLE_ALL) => usize::from(row.chooses()),
        _ => tokens(row),
    };
    let fits = plan.words() <= room
        && plan.rows.len() <= tables.requests.bucket
        && plan.rows.iter().map(tokens).sum::<usize>() <= tables.tokens.bucket
        && plan.rows.iter().map(samples).sum::<usize>() <= tables.samples.bucket;
    if fits { 0 } else { RecordHeader::BAD_PLAN }
}

impl Cpu {
    pub(crate) fn enqueue_prepare(&self, args: &Prepare<'_, Self>) {
        let (plan, slots, step) = (args.plan.clone(), args.slots.clone(), args.step.clone());
        let (rings, record, start) = (args.rings.clone(), args.record.clone(), self.started);
        self.stream.enqueue(move |_| {
            let begin = clock(start);
            // SAFETY: on the stream. The counter, the plan, the slots, the tables and the record are distinct buffers
            // that this operation alone touches; the host does not write the place of a step that was launched.
            let (begun, words, copy, header) = unsafe {
                let begun = &mut whole(&rings.begun)[0];
                *begun = (u64::from(*begun) + 1).into();
                let place = (u64::from(*begun) - 1) % rings.depth as u64;
                let words = rings.plans.read(place as usize);
                (*begun, words, whole(&plan), &mut whole(&record.header)[0])
            };
            let error = fault(words, begun.into(), &step, copy.len());
            *header = RecordHeader {
                step: begun,
                error,
                begin: begin.into(),
                ..RecordHeader::default()
            };
            match Plan::parse(words) {
                Some(found) if error == 0 => {
                    copy[..found.words()].copy_from_slice(&words[..found.words()]);
                }
                _ => copy[..PlanHeader::WORDS].fill(0),
            }
            // SAFETY: as above; from here on the plan is only read.
            let frame = unsafe {
                Frame {
                    plan: plan_view(&plan),
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
                    plan: plan_view(&plan),
                    slots: slot_views(&slots),
                    requests: step.request_rows.read(),
                    sampled: tokens.read(),
                    record: whole(&record.rows),
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
                    plan: plan_view(&plan),
                    requests: step.request_rows.read(),
                    states: states.read(),
                    sums: sums.storage.slice_mut(0..sums.storage.len()),
                    done: done.storage.slice_mut(0..done.storage.len()),
                }
            };
            pooling::pool_states(&mut pooled);
        });
    }

    pub(crate) fn enqueue_mark_drafting(&self, record: &StepRecord<Self>) {
        let (record, start) = (record.clone(), self.started);
        self.stream.enqueue(move |_| {
            // SAFETY: on the stream; no other view of the record exists now.
            unsafe { whole(&record.header)[0].drafting = clock(start).into() };
        });
    }

    pub(crate) fn enqueue_publish(&self, args: &Publish<'_, Self>) {
        let check = Checks("publish");
        check.room("logprobs", args.logprobs, args.step.samples.bucket);
        let (plan, slots, step) = (args.plan.clone(), args.slots.clone(), args.step.clone());
        let (rings, record, start) = (args.rings.clone(), args.record.clone(), self.started);
        let (logprobs, pooled) = (args.logprobs.clone(), args.pooled.clone());
        self.stream.enqueue(move |_| {
            // SAFETY: on the stream. Only the step's place in the ring is written, and the host does not read it before
            // it is told that the step has ended.
            let publication = unsafe {
                let mut header = record.header.read()[0];
                header.end = clock(start).into();
                let place = (u64::from(header.step) - 1) % rings.depth as u64;
                let live = usize::try_from(step.samples.live.read()[0]).unwrap_or(0);
                Publication {
                    plan: plan_view(&plan),
                    slots: slots.state.read(),
                    header,
                    rows: record.rows.read(),
                    logits: &step.logits_rows.read()[..live],
                    logprobs: logprobs.read(),
                    embeddings: pooled.done.read(),
                    embedding_width: pooled.width,
                    out: rings.records.write(place as usize),
                }
            };
            publish::publish(publication);
        });
    }
}

impl Cpu {
    /// Enqueues a function of two buffers, as part of a program like any operation: it reads the one and writes the
    /// other. For instruments and tests: no other device has it.
    pub fn host_function<R: Element, W: Element>(
        &self,
        read: &CpuBuffer<R>,
        written: &CpuBuffer<W>,
        function: impl Fn(&[R], &mut [W]) + Send + Sync + 'static,
    ) {
        let (read, written) = (read.clone(), written.clone());
        assert!(
            read.storage.as_ptr().cast::<u8>() != written.storage.as_ptr().cast::<u8>(),
            "host_function: one buffer is given twice"
        );
        self.stream.enqueue(move |_| {
            // SAFETY: on the stream, and the buffers are distinct.
            unsafe { function(read.read(), whole(&written)) };
        });
    }
}
