//! Passes of neural drafters.

use super::frame::{plan_view, slot_views, table_views, whole};
use crate::checks::Checks;
use crate::cpu::Cpu;
use crate::ops::drafts::{self, Chosen, Layout, StepViews};
use crate::ops::{Step, gather};
use paceline_device::{GatherStates, KeepBlockEnds, PrepareDrafts, StepTables, TakeDrafts};

/// # Safety
/// Only on the stream, in an operation that does not write these tables.
unsafe fn step_views(step: &StepTables<Cpu>) -> StepViews<'_> {
    // SAFETY: forwarded.
    unsafe {
        StepViews {
            tokens: step.token_rows.read(),
            requests: step.request_rows.read(),
        }
    }
}

impl Cpu {
    pub(crate) fn enqueue_prepare_drafts(&self, args: &PrepareDrafts<'_, Self>) {
        let check = Checks("prepare_drafts");
        check.room("source", args.source, args.draft.tokens.bucket);
        let pass = args.pass;
        let (plan, slots, step) = (args.plan.clone(), args.slots.clone(), args.step.clone());
        let (before, draft) = (args.before.cloned(), args.draft.clone());
        let (record, source) = (args.record.clone(), args.source.clone());
        self.stream.enqueue(move |_| {
            // SAFETY: on the stream. What is written is the slots, the record, the tables of this pass and their
            // sources; the step's tables, the pass's before and the plan are other buffers. All tables share the
            // slots' block table, which none of these views of tables contains.
            let layout = unsafe {
                Layout {
                    pass,
                    plan: plan_view(&plan),
                    slots: slot_views(&slots),
                    step: step_views(&step),
                    before: before.as_ref().map(|before| step_views(before)),
                    header: &mut whole(&record.header)[0],
                    record: record.rows.read(),
                    draft: table_views(&draft),
                    source: whole(&source),
                }
            };
            drafts::prepare(layout);
        });
    }

    pub(crate) fn enqueue_keep_block_ends(&self, args: &KeepBlockEnds<'_, Self>) {
        let check = Checks("keep_block_ends");
        check.room("token rows", &args.step.token_rows, args.states.bucket);
        let (states, step, kept) = (args.states.clone(), args.step.clone(), args.kept.clone());
        self.stream.enqueue(move |_| {
            // SAFETY: on the stream; only `kept` is written, and reached through this slice alone.
            unsafe {
                let kept = kept.storage.slice_mut(0..kept.storage.len());
                let block_size = step.limits.block_size;
                gather::keep_block_ends(states.read(), &Step::of(&step), block_size, kept);
            }
        });
    }

    pub(crate) fn enqueue_gather_states(&self, args: &GatherStates<'_, Self>) {
        let check = Checks("gather_states");
        check.room("source", args.source, args.out.bucket);
        check.columns("out", args.out, args.states.columns);
        check.apart(args.out, &[args.states]);
        let (states, kept) = (args.states.clone(), args.kept.clone());
        let (source, out) = (args.source.clone(), args.out.clone());
        self.stream.enqueue(move |pool| {
            // SAFETY: see the module header.
            unsafe { gather::gather_states(pool, states.read(), kept.read(), source.read(), out.write()) };
        });
    }

    pub(crate) fn enqueue_take_drafts(&self, args: &TakeDrafts<'_, Self>) {
        let check = Checks("take_drafts");
        check.room("tokens", args.tokens, args.draft.samples.bucket);
        let (slots, draft) = (args.slots.clone(), args.draft.clone());
        let (place, tokens) = (args.place, args.tokens.clone());
        self.stream.enqueue(move |_| {
            // SAFETY: on the stream; the slots are written, the tables and the tokens only read.
            let mut chosen = unsafe {
                let live = usize::try_from(draft.samples.live.read()[0]).unwrap_or(0);
                Chosen {
                    place,
                    slots: slot_views(&slots),
                    requests: draft.request_rows.read(),
                    logits: &draft.logits_rows.read()[..live],
                    tokens: tokens.read(),
                }
            };
            drafts::take(&mut chosen);
        });
    }
}
