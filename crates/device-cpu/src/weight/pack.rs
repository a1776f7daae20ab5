//! Writing panels.

use super::blocks::{Block, LONGEST};
use super::formats::{Codes, ForFormat, Format, with_format};
use super::layout::{self, SCALE_BYTES, SCALED_BLOCK_BYTES, abreast_by, pair_place};
use super::{PANEL, Row, bad};
use crate::dots::GROUP;
use crate::storage::Storage;
use half::f16;
use paceline_device::{DeviceError, E4M3_MAX, SCALE_BLOCK, e4m3_nearest, e4m3_value};
use paceline_types::DType;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Most threads that pack: memory does not keep up with more.
pub(super) const MOST_THREADS: usize = 16;

/// Stored bytes below which one thread packs.
const SERIAL_BYTES: usize = 1 << 18;

/// Inputs that are transposed at a time: small enough for the nearest cache, and whole blocks of every type.
const STRIP: usize = LONGEST;

/// Panels of the rows as `dtype`, and the bytes of one.
pub(super) fn pack(
    rows: &[Row<'_>],
    dtype: DType,
    inputs: usize,
    threads: usize,
) -> Result<(Arc<Storage<f32>>, usize), DeviceError> {
    let panel_bytes = panel_bytes(dtype, inputs);
    let panels = rows.len().div_ceil(PANEL);
    let storage = Storage::<f32>::of_weight(panels * panel_bytes / size_of::<f32>(), rows[0].part.name)?;
    let bytes = panels * panel_bytes;
    let threads = packing_threads(bytes, panels, threads);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut bench = Bench::default();
        loop {
            let panel = next.fetch_add(1, Ordering::Relaxed);
            if panel >= panels {
                return Ok(());
            }
            let rows = &rows[panel * PANEL..rows.len().min((panel + 1) * PANEL)];
            let Some(pair_bytes) = abreast_by(dtype) else {
                // SAFETY: the storage is not shared yet, and each panel is claimed once.
                let target = unsafe {
                    let at = storage.as_ptr().cast::<u8>().add(panel * panel_bytes);
                    std::slice::from_raw_parts_mut(at, panel_bytes)
                };
                bench.panel(rows, dtype, inputs, target)?;
                continue;
            };
            let mut whole = std::mem::take(&mut bench.whole);
            whole.resize(panel_bytes, 0);
            bench.panel(rows, dtype, inputs, &mut whole)?;
            let (at, abreast) = layout::place(panel, panels, panel_bytes, pair_bytes);
            for (pair, from) in whole.chunks_exact(pair_bytes).enumerate() {
                // SAFETY: as above; no two panels share a place.
                unsafe {
                    let to = storage
                        .as_ptr()
                        .cast::<u8>()
                        .add(at + pair * pair_bytes * abreast);
                    to.copy_from_nonoverlapping(from.as_ptr(), pair_bytes);
                }
            }
            bench.whole = whole;
        }
    };
    if threads == 1 {
        work()?;
    } else {
        thread::scope(|scope| {
            let workers: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let mut outcome = work();
            for worker in workers {
                outcome = outcome.and(worker.join().expect("packing does not panic"));
            }
            outcome
        })?;
    }
    Ok((storage, panel_bytes))
}

/// Of the threads there are, those that this amount of packing is worth.
fn packing_threads(bytes: usize, panels: usize, threads: usize) -> usize {
    if bytes < SERIAL_BYTES {
        return 1;
    }
    threads.clamp(1, MOST_THREADS).min(panels)
}

/// Bytes of a panel, rounded up to a cache line, and to whole pairs of inputs.
pub(super) fn panel_bytes(dtype: DType, inputs: usize) -> usize {
    let bytes = match dtype {
        DType::F32 => inputs.next_multiple_of(2) * 4 * PANEL,
        DType::F16 | DType::BF16 => inputs.next_multiple_of(2) * 2 * PANEL,
        DType::F8E4M3 => inputs.div_ceil(SCALE_BLOCK) * SCALE_BYTES + inputs.next_multiple_of(2) * PANEL,
        quantised => with_format(quantised, PanelBytes(inputs)),
    };
    bytes.next_multiple_of(64)
}

/// Bytes of `inputs` quantised inputs in a panel.
struct PanelBytes(usize);

impl ForFormat for PanelBytes {
    type Output = usize;

    fn run<T: Format>(self) -> usize {
        self.0 / (T::GROUPS * GROUP) * T::BLOCK_BYTES
    }
}

/// Scratch of a packing thread.
struct Bench {
    blocks: Vec<Block>,
    values: Vec<[f32; STRIP]>,
    /// A panel whose pairs go to places of their own.
    whole: Vec<u8>,
}

impl Default for Bench {
    fn default() -> Self {
        Self {
            blocks: vec![Block::ZERO; PANEL],
            values: vec![[0.0; STRIP]; PANEL],
            whole: Vec::new(),
        }
    }
}

