//! Floating-point rows as quantised blocks, the same on every machine.
//!
//! Q8_0 rounds to 127ths of a block's largest value. Q4_1 looks for the line through sixteen levels that leaves the
//! least squared error: from several pairs of ends, values are rounded, the line is fitted to the codes by least squares
//! and values are rounded again. That leaves 7.1 % of a normal distribution's root mean square, where ends at the
//! smallest and the largest value leave 7.8 % and Q4_0 leaves 8.6 %.

use super::pack::read_values;
use super::{Row, bad, blocks::Block};
use half::f16;
use paceline_device::DeviceError;
use paceline_types::DType;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Values of a block of either type.
const BLOCK: usize = 32;
/// Sums are kept in this many lanes, so that they are vectors with one order on every machine.
const LANES: usize = 8;
/// Rows that a thread takes at a time.
const ROWS: usize = 16;
/// How far a line's ends lie inside the values, in steps between levels.
const INSETS: [f32; 3] = [0.0, 0.6, 1.2];

/// Whether rows of one type can become blocks of another.
pub(super) fn can(from: DType, to: DType) -> bool {
    !from.is_quantised() && matches!(to, DType::Q8_0 | DType::Q4_1)
}

/// The blocks of floating-point rows, row after row.
pub(super) fn rows(
    rows: &[Row<'_>],
    dtype: DType,
    inputs: usize,
    threads: usize,
) -> Result<Vec<u8>, DeviceError> {
    let row_bytes = dtype.bytes_for(inputs).ok_or_else(|| {
        let why = format!("{inputs} columns are not whole {dtype} blocks of {BLOCK}");
        bad(rows[0].part.name, why)
    })?;
    let mut blocks = vec![0; rows.len() * row_bytes];
    let shares = Mutex::new(rows.chunks(ROWS).zip(blocks.chunks_mut(ROWS * row_bytes)));
    let next = || shares.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some((rows, blocks)) = next() {
            for (row, to) in rows.iter().zip(blocks.chunks_mut(row_bytes)) {
                quantise_row(row, dtype, to)?;
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(rows.len().div_ceil(ROWS)))
            .map(|_| scope.spawn(work))
            .collect();
        let own = work();
        let join = |outcome: Result<(), DeviceError>, worker: thread::ScopedJoinHandle<'_, _>| {
            outcome.and(worker.join().expect("quantising does not panic"))
        };
        others.into_iter().fold(own, join)
    })?;
    Ok(blocks)
}

fn quantise_row(row: &Row<'_>, dtype: DType, to: &mut [u8]) -> Result<(), DeviceError> {
    let (mut values, mut block) = ([0.0; BLOCK], Block::ZERO);
    for (index, to) in to.chunks_exact_mut(dtype.block_bytes()).enumerate() {
        read_values(row, index * BLOCK, &mut values, &mut block);
        let largest = values
            .iter()
            .fold(0_u32, |most, value| most.max(value.to_bits() & 0x7fff_ffff));
        let largest = f32::from_bits(largest);
        if !largest.is_finite() {
            let why = format!("row {} holds a value that is not finite", row.index);
            return Err(bad(row.part.name, why));
        }
        // Differences of values are scales, and values are minima: both are 16-bit numbers.
        if largest > f16::MAX.to_f32() {
            let why = format!("row {} holds {largest:e}, too large for {dtype}", row.index);
            return Err(bad(row.part.name, why));
        }
        match dtype {
            DType::Q8_0 => q8_0(&values, largest, to),
            _ => q4_1(&values, to),
        }
    }
    Ok(())
}

/// A scale, then a byte per value.
fn q8_0(values: &[f32; BLOCK], largest: f32, to: &mut [u8]) {
    let scale = f16::from_f32(largest / 127.0);
    to[..2].copy_from_slice(&scale.to_le_bytes());
    let scale = scale.to_f32();
    for (to, value) in to[2..].iter_mut().zip(values) {
        // A scale of zero gives NaN or infinity; what is so small is zero.
        let code = if scale > 0.0 { (value / scale).round() } else { 0.0 };
        *to = code.clamp(-127.0, 127.0) as i8 as u8;
    }
}

