//! What there is to know about a model without running it.

use crate::layers::{Block, BlockOp};
use crate::{Decoder, LoadStats, ModelDims};
use paceline_device::{Backend, ElementTypes, KvShape, StateShape};

/// Layers by what they do. A layer that runs attention and Mamba2 side by side counts as both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerCounts {
    /// Softmax attention.
    pub attention: usize,
    /// Gated DeltaNet.
    pub delta_net: usize,
    /// Mamba2.
    pub mamba2: usize,
    /// Dense feed-forward.
    pub mlp: usize,
    /// Mixtures of experts.
    pub moe: usize,
}

/// Bytes that a request needs on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFigures {
    /// How the device stores them.
    pub elements: ElementTypes,
    /// Keys and values per token.
    pub kv_per_token: u64,
    /// The draft head's, per token.
    pub draft_kv_per_token: u64,
    /// Recurrent states and convolution windows per request.
    pub state_per_request: u64,
}

/// A model's description.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Widths of the layers and size of the vocabulary.
    pub dims: ModelDims,
    /// Layers by kind.
    pub layers: LayerCounts,
    /// Experts and experts per token of the mixtures.
    pub experts: Option<(usize, usize)>,
    /// Parameters and bytes as stored.
    pub stats: LoadStats,
    /// Memory per token and request.
    pub memory: MemoryFigures,
    /// The checkpoint has a draft head.
    pub draft_head: bool,
}

impl Summary {
    /// Describes a model, which may have been built from its configuration alone, on a device with these elements.
    pub fn of<B: Backend>(model: &Decoder<B>, elements: ElementTypes) -> Self {
        let mut layers = LayerCounts::default();
        let mut experts = None;
        for Block { op, .. } in &model.blocks {
            match op {
                BlockOp::Attention(_) => layers.attention += 1,
                BlockOp::DeltaNet(_) => layers.delta_net += 1,
                BlockOp::Mamba2(_) => layers.mamba2 += 1,
                BlockOp::AttentionAndMamba2(..) => {
                    layers.attention += 1;
                    layers.mamba2 += 1;
                }
                BlockOp::Mlp(_) => layers.mlp += 1,
                BlockOp::Moe(moe) => {
                    layers.moe += 1;
                    experts = Some(moe.counts());
                }
            }
        }
        Self {
            dims: model.dims.clone(),
            layers,
            experts,
            stats: model.stats.clone(),
            memory: MemoryFigures::of(model, elements),
            draft_head: model.mtp.is_some(),
        }
    }
}

impl MemoryFigures {
    fn of<B: Backend>(model: &Decoder<B>, elements: ElementTypes) -> Self {
        let kv_bytes = |shape: &KvShape| 2 * (shape.heads * shape.head_dim) as u64 * elements.kv_bytes();
        let state_bytes = |shape: &StateShape| {
            shape.window_elements() as u64 * elements.activation_bytes()
                + shape.matrix_elements() as u64 * elements.state_bytes()
        };
        let draft = model.draft_head().map_or(Vec::new(), |head| head.kv_shapes(1, 1));
        Self {
            elements,
            kv_per_token: model.kv_shapes(1, 1).iter().map(kv_bytes).sum(),
            draft_kv_per_token: draft.iter().map(kv_bytes).sum(),
            state_per_request: model.state_shapes(1).iter().map(state_bytes).sum(),
        }
    }
}
