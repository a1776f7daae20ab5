//! Products against a scalar reference and against themselves.

use super::*;
use crate::simd::Instructions;
use crate::weight::tests::{Stored, numbers, plain_weights, pools, quantised, stored};
use paceline_device::{RowOrder, WeightPart, e4m3_value};
use paceline_types::DType;

/// What a product with a stored matrix has to give.
fn expected_of(x: &[f32], data: &Stored) -> Vec<f32> {
    if data.dtype.is_quantised() {
        x.chunks(data.inputs)
            .flat_map(|x| (0..data.rows).map(|output| quantised_output(x, data, output)))
            .collect()
    } else if data.dtype == DType::F8E4M3 {
        x.chunks(data.inputs)
            .flat_map(|x| (0..data.rows).map(|output| scaled_output(x, data, output)))
            .collect()
    } else {
        reference(x, &plain_weights(data), data.inputs, None, None)
    }
}

/// Block by block: 8-bit floats as they are, one sum of products in order, then the scale.
fn scaled_output(x: &[f32], data: &Stored, output: usize) -> f32 {
    let codes = &data.data[output * data.inputs..][..data.inputs];
    let mut total = 0.0_f32;
    for (block, (x, codes)) in x.chunks(128).zip(codes.chunks(128)).enumerate() {
        let add = |sum: f32, (x, code): (&f32, &u8)| x.mul_add(e4m3_value(*code), sum);
        let sum = x.iter().zip(codes).fold(0.0, add);
        total = data.scale(output, block * 128).mul_add(sum, total);
    }
    total
}

/// Group by group: inputs as 16-bit integers, an exact sum of products of integers, then the scales.
fn quantised_output(x: &[f32], data: &Stored, output: usize) -> f32 {
    let (length, bytes) = (data.dtype.block_len(), data.dtype.block_bytes());
    let weight = |input: usize| {
        let at = (output * data.inputs + input) / length * bytes;
        quantised(data.dtype, &data.data[at..at + bytes], input % length)
    };
    // Types with a scale per 16 inputs add two terms per group.
    let part = if matches!(data.dtype, DType::Q2K | DType::Q3K | DType::Q6K) {
        16
    } else {
        32
    };
    let mut sum = 0.0_f32;
    for (group, x) in x.chunks(32).enumerate() {
        let largest = x.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        if largest < 1e-30 {
            continue;
        }
        let scale = largest / 32512.0;
        let codes: Vec<i64> = x
            .iter()
            .map(|x| (x * (32512.0 / largest)).round_ties_even() as i64)
            .collect();
        for (index, codes) in codes.chunks(part).enumerate() {
            let first = group * 32 + index * part;
            let products = codes.iter().zip(first..);
            let total: i64 = products
                .map(|(code, input)| code * i64::from(weight(input).code))
                .sum();
            let weight = weight(first);
            sum = (total as f32).mul_add(weight.scale * scale, sum);
            if let Some(minimum) = weight.minimum {
                sum = minimum.mul_add(codes.iter().sum::<i64>() as f32 * scale, sum);
            }
        }
    }
    sum
}

/// Row by row, output by output, input by input.
fn reference(
    x: &[f32],
    weights: &[f32],
    inputs: usize,
    bias: Option<&[f32]>,
    scale: Option<&[f32]>,
) -> Vec<f32> {
    let mut out = Vec::new();
    for x in x.chunks(inputs) {
        for (o, weights) in weights.chunks(inputs).enumerate() {
            let mut sum = 0.0_f32;
            for (x, w) in x.iter().zip(weights) {
                sum = x.mul_add(*w, sum);
            }
            if let Some(bias) = bias {
                sum += bias[o];
            }
            if let Some(scale) = scale {
                sum *= scale[o];
            }
            out.push(sum);
        }
    }
    out
}

