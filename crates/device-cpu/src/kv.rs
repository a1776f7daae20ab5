//! Keys and values in blocks, in full or half width.

use crate::caches::elements;
use crate::ops::vector::load_part;
use crate::simd::{LANES, PANEL, Simd};
use crate::storage::Storage;
use half::f16;
use paceline_device::{DeviceError, KvShape};
use paceline_types::DType;
use std::sync::Arc;

/// The paged keys and values of one attention layer.
///
/// A block holds values as `[heads][block_size][head_dim]` and keys as `[heads][head_dim][block_size]`: attention
/// multiplies a query with many keys at a time, and adds up values one by one. What is stored is rounded once, when it
/// is stored; it is widened to f32 again, which is exact, where it is read. So results depend on the type but on
/// nothing else.
#[derive(Clone)]
pub struct CpuKvCache {
    shape: KvShape,
    keys: Numbers,
    values: Numbers,
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// Numbers as they are stored.
#[derive(Clone)]
enum Numbers {
    F32(Arc<Storage<f32>>),
    F16(Arc<Storage<u16>>),
    Bf16(Arc<Storage<u16>>),
}

/// Some positions of one head that lie in one block, one after the other.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    /// Start of the head's part of the block, within the storage.
    head: usize,
    /// The first position within the block.
    first: usize,
    /// Positions.
    pub(crate) len: usize,
}

/// Numbers in strips of `len`, `apart` from start to start.
#[derive(Clone, Copy, Debug)]
struct Strips {
    first: usize,
    apart: usize,
    count: usize,
    len: usize,
}

impl CpuKvCache {
    /// Zeroed blocks. `dtype` is F32, F16 or BF16.
    pub(crate) fn new(shape: KvShape, dtype: DType) -> Result<Self, DeviceError> {
        let elements = elements(
            &[shape.blocks, shape.block_size, shape.heads, shape.head_dim],
            "KV blocks",
        )?;
        Ok(Self {
            shape,
            keys: Numbers::zeroed(elements, dtype, "key blocks")?,
            values: Numbers::zeroed(elements, dtype, "value blocks")?,
        })
    }

    pub(crate) fn shape(&self) -> KvShape {
        self.shape
    }

    /// The positions from `position` on, up to `end`, that lie in the same block.
    #[inline(always)]
    pub(crate) fn run(&self, blocks: &[i32], head: usize, (position, end): (usize, usize)) -> Run {
        let KvShape {
            block_size,
            heads,
            head_dim,
            ..
        } = self.shape;
        let block = blocks[position / block_size];
        assert!(
            usize::try_from(block).is_ok_and(|block| block < self.shape.blocks) && head < heads,
            "head {head} of position {position} lies in block {block} of {}",
            self.shape.blocks
        );
        let first = position % block_size;
        Run {
            head: (block as usize * heads + head) * block_size * head_dim,
            first,
            len: (end - position).min(block_size - first),
        }
    }

    /// Whether keys and values can be read where they are stored.
    #[inline(always)]
    pub(crate) fn is_in_place(&self) -> bool {
        let KvShape {
            block_size, head_dim, ..
        } = self.shape;
        matches!((&self.keys, &self.values), (Numbers::F32(_), Numbers::F32(_)))
            && block_size.is_multiple_of(PANEL)
            && head_dim.is_multiple_of(PANEL)
    }

    /// The keys of a run as they are stored, if panels of them can be read in place: the element at `[0][0]`; the
    /// dimensions are `block_size` apart.
    #[inline(always)]
    pub(crate) fn keys_in_place(&self, run: Run) -> Option<*const f32> {
        match &self.keys {
            Numbers::F32(keys) if self.shape.block_size.is_multiple_of(PANEL) => {
                Some(keys.as_ptr().wrapping_add(run.head + run.first).cast_const())
            }
            _ => None,
        }
    }

    /// The same of values, which are `head_dim` apart.
    #[inline(always)]
    pub(crate) fn values_in_place(&self, run: Run) -> Option<*const f32> {
        let head_dim = self.shape.head_dim;
        match &self.values {
            Numbers::F32(values) if head_dim.is_multiple_of(PANEL) => Some(
                values
                    .as_ptr()
                    .wrapping_add(run.head + run.first * head_dim)
                    .cast_const(),
            ),
            _ => None,
        }
    }

    /// Widens the keys of a run into columns of `to`, whose rows are `stride` apart, a row per dimension.
    ///
    /// # Safety
    /// Only on the stream, while nothing writes them.
    #[inline(always)]
    pub(crate) unsafe fn widen_keys<S: Simd>(&self, s: S, run: Run, to: &mut [f32], stride: usize) {
        let KvShape {
            block_size, head_dim, ..
        } = self.shape;
        let strips = Strips {
            first: run.head + run.first,
            apart: block_size,
            count: head_dim,
            len: run.len,
        };
        // SAFETY: forwarded.
        unsafe { self.keys.widen(s, strips, to, stride) };
    }

