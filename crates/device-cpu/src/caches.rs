//! Recurrent states in slots.

use crate::storage::Storage;
use paceline_device::{DeviceError, StateShape};
use std::ops::Range;
use std::sync::Arc;

/// The per-request states of one recurrent layer.
///
/// Per slot, with `entries` and `conv_inputs` places by position (see [`StateShape`]):
/// - matrices `[heads][rows][columns]`;
/// - entries since: keys `[groups][entries][rows]`, values `[heads][entries][columns]` and log decays `[heads][entries]`;
/// - raw convolution inputs `[conv_inputs][channels]`.
///
/// A snapshot is the matrices at a position and the `width - 1` convolution inputs before it, oldest first.
#[derive(Clone)]
pub struct CpuStateCache {
    shape: StateShape,
    matrices: Arc<Storage<f32>>,
    keys: Arc<Storage<f32>>,
    values: Arc<Storage<f32>>,
    decays: Arc<Storage<f32>>,
    inputs: Arc<Storage<f32>>,
    saved_matrices: Arc<Storage<f32>>,
    saved_inputs: Arc<Storage<f32>>,
}

impl CpuStateCache {
    pub(crate) fn new(shape: StateShape) -> Result<Self, DeviceError> {
        assert!(shape.conv_width >= 1, "a convolution has at least one tap");
        let StateShape {
            slots,
            heads,
            groups,
            rows,
            columns,
            snapshots,
            conv_channels: channels,
            ..
        } = shape;
        let (entries, inputs) = (shape.entries(), shape.conv_inputs());
        let allocate = |dimensions: &[usize], what: &str| {
            let elements = elements(dimensions, what)?;
            Storage::zeroed(elements, what)
        };
        Ok(Self {
            shape,
            matrices: allocate(&[slots, heads, rows, columns], "recurrent states")?,
            keys: allocate(&[slots, groups, entries, rows], "keys of recurrent entries")?,
            values: allocate(&[slots, heads, entries, columns], "values of recurrent entries")?,
            decays: allocate(&[slots, heads, entries], "decays of recurrent entries")?,
            inputs: allocate(&[slots, inputs, channels], "convolution inputs")?,
            saved_matrices: allocate(&[snapshots, heads, rows, columns], "saved recurrent states")?,
            saved_inputs: allocate(
                &[snapshots, shape.conv_width - 1, channels],
                "saved convolution inputs",
            )?,
        })
    }

    pub(crate) fn shape(&self) -> StateShape {
        self.shape
    }

    /// Gives the memory of all states back to the system; what they hold is not defined from then on.
    ///
    /// # Safety
    /// Only on the stream, in an operation that does nothing else with it.
    pub(crate) unsafe fn hand_back(&self) {
        for storage in self.parts() {
            // SAFETY: forwarded.
            unsafe { storage.hand_back() };
        }
    }

    /// All of its memory: what is per slot, then what is saved.
    fn parts(&self) -> [&Storage<f32>; 7] {
        [
            &self.matrices,
            &self.keys,
            &self.values,
            &self.decays,
            &self.inputs,
            &self.saved_matrices,
            &self.saved_inputs,
        ]
    }

    /// Some channels of a slot's convolution input at a position.
    ///
    /// # Safety
    /// Only on the stream, while nothing writes them.
    pub(crate) unsafe fn input(&self, slot: usize, position: usize, channels: Range<usize>) -> &[f32] {
        // SAFETY: forwarded.
        unsafe { self.inputs.slice(self.input_range(slot, position, channels)) }
    }