impl Bench {
    fn panel(
        &mut self,
        rows: &[Row<'_>],
        dtype: DType,
        inputs: usize,
        target: &mut [u8],
    ) -> Result<(), DeviceError> {
        if dtype.is_quantised() {
            let blocks = &mut self.blocks;
            return with_format(
                dtype,
                Quantised {
                    blocks,
                    rows,
                    dtype,
                    target,
                },
            );
        }
        if dtype == DType::F8E4M3 {
            return self.scaled(rows, inputs, target);
        }
        let raw = rows.iter().all(|row| row.part.dtype == dtype) && dtype != DType::F32;
        for first in (0..inputs).step_by(STRIP) {
            let count = STRIP.min(inputs - first);
            let target = &mut target[first * PANEL * dtype.block_bytes()..];
            if raw {
                copy_halves(rows, dtype, first..first + count, target)?;
                continue;
            }
            for (row, values) in rows.iter().zip(&mut self.values) {
                read_values(row, first, &mut values[..count], &mut self.blocks[0]);
                check_values(row, &values[..count], dtype)?;
            }
            for values in &mut self.values[rows.len()..] {
                values.fill(0.0);
            }
            self.write_values(dtype, count, target);
        }
        Ok(())
    }

    /// 8-bit floats with their scales: those of the file, or for other types the nearest ones below a scale that takes the
    /// largest of a row's block to the largest there is.
    fn scaled(&mut self, rows: &[Row<'_>], inputs: usize, target: &mut [u8]) -> Result<(), DeviceError> {
        for (index, target) in target.chunks_mut(SCALED_BLOCK_BYTES).enumerate() {
            let first = index * SCALE_BLOCK;
            let count = SCALE_BLOCK.min(inputs - first);
            let (scales, codes) = target.split_at_mut(SCALE_BYTES);
            for (lane, row) in rows.iter().enumerate() {
                let mut own = [0; SCALE_BLOCK];
                let scale = if row.part.dtype == DType::F8E4M3 {
                    own[..count].copy_from_slice(&row.data[first..first + count]);
                    row.part.scale(row.index, index)
                } else {
                    let values = &mut self.values[lane][..count];
                    read_values(row, first, values, &mut self.blocks[0]);
                    check_values(row, values, DType::F8E4M3)?;
                    nearest(values, &mut own)
                };
                if own.iter().any(|code| code & 0x7f == 0x7f) || !(scale * 256.0).is_finite() {
                    return Err(not_finite(row));
                }
                scales[4 * lane..][..4].copy_from_slice(&(scale * 256.0).to_ne_bytes());
                for (k, code) in own[..count].iter().enumerate() {
                    codes[pair_place(k, lane)] = *code;
                }
            }
        }
        Ok(())
    }

    fn write_values(&self, dtype: DType, count: usize, target: &mut [u8]) {
        let at = |k: usize, lane: usize| self.values[lane][k];
        match dtype {
            DType::F32 => {
                for (k, to) in target.chunks_exact_mut(4 * PANEL).take(count).enumerate() {
                    for (lane, to) in to.chunks_exact_mut(4).enumerate() {
                        to.copy_from_slice(&at(k, lane).to_ne_bytes());
                    }
                }
            }
            DType::BF16 => {
                let (places, _) = target.as_chunks_mut::<2>();
                for k in 0..count {
                    for lane in 0..PANEL {
                        places[pair_place(k, lane)] = to_bf16(at(k, lane)).to_ne_bytes();
                    }
                }
            }
            _ => {
                for (k, to) in target.chunks_exact_mut(2 * PANEL).take(count).enumerate() {
                    for (lane, to) in to.chunks_exact_mut(2).enumerate() {
                        to.copy_from_slice(&f16::from_f32(at(k, lane)).to_bits().to_ne_bytes());
                    }
                }
            }
        }
    }
}

/// Writes the panel of some rows that are stored as the panel keeps them.
struct Quantised<'a> {
    blocks: &'a mut [Block],
    rows: &'a [Row<'a>],
    dtype: DType,
    target: &'a mut [u8],
}

impl ForFormat for Quantised<'_> {
    type Output = Result<(), DeviceError>;

    fn run<T: Format>(self) -> Self::Output {
        let stored = self.dtype.block_bytes();
        let blocks = self.rows[0].data.len() / stored;
        self.blocks[self.rows.len()..].fill(Block::ZERO);
        for (index, target) in self
            .target
            .chunks_exact_mut(T::BLOCK_BYTES)
            .take(blocks)
            .enumerate()
        {
            for (row, block) in self.rows.iter().zip(&mut *self.blocks) {
                block.read(self.dtype, &row.data[index * stored..(index + 1) * stored]);
                if !block.is_finite() {
                    return Err(not_finite(row));
                }
            }
            for (output, block) in self.blocks.iter().enumerate() {
                write_block::<T>(block, output, target);
            }
        }
        Ok(())
    }
}

