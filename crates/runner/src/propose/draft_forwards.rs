//! What the draft forwards of neural drafters share: their tables, and the way from logits to drafts.

use super::Stage;
use crate::RunnerConfig;
use paceline_device::{
    Backend, ClearKv, DeviceError, DraftForward, PrepareDrafts, SampleOptions, SampledText, Sampling,
    StepLimits, StepTables, TakeDrafts, abi::Logprobs,
};

/// Tables and buffers of a neural drafter.
pub(super) struct DraftForwards<B: Backend> {
    /// Of the draft forward over the step's tokens.
    step: StepTables<B>,
    /// Of the draft forwards over one token per slot. A draft forward reads the tables of the one before, so they take turns.
    turns: [StepTables<B>; 2],
    /// Per token of a draft forward: where its hidden state comes from.
    pub(super) source: B::Buffer<i32>,
    sampled: B::Buffer<i32>,
    logprobs: B::Buffer<Logprobs>,
}

impl<B: Backend> DraftForwards<B> {
    pub(super) fn new(backend: &B, config: &RunnerConfig) -> Result<Self, DeviceError> {
        let slots = config.slots;
        let tables = |tokens| {
            let limits = StepLimits {
                tokens,
                requests: slots,
                samples: slots,
                blocks_per_request: config.blocks_per_slot,
                block_size: config.block_size,
            };
            StepTables::new(backend, limits)
        };
        Ok(Self {
            step: tables(config.table_tokens())?,
            turns: [tables(slots)?, tables(slots)?],
            source: backend.buffer(config.table_tokens())?,
            sampled: backend.buffer(slots)?,
            logprobs: backend.buffer(slots)?,
        })
    }

    /// Lays out the draft forward over the step's tokens.
    pub(super) fn over_step(&self, stage: &Stage<'_, B>, pass: DraftForward) -> StepTables<B> {
        let requests = stage.step.requests.bucket;
        // A head has one token more for a piece of a prompt that begins with a block.
        let more = if stage.step.prompts { requests } else { 0 };
        let tokens = stage.step.tokens.bucket + more;
        let tables = self.step.with_buckets(tokens, requests, requests);
        self.lay_out(stage, (pass, None), tables.with_prompts(stage.step.prompts))
    }

    /// Lays out the draft forward for the draft at `place`, one token per slot.
    pub(super) fn over_slots(
        &self,
        stage: &Stage<'_, B>,
        (pass, before): (DraftForward, Option<&StepTables<B>>),
        place: usize,
    ) -> StepTables<B> {
        let requests = stage.step.requests.bucket;
        let tables = self.turns[place % 2].with_buckets(requests, requests, requests);
        self.lay_out(stage, (pass, before), tables.with_prompts(false))
    }

    fn lay_out(
        &self,
        stage: &Stage<'_, B>,
        (pass, before): (DraftForward, Option<&StepTables<B>>),
        mut tables: StepTables<B>,
    ) -> StepTables<B> {
        // A drafter's keys and values live in the same blocks as the model's.
        tables.block_table = stage.slots.block_table.clone();
        stage.backend.prepare_drafts(PrepareDrafts {
            pass,
            plan: stage.plan,
            slots: stage.slots,
            step: stage.step,
            record: stage.record,
            before,
            draft: &tables,
            source: &self.source,
        });
        tables
    }

    /// Makes the drafts at `place` of what a draft forward chooses, with the noise and the options that the model itself
    /// will sample with, so that a drafter that agrees with the model agrees at any temperature.
    pub(super) fn choose(
        &self,
        stage: &Stage<'_, B>,
        (draft, place): (&StepTables<B>, usize),
        sample: impl FnOnce(Sampling<'_, B>) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        sample(Sampling {
            step: draft,
            options: Some(SampleOptions {
                slots: stage.slots,
                plan: stage.plan,
            }),
            text: SampledText::Drafts,
            tokens: &self.sampled,
            logprobs: &self.logprobs,
        })?;
        stage.backend.take_drafts(TakeDrafts {
            place,
            slots: stage.slots,
            draft,
            tokens: &self.sampled,
        });
        Ok(())
    }
}

/// Tokens that the drafter does not see leave zeroes in its blocks.
pub(super) fn clear_unseen<B: Backend>(stage: &Stage<'_, B>, blocks: &[B::KvCache]) {
    for cache in blocks {
        stage.backend.clear_kv(ClearKv {
            plan: stage.plan,
            step: stage.step,
            cache,
        });
    }
}
