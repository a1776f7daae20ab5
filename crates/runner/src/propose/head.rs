//! Drafts from a head on the model's own states: MTP or EAGLE-3.

use super::passes::{Passes, clear_unseen};
use super::{Proposer, Stage};
use crate::RunnerConfig;
use paceline_device::{Backend, DeviceError, DraftPass, GatherStates, KeepPageEnds};
use paceline_models::{Caches, Decoder, DraftHead, Forward, ModelError};

/// A head. Behind each step it runs over the tokens that are certain now, with the model's true states, which replaces
/// what it had guessed; then it goes on from its own states, one draft after the other.
pub struct HeadProposer<B: Backend> {
    head: Box<dyn DraftHead<B>>,
    caches: Caches<B>,
    passes: Passes<B>,
    /// Per page: the model's state at its last token, which the head has yet to join with what follows there.
    page_ends: B::Buffer<f32>,
}

impl<B: Backend> HeadProposer<B> {
    /// Allocates the caches of a head.
    pub fn new(
        (backend, model): (&B, &Decoder<B>),
        head: Box<dyn DraftHead<B>>,
        config: &RunnerConfig,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            page_ends: backend.buffer(config.blocks * head.input_width(model))?,
            caches: head.caches(backend, &config.cache_sizes())?,
            passes: Passes::new(backend, config)?,
            head,
        })
    }
}

impl<B: Backend> Proposer<B> for HeadProposer<B> {
    fn taps(&self) -> &[usize] {
        self.head.taps()
    }

    fn is_neural(&self) -> bool {
        true
    }

    fn propose(&self, stage: &Stage<'_, B>) -> Result<(), DeviceError> {
        clear_unseen(stage, &self.caches.kv);
        // Whether or not the head sees a row, whoever goes on from its pages needs them.
        stage.backend.keep_page_ends(KeepPageEnds {
            states: stage.states,
            step: stage.step,
            kept: &self.page_ends,
        });
        if stage.passes == 0 {
            return Ok(());
        }
        let (backend, model) = (stage.backend, stage.model);
        let mut before = self.passes.over_step(stage, DraftPass::Behind);
        let mut cx = Forward::new(backend, &before, stage.workspace, &self.caches);
        let mut start = cx.tokens(self.head.input_width(model))?;
        backend.gather_states(GatherStates {
            states: stage.states,
            kept: &self.page_ends,
            source: &self.passes.source,
            out: &mut start,
        });
        let mut states = self.head.first(model, &mut cx, &start)?;
        let logits = self.head.logits(model, &cx, &states.normed)?;
        self.passes.choose(stage, (&before, &logits), 0);
        for place in 1..stage.passes {
            let again = (DraftPass::Again { place }, Some(&before));
            let tables = self.passes.over_slots(stage, again, place);
            let mut cx = Forward::new(backend, &tables, stage.workspace, &self.caches);
            let mut carried = cx.tokens(self.head.width())?;
            backend.gather(states.carried(), &self.passes.source, &mut carried);
            states = self.head.again(model, &mut cx, &carried)?;
            let logits = self.head.logits(model, &cx, &states.normed)?;
            self.passes.choose(stage, (&tables, &logits), place);
            before = tables;
        }
        Ok(())
    }
}
