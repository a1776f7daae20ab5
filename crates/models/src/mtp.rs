//! The multi-token-prediction head: one more attention layer that drafts the token after next.

use crate::decoder::kv_shapes;
use crate::layers::{Block, Linear, Norm, NormKind, Stack};
use crate::{Decoder, DraftHead, DraftScope, DraftStates, Forward, Loader, ModelError};
use paceline_device::{Backend, DeviceError, KvShape, Sampling, Scratch};

/// Drafts from a hidden state and the token that followed it. Shares embedding and output matrix with the model.
pub struct Mtp<B: Backend> {
    embedding_norm: Norm<B>,
    hidden_norm: Norm<B>,
    join: Linear<B>,
    /// One attention block and one feed-forward block.
    pub blocks: Vec<Block<B>>,
    norm: Norm<B>,
    /// A copy of the model's output matrix to draft with, if it is not that one.
    pub(crate) output: Option<Linear<B>>,
    /// The first rows of the output matrix.
    part: Option<Linear<B>>,
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
            output: None,
            part: None,
        })
    }

    fn output<'a>(&'a self, model: &'a Decoder<B>) -> &'a Linear<B> {
        self.output.as_ref().unwrap_or(&model.head)
    }
}

impl<B: Backend> DraftHead<B> for Mtp<B> {
    fn taps(&self) -> &[usize] {
        &[]
    }

    fn width(&self) -> usize {
        self.join.outputs()
    }

    fn widest_row(&self) -> usize {
        let blocks = self.blocks.iter().map(|block| block.op.width());
        blocks.max().unwrap_or(0).max(2 * self.width())
    }

    fn first(
        &self,
        model: &Decoder<B>,
        cx: &mut Forward<'_, B>,
        states: &B::Tensor,
    ) -> Result<DraftStates<B>, DeviceError> {
        let width = self.width();
        let backend = cx.backend;
        let mut embedded = cx.tokens(width)?;
        backend.embed(cx.step, &model.embedding, model.embedding_scale, &mut embedded);
        let joined = cx.tokens(2 * width)?;
        self.embedding_norm
            .run(cx, &embedded, &mut backend.columns(&joined, 0..width));
        self.hidden_norm
            .run(cx, states, &mut backend.columns(&joined, width..2 * width));
        let mut residual = self.join.run(cx, &joined)?;
        let stack = Stack {
            width,
            blocks: &self.blocks,
            scale: 1.0,
            norm: &self.norm,
        };
        cx.rotate_by(model.rope.as_ref())?;
        let normed = stack.run(cx, &mut residual, None, |_, _, _| ())?;
        Ok(DraftStates {
            normed,
            carried: None,
        })
    }

    /// The model's states and the head's own are both normed, so they are joined alike.
    fn again(
        &self,
        model: &Decoder<B>,
        cx: &mut Forward<'_, B>,
        states: &B::Tensor,
    ) -> Result<DraftStates<B>, DeviceError> {
        self.first(model, cx, states)
    }

    fn logits(
        &self,
        model: &Decoder<B>,
        cx: &Forward<'_, B>,
        normed: &B::Tensor,
    ) -> Result<Scratch<B>, DeviceError> {
        model.logits_with(self.output(model), cx, normed)
    }

    fn rows(&self, model: &Decoder<B>) -> usize {
        self.output(model).outputs()
    }

    fn set_part(&mut self, backend: &B, model: &Decoder<B>, rows: usize) -> Result<(), DeviceError> {
        self.part = Some(self.output(model).first_outputs(backend, rows)?);
        Ok(())
    }

    fn sample(
        &self,
        model: &Decoder<B>,
        cx: &Forward<'_, B>,
        scope: DraftScope,
        normed: &B::Tensor,
        sampling: Sampling<'_, B>,
    ) -> Result<(), DeviceError> {
        let head = scope.choose(self.output(model), self.part.as_ref());
        model.sample_with(head, cx, normed, sampling)
    }

    fn kv_shapes(&self, blocks: usize, block_size: usize) -> Vec<KvShape> {
        kv_shapes(&self.blocks, blocks, block_size)
    }
}