    /// Widens the values of a run into rows of `to`, `stride` apart.
    ///
    /// # Safety
    /// As [`widen_keys`](Self::widen_keys).
    #[inline(always)]
    pub(crate) unsafe fn widen_values<S: Simd>(&self, s: S, run: Run, to: &mut [f32], stride: usize) {
        let head_dim = self.shape.head_dim;
        let strips = Strips {
            first: run.head + run.first * head_dim,
            apart: head_dim,
            count: run.len,
            len: head_dim,
        };
        // SAFETY: forwarded.
        unsafe { self.values.widen(s, strips, to, stride) };
    }

    /// Asks for the keys and values of a run. Blocks lie anywhere, so a machine does not find out by itself where the next one is.
    #[inline(always)]
    pub(crate) fn prefetch<S: Simd>(&self, s: S, run: Run) {
        let KvShape {
            block_size, head_dim, ..
        } = self.shape;
        if run.len == block_size {
            self.keys.prefetch(s, run.head, block_size * head_dim);
        } else {
            for dimension in 0..head_dim {
                self.keys
                    .prefetch(s, run.head + run.first + dimension * block_size, run.len);
            }
        }
        self.values
            .prefetch(s, run.head + run.first * head_dim, run.len * head_dim);
    }

    /// Stores the key and the value of the first position of a run, `head_dim` numbers each.
    ///
    /// # Safety
    /// Only on the stream, while nothing else reads or writes there.
    #[inline(always)]
    pub(crate) unsafe fn store<S: Simd>(&self, s: S, run: Run, key: &[f32], value: &[f32]) {
        let KvShape {
            block_size, head_dim, ..
        } = self.shape;
        assert!(key.len() == head_dim && value.len() == head_dim);
        // SAFETY: forwarded.
        unsafe {
            self.keys.store(s, run.head + run.first, block_size, key);
            self.values.store(s, run.head + run.first * head_dim, 1, value);
        }
    }

    /// Zeroes the key and the value of the first position of a run.
    ///
    /// # Safety
    /// As [`store`](Self::store).
    pub(crate) unsafe fn clear(&self, run: Run) {
        let KvShape {
            block_size, head_dim, ..
        } = self.shape;
        // SAFETY: forwarded.
        unsafe {
            self.keys.clear(run.head + run.first, block_size, head_dim);
            self.values.clear(run.head + run.first * head_dim, 1, head_dim);
        }
    }

    /// Gives the memory of all blocks back to the system; what they hold is not defined from then on.
    ///
    /// # Safety
    /// Only on the stream, in an operation that does nothing else with it.
    pub(crate) unsafe fn hand_back(&self) {
        for numbers in [&self.keys, &self.values] {
            // SAFETY: forwarded.
            unsafe {
                match numbers {
                    Numbers::F32(storage) => storage.hand_back(),
                    Numbers::F16(storage) | Numbers::Bf16(storage) => storage.hand_back(),
                }
            }
        }
    }
}

impl Numbers {
    fn zeroed(len: usize, dtype: DType, what: &str) -> Result<Self, DeviceError> {
        Ok(match dtype {
            DType::F16 => Self::F16(Storage::zeroed(len, what)?),
            DType::BF16 => Self::Bf16(Storage::zeroed(len, what)?),
            other => {
                assert_eq!(other, DType::F32, "keys and values have a float type");
                Self::F32(Storage::zeroed(len, what)?)
            }
        })
    }

    fn len(&self) -> usize {
        match self {
            Self::F32(storage) => storage.len(),
            Self::F16(storage) | Self::Bf16(storage) => storage.len(),
        }
    }

    /// Reads strips of numbers into `to`, where they are `stride` apart.
    ///
    /// # Safety
    /// Only on the stream, while nothing writes them.
    #[inline(always)]
    unsafe fn widen<S: Simd>(&self, s: S, strips: Strips, to: &mut [f32], stride: usize) {
        let Strips {
            first,
            apart,
            count,
            len,
        } = strips;
        let Some(last) = count.checked_sub(1) else { return };
        assert!(
            first + last * apart + len <= self.len() && last * stride + len <= to.len(),
            "{strips:?} of {}, to {} numbers, {stride} apart",
            self.len(),
            to.len()
        );
        let full = len / PANEL * PANEL;
        for strip in 0..count {
            let from = first + strip * apart;
            // SAFETY: checked above, once for all strips; the caller excludes writes.
            unsafe {
                let to = to.as_mut_ptr().add(strip * stride);
                match self {
                    Self::F32(storage) => to.copy_from_nonoverlapping(storage.as_ptr().add(from), len),
                    Self::F16(storage) => {
                        let from = storage.as_ptr().add(from);
                        for at in (0..full).step_by(PANEL) {
                            s.panel_store(s.panel_load_f16(from.add(at)), to.add(at));
                        }
                        for at in full..len {
                            *to.add(at) = f16::from_bits(*from.add(at)).to_f32();
                        }
                    }
                    Self::Bf16(storage) => {
                        let from = storage.as_ptr().add(from);
                        for at in (0..full).step_by(PANEL) {
                            let bits = from.add(at).cast::<[u16; PANEL]>().read();
                            let mut wide = [0.0; PANEL];
                            for i in 0..PANEL {
                                wide[i] = f32::from_bits(u32::from(bits[i]) << 16);
                            }
                            to.add(at).cast::<[f32; PANEL]>().write(wide);
                        }
                        for at in full..len {
                            *to.add(at) = f32::from_bits(u32::from(*from.add(at)) << 16);
                        }
                    }
                }
            }
        }
    }

