//! Attention over blocks.

use crate::harness::{Session, assert_close, numbers, sequence_law};
use paceline_device::{Attention, Backend, HeadNorms, KeyValueStore, KvShape};
use paceline_device_cpu::CpuTensor;
use paceline_types::DType;

const LENGTHS: [usize; 4] = [70, 33, 101, 1];
const EPS: f32 = 1e-6;

/// A small attention layer.
#[derive(Clone, Copy)]
struct Layer {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// Pairs that are rotated; 0 for a layer without positions.
    rotated: usize,
    norms: bool,
    gate: bool,
    scale: f32,
    /// What keys and values are stored as.
    kv: DType,
}

impl Layer {
    fn frequencies(self) -> Vec<f32> {
        (0..self.rotated)
            .map(|i| 100_f32.powf(-(i as f32) / self.rotated as f32))
            .collect()
    }

    /// The operation on a device: rotation, store and attention.
    fn on(self, session: &Session) -> impl FnMut(&Session) -> CpuTensor + use<> {
        let cpu = session.cpu.clone().with_kv(self.kv);
        let cache = cpu
            .kv_cache(KvShape {
                blocks: session.blocks(),
                block_size: session.tables.limits.block_size,
                heads: self.kv_heads,
                head_dim: self.head_dim,
            })
            .unwrap();
        let norm_weights = [10, 11].map(|name| {
            cpu.buffer_from(&numbers((name, 0, 0), self.head_dim, 1.5))
                .unwrap()
        });
        let frequencies = cpu.buffer_from(&self.frequencies()).unwrap();
        move |session| {
            let mut q = session.tensor(1, self.heads * self.head_dim, 2.0);
            let k = session.tensor(2, self.kv_heads * self.head_dim, 2.0);
            let v = session.tensor(3, self.kv_heads * self.head_dim, 1.0);
            let gate = session.tensor(4, self.heads * self.head_dim, 3.0);
            let mut angles = session.empty(2 * self.rotated);
            cpu.rope_angles(&session.tables, &frequencies, 1.0, &mut angles);
            cpu.store_kv(KeyValueStore {
                q: &mut q,
                k: &k,
                v: &v,
                norms: self.norms.then_some(HeadNorms {
                    q: &norm_weights[0],
                    k: &norm_weights[1],
                    eps: EPS,
                }),
                angles: (self.rotated > 0).then_some(&angles),
                cache: &cache,
                step: &session.tables,
            });
            let mut out = session.empty(self.heads * self.head_dim);
            cpu.attention(Attention {
                q: &q,
                gate: self.gate.then_some(&gate),
                cache: &cache,
                scale: self.scale,
                out: &mut out,
                step: &session.tables,
            });
            out
        }
    }

    /// One head of one token, normalised and rotated, in f64.
    fn head(self, name: u64, at: (usize, usize), head: usize, heads: usize) -> Vec<f64> {
        let row = numbers((name, at.0, at.1), heads * self.head_dim, 2.0);
        let mut x: Vec<f64> = row[head * self.head_dim..][..self.head_dim]
            .iter()
            .map(|x| f64::from(*x))
            .collect();
        if self.norms {
            let weight = numbers((name + 9, 0, 0), self.head_dim, 1.5);
            let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
            let scale = (mean + f64::from(EPS)).sqrt();
            x.iter_mut()
                .zip(&weight)
                .for_each(|(x, w)| *x = *x / scale * f64::from(*w));
        }
        for (i, frequency) in self.frequencies().iter().enumerate() {
            let (sine, cosine) = f64::from(at.1 as f32 * frequency).sin_cos();
            let (a, b) = (x[i], x[i + self.rotated]);
            x[i] = a * cosine - b * sine;
            x[i + self.rotated] = b * cosine + a * sine;
        }
        x
    }

