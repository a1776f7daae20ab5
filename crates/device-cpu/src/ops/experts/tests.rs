//! Experts against their parts, and against themselves.

use super::*;
use crate::ops::linear::linear;
use crate::weight::tests::{numbers, pools, stored};
use paceline_types::DType;

const HIDDEN: usize = 64;
const WIDTH: usize = 32;
const EXPERTS: usize = 5;

fn layer(dtype: DType, fan_in: usize) -> (Vec<CpuWeight>, Vec<CpuWeight>) {
    let pack = |rows, inputs, seed| stored(dtype, rows, inputs, seed).pack(None);
    (0..EXPERTS as u64)
        .map(|expert| {
            (
                pack(fan_in * WIDTH, HIDDEN, expert),
                pack(HIDDEN, WIDTH, 100 + expert),
            )
        })
        .unzip()
}

/// One row through one expert.
fn alone(pool: &Pool, x: &[f32], up: &CpuWeight, down: &CpuWeight, activation: Activation) -> Vec<f32> {
    let mut wide = vec![0.0; up.outputs()];
    let mut active = vec![0.0; WIDTH];
    let mut out = vec![0.0; HIDDEN];
    linear(
        pool,
        In::over(x, HIDDEN),
        up,
        None,
        None,
        Out::over(&mut wide, up.outputs()),
    );
    activate(
        pool,
        In::over(&wide, up.outputs()),
        activation,
        Out::over(&mut active, WIDTH),
    );
    linear(
        pool,
        In::over(&active, WIDTH),
        down,
        None,
        None,
        Out::over(&mut out, HIDDEN),
    );
    out
}

#[test]
fn rows_get_the_weighted_sum_of_their_experts_best_first_in_any_batch() {
    let chosen = 3;
    let rows = 33;
    let x = numbers(rows * HIDDEN, 1);
    let weights = numbers(rows * chosen, 2);
    // Three different experts per row, unevenly spread.
    let ids: Vec<i32> = (0..rows * chosen)
        .map(|pair| ((pair / chosen * pair / chosen % 3) + pair % chosen) as i32)
        .collect();
    let pools = pools();
    for (dtype, activation) in [
        (DType::F32, Activation::SiluGated { gate_scale: 1.0 }),
        (DType::Q8_0, Activation::SiluGated { gate_scale: 0.7 }),
        (DType::BF16, Activation::ReluSquared),
    ] {
        let (ups, downs) = layer(dtype, activation.fan_in());
        let experts = CpuExperts::new(ups.clone(), downs.clone()).unwrap();
        let mut expected = vec![0.0_f32; rows * HIDDEN];
        for (pair, id) in ids.iter().enumerate() {
            let row = pair / chosen;
            let (up, down) = (&ups[*id as usize], &downs[*id as usize]);
            let y = alone(&pools[0], &x[row * HIDDEN..][..HIDDEN], up, down, activation);
            for (sum, y) in expected[row * HIDDEN..].iter_mut().zip(&y) {
                *sum = weights[pair].mul_add(*y, *sum);
            }
        }
        for pool in &pools {
            for count in [1, 2, 3, 5, 7, 8, 16, 33] {
                let mut out = vec![f32::NAN; count * HIDDEN];
                run_experts(
                    pool,
                    &ExpertsArgs {
                        x: In::over(&x[..count * HIDDEN], HIDDEN),
                        ids: &ids,
                        weights: In::over(&weights[..count * chosen], chosen),
                        chosen,
                        experts: &experts,
                        activation,
                        out: Out::over(&mut out, HIDDEN),
                    },
                );
                let equal = out.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(
                    equal,
                    "{dtype}, {count} rows, {} threads, {:?}",
                    pool.threads(),
                    pool.instructions()
                );
            }
        }
    }
}

#[test]
fn matrices_that_do_not_follow_each_other_are_refused() {
    let (ups, mut downs) = layer(DType::F32, 2);
    assert!(CpuExperts::new(Vec::new(), Vec::new()).is_err());
    assert!(CpuExperts::new(ups[1..].to_vec(), downs.clone()).is_err());
    assert!(CpuExperts::new(downs.clone(), downs.clone()).is_err());
    downs[3] = stored(DType::F32, HIDDEN, WIDTH + 1, 1).pack(None);
    let error = CpuExperts::new(ups, downs).map(|_| ()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "weight experts: expert 3 differs in shape from expert 0"
    );
}