fn write_block<T: Format>(block: &Block, output: usize, target: &mut [u8]) {
    let (head, groups) = target.split_at_mut(T::HALVES * 2 * PANEL);
    for (half, to) in [block.d, block.m]
        .into_iter()
        .zip(head.chunks_exact_mut(2 * PANEL))
    {
        to[2 * output..][..2].copy_from_slice(&half.to_ne_bytes());
    }
    let codes = block.codes.as_chunks::<GROUP>().0;
    for (index, (to, codes)) in groups.chunks_exact_mut(T::GROUP_BYTES).zip(codes).enumerate() {
        let (head, to) = to.split_at_mut(T::GROUP_HEAD * PANEL);
        let parts = index * T::PARTS..(index + 1) * T::PARTS;
        let bytes = block.scales[parts.clone()].iter().chain(&block.mins[parts]);
        for (byte, to) in bytes.zip(head.chunks_exact_mut(PANEL)) {
            to[output] = *byte as u8;
        }
        T::Codes::put(
            to,
            output,
            &codes.map(|code| (i32::from(code) + T::Codes::ZERO) as u8),
        );
    }
}

/// Half-width weights that are kept as they are.
fn copy_halves(
    rows: &[Row<'_>],
    dtype: DType,
    inputs: std::ops::Range<usize>,
    target: &mut [u8],
) -> Result<(), DeviceError> {
    let exponent: u16 = if dtype == DType::BF16 { 0x7f80 } else { 0x7c00 };
    for (lane, row) in rows.iter().enumerate() {
        let (from, _) = row.data[2 * inputs.start..2 * inputs.end].as_chunks::<2>();
        let (places, _) = target.as_chunks_mut::<2>();
        let mut bad = false;
        for (k, from) in from.iter().enumerate() {
            let bits = u16::from_le_bytes(*from);
            bad |= bits & exponent == exponent;
            let place = match dtype {
                DType::BF16 => pair_place(k, lane),
                _ => k * PANEL + lane,
            };
            places[place] = bits.to_ne_bytes();
        }
        if bad {
            return Err(not_finite(row));
        }
    }
    Ok(())
}

/// The weights of a stored row from input `first` on.
pub(super) fn read_values(row: &Row<'_>, first: usize, values: &mut [f32], block: &mut Block) {
    let dtype = row.part.dtype;
    let length = dtype.block_len();
    let from = &row.data[first / length * dtype.block_bytes()..];
    match dtype {
        DType::F32 => {
            for (value, from) in values.iter_mut().zip(from.chunks_exact(4)) {
                *value = f32::from_le_bytes([from[0], from[1], from[2], from[3]]);
            }
        }
        DType::BF16 => {
            for (value, from) in values.iter_mut().zip(from.chunks_exact(2)) {
                let bits = u32::from(u16::from_le_bytes([from[0], from[1]]));
                *value = f32::from_bits(bits << 16);
            }
        }
        DType::F16 => {
            for (value, from) in values.iter_mut().zip(from.chunks_exact(2)) {
                *value = f16::from_le_bytes([from[0], from[1]]).to_f32();
            }
        }
        DType::F8E4M3 => {
            for (k, (value, from)) in values.iter_mut().zip(from).enumerate() {
                *value = e4m3_value(*from) * row.part.scale(row.index, (first + k) / SCALE_BLOCK);
            }
        }
        _ => {
            for (values, from) in values
                .chunks_mut(length)
                .zip(from.chunks_exact(dtype.block_bytes()))
            {
                block.read(dtype, from);
                block.weights(dtype, values);
            }
        }
    }
}

/// The nearest 8-bit floats, and what they are to be multiplied by.
fn nearest(values: &[f32], codes: &mut [u8; SCALE_BLOCK]) -> f32 {
    let largest = values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    // Too small to divide by.
    if largest < f32::MIN_POSITIVE * E4M3_MAX {
        return 0.0;
    }
    let scale = largest / E4M3_MAX;
    for (code, value) in codes.iter_mut().zip(values) {
        *code = e4m3_nearest(value / scale);
    }
    scale
}

/// Values must be finite, before and after rounding to `dtype`.
fn check_values(row: &Row<'_>, values: &[f32], dtype: DType) -> Result<(), DeviceError> {
    let largest_bits = values
        .iter()
        .fold(0_u32, |most, value| most.max(value.to_bits() & 0x7fff_ffff));
    let largest = f32::from_bits(largest_bits);
    if !largest.is_finite() {
        return Err(not_finite(row));
    }
    let fits = match dtype {
        DType::F16 => f16::from_f32(largest).is_finite(),
        DType::BF16 => to_bf16(largest) < 0x7f80,
        _ => true,
    };
    if fits {
        return Ok(());
    }
    let why = format!("row {} holds {largest:e}, too large for {dtype}", row.index);
    Err(bad(row.part.name, why))
}

fn not_finite(row: &Row<'_>) -> DeviceError {
    let why = format!("row {} holds a value that is not finite", row.index);
    bad(row.part.name, why)
}

/// To the nearest bf16, ties to even, for finite values.
fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_takes_the_threads_of_the_device_and_no_more() {
        let large = 64 << 20;
        for threads in [1, 2, 3, 16] {
            assert_eq!(packing_threads(large, 4096, threads), threads);
        }
        assert_eq!(packing_threads(large, 4096, 64), MOST_THREADS);
        assert_eq!(packing_threads(large, 2, 8), 2);
        assert_eq!(packing_threads(SERIAL_BYTES - 1, 4096, 8), 1);
    }
}