    /// The outputs of one request in f64.
    fn naive(self, request: usize, length: usize) -> Vec<f64> {
        let mut out = Vec::new();
        let group = self.heads / self.kv_heads;
        let keys: Vec<Vec<Vec<f64>>> = (0..self.kv_heads)
            .map(|head| {
                (0..length)
                    .map(|t| self.head(2, (request, t), head, self.kv_heads))
                    .collect()
            })
            .collect();
        let values: Vec<Vec<f32>> = (0..length)
            .map(|t| numbers((3, request, t), self.kv_heads * self.head_dim, 1.0))
            .collect();
        for t in 0..length {
            let gate = numbers((4, request, t), self.heads * self.head_dim, 3.0);
            for head in 0..self.heads {
                let q = self.head(1, (request, t), head, self.heads);
                let weights: Vec<f64> = keys[head / group][..=t]
                    .iter()
                    .map(|k| {
                        let dot: f64 = q.iter().zip(k).map(|(q, k)| q * k).sum();
                        (dot * f64::from(self.scale)).exp()
                    })
                    .collect();
                let sum: f64 = weights.iter().sum();
                for d in 0..self.head_dim {
                    let column = head / group * self.head_dim + d;
                    let value: f64 = weights
                        .iter()
                        .zip(&values)
                        .map(|(w, v)| w * f64::from(v[column]))
                        .sum();
                    let gate = if self.gate {
                        1.0 / (1.0 + (-f64::from(gate[head * self.head_dim + d])).exp())
                    } else {
                        1.0
                    };
                    out.push(value / sum * gate);
                }
            }
        }
        out
    }

    fn check(self, block_sizes: &[usize]) {
        self.check_lengths(&LENGTHS, block_sizes);
    }

    fn check_lengths(self, lengths: &[usize], block_sizes: &[usize]) {
        let results = sequence_law(lengths, block_sizes, |session| self.on(session));
        // Rounding a key moves its score by some of its grains, and so its weight.
        let tolerance = match self.kv {
            DType::F16 => 5e-3,
            DType::BF16 => 4e-2,
            _ => 1e-5,
        };
        for (request, (result, length)) in results.iter().zip(lengths).enumerate() {
            assert_close("attention", result, &self.naive(request, *length), tolerance);
        }
    }
}

#[test]
fn attention_keeps_the_law_for_all_block_sizes() {
    let layer = Layer {
        heads: 6,
        kv_heads: 2,
        head_dim: 40,
        rotated: 20,
        norms: true,
        gate: true,
        scale: 0.16,
        kv: DType::F32,
    };
    layer.check(&[8, 16, 32]);
}

#[test]
fn attention_keeps_the_law_for_odd_heads_and_many_queries() {
    let layer = Layer {
        heads: 37,
        kv_heads: 1,
        head_dim: 20,
        rotated: 5,
        norms: false,
        gate: false,
        scale: 0.2,
        kv: DType::F32,
    };
    layer.check(&[16]);
}

#[test]
fn attention_without_positions_and_groups_keeps_the_law() {
    let layer = Layer {
        heads: 2,
        kv_heads: 2,
        head_dim: 144,
        rotated: 0,
        norms: false,
        gate: true,
        scale: 0.08,
        kv: DType::F32,
    };
    layer.check(&[8, 16, 48]);
}

/// Contexts of several sections, decoded with so few rows that each section is a piece of its own, and as prompts whose
/// pieces take all sections.
#[test]
fn attention_over_long_contexts_keeps_the_law() {
    let layer = Layer {
        heads: 2,
        kv_heads: 1,
        head_dim: 24,
        rotated: 0,
        norms: false,
        gate: false,
        scale: 0.4,
        kv: DType::F32,
    };
    layer.check_lengths(&[550, 515], &[16]);
}

#[test]
fn attention_over_keys_and_values_in_half_width_keeps_the_law() {
    for kv in [DType::F16, DType::BF16] {
        let layer = Layer {
            heads: 6,
            kv_heads: 2,
            head_dim: 36,
            rotated: 18,
            norms: true,
            gate: false,
            scale: 0.16,
            kv,
        };
        layer.check(&[16]);
    }
}
