//! Drafts from the request's own text.

use super::{Proposer, Stage};
use crate::RunnerConfig;
use paceline_device::{Backend, DeviceError, NgramIndex, ProposeNgram};

/// In a chain, matches shorter than this are left to the neural drafter.
const CHAIN_MIN: usize = 4;

/// Looks the end of a text up in the text itself.
pub struct NgramProposer<B: Backend> {
    index: NgramIndex<B>,
}

impl<B: Backend> NgramProposer<B> {
    /// A proposer for matches of `min` to `max` tokens.
    pub fn new(backend: &B, config: &RunnerConfig, lengths: (usize, usize)) -> Result<Self, DeviceError> {
        let tokens = config.blocks * config.block_size;
        Ok(Self {
            index: NgramIndex::new(backend, tokens, lengths)?,
        })
    }
}

impl<B: Backend> Proposer<B> for NgramProposer<B> {
    fn is_neural(&self) -> bool {
        false
    }

    fn propose(&self, stage: &Stage<'_, B>) -> Result<(), DeviceError> {
        stage.backend.propose_ngram(ProposeNgram {
            plan: stage.plan,
            slots: stage.slots,
            step: stage.step,
            index: &self.index,
            chain_min: CHAIN_MIN.min(self.index.max),
        });
        Ok(())
    }
}
