//! Keys and values in pages, and recurrent states in slots.

use crate::storage::Storage;
use paceline_device::{DeviceError, KvShape, StateShape};
use std::sync::Arc;

/// The paged keys and values of one attention layer.
///
/// A block holds `[heads][block_size][head_dim]`, keys and values apart, so that one head of a block is one
/// contiguous run of positions.
#[derive(Clone)]
pub struct CpuKvCache {
    shape: KvShape,
    keys: Arc<Storage<f32>>,
    values: Arc<Storage<f32>>,
}

impl CpuKvCache {
    pub(crate) fn new(shape: KvShape) -> Result<Self, DeviceError> {
        let elements = elements(
            &[shape.blocks, shape.block_size, shape.heads, shape.head_dim],
            "KV pages",
        )?;
        Ok(Self {
            shape,
            keys: Storage::zeroed(elements, "key pages")?,
            values: Storage::zeroed(elements, "value pages")?,
        })
    }

    pub(crate) fn shape(&self) -> KvShape {
        self.shape
    }

    /// Start of the row of a position within the storage.
    pub(crate) fn offset(&self, blocks: &[i32], position: usize, head: usize) -> usize {
        let KvShape {
            block_size,
            heads,
            head_dim,
            ..
        } = self.shape;
        let block = blocks[position / block_size];
        assert!(
            usize::try_from(block).is_ok_and(|block| block < self.shape.blocks),
            "position {position} lies in block {block} of {}",
            self.shape.blocks
        );
        ((block as usize * heads + head) * block_size + position % block_size) * head_dim
    }

    pub(crate) fn keys(&self) -> &Storage<f32> {
        &self.keys
    }

    pub(crate) fn values(&self) -> &Storage<f32> {
        &self.values
    }
}

/// The per-request states of one recurrent layer.
///
/// Per slot a convolution window `[width - 1][channels]`, oldest input first, and matrices
/// `[heads][rows][columns]`.
#[derive(Clone)]
pub struct CpuStateCache {
    shape: StateShape,
    windows: Arc<Storage<f32>>,
    matrices: Arc<Storage<f32>>,
}

impl CpuStateCache {
    pub(crate) fn new(shape: StateShape) -> Result<Self, DeviceError> {
        assert!(shape.conv_width >= 1, "a convolution has at least one tap");
        let windows = elements(
            &[shape.slots, shape.conv_width - 1, shape.conv_channels],
            "convolution windows",
        )?;
        let matrices = elements(
            &[shape.slots, shape.heads, shape.rows, shape.columns],
            "recurrent states",
        )?;
        Ok(Self {
            shape,
            windows: Storage::zeroed(windows, "convolution windows")?,
            matrices: Storage::zeroed(matrices, "recurrent states")?,
        })
    }

    pub(crate) fn shape(&self) -> StateShape {
        self.shape
    }

    /// Some channels of one input in a slot's window.
    ///
    /// # Safety
    /// Only on the stream, and no two overlapping ranges in use at the same time.
    #[expect(
        clippy::mut_from_ref,
        reason = "exclusive by the stream's order, not by borrow"
    )]
    pub(crate) unsafe fn window(
        &self,
        slot: usize,
        row: usize,
        channels: std::ops::Range<usize>,
    ) -> &mut [f32] {
        assert!(slot < self.shape.slots && channels.end <= self.shape.conv_channels);
        let start = slot * self.shape.window_elements() + row * self.shape.conv_channels;
        // SAFETY: forwarded.
        unsafe {
            self.windows
                .slice_mut(start + channels.start..start + channels.end)
        }
    }

    /// The matrix of one head of a slot.
    ///
    /// # Safety
    /// Only on the stream, and no matrix in use twice at the same time.
    #[expect(
        clippy::mut_from_ref,
        reason = "exclusive by the stream's order, not by borrow"
    )]
    pub(crate) unsafe fn matrix(&self, slot: usize, head: usize) -> &mut [f32] {
        assert!(slot < self.shape.slots && head < self.shape.heads);
        let len = self.shape.rows * self.shape.columns;
        let start = (slot * self.shape.heads + head) * len;
        // SAFETY: forwarded.
        unsafe { self.matrices.slice_mut(start..start + len) }
    }
}

fn elements(dimensions: &[usize], what: &str) -> Result<usize, DeviceError> {
    dimensions
        .iter()
        .try_fold(1_usize, |product, d| product.checked_mul(*d))
        .ok_or_else(|| DeviceError::OutOfMemory {
            what: what.to_owned(),
            bytes: u64::MAX,
        })
}
