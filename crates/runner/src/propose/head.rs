//! Drafts from a head on the model's own states: MTP or EAGLE-3.

use super::draft_forwards::{DraftForwards, clear_unseen};
use super::{Proposer, RowsRead, Stage};
use crate::RunnerConfig;
use paceline_device::{Backend, DeviceError, DraftForward, GatherStates, KeepBlockEnds};
use paceline_models::{Caches, Decoder, DraftHead, Forward, ModelError};

/// A head. Behind each step it runs over the tokens that are certain now, with the model's true states, which replaces
/// what it had guessed; then it goes on from its own states, one draft after the other.
pub struct HeadProposer<B: Backend> {
    head: Box<dyn DraftHead<B>>,
    caches: Caches<B>,
    draft_forwards: DraftForwards<B>,
    rows_read: RowsRead,
    /// Per block: the model's state at its last token, which the head has yet to join with what follows there.
    block_ends: B::Buffer<f32>,
}

impl<B: Backend> HeadProposer<B> {
    /// Allocates the caches of a head.
    pub fn new(
        (backend, model): (&B, &Decoder<B>),
        head: Box<dyn DraftHead<B>>,
        config: &RunnerConfig,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            block_ends: backend.buffer(config.blocks * head.input_width(model))?,
            caches: head.caches(backend, &config.cache_sizes())?,
            draft_forwards: DraftForwards::new(backend, config)?,
            rows_read: RowsRead::Whole,
            head,
        })
    }

    /// The same with as much of the head's output matrix read.
    pub fn reading(
        mut self,
        (backend, model): (&B, &Decoder<B>),
        rows: RowsRead,
    ) -> Result<Self, DeviceError> {
        if let Some(part) = rows.part() {
            self.head.set_part(backend, model, part)?;
        }
        self.rows_read = rows;
        Ok(self)
    }
}

impl<B: Backend> Proposer<B> for HeadProposer<B> {
    fn taps(&self) -> &[usize] {
        self.head.taps()
    }

    fn is_neural(&self) -> bool {
        true
    }

    fn rows_read(&self) -> RowsRead {
        self.rows_read
    }

    fn caches(&self) -> Option<&Caches<B>> {
        Some(&self.caches)
    }

    fn propose(&self, stage: &Stage<'_, B>) -> Result<(), DeviceError> {
        clear_unseen(stage, &self.caches.kv);
        // Whether or not the head sees a plan row, requests that go on from its blocks need them.
        stage.backend.keep_block_ends(KeepBlockEnds {
            states: stage.states,
            step: stage.step,
            kept: &self.block_ends,
        });
        if stage.draft_forwards == 0 {
            return Ok(());
        }
        let (backend, model) = (stage.backend, stage.model);
        let mut before = self.draft_forwards.over_step(stage, DraftForward::Behind);
        let mut cx = Forward::new(backend, &before, stage.workspace, &self.caches);
        let mut start = cx.tokens(self.head.input_width(model))?;
        backend.gather_states(GatherStates {
            states: stage.states,
            kept: &self.block_ends,
            source: &self.draft_forwards.source,
            out: &mut start,
        });
        let mut states = self.head.first(model, &mut cx, &start)?;
        self.draft_forwards.choose(stage, (&before, 0), |sampling| {
            self.head
                .sample(model, &cx, stage.scope, &states.normed, sampling)
        })?;
        for place in 1..stage.draft_forwards {
            let again = (DraftForward::Again { place }, Some(&before));
            let tables = self.draft_forwards.over_slots(stage, again, place);
            let mut cx = Forward::new(backend, &tables, stage.workspace, &self.caches);
            let mut carried = cx.tokens(self.head.width())?;
            backend.gather(states.carried(), &self.draft_forwards.source, &mut carried);
            states = self.head.again(model, &mut cx, &carried)?;
            self.draft_forwards.choose(stage, (&tables, place), |sampling| {
                self.head
                    .sample(model, &cx, stage.scope, &states.normed, sampling)
            })?;
            before = tables;
        }
        Ok(())
    }
}
