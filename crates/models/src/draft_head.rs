//! What the heads that draft from a model's states have in common.

use crate::{CacheSizes, Caches, Decoder, Forward, ModelError};
use paceline_device::{Backend, DeviceError, KvShape, Sampling, Scratch};

/// The tokens that a draft is chosen among.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DraftScope {
    /// All that the drafter knows.
    Whole,
    /// Those of the first rows of its output matrix, which is as much of it as is read.
    Part,
}

impl DraftScope {
    /// The output matrix to read: without a part it is the whole one.
    pub fn choose<'m, M>(self, whole: &'m M, part: Option<&'m M>) -> &'m M {
        match self {
            Self::Whole => whole,
            Self::Part => part.unwrap_or(whole),
        }
    }
}

/// A head that drafts the token after next from a model's state and the token that followed it.
///
/// Its rows are at the positions of the states. It keeps keys and values in caches of its own, in the blocks that the
/// request has anyway; a [`Forward`] for it has those caches.
pub trait DraftHead<B: Backend>: Send + Sync {
    /// Layers of the model whose inputs it starts from, for [`Decoder::forward_tapped`]. None: it starts from the
    /// hidden states after the final norm.
    fn taps(&self) -> &[usize];

    /// Columns of the states it starts from.
    fn input_width(&self, model: &Decoder<B>) -> usize {
        self.taps().len().max(1) * model.dims.hidden
    }

    /// Columns of its own states.
    fn width(&self) -> usize;

    /// Columns of its widest tensor.
    fn widest_row(&self) -> usize;

    /// Runs over the step's rows: each joins the state of the model in its row of `states` with the step's id, which
    /// is the token that followed.
    fn first(
        &self,
        model: &Decoder<B>,
        cx: &mut Forward<'_, B>,
        states: &B::Tensor,
    ) -> Result<DraftStates<B>, DeviceError>;

    /// The same with states of its own in place of the model's; the ids are the drafts made from them.
    fn again(
        &self,
        model: &Decoder<B>,
        cx: &mut Forward<'_, B>,
        states: &B::Tensor,
    ) -> Result<DraftStates<B>, DeviceError>;

    /// Logits over the model's vocabulary at the step's sampled positions, from [`DraftStates::normed`].
    fn logits(
        &self,
        model: &Decoder<B>,
        cx: &Forward<'_, B>,
        normed: &B::Tensor,
    ) -> Result<Scratch<B>, DeviceError>;

    /// Rows of its output matrix.
    fn rows(&self, model: &Decoder<B>) -> usize;

    /// Makes the first `rows` of its output matrix the part that [`DraftScope::Part`] names.
    fn set_part(&mut self, backend: &B, model: &Decoder<B>, rows: usize) -> Result<(), DeviceError>;

    /// Chooses a draft at each of the step's sampled positions. Without a part, the scope is the whole.
    fn sample(
        &self,
        model: &Decoder<B>,
        cx: &Forward<'_, B>,
        scope: DraftScope,
        normed: &B::Tensor,
        sampling: Sampling<'_, B>,
    ) -> Result<(), DeviceError>;

    /// KV block shapes of its attention layers, for this many blocks.
    fn kv_shapes(&self, blocks: usize, block_size: usize) -> Vec<KvShape>;

    /// Empty caches for its layers.
    fn caches(&self, backend: &B, sizes: &CacheSizes) -> Result<Caches<B>, ModelError> {
        let shapes = self.kv_shapes(sizes.blocks, sizes.block_size).into_iter();
        let kv = shapes.map(|shape| backend.kv_cache(shape));
        Ok(Caches {
            kv: kv.collect::<Result<_, _>>()?,
            states: Vec::new(),
        })
    }
}

/// What a pass of a draft head leaves.
pub struct DraftStates<B: Backend> {
    /// Feeds [`DraftHead::logits`].
    pub normed: Scratch<B>,
    /// Feeds the next pass, if that is something else.
    pub carried: Option<Scratch<B>>,
}

impl<B: Backend> DraftStates<B> {
    /// What feeds [`DraftHead::again`].
    pub fn carried(&self) -> &B::Tensor {
        self.carried.as_ref().unwrap_or(&self.normed)
    }
}