    /// Some channels of a slot's convolution input at a position, for writing.
    ///
    /// # Safety
    /// Only on the stream, while nothing else reads or writes them.
    #[expect(
        clippy::mut_from_ref,
        reason = "exclusive by the stream's order, not by borrow"
    )]
    pub(crate) unsafe fn input_mut(
        &self,
        slot: usize,
        position: usize,
        channels: Range<usize>,
    ) -> &mut [f32] {
        // SAFETY: forwarded.
        unsafe { self.inputs.slice_mut(self.input_range(slot, position, channels)) }
    }

    fn input_range(&self, slot: usize, position: usize, channels: Range<usize>) -> Range<usize> {
        let inputs = self.shape.conv_inputs();
        assert!(slot < self.shape.slots && channels.end <= self.shape.conv_channels);
        let start = (slot * inputs + position % inputs) * self.shape.conv_channels;
        start + channels.start..start + channels.end
    }

    /// Some channels of one of a snapshot's convolution inputs.
    ///
    /// # Safety
    /// As [`input_mut`](Self::input_mut).
    #[expect(
        clippy::mut_from_ref,
        reason = "exclusive by the stream's order, not by borrow"
    )]
    pub(crate) unsafe fn saved_input(
        &self,
        snapshot: usize,
        place: usize,
        channels: Range<usize>,
    ) -> &mut [f32] {
        let before = self.shape.conv_width - 1;
        assert!(
            snapshot < self.shape.snapshots && place < before && channels.end <= self.shape.conv_channels
        );
        let start = (snapshot * before + place) * self.shape.conv_channels;
        // SAFETY: forwarded.
        unsafe {
            self.saved_inputs
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
        // SAFETY: forwarded.
        unsafe { self.matrices.slice_mut(self.matrix_range(slot, head)) }
    }

    /// The matrix of one head of a snapshot. Snapshots are not written in a step that starts from them; several rows
    /// may start from one.
    ///
    /// # Safety
    /// Only on the stream, while nothing writes it.
    pub(crate) unsafe fn saved_matrix(&self, snapshot: usize, head: usize) -> &[f32] {
        assert!(snapshot < self.shape.snapshots && head < self.shape.heads);
        // SAFETY: forwarded.
        unsafe { self.saved_matrices.slice(self.matrix_range(snapshot, head)) }
    }

    /// The matrix of one head of a snapshot, for writing.
    ///
    /// # Safety
    /// As [`matrix`](Self::matrix).
    #[expect(
        clippy::mut_from_ref,
        reason = "exclusive by the stream's order, not by borrow"
    )]
    pub(crate) unsafe fn saved_matrix_mut(&self, snapshot: usize, head: usize) -> &mut [f32] {
        assert!(snapshot < self.shape.snapshots && head < self.shape.heads);
        // SAFETY: forwarded.
        unsafe { self.saved_matrices.slice_mut(self.matrix_range(snapshot, head)) }
    }

    fn matrix_range(&self, index: usize, head: usize) -> Range<usize> {
        let len = self.shape.rows * self.shape.columns;
        let start = (index * self.shape.heads + head) * len;
        start..start + len
    }

    /// The keys of one group of a slot.
    pub(crate) fn keys(&self, slot: usize, group: usize) -> Ring<'_> {
        assert!(slot < self.shape.slots && group < self.shape.groups);
        self.ring(&self.keys, slot * self.shape.groups + group, self.shape.rows)
    }

    /// The values of one head of a slot.
    pub(crate) fn values(&self, slot: usize, head: usize) -> Ring<'_> {
        assert!(slot < self.shape.slots && head < self.shape.heads);
        self.ring(&self.values, slot * self.shape.heads + head, self.shape.columns)
    }

    /// The log decays of one head of a slot.
    pub(crate) fn decays(&self, slot: usize, head: usize) -> Ring<'_> {
        assert!(slot < self.shape.slots && head < self.shape.heads);
        self.ring(&self.decays, slot * self.shape.heads + head, 1)
    }

    fn ring<'a>(&self, storage: &'a Storage<f32>, index: usize, width: usize) -> Ring<'a> {
        let entries = self.shape.entries();
        Ring {
            storage,
            first: index * entries * width,
            entries,
            width,
        }
    }
}

/// Rows of numbers by position.
#[derive(Clone, Copy)]
pub(crate) struct Ring<'a> {
    storage: &'a Storage<f32>,
    first: usize,
    entries: usize,
    width: usize,
}

impl<'a> Ring<'a> {
    /// The row of a position.
    ///
    /// # Safety
    /// Only on the stream, while nothing writes it.
    pub(crate) unsafe fn get(&self, position: usize) -> &'a [f32] {
        // SAFETY: forwarded.
        unsafe { self.storage.slice(self.range(position)) }
    }

    /// The row of a position, for writing.
    ///
    /// # Safety
    /// Only on the stream, while nothing else reads or writes it.
    pub(crate) unsafe fn get_mut(&self, position: usize) -> &'a mut [f32] {
        // SAFETY: forwarded.
        unsafe { self.storage.slice_mut(self.range(position)) }
    }

    fn range(&self, position: usize) -> Range<usize> {
        let start = self.first + position % self.entries * self.width;
        start..start + self.width
    }
}

/// Elements of an array of these dimensions.
pub(crate) fn elements(dimensions: &[usize], what: &str) -> Result<usize, DeviceError> {
    dimensions
        .iter()
        .try_fold(1_usize, |product, d| product.checked_mul(*d))
        .ok_or_else(|| DeviceError::OutOfMemory {
            what: what.to_owned(),
            bytes: u64::MAX,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_snapshots_take_what_their_shape_says() {
        let shape = StateShape {
            slots: 3,
            conv_channels: 70,
            conv_width: 4,
            heads: 6,
            groups: 2,
            rows: 20,
            columns: 12,
            drafts: 5,
            snapshots: 2,
        };
        let Ok(cache) = CpuStateCache::new(shape) else {
            panic!("there is memory for this");
        };
        let elements_of = |storages: &[&Storage<f32>]| storages.iter().map(|storage| storage.len()).sum();
        let parts = cache.parts();
        let (slots, saved): (usize, usize) = (elements_of(&parts[..5]), elements_of(&parts[5..]));
        let entries = (16 + 2 * 5) * (2 * 20 + 6 * 12 + 6);
        assert_eq!(slots, 3 * (6 * 20 * 12 + entries + (2 * 5 + 4) * 70));
        let inputs = shape.conv_inputs() * shape.conv_channels;
        let planned = shape.matrix_elements() + shape.entries() * shape.entry_elements() + inputs;
        assert_eq!(slots, 3 * planned);
        assert_eq!(saved, 2 * (shape.matrix_elements() + shape.window_elements()));
    }
}
