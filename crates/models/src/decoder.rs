//! The decoder: embedding, residual blocks, final norm, output matrix.

use crate::layers::{Block, BlockOp, Linear, Norm, Rope, Stack};
use crate::{DraftHead, LoadStats, ModelError, Mtp};
use paceline_device::{
    Backend, DeviceError, KvShape, SampledProduct, Sampling, Scratch, StateShape, StepTables, Workspace,
};
use paceline_types::TokenId;

/// Sizes and constants that hold for a whole model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelDims {
    /// Family name, such as `llama`.
    pub architecture: &'static str,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Tokens known to the model.
    pub vocabulary: usize,
    /// Decoder layers as the model counts them.
    pub layers: usize,
    /// Longest sequence.
    pub max_positions: usize,
    /// Tokens that end a text.
    pub eos: Vec<TokenId>,
    /// The output matrix is the embedding.
    pub tied: bool,
}

/// A whole model on a device.
pub struct Decoder<B: Backend> {
    /// Widths of the layers and size of the vocabulary.
    pub dims: ModelDims,
    /// Token embeddings.
    pub embedding: B::Weight,
    /// Multiplies them.
    pub embedding_scale: f32,
    /// Rotary positions, if the model has them.
    pub rope: Option<Rope<B>>,
    /// The residual blocks in order.
    pub blocks: Vec<Block<B>>,
    /// Multiplies each block's contribution.
    pub residual_scale: f32,
    /// After the last block.
    pub norm: Norm<B>,
    /// Hidden states to logits.
    pub head: Linear<B>,
    /// The draft head of the checkpoint. Its caches are not among the model's.
    pub mtp: Option<Mtp<B>>,
    /// What was loaded.
    pub stats: LoadStats,
}

/// Blocks and states of all layers, in layer order.
pub struct Caches<B: Backend> {
    /// Of the attention layers.
    pub kv: Vec<B::KvCache>,
    /// Of the recurrent layers.
    pub states: Vec<B::StateCache>,
}

/// How large caches are to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSizes {
    /// Blocks of keys and values.
    pub blocks: usize,
    /// Tokens of a block.
    pub block_size: usize,
    /// Requests with a recurrent state.
    pub slots: usize,
    /// Most drafts of a row.
    pub drafts: usize,
    /// Saved recurrent states.
    pub snapshots: usize,
}

/// What a forward pass works with.
pub struct Forward<'a, B: Backend> {
    /// The device.
    pub backend: &'a B,
    /// The step.
    pub step: &'a StepTables<B>,
    /// Scratch tensors.
    pub workspace: &'a Workspace<B>,
    /// Caches of all layers.
    pub caches: &'a Caches<B>,
    /// Cosines and sines of the step's positions.
    pub angles: Option<Scratch<B>>,
}

impl<'a, B: Backend> Forward<'a, B> {
    /// A pass over `step`.
    pub fn new(
        backend: &'a B,
        step: &'a StepTables<B>,
        workspace: &'a Workspace<B>,
        caches: &'a Caches<B>,
    ) -> Self {
        Self {
            backend,
            step,
            workspace,
            caches,
            angles: None,
        }
    }

    /// Fills in the angles of the step's positions, for what runs next.
    pub(crate) fn rotate_by(&mut self, rope: Option<&Rope<B>>) -> Result<(), DeviceError> {
        self.angles = rope.map(|rope| rope.angles(self)).transpose()?;
        Ok(())
    }

    /// Scratch with one row per token.
    pub fn tokens(&self, columns: usize) -> Result<Scratch<B>, DeviceError> {
        self.workspace
            .take(&self.step.tokens, self.step.limits.tokens, columns)
    }

    /// Scratch with one row per position to be sampled.
    pub fn samples(&self, columns: usize) -> Result<Scratch<B>, DeviceError> {
        self.workspace
            .take(&self.step.samples, self.step.limits.samples, columns)
    }

    /// Room for the experts of each token.
    pub fn expert_ids(&self, chosen: usize) -> Result<B::Buffer<i32>, DeviceError> {
        self.workspace.ints(self.step.limits.tokens * chosen)
    }
}

impl<B: Backend> Decoder<B> {
    /// Hidden states of the step's tokens after the final norm. Caches take in the step's tokens.
    pub fn forward(&self, cx: &mut Forward<'_, B>) -> Result<Scratch<B>, DeviceError> {
        self.forward_tapped(cx, &[]).map(|(hidden, _)| hidden)
    }

