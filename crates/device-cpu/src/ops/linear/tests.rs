//! Products against a scalar reference and against themselves.

use super::*;
use crate::simd::Instructions;
use crate::weight::tests::{Stored, numbers, plain_weights, pools, stored};
use paceline_device::{RowOrder, WeightPart};
use paceline_types::DType;

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
                let (w, weights) = (data.pack(None), plain_weights(&data));
                let x = numbers(33 * inputs, 11);
                let expected = reference(&x, &weights, inputs, None, None);
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
        (DType::Q4K, 333, 512),
    ] {
        let data = stored(dtype, outputs, inputs, 3);
        let w = data.pack(None);
        let x = numbers(200 * inputs, 5);
        let expected = reference(&x, &plain_weights(&data), inputs, None, None);
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
    let mut expected = Vec::new();
    let mut parts: Vec<WeightPart<'_>> = Vec::new();
    for (data, pick) in stack.iter().zip(picks) {
        let weights = plain_weights(data);
        let rows = pick.clone().unwrap_or_else(|| (0..data.rows as u32).collect());
        for row in &rows {
            expected.extend_from_slice(&weights[*row as usize * 64..][..64]);
        }
        let mut part = data.part("part");
        part.order = pick.map_or(RowOrder::Stored, RowOrder::Picked);
        parts.push(part);
    }
    let w = CpuWeight::pack(&parts, None).unwrap();
    assert_eq!((w.outputs(), w.inputs()), (17 + 3 + 30 + 2, 64));
    let x = numbers(4 * 64, 2);
    for pool in pools() {
        for rows in [1, 4] {
            let out = product(&pool, &x[..rows * 64], &w, None, None);
            assert_eq!(
                bits(&out),
                bits(&reference(&x[..rows * 64], &expected, 64, None, None))
            );
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
