//! Operations where tokens come in and go out: embedding, picking rows, sampling.

use super::frame::plan_view;
use crate::checks::Checks;
use crate::cpu::Cpu;
use crate::ops::options::Options;
use crate::ops::{embed, gather, sample};
use crate::storage::{CpuBuffer, CpuTensor};
use crate::weight::CpuWeight;
use paceline_device::{SampledText, Sampling, SlotTable, StepTables};

impl Cpu {
    pub(crate) fn enqueue_embed(
        &self,
        step: &StepTables<Self>,
        table: &CpuWeight,
        scale: f32,
        out: &CpuTensor,
    ) {
        let check = Checks("embed");
        check.room("token rows", &step.token_rows, out.bucket);
        check.columns("out", out, table.inputs());
        let (tokens, table, out) = (step.token_rows.clone(), table.clone(), out.clone());
        self.stream.enqueue(move |pool| {
            // SAFETY: see the module header.
            unsafe { embed::embed(pool, tokens.read(), &table, scale, out.write()) };
        });
    }

    pub(crate) fn enqueue_gather(&self, x: &CpuTensor, index: &CpuBuffer<i32>, out: &CpuTensor) {
        let check = Checks("gather");
        check.room("index", index, out.bucket);
        check.columns("out", out, x.columns);
        check.apart(out, &[x]);
        let (x, index, out) = (x.clone(), index.clone(), out.clone());
        self.stream.enqueue(move |pool| {
            // SAFETY: see the module header.
            unsafe {
                let index = index.read();
                gather::gather(pool, x.read(), |row| index[row], out.write());
            }
        });
    }

    pub(crate) fn enqueue_gather_sampled(&self, x: &CpuTensor, step: &StepTables<Self>, out: &CpuTensor) {
        let check = Checks("gather_sampled");
        check.room("rows of logits", &step.logits_rows, out.bucket);
        check.columns("out", out, x.columns);
        check.apart(out, &[x]);
        let (x, rows, out) = (x.clone(), step.logits_rows.clone(), out.clone());
        self.stream.enqueue(move |pool| {
            // SAFETY: see the module header.
            unsafe {
                let rows = rows.read();
                gather::gather(pool, x.read(), |row| rows[row].token, out.write());
            }
        });
    }

    pub(crate) fn enqueue_copy(&self, x: &CpuTensor, out: &CpuTensor) {
        let check = Checks("copy");
        check.same_shape(x, out);
        check.apart(out, &[x]);
        let (x, out) = (x.clone(), out.clone());
        self.stream.enqueue(move |pool| {
            // SAFETY: see the module header.
            unsafe { gather::copy(pool, x.read(), out.write()) };
        });
    }

    pub(crate) fn enqueue_spread(&self, x: &CpuTensor, columns: &CpuBuffer<i32>, out: &CpuTensor) {
        let check = Checks("spread");
        check.same_rows(x, out);
        check.room("columns", columns, x.columns);
        check.apart(out, &[x]);
        let (x, columns, out) = (x.clone(), columns.clone(), out.clone());
        self.stream.enqueue(move |pool| {
            // SAFETY: see the module header.
            unsafe { gather::spread(pool, x.read(), columns.read(), out.write()) };
        });
    }

    pub(crate) fn enqueue_sample(&self, logits: &CpuTensor, args: &Sampling<'_, Self>) {
        let check = Checks("sample");
        let rows = logits.bucket;
        check.room("rows of logits", &args.step.logits_rows, rows);
        check.room("tokens", args.tokens, rows);
        check.room("logprobs", args.logprobs, rows);
        let (logits, step) = (logits.clone(), args.step.clone());
        let (tokens, logprobs) = (args.tokens.clone(), args.logprobs.clone());
        let found = args.options.as_ref();
        let (found, text) = (
            found.map(|found| (found.slots.clone(), found.plan.clone())),
            args.text,
        );
        self.stream.enqueue(move |pool| {
            // SAFETY: see the module header.
            let args = unsafe {
                sample::Draws {
                    logits: logits.read(),
                    rows: step.logits_rows.read(),
                    options: found
                        .as_ref()
                        .map(|(slots, plan)| options(slots, plan, &step, text)),
                    tokens: &tokens.storage,
                    logprobs: &logprobs.storage,
                }
            };
            sample::sample(pool, &args);
        });
    }
}

/// # Safety
/// Only on the stream, in an operation that writes neither the slots nor the tables.
unsafe fn options<'a>(
    slots: &'a SlotTable<Cpu>,
    plan: &'a CpuBuffer<i32>,
    step: &'a StepTables<Cpu>,
    text: SampledText,
) -> Options<'a> {
    // SAFETY: forwarded.
    unsafe {
        Options {
            state: slots.state.read(),
            lists: slots.lists.read(),
            block_table: slots.block_table.read(),
            history: slots.history.read(),
            blocks_per_slot: slots.limits.blocks_per_slot,
            block_size: slots.limits.block_size,
            text,
            plan: plan_view(plan),
            requests: step.request_rows.read(),
            tokens: step.token_rows.read(),
        }
    }
}