/// Levels of a block: `scale·code + min`.
#[derive(Clone, Copy)]
struct Line {
    scale: f32,
    min: f32,
}

impl Line {
    /// Rounded to what a block can hold.
    fn stored(self) -> Self {
        let stored = |value: f32| f16::from_f32(value).to_f32();
        Self {
            scale: stored(self.scale),
            min: stored(self.min),
        }
    }

    /// The nearest codes.
    fn codes(self, values: &[f32; BLOCK]) -> [f32; BLOCK] {
        // Adding this rounds to the nearest integer, ties to even, in plain vector instructions.
        const ROUND: f32 = 12_582_912.0;
        let inverse = if self.scale > 0.0 { 1.0 / self.scale } else { 0.0 };
        let mut codes = [0.0; BLOCK];
        for (code, value) in codes.iter_mut().zip(values) {
            *code = ((value - self.min) * inverse).clamp(0.0, 15.0) + ROUND - ROUND;
        }
        codes
    }

    /// The line with the least squared error for these codes; this one if all are the same.
    fn fitted(self, values: &[f32; BLOCK], codes: &[f32; BLOCK]) -> Self {
        let n = BLOCK as f32;
        let (q, x) = (sum(codes, |_, q| q, codes), sum(values, |x, _| x, codes));
        let (qq, xq) = (sum(codes, |q, _| q * q, codes), sum(values, |x, q| x * q, codes));
        let determinant = n * qq - q * q;
        if determinant <= 0.0 {
            return self;
        }
        Self {
            scale: (n * xq - q * x) / determinant,
            min: (qq * x - q * xq) / determinant,
        }
    }

    fn error(self, values: &[f32; BLOCK], codes: &[f32; BLOCK]) -> f32 {
        let square = |value: f32, code: f32| {
            let error = self.scale * code + self.min - value;
            error * error
        };
        sum(values, square, codes)
    }
}

fn sum(values: &[f32; BLOCK], of: impl Fn(f32, f32) -> f32, codes: &[f32; BLOCK]) -> f32 {
    let mut lanes = [0.0; LANES];
    for (values, codes) in values.chunks_exact(LANES).zip(codes.chunks_exact(LANES)) {
        for lane in 0..LANES {
            lanes[lane] += of(values[lane], codes[lane]);
        }
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// A scale, a minimum, then a nibble per value: the first sixteen in the low ones.
fn q4_1(values: &[f32; BLOCK], to: &mut [u8]) {
    let low = values.iter().copied().fold(f32::INFINITY, f32::min);
    let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let step = (high - low) / 15.0;
    let ends = |below: f32, above: f32| Line {
        scale: step * (1.0 - (below + above) / 15.0),
        min: low + below * step,
    };
    // Values that are all alike are a line of no slope, which is where the search starts.
    let mut best = (ends(0.0, 0.0).stored(), f32::INFINITY);
    for below in INSETS {
        for above in INSETS {
            let first = ends(below, above);
            let line = first.fitted(values, &first.codes(values)).stored();
            let error = line.error(values, &line.codes(values));
            if error < best.1 {
                best = (line, error);
            }
        }
    }
    let (line, _) = best;
    let codes = line.codes(values);
    to[..2].copy_from_slice(&f16::from_f32(line.scale).to_le_bytes());
    to[2..4].copy_from_slice(&f16::from_f32(line.min).to_le_bytes());
    for (to, (low, high)) in to[4..].iter_mut().zip(codes[..16].iter().zip(&codes[16..])) {
        *to = *low as u8 | (*high as u8) << 4;
    }
}

#[cfg(test)]
mod tests;
