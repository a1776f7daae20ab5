//! Operations where tokens come in and go out: embedding, picking rows, sampling.

use crate::checks::Checks;
use crate::cpu::Cpu;
use crate::ops::options::Options;
use crate::ops::{embed, gather, sample};
use crate::storage::{CpuBuffer, CpuTensor};
use crate::weight::CpuWeight;
use paceline_device::{SAMPLE_FLOATS, Sample, SampledText, SamplingRow, SlotTable, StepTables};

impl Cpu {
    pub(crate) fn enqueue_embed(&self, ids: &CpuBuffer<i32>, table: &CpuWeight, scale: f32, out: &CpuTensor) {
        let check = Checks("embed");
        check.room("ids", ids, out.bucket);
        check.columns("out", out, table.inputs());
        let (ids, table, out) = (ids.clone(), table.clone(), out.clone());
        self.stream.enqueue(move |pool| {
            // SAFETY: see the module header.
            unsafe { embed::embed(pool, ids.read(), &table, scale, out.write()) };
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
            unsafe { gather::gather(pool, x.read(), index.read(), out.write()) };
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

    pub(crate) fn enqueue_sample(&self, args: &Sample<'_, Self>) {
        let check = Checks("sample");
        let rows = args.logits.bucket;
        check.room("sample_position", &args.step.sample_position, rows);
        check.room("sample_request", &args.step.sample_request, rows);
        check.room("sample_known", &args.step.sample_known, rows);
        check.room("sample_mask", &args.step.sample_mask, rows);
        check.room("sampling", &args.step.sampling, rows * SamplingRow::INTS);
        check.room("tokens", args.tokens, rows);
        check.room("logprobs", args.logprobs, rows * SAMPLE_FLOATS);
        let (logits, step) = (args.logits.clone(), args.step.clone());
        let (tokens, logprobs) = (args.tokens.clone(), args.logprobs.clone());
        let (slots, text) = (args.slots.cloned(), args.text);
        self.stream.enqueue(move |pool| {
            // SAFETY: see the module header.
            let args = unsafe {
                sample::Draws {
                    logits: logits.read(),
                    positions: step.sample_position.read(),
                    parameters: step.sampling.read(),
                    known: step.sample_known.read(),
                    options: slots.as_ref().map(|slots| options(slots, &step, text)),
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
            masks: slots.masks.bits.read(),
            mask_positions: slots.masks.positions,
            mask_words: slots.masks.words,
            mask: step.sample_mask.read(),
            request: step.sample_request.read(),
            state_slot: step.state_slot.read(),
            first_token: step.first_token.read(),
            ids: step.ids.read(),
            positions: step.positions.read(),
        }
    }
}
