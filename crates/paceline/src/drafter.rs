//! The drafter on its device.

use crate::speculation::{DrafterShape, NeuralDrafter, Speculation};
use crate::{EngineConfig, StartError};
use paceline_device::{Backend, Recorder};
use paceline_models::{Decoder, DraftHead, Eagle3, ModelError};
use paceline_runner::{Chain, HeadProposer, ModelProposer, NgramProposer, Proposer, RunnerConfig};
use paceline_weights::Checkpoint;

/// A neural drafter, loaded.
pub(crate) enum Drafter<B: Backend> {
    /// There is none, or it is part of the model.
    Own,
    Head(Box<Eagle3<B>>),
    Model(Box<Decoder<B>>),
}

/// What a checkpoint that is given as a drafter holds.
pub(crate) fn kind(checkpoint: &Checkpoint) -> NeuralDrafter {
    match checkpoint.config() {
        Some(config) if Eagle3::<Recorder>::recognises(config) => NeuralDrafter::Eagle3,
        _ => NeuralDrafter::Draft,
    }
}

impl<B: Backend> Drafter<B> {
    /// Loads what the engine drafts with, if it comes in a checkpoint of its own.
    pub(crate) fn load(
        (backend, model): (&B, &Decoder<B>),
        checkpoint: Option<&Checkpoint>,
        (speculation, config): (&Speculation, &EngineConfig),
        progress: &dyn Fn(u64),
    ) -> Result<Self, StartError> {
        let Some(checkpoint) = checkpoint else {
            return Ok(Self::Own);
        };
        Ok(match speculation.neural {
            Some(NeuralDrafter::Eagle3) => {
                let head = Eagle3::load(backend, checkpoint, model, config.dtype, progress)?;
                Self::Head(Box::new(head))
            }
            Some(NeuralDrafter::Draft) => {
                let drafter = paceline_models::load(backend, checkpoint, config.dtype, progress)?;
                let (own, other) = (model.dims.vocabulary, drafter.dims.vocabulary);
                if own != other {
                    return Err(StartError::Option {
                        option: "draft-model",
                        value: format!("{} with a vocabulary of {other} tokens", checkpoint.source()),
                        bound: format!(
                            "a model with the same vocabulary as the one it drafts for, {own} tokens"
                        ),
                    });
                }
                Self::Model(Box::new(drafter))
            }
            Some(NeuralDrafter::Mtp) | None => Self::Own,
        })
    }

    /// What it adds to the memory.
    pub(crate) fn shape(
        &self,
        model: &Decoder<B>,
        speculation: &Speculation,
        block_size: usize,
    ) -> DrafterShape {
        match self {
            Self::Head(head) => DrafterShape::of_head(model, &**head, (block_size, head.stats.kept_bytes)),
            Self::Model(drafter) => DrafterShape::of_model(drafter, block_size),
            Self::Own => DrafterShape::of_own(model, speculation, block_size),
        }
    }

    /// The proposer that the engine's steps end with. Takes the model's own head out of it.
    pub(crate) fn proposer(
        self,
        (backend, model): (&B, &mut Decoder<B>),
        speculation: &Speculation,
        config: &RunnerConfig,
    ) -> Result<Option<Box<dyn Proposer<B>>>, ModelError> {
        let own = model.mtp.take();
        let model = &*model;
        let rows_read = |rows: usize| {
            speculation
                .draft_vocabulary
                .rows_read(rows, model.dims.vocabulary)
        };
        let head = |head: Box<dyn DraftHead<B>>| -> Result<HeadProposer<B>, ModelError> {
            let read = rows_read(head.rows(model));
            let proposer = HeadProposer::new((backend, model), head, config)?;
            Ok(proposer.reading((backend, model), read)?)
        };
        let neural: Option<Box<dyn Proposer<B>>> = match self {
            Self::Head(eagle) => Some(Box::new(head(eagle)?)),
            Self::Model(drafter) => {
                let read = rows_read(drafter.head.outputs());
                let proposer = ModelProposer::new(backend, *drafter, config)?;
                Some(Box::new(proposer.reading(backend, read)?))
            }
            Self::Own => match (speculation.neural, own) {
                (Some(_), Some(mtp)) => Some(Box::new(head(Box::new(mtp))?)),
                _ => None,
            },
        };
        let Some(lengths) = speculation.ngram else {
            return Ok(neural);
        };
        let ngram = NgramProposer::new(backend, config, lengths)?;
        Ok(Some(match neural {
            Some(neural) => Box::new(Chain::new(ngram, neural)),
            None => Box::new(ngram),
        }))
    }
}
