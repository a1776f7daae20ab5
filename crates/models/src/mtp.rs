//! The multi-token-prediction head: one more attention layer that drafts the token after next.

use crate::layers::{Block, Linear, Norm, NormKind};
use crate::{Decoder, Forward, Loader, ModelError};
use paceline_device::{Backend, DeviceError, Scratch};

/// Drafts from a hidden state and the token that followed it. Shares embedding and output matrix with the model.
pub struct Mtp<B: Backend> {
    embedding_norm: Norm<B>,
    hidden_norm: Norm<B>,
    join: Linear<B>,
    /// One attention block and one feed-forward block.
    pub blocks: Vec<Block<B>>,
    norm: Norm<B>,
}

impl<B: Backend> Mtp<B> {
    /// Loads `mtp.*`; `blocks` are those of `mtp.layers.0`.
    pub fn load(
        loader: &Loader<'_, B>,
        hidden: usize,
        eps: f32,
        blocks: Vec<Block<B>>,
    ) -> Result<Self, ModelError> {
        let norm = |name: &str| {
            Norm::load(
                loader,
                &format!("mtp.{name}"),
                hidden,
                (NormKind::ZeroCentred, eps),
            )
        };
        Ok(Self {
            embedding_norm: norm("pre_fc_norm_embedding")?,
            hidden_norm: norm("pre_fc_norm_hidden")?,
            join: Linear::load(loader, "mtp.fc", hidden, 2 * hidden)?,
            blocks,
            norm: norm("norm")?,
        })
    }

    /// Draft states for the step's tokens. The step's ids are the tokens that followed; `hidden` are the
    /// model's states after its final norm (or this head's own, when it is fed its drafts) at the step's
    /// positions. The result feeds [`Decoder::logits`] and the next draft.
    pub fn forward(
        &self,
        model: &Decoder<B>,
        cx: &mut Forward<'_, B>,
        hidden: &B::Tensor,
    ) -> Result<Scratch<B>, DeviceError> {
        let width = model.dims.hidden;
        let backend = cx.backend;
        let mut embedded = cx.tokens(width)?;
        backend.embed(
            &cx.step.ids,
            &model.embedding,
            model.embedding_scale,
            &mut embedded,
        );
        let joined = cx.tokens(2 * width)?;
        self.embedding_norm
            .run(cx, &embedded, &mut backend.columns(&joined, 0..width));
        self.hidden_norm
            .run(cx, hidden, &mut backend.columns(&joined, width..2 * width));
        let mut residual = self.join.run(cx, &joined)?;
        model.run_blocks(cx, &self.blocks, (&mut residual, 1.0), &self.norm)
    }
}