fn product(pool: &Pool, x: &[f32], w: &CpuWeight, bias: Option<&[f32]>, scale: Option<&[f32]>) -> Vec<f32> {
    let rows = x.len() / w.inputs();
    let mut out = vec![f32::NAN; rows * w.outputs()];
    let out_view = Out::over(&mut out, w.outputs());
    linear(pool, In::over(x, w.inputs()), w, bias, scale, out_view);
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn inputs_for(dtype: DType) -> [usize; 2] {
    match dtype.block_len() {
        1 => [33, 300],
        length => [length, 5 * length.min(64)],
    }
    .map(|inputs| inputs.next_multiple_of(dtype.block_len()))
}

#[test]
fn every_type_and_shape_gives_the_sequential_sums_bit_for_bit() {
    let pools = pools();
    for dtype in DType::ALL {
        for outputs in [1, 15, 16, 17, 50, 130] {
            for inputs in inputs_for(dtype) {
                let data = stored(dtype, outputs, inputs, outputs as u64);
                let w = data.pack(None);
                let x = numbers(33 * inputs, 11);
                let expected = expected_of(&x, &data);
                for rows in [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33] {
                    for pool in &pools {
                        let out = product(pool, &x[..rows * inputs], &w, None, None);
                        assert!(
                            bits(&out) == bits(&expected[..rows * outputs]),
                            "{dtype} [{outputs}, {inputs}], {rows} rows, {} threads, {:?}",
                            pool.threads(),
                            pool.instructions()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn large_products_cut_into_pieces_give_the_same_bits() {
    for (dtype, outputs, inputs) in [
        (DType::F32, 700, 513),
        (DType::BF16, 900, 300),
        (DType::F8E4M3, 900, 1_300),
        (DType::Q4K, 333, 512),
    ] {
        let data = stored(dtype, outputs, inputs, 3);
        let w = data.pack(None);
        let x = numbers(200 * inputs, 5);
        let expected = expected_of(&x, &data);
        for threads in 1..=3 {
            let pool = Pool::new(threads, Instructions::detect());
            for rows in [1, 2, 97, 200] {
                let out = product(&pool, &x[..rows * inputs], &w, None, None);
                assert!(
                    bits(&out) == bits(&expected[..rows * outputs]),
                    "{dtype}, {rows} rows"
                );
            }
        }
    }
}

/// As many rows and inputs as tiles take in several turns: rows that fill them or not, groups that end within a turn.
#[test]
fn many_rows_of_many_inputs_give_the_sequential_sums_bit_for_bit() {
    let types = DType::ALL.into_iter().filter(|dtype| dtype.is_quantised());
    let shapes = types.map(|dtype| (dtype, 33, 1_792)).chain([
        (DType::Q4K, 40, 3_328),
        (DType::Q6K, 40, 3_328),
        (DType::Q8_0, 40, 3_328),
    ]);
    for (dtype, outputs, inputs) in shapes {
        let data = stored(dtype, outputs, inputs, 7);
        let (w, x) = (data.pack(None), numbers(40 * inputs, 8));
        let expected = expected_of(&x, &data);
        for family in Instructions::all() {
            let pool = Pool::new(2, family);
            for rows in [9, 16, 23, 40] {
                let out = product(&pool, &x[..rows * inputs], &w, None, None);
                assert!(
                    bits(&out) == bits(&expected[..rows * outputs]),
                    "{dtype}, {inputs} inputs, {rows} rows, {family:?}"
                );
            }
        }
    }
}

#[test]
fn bias_and_scale_are_applied_in_that_order() {
    let data = stored(DType::F32, 21, 40, 9);
    let weights = plain_weights(&data);
    let (x, bias, scale) = (numbers(7 * 40, 4), numbers(21, 5), numbers(21, 6));
    for (bias, scale) in [
        (Some(&bias[..]), None),
        (None, Some(&scale[..])),
        (Some(&bias[..]), Some(&scale[..])),
    ] {
        for pool in pools() {
            let out = product(&pool, &x, &data.pack(None), bias, scale);
            assert_eq!(bits(&out), bits(&reference(&x, &weights, 40, bias, scale)));
        }
    }
}

#[test]
fn parts_of_different_types_and_picked_rows_stack_along_the_outputs() {
    let stack = [
        stored(DType::Q4_1, 17, 64, 1),
        stored(DType::F32, 5, 64, 2),
        stored(DType::F32, 30, 64, 3),
        stored(DType::BF16, 3, 64, 4),
    ];
    let picks: [Option<Vec<u32>>; 4] = [None, Some(vec![4, 0, 0]), None, Some(vec![2, 1])];
    let x = numbers(4 * 64, 2);
    let mut expected = vec![Vec::new(); 4];
    let mut parts: Vec<WeightPart<'_>> = Vec::new();
    for (data, pick) in stack.iter().zip(picks) {
        let rows = pick.clone().unwrap_or_else(|| (0..data.rows as u32).collect());
        for (expected, x) in expected.iter_mut().zip(x.chunks(64)) {
            let outputs = expected_of(x, data);
            expected.extend(rows.iter().map(|row| outputs[*row as usize]));
        }
        let mut part = data.part("part");
        part.order = pick.map_or(RowOrder::Stored, RowOrder::Picked);
        parts.push(part);
    }
    let w = CpuWeight::pack(&parts, None, 2).unwrap();
    assert_eq!((w.outputs(), w.inputs()), (17 + 3 + 30 + 2, 64));
    for pool in pools() {
        for rows in [1, 4] {
            let out = product(&pool, &x[..rows * 64], &w, None, None);
            assert_eq!(bits(&out), bits(&expected[..rows].concat()));
        }
    }
}

#[test]
fn converted_weights_are_rounded_to_nearest_even() {
    let x = numbers(2 * 512, 8);
    let pool = Pool::new(1, Instructions::detect());
    for dtype in DType::ALL {
        let data = stored(dtype, 18, 512, 6);
        let plain = plain_weights(&data);
        for (store_as, round) in [
            (DType::F32, (|value| value) as fn(f32) -> f32),
            (DType::BF16, |value| half::bf16::from_f32(value).to_f32()),
            (DType::F16, |value| half::f16::from_f32(value).to_f32()),
        ] {
            let rounded: Vec<f32> = plain.iter().map(|value| round(*value)).collect();
            let out = product(&pool, &x, &data.pack(Some(store_as)), None, None);
            let expected = reference(&x, &rounded, 512, None, None);
            assert!(bits(&out) == bits(&expected), "{dtype} as {store_as}");
        }
    }
}

#[test]
fn outputs_agree_with_exact_arithmetic() {
    let data: Stored = stored(DType::F32, 40, 700, 1);
    let weights = plain_weights(&data);
    let x = numbers(700, 3);
    let pool = Pool::new(1, Instructions::detect());
    let out = product(&pool, &x, &data.pack(None), None, None);
    for (out, weights) in out.iter().zip(weights.chunks(700)) {
        let exact: f64 = x
            .iter()
            .zip(weights)
            .map(|(a, b)| f64::from(*a) * f64::from(*b))
            .sum();
        assert!((f64::from(*out) - exact).abs() < 1e-4, "{out} for {exact}");
    }
}

#[test]
fn products_with_integers_for_inputs_are_close_to_exact_arithmetic() {
    // Against exact arithmetic on the same weights, relative to the size of the terms.
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_quantised()) {
        let data = stored(dtype, 40, 768, 1);
        let weights = plain_weights(&data);
        let x = numbers(768, 3);
        let out = product(&pools()[1], &x, &data.pack(None), None, None);
        for (out, weights) in out.iter().zip(weights.chunks(768)) {
            let terms = x.iter().zip(weights).map(|(a, b)| f64::from(*a) * f64::from(*b));
            let size: f64 = terms.clone().map(|term| term * term).sum::<f64>().sqrt();
            let error = (f64::from(*out) - terms.sum::<f64>()).abs();
            assert!(error < size / 15_000.0, "{dtype}: {error:e} of {size}");
        }
    }
}

#[test]
fn inputs_that_are_not_finite_make_outputs_that_are_not() {
    let data = stored(DType::Q4_0, 20, 96, 1);
    for pool in pools() {
        for (wrong, rows) in [
            (f32::NAN, 1),
            (f32::INFINITY, 1),
            (f32::NEG_INFINITY, 9),
            (f32::NAN, 9),
        ] {
            let mut x = numbers(rows * 96, 3);
            x[(rows - 1) * 96 + 40] = wrong;
            let out = product(&pool, &x, &data.pack(None), None, None);
            let (good, bad) = out.split_at((rows - 1) * 20);
            assert!(good.iter().all(|out| out.is_finite()));
            assert!(bad.iter().all(|out| !out.is_finite()), "{wrong}: {bad:?}");
        }
    }
}

#[test]
fn inputs_too_small_for_a_scale_count_as_zeros() {
    let data = stored(DType::Q4_1, 20, 64, 1);
    for (small, zero) in [(0.0, true), (1e-40, true), (1e-31, true), (1e-29, false)] {
        let x = vec![small; 64];
        for pool in pools() {
            let out = product(&pool, &x, &data.pack(None), None, None);
            assert_eq!(out.iter().all(|out| *out == 0.0), zero, "{small:e}");
        }
    }
}
