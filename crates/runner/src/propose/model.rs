//! Drafts from a smaller model with the same vocabulary.

use super::draft_forwards::{DraftForwards, clear_unseen};
use super::{Proposer, RowsRead, Stage};
use crate::RunnerConfig;
use paceline_device::{Backend, DeviceError, DraftForward, StepTables};
use paceline_models::layers::Linear;
use paceline_models::{Caches, Decoder, Forward, ModelError};

/// A draft model. It runs along with the step over the same tokens, and is rolled back with it; then it looks ahead, one
/// draft after the other, while its recurrent states stay where they are.
pub struct ModelProposer<B: Backend> {
    model: Decoder<B>,
    caches: Caches<B>,
    draft_forwards: DraftForwards<B>,
    recurrent: bool,
    /// The first rows of the output matrix.
    part: Option<Linear<B>>,
    rows_read: RowsRead,
}

impl<B: Backend> ModelProposer<B> {
    /// Allocates the caches of a draft model.
    pub fn new(backend: &B, model: Decoder<B>, config: &RunnerConfig) -> Result<Self, ModelError> {
        let caches = model.caches(backend, &config.cache_sizes())?;
        Ok(Self {
            draft_forwards: DraftForwards::new(backend, config)?,
            recurrent: !caches.states.is_empty(),
            part: None,
            rows_read: RowsRead::Whole,
            caches,
            model,
        })
    }

    /// The same with as much of the output matrix read.
    pub fn reading(mut self, backend: &B, rows: RowsRead) -> Result<Self, DeviceError> {
        let part = rows.part();
        self.part = part
            .map(|part| self.model.head.first_outputs(backend, part))
            .transpose()?;
        self.rows_read = rows;
        Ok(self)
    }

    fn pass<'a>(&'a self, stage: &Stage<'a, B>, tables: &'a StepTables<B>) -> Forward<'a, B> {
        Forward::new(stage.backend, tables, stage.workspace, &self.caches)
    }
}

impl<B: Backend> Proposer<B> for ModelProposer<B> {
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
        let recurrent = self.recurrent;
        let along = self
            .draft_forwards
            .over_step(stage, DraftForward::Along { recurrent });
        if stage.draft_forwards == 0 {
            return Ok(());
        }
        self.model.forward(&mut self.pass(stage, &along))?;
        let head = stage.scope.choose(&self.model.head, self.part.as_ref());
        for place in 0..stage.draft_forwards {
            let tables = self
                .draft_forwards
                .over_slots(stage, (DraftForward::Ahead { place }, None), place);
            let mut cx = self.pass(stage, &tables);
            let hidden = self.model.forward(&mut cx)?;
            self.draft_forwards.choose(stage, (&tables, place), |sampling| {
                self.model.sample_with(head, &cx, &hidden, sampling)
            })?;
        }
        Ok(())
    }
}