    /// Asks for the lines of `len` numbers from `at` on.
    #[inline(always)]
    fn prefetch<S: Simd>(&self, s: S, at: usize, len: usize) {
        let (start, size) = match self {
            Self::F32(storage) => (storage.as_ptr().cast::<u8>(), size_of::<f32>()),
            Self::F16(storage) | Self::Bf16(storage) => (storage.as_ptr().cast::<u8>(), size_of::<u16>()),
        };
        for byte in (at * size..(at + len) * size).step_by(LINE) {
            s.prefetch(start.wrapping_add(byte));
        }
    }

    /// Zeroes `len` numbers from `at` on, `stride` apart.
    ///
    /// # Safety
    /// As [`store`](Self::store).
    unsafe fn clear(&self, at: usize, stride: usize, len: usize) {
        for i in 0..len {
            let place = at + i * stride;
            // SAFETY: forwarded.
            unsafe {
                match self {
                    Self::F32(storage) => storage.slice_mut(place..place + 1)[0] = 0.0,
                    Self::F16(storage) | Self::Bf16(storage) => storage.slice_mut(place..place + 1)[0] = 0,
                }
            }
        }
    }

    /// Writes numbers from `at` on, `stride` apart.
    ///
    /// # Safety
    /// Only on the stream, while nothing else reads or writes there.
    #[inline(always)]
    unsafe fn store<S: Simd>(&self, s: S, at: usize, stride: usize, from: &[f32]) {
        if from.is_empty() {
            return;
        }
        let place = at..at + (from.len() - 1) * stride + 1;
        // SAFETY: forwarded.
        unsafe {
            match self {
                Self::F32(storage) => {
                    let to = storage.slice_mut(place);
                    for (i, from) in from.iter().enumerate() {
                        to[i * stride] = *from;
                    }
                }
                Self::F16(storage) => {
                    let to = storage.slice_mut(place);
                    for (chunk, from) in from.chunks(LANES).enumerate() {
                        let bits = to_f16(s, from);
                        for i in 0..from.len() {
                            to[(chunk * LANES + i) * stride] = bits[i];
                        }
                    }
                }
                Self::Bf16(storage) => {
                    let to = storage.slice_mut(place);
                    for (i, from) in from.iter().enumerate() {
                        to[i * stride] = to_bf16(*from);
                    }
                }
            }
        }
    }
}

/// Up to eight numbers as the nearest of f16; those beyond its range become its largest, because an infinity would
/// spoil whole texts. What is not a number stays none.
#[inline(always)]
fn to_f16<S: Simd>(s: S, from: &[f32]) -> [u16; LANES] {
    const LARGEST: f32 = 65_504.0;
    let bounded = s.max(s.splat(-LARGEST), s.min(s.splat(LARGEST), load_part(s, from)));
    s.to_f16(bounded)
}

/// The nearest of bf16, ties to even. What is not a number stays none.
#[inline(always)]
fn to_bf16(number: f32) -> u16 {
    let bits = number.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    ((if number.is_nan() {
        bits | 0x40_0000
    } else {
        nearest
    }) >> 16) as u16
}

#[cfg(test)]
impl CpuKvCache {
    /// The only position of a block's head.
    fn place(&self, block: usize, position: usize, head: usize) -> Run {
        self.run(&[block as i32], head, (position, position + 1))
    }

    /// Fills all blocks with a number.
    ///
    /// # Safety
    /// Nothing is on the stream.
    pub(crate) unsafe fn fill(&self, number: f32) {
        let shape = self.shape;
        let row = vec![number; shape.head_dim];
        for block in 0..shape.blocks {
            for place in 0..shape.block_size * shape.heads {
                let place = self.place(block, place % shape.block_size, place / shape.block_size);
                // SAFETY: forwarded.
                unsafe { self.store(crate::simd::Portable, place, &row, &row) };
            }
        }
    }

    /// The key and the value of a position of a block, one after the other.
    ///
    /// # Safety
    /// Nothing is on the stream.
    pub(crate) unsafe fn row(&self, block: usize, position: usize, head: usize) -> Vec<f32> {
        let place = self.place(block, position, head);
        let mut row = vec![0.0; 2 * self.shape.head_dim];
        let (key, value) = row.split_at_mut(self.shape.head_dim);
        // SAFETY: forwarded.
        unsafe {
            self.widen_keys(crate::simd::Portable, place, key, 1);
            self.widen_values(crate::simd::Portable, place, value, 0);
        }
        row
    }
}

#[cfg(test)]
mod tests;
