//! Keys and values in blocks, and the states of recurrent layers.

use crate::arguments::Ptr;
use crate::cuda::Cuda;
use crate::views::{KvView, StateView};
use paceline_device::{DeviceError, KvShape, StateShape, StepTables};
use paceline_types::DType;

/// Widest head that attention has a kernel for.
const MAX_HEAD_DIM: usize = 256;

/// Most rows of a state that recurrent layers have a kernel for.
const MAX_STATE_ROWS: usize = 256;

/// How the elements of a block are stored; `kernels/kv.cuh` knows the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KvLayout {
    /// `f32 [heads][block_size][head_dim]`.
    F32 = 0,
    /// `bf16 [heads][block_size][head_dim]`.
    Bf16 = 1,
    /// `bf16 [heads][head_dim / 64][block_size][64]`, swizzled, for the kernels that use the matrix units.
    Tiles = 2,
}

/// The paged keys and values of one attention layer.
#[derive(Clone)]
pub struct CudaKvCache {
    shape: KvShape,
    layout: KvLayout,
    keys: u64,
    values: u64,
}

impl CudaKvCache {
    pub(crate) fn new(cuda: &Cuda, shape: KvShape) -> Result<Self, DeviceError> {
        if shape.head_dim > MAX_HEAD_DIM {
            return Err(DeviceError::Failed(format!(
                "heads of {} elements: attention on a GPU takes at most {MAX_HEAD_DIM}",
                shape.head_dim
            )));
        }
        let layout = match cuda.options.kv {
            DType::F32 => KvLayout::F32,
            _ if matches!(shape.head_dim, 64 | 128 | 256) && shape.block_size.is_power_of_two() => {
                KvLayout::Tiles
            }
            _ => KvLayout::Bf16,
        };
        let size = if layout == KvLayout::F32 { 4 } else { 2 };
        let dimensions = [shape.blocks, shape.block_size, shape.heads, shape.head_dim, size];
        let allocate = |what: &str| cuda.context.zeroed(product(&dimensions, what)?, what);
        Ok(Self {
            shape,
            layout,
            keys: allocate("key blocks")?,
            values: allocate("value blocks")?,
        })
    }

    pub(crate) fn shape(&self) -> KvShape {
        self.shape
    }

    pub(crate) fn layout(&self) -> KvLayout {
        self.layout
    }
}

impl KvView {
    /// A cache, for the requests of a step.
    pub(crate) fn of(cache: &CudaKvCache, step: &StepTables<Cuda>) -> Self {
        let KvShape {
            blocks,
            block_size,
            heads,
            head_dim,
        } = cache.shape;
        Self {
            keys: Ptr::new(cache.keys),
            values: Ptr::new(cache.values),
            layout: cache.layout as i32,
            blocks: blocks as u32,
            block_size: block_size as u32,
            heads: heads as u32,
            head_dim: head_dim as u32,
            table_rows: (step.block_table.len() / step.limits.blocks_per_request.max(1)) as u32,
        }
    }
}

/// The per-request states of one recurrent layer, in f32.
///
/// Per slot, with `entries` and `conv_inputs` places by position (see [`StateShape`]):
/// - matrices `[heads][rows][columns]`;
/// - entries since: keys `[groups][entries][rows]` as they enter the recurrence, values `[heads][entries][columns]` and log
///   decays `[heads][entries]`;
/// - raw convolution inputs `[conv_inputs][channels]`.
///
/// A snapshot is the matrices at a position and the `width - 1` convolution inputs before it, oldest first.
#[derive(Clone)]
pub struct CudaStateCache {
    shape: StateShape,
    view: StateView,
}

impl CudaStateCache {
    pub(crate) fn new(cuda: &Cuda, shape: StateShape) -> Result<Self, DeviceError> {
        assert!(shape.conv_width >= 1, "a convolution has at least one tap");
        if shape.rows > MAX_STATE_ROWS {
            return Err(DeviceError::Failed(format!(
                "states of {} rows: recurrent layers on a GPU take at most {MAX_STATE_ROWS}",
                shape.rows
            )));
        }
        let StateShape {
            slots,
            heads,
            groups,
            rows,
            columns,
            snapshots,
            conv_channels,
            conv_width,
            ..
        } = shape;
        let (entries, conv_inputs) = (shape.entries(), shape.conv_inputs());
        let allocate = |dimensions: &[usize], what: &str| {
            let bytes = product(dimensions, what)?.saturating_mul(4);
            cuda.context.zeroed(bytes, what).map(Ptr::new)
        };
        let view = StateView {
            matrices: allocate(&[slots, heads, rows, columns], "recurrent states")?,
            keys: allocate(&[slots, groups, entries, rows], "keys of recurrent entries")?,
            values: allocate(&[slots, heads, entries, columns], "values of recurrent entries")?,
            decays: allocate(&[slots, heads, entries], "decays of recurrent entries")?,
            inputs: allocate(&[slots, conv_inputs, conv_channels], "convolution inputs")?,
            saved_matrices: allocate(&[snapshots, heads, rows, columns], "saved recurrent states")?,
            saved_inputs: allocate(
                &[snapshots, conv_width - 1, conv_channels],
                "saved convolution inputs",
            )?,
            slots: slots as u32,
            snapshots: snapshots as u32,
            heads: heads as u32,
            groups: groups as u32,
            rows: rows as u32,
            columns: columns as u32,
            entries: entries as u32,
            conv_inputs: conv_inputs as u32,
            conv_channels: conv_channels as u32,
            conv_width: conv_width as u32,
        };
        Ok(Self { shape, view })
    }

    pub(crate) fn shape(&self) -> StateShape {
        self.shape
    }

    pub(crate) fn view(&self) -> StateView {
        self.view
    }
}

fn product(dimensions: &[usize], what: &str) -> Result<u64, DeviceError> {
    dimensions
        .iter()
        .try_fold(1_u64, |product, d| product.checked_mul(*d as u64))
        .ok_or_else(|| DeviceError::OutOfMemory {
            what: what.to_owned(),
            bytes: u64::MAX,
        })
}