    /// The same, with the residual stream, before any norm, at the inputs of some layers side by side, in the order
    /// of `taps`: columns `i · hidden..` are what layer `taps[i]` reads; the number of layers stands for what the
    /// last one leaves. Nothing without taps.
    pub fn forward_tapped(
        &self,
        cx: &mut Forward<'_, B>,
        taps: &[usize],
    ) -> Result<(Scratch<B>, Option<Scratch<B>>), DeviceError> {
        let hidden = self.dims.hidden;
        let mut residual = cx.tokens(hidden)?;
        cx.backend
            .embed(cx.step, &self.embedding, self.embedding_scale, &mut residual);
        let tapped = match taps {
            [] => None,
            _ => Some(cx.tokens(taps.len() * hidden)?),
        };
        let blocks_of_a_layer = self.blocks.len() / self.dims.layers;
        let keep = |cx: &Forward<'_, B>, block: usize, residual: &B::Tensor| {
            let Some(tapped) = &tapped else { return };
            for (index, layer) in taps.iter().enumerate() {
                if layer * blocks_of_a_layer == block {
                    let columns = index * hidden..(index + 1) * hidden;
                    cx.backend
                        .copy(residual, &mut cx.backend.columns(tapped, columns));
                }
            }
        };
        let stack = Stack {
            width: hidden,
            blocks: &self.blocks,
            scale: self.residual_scale,
            norm: &self.norm,
        };
        cx.rotate_by(self.rope.as_ref())?;
        let normed = stack.run(cx, &mut residual, None, keep)?;
        Ok((normed, tapped))
    }

    /// The draft head of the checkpoint.
    pub fn draft_head(&self) -> Option<&dyn DraftHead<B>> {
        self.mtp.as_ref().map(|head| head as &dyn DraftHead<B>)
    }

    /// Logits of the step's sampled positions from the hidden states of its tokens.
    pub fn logits(&self, cx: &Forward<'_, B>, hidden: &B::Tensor) -> Result<Scratch<B>, DeviceError> {
        self.logits_with(&self.head, cx, hidden)
    }

    /// The same with another output matrix over the same vocabulary.
    pub fn logits_with(
        &self,
        head: &Linear<B>,
        cx: &Forward<'_, B>,
        hidden: &B::Tensor,
    ) -> Result<Scratch<B>, DeviceError> {
        let mut rows = cx.samples(self.dims.hidden)?;
        cx.backend.gather_sampled(hidden, cx.step, &mut rows);
        let mut logits = cx.samples(self.dims.vocabulary)?;
        head.run_into(cx, &rows, &mut logits);
        Ok(logits)
    }

    /// Chooses a token at each of the step's sampled positions, from the hidden states of its tokens.
    pub fn sample(
        &self,
        cx: &Forward<'_, B>,
        hidden: &B::Tensor,
        sampling: Sampling<'_, B>,
    ) -> Result<(), DeviceError> {
        self.sample_with(&self.head, cx, hidden, sampling)
    }

    /// The same with another output matrix in place of the model's, such as the first rows of that one: tokens are chosen
    /// among its outputs.
    pub fn sample_with(
        &self,
        head: &Linear<B>,
        cx: &Forward<'_, B>,
        hidden: &B::Tensor,
        sampling: Sampling<'_, B>,
    ) -> Result<(), DeviceError> {
        let mut states = cx.samples(self.dims.hidden)?;
        let mut logits = cx.samples(head.outputs())?;
        let product: SampledProduct<'_, B> = SampledProduct {
            states: &mut states,
            w: head.weight(),
            epilogue: head.epilogue(),
            logits: &mut logits,
        };
        cx.backend.sample_states(hidden, product, sampling);
        Ok(())
    }

    /// Columns of the widest tensor of any block.
    pub fn widest_row(&self) -> usize {
        self.blocks
            .iter()
            .map(|block| block.op.width())
            .max()
            .unwrap_or(0)
    }

    /// KV block shapes of the attention layers, for this many blocks.
    pub fn kv_shapes(&self, blocks: usize, block_size: usize) -> Vec<KvShape> {
        kv_shapes(&self.blocks, blocks, block_size)
    }

    /// State shapes of the recurrent layers, for this many requests.
    pub fn state_shapes(&self, slots: usize) -> Vec<StateShape> {
        let shape = |block: &Block<B>| match &block.op {
            BlockOp::DeltaNet(layer) => Some(layer.config().state_shape(slots)),
            BlockOp::Mamba2(layer) | BlockOp::AttentionAndMamba2(_, layer) => {
                Some(layer.config().state_shape(slots))
            }
            _ => None,
        };
        self.blocks.iter().filter_map(shape).collect()
    }

    /// Empty caches for every layer.
    pub fn caches(&self, backend: &B, sizes: &CacheSizes) -> Result<Caches<B>, ModelError> {
        let CacheSizes {
            blocks,
            block_size,
            slots,
            drafts,
            snapshots,
        } = *sizes;
        let kv = self
            .kv_shapes(blocks, block_size)
            .into_iter()
            .map(|shape| backend.kv_cache(shape));
        let states = self.state_shapes(slots).into_iter();
        let states = states.map(|shape| {
            backend.state_cache(StateShape {
                drafts,
                snapshots,
                ..shape
            })
        });
        Ok(Caches {
            kv: kv.collect::<Result<_, _>>()?,
            states: states.collect::<Result<_, _>>()?,
        })
    }
}

/// KV block shapes of the attention layers among residual blocks.
pub(crate) fn kv_shapes<B: Backend>(layers: &[Block<B>], blocks: usize, block_size: usize) -> Vec<KvShape> {
    let attention = layers.iter().filter_map(|block| match &block.op {
        BlockOp::Attention(layer) | BlockOp::AttentionAndMamba2(layer, _) => Some(layer),
        _ => None,
    });
    attention
        .map(|layer| layer.kv_shape(blocks, block_size))
        .collect()
}
