//! Claims about blocks that are made of floating-point rows.

use super::super::tests::{Stored, numbers};
use super::super::{CpuWeight, push_rows};
use super::*;

/// A matrix of f32 rows.
fn matrix(values: &[f32], inputs: usize) -> Stored {
    Stored {
        dtype: DType::F32,
        rows: values.len() / inputs,
        inputs,
        scales: Vec::new(),
        data: values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}

fn quantised(stored: &Stored, dtype: DType, threads: usize) -> Result<Vec<u8>, DeviceError> {
    let part = stored.part("w");
    let bytes = part.bytes();
    let mut of = Vec::new();
    push_rows((&part, &bytes), stored.inputs, &mut of)?;
    rows(&of, dtype, stored.inputs, threads)
}

/// The values of blocks.
fn values(dtype: DType, blocks: &[u8]) -> Vec<f32> {
    let mut block = Block::ZERO;
    let read = |stored: &[u8]| {
        let mut values = [0.0; BLOCK];
        block.read(dtype, stored);
        block.weights(dtype, &mut values);
        values
    };
    blocks.chunks_exact(dtype.block_bytes()).flat_map(read).collect()
}

/// About normally distributed numbers.
fn normal(count: usize, seed: u64) -> Vec<f32> {
    let even = numbers(count * 12, seed);
    even.chunks_exact(12)
        .map(|of| of.iter().sum::<f32>() / 2.0)
        .collect()
}

/// The root mean square of the differences by that of the values.
fn relative_error(values: &[f32], kept: &[f32]) -> f64 {
    let square = |value: f32| f64::from(value) * f64::from(value);
    let of: f64 = values.iter().map(|value| square(*value)).sum();
    let error: f64 = values.iter().zip(kept).map(|(a, b)| square(a - b)).sum();
    (error / of).sqrt()
}

#[test]
fn every_value_is_within_half_a_step_of_its_block() {
    for scale in [1e-3, 1.0, 300.0] {
        let of: Vec<f32> = normal(64 * 64, 3).iter().map(|value| value * scale).collect();
        let kept = values(DType::Q8_0, &quantised(&matrix(&of, 64), DType::Q8_0, 1).unwrap());
        for (values, kept) in of.chunks(BLOCK).zip(kept.chunks(BLOCK)) {
            let largest = values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            for (value, kept) in values.iter().zip(kept) {
                // Half a step, and what rounding the scale to 16 bits adds at most.
                let bound = largest * (0.5 / 127.0 + 1.0 / 2048.0);
                assert!(
                    (value - kept).abs() <= bound,
                    "{value} became {kept}, {bound} allowed"
                );
            }
        }
        let kept = values(DType::Q4_1, &quantised(&matrix(&of, 64), DType::Q4_1, 1).unwrap());
        for (values, kept) in of.chunks(BLOCK).zip(kept.chunks(BLOCK)) {
            let low = values.iter().copied().fold(f32::INFINITY, f32::min);
            let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            // The search may give up the ends for the middle, but never more than all in all it gains.
            let plain = (high - low) / 30.0 + high.abs().max(low.abs()) / 1024.0;
            let error: f32 = values.iter().zip(kept).map(|(a, b)| (a - b) * (a - b)).sum();
            assert!(error <= BLOCK as f32 * plain * plain, "{error} of {values:?}");
        }
    }
}

#[test]
fn four_bits_are_better_than_levels_between_the_ends() {
    let of = normal(1 << 16, 5);
    let error = |dtype| {
        let blocks = quantised(&matrix(&of, 256), dtype, 2).unwrap();
        relative_error(&of, &values(dtype, &blocks))
    };
    // Levels between the smallest and the largest value leave 0.078, the largest value by -8 leaves 0.086.
    let (four, eight) = (error(DType::Q4_1), error(DType::Q8_0));
    assert!(four < 0.0715, "{four}");
    assert!(eight < 0.0055, "{eight}");
}

#[test]
fn blocks_that_are_alike_or_tiny_or_one_sided_keep_their_values() {
    let mut of = vec![0.25_f32; BLOCK];
    of.extend([0.0; BLOCK]);
    of.extend([-3.0; BLOCK]);
    of.extend((0..BLOCK).map(|index| (index % 16) as f32 * 0.5 + 2.0));
    of.extend([1e-12; BLOCK]);
    for (dtype, allowed) in [(DType::Q8_0, 0.04), (DType::Q4_1, 1e-11)] {
        let kept = values(dtype, &quantised(&matrix(&of, 160), dtype, 1).unwrap());
        for (index, (value, kept)) in of.iter().zip(&kept).enumerate() {
            assert!(
                (value - kept).abs() <= allowed,
                "{dtype}: value {index}, {value} became {kept}"
            );
        }
    }
}

#[test]
fn threads_change_no_block() {
    let of = matrix(&normal(100 * 96, 7), 96);
    for dtype in [DType::Q8_0, DType::Q4_1] {
        let one = quantised(&of, dtype, 1).unwrap();
        assert!(one == quantised(&of, dtype, 3).unwrap(), "{dtype}");
    }
}

#[test]
fn a_weight_is_packed_like_one_that_is_stored_in_these_blocks() {
    let of = matrix(&normal(40 * 96, 9), 96);
    for dtype in [DType::Q8_0, DType::Q4_1] {
        let stored = Stored {
            dtype,
            rows: of.rows,
            inputs: of.inputs,
            scales: Vec::new(),
            data: quantised(&of, dtype, 1).unwrap(),
        };
        let (converted, stored) = (of.pack(Some(dtype)), stored.pack(None));
        assert_eq!(converted.bytes(), stored.bytes());
        let panels = |weight: &CpuWeight| {
            let segment = &weight.segments()[0];
            assert_eq!(segment.dtype, dtype);
            // SAFETY: all panels of the segment.
            unsafe { std::slice::from_raw_parts(segment.panel(0), weight.bytes()) }.to_vec()
        };
        assert!(panels(&converted) == panels(&stored), "{dtype}");
    }
}

#[test]
fn what_no_block_can_hold_is_named() {
    let failure = |value: f32, dtype: DType| {
        let mut of = vec![0.5; 64];
        of[40] = value;
        quantised(&matrix(&of, 32), dtype, 1).map_or_else(|error| error.to_string(), |_| "made".to_owned())
    };
    for dtype in [DType::Q8_0, DType::Q4_1] {
        assert_eq!(
            failure(f32::NAN, dtype),
            "weight w: row 1 holds a value that is not finite"
        );
        assert_eq!(
            failure(-7e4, dtype),
            format!("weight w: row 1 holds 7e4, too large for {dtype}")
        );
        assert_eq!(failure(-6e4, dtype), "made");
    }
}
