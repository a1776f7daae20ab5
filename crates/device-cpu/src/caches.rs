//! Keys and values in blocks, and recurrent states in slots.

use crate::ops::{RequestTokens, Start};
use crate::storage::Storage;
use paceline_device::{DeviceError, KvShape, StateShape};
use std::ops::Range;
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
            "KV blocks",
        )?;
        Ok(Self {
            shape,
            keys: Storage::zeroed(elements, "key blocks")?,
            values: Storage::zeroed(elements, "value blocks")?,
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
/// Per slot:
/// - a window of raw convolution inputs `[width - 1 + drafts][channels]`: those right before the position after
///   the last certain token, oldest first, then those of the last step's drafts, of which those that did not hold
///   make room for tokens that look ahead;
/// - matrices `[heads][rows][columns]`, which have seen all tokens up to the last certain one;
/// - records `[heads][drafts]` of what the same drafts and tokens would do to the matrices, see `Record`.
///
/// A snapshot is a window of `width - 1` inputs and the matrices.
#[derive(Clone)]
pub struct CpuStateCache {
    shape: StateShape,
    windows: Arc<Storage<f32>>,
    matrices: Arc<Storage<f32>>,
    records: Arc<Storage<f32>>,
    saved_windows: Arc<Storage<f32>>,
    saved_matrices: Arc<Storage<f32>>,
}

/// What one token does to the matrix of one head, ready to be folded in.
#[derive(Clone, Copy)]
pub(crate) struct Record<'a> {
    /// One number per row of the matrix: the unit-length key, or `x`.
    pub(crate) by_row: &'a [f32],
    /// One number per column: the value, or `B`.
    pub(crate) by_column: &'a [f32],
    /// The decay, and `β` or `dt`.
    pub(crate) factors: [f32; 2],
}

impl CpuStateCache {
    pub(crate) fn new(shape: StateShape) -> Result<Self, DeviceError> {
        assert!(shape.conv_width >= 1, "a convolution has at least one tap");
        let before = shape.conv_width - 1;
        let (channels, heads) = (shape.conv_channels, shape.heads);
        let allocate = |dimensions: &[usize], what: &str| {
            let elements = elements(dimensions, what)?;
            Storage::zeroed(elements, what)
        };
        Ok(Self {
            shape,
            windows: allocate(
                &[shape.slots, before + shape.drafts, channels],
                "convolution windows",
            )?,
            matrices: allocate(
                &[shape.slots, heads, shape.rows, shape.columns],
                "recurrent states",
            )?,
            records: allocate(
                &[shape.slots, heads, shape.drafts, record_elements(shape)],
                "records of drafts",
            )?,
            saved_windows: allocate(&[shape.snapshots, before, channels], "saved convolution windows")?,
            saved_matrices: allocate(
                &[shape.snapshots, heads, shape.rows, shape.columns],
                "saved recurrent states",
            )?,
        })
    }

    pub(crate) fn shape(&self) -> StateShape {
        self.shape
    }

    /// Some channels of one input in a slot's window.
    ///
    /// # Safety
    /// Only on the stream, while nothing writes them.
    pub(crate) unsafe fn window(&self, slot: usize, row: usize, channels: Range<usize>) -> &[f32] {
        // SAFETY: forwarded.
        unsafe { self.windows.slice(self.window_range(slot, row, channels)) }
    }

    /// Some channels of one input in a slot's window, for writing.
    ///
    /// # Safety
    /// Only on the stream, while nothing else reads or writes them.
    #[expect(
        clippy::mut_from_ref,
        reason = "exclusive by the stream's order, not by borrow"
    )]
    pub(crate) unsafe fn window_mut(&self, slot: usize, row: usize, channels: Range<usize>) -> &mut [f32] {
        // SAFETY: forwarded.
        unsafe { self.windows.slice_mut(self.window_range(slot, row, channels)) }
    }

    fn window_range(&self, slot: usize, row: usize, channels: Range<usize>) -> Range<usize> {
        let rows = self.shape.conv_width - 1 + self.shape.drafts;
        assert!(slot < self.shape.slots && row < rows && channels.end <= self.shape.conv_channels);
        let start = (slot * rows + row) * self.shape.conv_channels;
        start + channels.start..start + channels.end
    }

    /// Some channels of one input in a snapshot's window.
    ///
    /// # Safety
    /// As [`window_mut`](Self::window_mut).
    #[expect(
        clippy::mut_from_ref,
        reason = "exclusive by the stream's order, not by borrow"
    )]
    pub(crate) unsafe fn saved_window(
        &self,
        snapshot: usize,
        row: usize,
        channels: Range<usize>,
    ) -> &mut [f32] {
        let rows = self.shape.conv_width - 1;
        assert!(snapshot < self.shape.snapshots && row < rows && channels.end <= self.shape.conv_channels);
        let start = (snapshot * rows + row) * self.shape.conv_channels;
        // SAFETY: forwarded.
        unsafe {
            self.saved_windows
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
    unsafe fn matrix(&self, slot: usize, head: usize) -> &mut [f32] {
        assert!(slot < self.shape.slots && head < self.shape.heads);
        // SAFETY: forwarded.
        unsafe { self.matrices.slice_mut(self.matrix_range(slot, head)) }
    }

    /// The matrix of one head, as a request's row starts from it.
    ///
    /// # Safety
    /// As [`saved_matrix`](Self::saved_matrix), for the matrix of this head of the slot.
    #[expect(
        clippy::mut_from_ref,
        reason = "exclusive by the stream's order, not by borrow"
    )]
    pub(crate) unsafe fn start_matrix(&self, tokens: &RequestTokens, head: usize) -> &mut [f32] {
        // SAFETY: forwarded.
        let matrix = unsafe { self.matrix(tokens.slot, head) };
        match tokens.start {
            Start::Kept => {}
            Start::Zero => matrix.fill(0.0),
            Start::Snapshot(snapshot) => {
                assert!(snapshot < self.shape.snapshots, "snapshot {snapshot}");
                // SAFETY: snapshots are not written in a step that starts from them; several rows may read one.
                let saved = unsafe { self.saved_matrices.slice(self.matrix_range(snapshot, head)) };
                matrix.copy_from_slice(saved);
            }
        }
        matrix
    }

    /// The matrix of one head of a snapshot, for writing.
    ///
    /// # Safety
    /// Only on the stream, and no matrix in use twice at the same time.
    #[expect(
        clippy::mut_from_ref,
        reason = "exclusive by the stream's order, not by borrow"
    )]
    pub(crate) unsafe fn saved_matrix(&self, snapshot: usize, head: usize) -> &mut [f32] {
        assert!(snapshot < self.shape.snapshots && head < self.shape.heads);
        // SAFETY: forwarded.
        unsafe { self.saved_matrices.slice_mut(self.matrix_range(snapshot, head)) }
    }

    fn matrix_range(&self, index: usize, head: usize) -> Range<usize> {
        let len = self.shape.rows * self.shape.columns;
        let start = (index * self.shape.heads + head) * len;
        start..start + len
    }

    /// What a slot's draft did to the matrix of one head.
    ///
    /// # Safety
    /// Only on the stream, while nothing writes the record.
    pub(crate) unsafe fn record(&self, slot: usize, head: usize, draft: usize) -> Record<'_> {
        // SAFETY: forwarded.
        let all = unsafe { self.records.slice(self.record_range(slot, head, draft)) };
        let (by_row, rest) = all.split_at(self.shape.rows);
        let (by_column, factors) = rest.split_at(self.shape.columns);
        Record {
            by_row,
            by_column,
            factors: [factors[0], factors[1]],
        }
    }

    /// # Safety
    /// Only on the stream, while nothing else reads or writes the record.
    pub(crate) unsafe fn write_record(&self, slot: usize, head: usize, draft: usize, record: Record<'_>) {
        // SAFETY: forwarded.
        let all = unsafe { self.records.slice_mut(self.record_range(slot, head, draft)) };
        let (by_row, rest) = all.split_at_mut(self.shape.rows);
        let (by_column, factors) = rest.split_at_mut(self.shape.columns);
        by_row.copy_from_slice(record.by_row);
        by_column.copy_from_slice(record.by_column);
        factors.copy_from_slice(&record.factors);
    }

    fn record_range(&self, slot: usize, head: usize, draft: usize) -> Range<usize> {
        let StateShape {
            slots, heads, drafts, ..
        } = self.shape;
        assert!(slot < slots && head < heads && draft < drafts);
        let len = record_elements(self.shape);
        let start = ((slot * heads + head) * drafts + draft) * len;
        start..start + len
    }
}

fn record_elements(shape: StateShape) -> usize {
    shape.rows + shape.columns + 2
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
