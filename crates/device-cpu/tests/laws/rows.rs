//! Operations whose rows know nothing of each other.

use crate::harness::{assert_close, bits, devices, live_rows, matrix, numbers, step_of, tensor};
use paceline_device::abi::TokenRow;
use paceline_device::{
    Activation, Backend, GateOrder, GatedNorm, MoeRouting, Pending, ResidualNorm, RouteScores, Router,
};
use paceline_device_cpu::{Cpu, CpuTensor};

const ROWS: usize = 150;
const BATCHES: [usize; 9] = [1, 2, 3, 5, 7, 8, 16, 33, 150];

/// Runs `op` over the rows of the inputs in batches of every size on every device, asserts that the bits agree,
/// and returns the result.
fn row_law(inputs: &[(u64, usize, f32)], op: impl Fn(&Cpu, &[CpuTensor]) -> Vec<CpuTensor>) -> Vec<Vec<f32>> {
    let mut expected: Option<Vec<Vec<f32>>> = None;
    let contents: Vec<Vec<f32>> = inputs
        .iter()
        .map(|(name, columns, scale)| matrix(*name, ROWS, *columns, *scale))
        .collect();
    for (device, cpu) in devices() {
        for batch in BATCHES {
            let mut results: Vec<Vec<f32>> = Vec::new();
            for start in (0..ROWS).step_by(batch) {
                let count = batch.min(ROWS - start);
                let rows = live_rows(&cpu, count);
                let inputs: Vec<CpuTensor> = inputs
                    .iter()
                    .zip(&contents)
                    .map(|((_, columns, _), all)| {
                        let part = &all[start * columns..(start + count) * columns];
                        tensor(&cpu, &rows, part, *columns)
                    })
                    .collect();
                let outputs = op(&cpu, &inputs);
                results.resize(outputs.len(), Vec::new());
                for (result, output) in results.iter_mut().zip(outputs) {
                    result.extend(cpu.read_tensor(&output).wait().unwrap());
                }
            }
            match &expected {
                None => expected = Some(results),
                Some(expected) => {
                    for (expected, result) in expected.iter().zip(&results) {
                        assert!(
                            bits(expected) == bits(result),
                            "batches of {batch} differ on {device}"
                        );
                    }
                }
            }
        }
    }
    expected.unwrap()
}

fn empty(cpu: &Cpu, rows: usize, columns: usize) -> CpuTensor {
    cpu.tensor(&live_rows(cpu, rows), columns).unwrap()
}

fn rows_of(cpu: &Cpu, tensor: &CpuTensor, columns: usize) -> usize {
    cpu.read_tensor(tensor).wait().unwrap().len() / columns
}

/// A new tensor with the rows of one that has `columns` columns.
fn out(cpu: &Cpu, tensor: &CpuTensor, columns: usize, out_columns: usize) -> CpuTensor {
    let rows = rows_of(cpu, tensor, columns);
    empty(cpu, rows, out_columns)
}

fn rms(x: &[f64], eps: f64) -> f64 {
    (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + eps).sqrt()
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

const N: usize = 1037;
const EPS: f32 = 1e-5;

#[test]
fn rms_norm_keeps_the_law() {
    let weight = numbers((9, 0, 0), N, 2.0);
    let result = row_law(&[(1, N, 3.0)], |cpu, inputs| {
        let mut out = out(cpu, &inputs[0], N, N);
        let weight = cpu.buffer_from(&weight).unwrap();
        cpu.rms_norm(&inputs[0], &weight, EPS, &mut out);
        vec![out]
    });
    let mut expected = Vec::new();
    for row in matrix(1, ROWS, N, 3.0).chunks(N) {
        let x = wide(row);
        let scale = rms(&x, f64::from(EPS));
        expected.extend(x.iter().zip(&weight).map(|(x, w)| x / scale * f64::from(*w)));
    }
    assert_close("rms_norm", &result[0], &expected, 2e-6);
}

#[test]
fn add_rms_norm_keeps_the_law() {
    let weight = numbers((9, 0, 0), N, 2.0);
    let result = row_law(&[(1, N, 3.0), (2, N, 1.0)], |cpu, inputs| {
        let mut out = out(cpu, &inputs[0], N, N);
        let mut residual = inputs[0].clone();
        let weight = cpu.buffer_from(&weight).unwrap();
        let norm = ResidualNorm {
            residual: &mut residual,
            scale: 0.25,
            weight: &weight,
            eps: EPS,
            out: &mut out,
        };
        cpu.add_rms_norm(&inputs[1], norm);
        vec![residual, out]
    });
    let (mut sums, mut normed) = (Vec::new(), Vec::new());
    let deltas = matrix(2, ROWS, N, 1.0);
    for (row, delta) in matrix(1, ROWS, N, 3.0).chunks(N).zip(deltas.chunks(N)) {
        let x: Vec<f64> = wide(row)
            .iter()
            .zip(wide(delta))
            .map(|(x, d)| x + d * 0.25)
            .collect();
        let scale = rms(&x, f64::from(EPS));
        normed.extend(x.iter().zip(&weight).map(|(x, w)| x / scale * f64::from(*w)));
        sums.extend(x);
    }
    assert_close("the residual", &result[0], &sums, 1e-6);
    assert_close("the norm", &result[1], &normed, 2e-6);
}

#[test]
fn add_keeps_the_law() {
    for gated in [false, true] {
        let result = row_law(&[(1, N, 3.0), (2, N, 1.0), (3, 1, 4.0)], |cpu, inputs| {
            let mut acc = inputs[0].clone();
            cpu.add(&mut acc, &inputs[1], 0.7, gated.then_some(&inputs[2]));
            vec![acc]
        });
        let (x, gate) = (matrix(2, ROWS, N, 1.0), matrix(3, ROWS, 1, 4.0));
        let expected: Vec<f64> = matrix(1, ROWS, N, 3.0)
            .iter()
            .enumerate()
            .map(|(i, acc)| {
                let gate = if gated {
                    sigmoid(f64::from(gate[i / N]))
                } else {
                    1.0
                };
                f64::from(*acc) + f64::from(x[i]) * f64::from(0.7_f32) * gate
            })
            .collect();
        assert_close("add", &result[0], &expected, 1e-6);
    }
}

#[test]
fn activations_keep_the_law() {
    let n = 203;
    for activation in [Activation::SiluGated { gate_scale: 0.5 }, Activation::ReluSquared] {
        let columns = n * activation.fan_in();
        let result = row_law(&[(1, columns, 6.0)], |cpu, inputs| {
            let mut out = out(cpu, &inputs[0], columns, n);
            cpu.activate(&inputs[0], activation, &mut out);
            vec![out]
        });
        let mut expected = Vec::new();
        for row in matrix(1, ROWS, columns, 6.0).chunks(columns) {
            let x = wide(row);
            expected.extend((0..n).map(|i| match activation {
                Activation::SiluGated { gate_scale } => silu(x[i] * f64::from(gate_scale)) * x[n + i],
                Activation::ReluSquared => x[i].max(0.0).powi(2),
            }));
        }
        assert_close("activate", &result[0], &expected, 1e-6);
    }
}

#[test]
fn gated_norm_keeps_the_law() {
    let (n, group) = (3 * 44, 44);
    for order in [GateOrder::NormThenGate, GateOrder::GateThenNorm] {
        for weights in [0, group, n] {
            let weight = numbers((9, 0, 0), weights, 2.0);
            let result = row_law(&[(1, n, 3.0), (2, n, 4.0)], |cpu, inputs| {
                let mut out = out(cpu, &inputs[0], n, n);
                let weight = (weights > 0).then(|| cpu.buffer_from(&weight).unwrap());
                cpu.gated_norm(GatedNorm {
                    x: &inputs[0],
                    gate: &inputs[1],
                    weight: weight.as_ref(),
                    group,
                    order,
                    eps: EPS,
                    out: &mut out,
                });
                vec![out]
            });
            let mut expected = Vec::new();
            let gates = matrix(2, ROWS, n, 4.0);
            for (index, row) in matrix(1, ROWS, n, 3.0).chunks(group).enumerate() {
                let gate: Vec<f64> = wide(&gates[index * group..][..group])
                    .into_iter()
                    .map(silu)
                    .collect();
                let mut x = wide(row);
                if weights == 0 || order == GateOrder::GateThenNorm {
                    x.iter_mut().zip(&gate).for_each(|(x, gate)| *x *= gate);
                }
                if weights > 0 {
                    let scale = rms(&x, f64::from(EPS));
                    let start = index * group % weights;
                    for (x, w) in x.iter_mut().zip(&weight[start..]) {
                        *x = *x / scale * f64::from(*w);
                    }
                    if order == GateOrder::NormThenGate {
                        x.iter_mut().zip(&gate).for_each(|(x, gate)| *x *= gate);
                    }
                }
                expected.extend(x);
            }
            assert_close("gated_norm", &result[0], &expected, 3e-6);
        }
    }
}

#[test]
fn rope_angles_are_cosines_and_sines() {
    let frequencies: Vec<f32> = (0..20).map(|i| 10_000_f32.powf(-(i as f32) / 20.0)).collect();
    let positions: Vec<i32> = (0..300).map(|i| i * 37).collect();
    let mut all = Vec::new();
    for (_, cpu) in devices() {
        let at = |position: &i32| TokenRow {
            position: *position,
            ..TokenRow::default()
        };
        let step = step_of(&cpu, &positions.iter().map(at).collect::<Vec<_>>());
        let mut out = cpu.tensor(&step.tokens, 40).unwrap();
        cpu.rope_angles(&step, &cpu.buffer_from(&frequencies).unwrap(), 1.5, &mut out);
        all.push(cpu.read_tensor(&out).wait().unwrap());
    }
    assert!(all.iter().all(|values| bits(values) == bits(&all[0])));
    let mut expected = Vec::new();
    for position in &positions {
        let angles: Vec<f64> = frequencies
            .iter()
            .map(|frequency| f64::from(*position as f32 * frequency))
            .collect();
        expected.extend(angles.iter().map(|angle| 1.5 * angle.cos()));
        expected.extend(angles.iter().map(|angle| 1.5 * angle.sin()));
    }
    assert_close("rope_angles", &all[0], &expected, 1e-6);
}

/// Experts and weights of a row by plain sorting.
fn naive_route(logits: &[f32], scores: &NaiveScores, chosen: usize) -> (Vec<usize>, Vec<f64>) {
    let logits = wide(logits);
    let by_score = |scores: &[f64], count: usize| {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
        order.truncate(count);
        order
    };
    match scores {
        NaiveScores::Softmax { renormalise } => {
            let total: f64 = logits.iter().map(|x| x.exp()).sum();
            let ids = by_score(&logits, chosen);
            let weights: Vec<f64> = ids.iter().map(|id| logits[*id].exp() / total).collect();
            let sum: f64 = if *renormalise { weights.iter().sum() } else { 1.0 };
            (ids, weights.iter().map(|w| w / sum).collect())
        }
        NaiveScores::Sigmoid { bias, groups, kept } => {
            let plain: Vec<f64> = logits.iter().map(|x| sigmoid(*x)).collect();
            let mut biased: Vec<f64> = plain.iter().zip(bias).map(|(p, b)| p + f64::from(*b)).collect();
            let size = logits.len() / groups;
            let strengths: Vec<f64> = biased
                .chunks(size)
                .map(|group| by_score(group, 2).iter().map(|i| group[*i]).sum())
                .collect();
            let kept = by_score(&strengths, *kept);
            for (index, score) in biased.iter_mut().enumerate() {
                if !kept.contains(&(index / size)) {
                    *score = f64::NEG_INFINITY;
                }
            }
            let ids = by_score(&biased, chosen);
            let sum: f64 = ids.iter().map(|id| plain[*id]).sum();
            let weights = ids.iter().map(|id| plain[*id] / sum * 2.5).collect();
            (ids, weights)
        }
    }
}

enum NaiveScores {
    Softmax {
        renormalise: bool,
    },
    Sigmoid {
        bias: Vec<f32>,
        groups: usize,
        kept: usize,
    },
}

#[test]
fn routing_keeps_the_law() {
    let (experts, chosen) = (60, 7);
    let bias = numbers((5, 0, 0), experts, 0.3);
    for kind in [
        NaiveScores::Softmax { renormalise: false },
        NaiveScores::Softmax { renormalise: true },
        NaiveScores::Sigmoid {
            bias: bias.clone(),
            groups: 6,
            kept: 3,
        },
        NaiveScores::Sigmoid {
            bias: bias.clone(),
            groups: 1,
            kept: 1,
        },
    ] {
        let ids_seen = std::sync::Mutex::new(Vec::new());
        let result = row_law(&[(1, experts, 3.0)], |cpu, inputs| {
            let rows = rows_of(cpu, &inputs[0], experts);
            let mut routing = MoeRouting {
                ids: cpu.buffer(rows * chosen).unwrap(),
                weights: empty(cpu, rows, chosen),
                chosen,
            };
            let bias = cpu.buffer_from(&bias).unwrap();
            let scores = match &kind {
                NaiveScores::Softmax { renormalise } => RouteScores::Softmax {
                    renormalise: *renormalise,
                },
                NaiveScores::Sigmoid { groups, kept, .. } => RouteScores::Sigmoid {
                    bias: &bias,
                    groups: *groups,
                    kept_groups: *kept,
                    renormalise: true,
                    scale: 2.5,
                },
            };
            cpu.route(Router {
                logits: &inputs[0],
                scores,
                shared: false,
                out: &mut routing,
            });
            ids_seen
                .lock()
                .unwrap()
                .extend(cpu.read(&routing.ids, rows * chosen).wait().unwrap());
            vec![routing.weights]
        });
        let (mut ids, mut weights) = (Vec::new(), Vec::new());
        for row in matrix(1, ROWS, experts, 3.0).chunks(experts) {
            let (row_ids, row_weights) = naive_route(row, &kind, chosen);
            ids.extend(row_ids.iter().map(|id| *id as i32));
            weights.extend(row_weights);
        }
        for seen in ids_seen.lock().unwrap().chunks(ROWS * chosen) {
            assert_eq!(seen, ids);
        }
        assert_close("route", &result[0], &weights, 1e-6);
    }
}

#[test]
fn equal_scores_go_to_the_lower_expert() {
    let (_, cpu) = devices().remove(0);
    let rows = live_rows(&cpu, 1);
    let logits = tensor(&cpu, &rows, &[1.0, 2.0, 2.0, 0.0, 2.0, 1.0], 6);
    let mut routing = MoeRouting {
        ids: cpu.buffer(5).unwrap(),
        weights: cpu.tensor(&rows, 5).unwrap(),
        chosen: 5,
    };
    cpu.route(Router {
        logits: &logits,
        scores: RouteScores::Softmax { renormalise: true },
        shared: false,
        out: &mut routing,
    });
    assert_eq!(cpu.read(&routing.ids, 5).wait().unwrap(), [1, 2, 4, 0, 5]);
}

#[test]
fn gather_and_copy_move_rows() {
    for (_, cpu) in devices() {
        let data = matrix(1, ROWS, N, 1.0);
        let rows = live_rows(&cpu, ROWS);
        let x = tensor(&cpu, &rows, &data, N);
        let index: Vec<i32> = (0..70).map(|i| (i * 31) % ROWS as i32).collect();
        let picked_rows = live_rows(&cpu, index.len());
        let mut picked = cpu.tensor(&picked_rows, N).unwrap();
        cpu.gather(&x, &cpu.buffer_from(&index).unwrap(), &mut picked);
        let expected: Vec<f32> = index
            .iter()
            .flat_map(|row| data[*row as usize * N..][..N].to_vec())
            .collect();
        assert_eq!(bits(&cpu.read_tensor(&picked).wait().unwrap()), bits(&expected));
        let mut part = cpu.tensor(&rows, 100).unwrap();
        cpu.copy(&cpu.columns(&x, 11..111), &mut part);
        let expected: Vec<f32> = data.chunks(N).flat_map(|row| row[11..111].to_vec()).collect();
        assert_eq!(bits(&cpu.read_tensor(&part).wait().unwrap()), bits(&expected));
    }
}
