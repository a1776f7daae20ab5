//! Timing of the device's own operations, without a model.

use crate::ops::linear::linear;
use crate::pool::Pool;
use crate::simd::{Instructions, Kernel, LANES, Simd};
use crate::storage::{In, Out};
use crate::weight::CpuWeight;
use half::{bf16, f16};
use paceline_device::{RowOrder, WeightPart};
use paceline_types::DType;
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Memory that no cache holds.
const BEYOND_CACHES: usize = 160 << 20;

/// Passes over the operands at least, and time spent on them at least.
const PASSES: usize = 7;
const ENOUGH: Duration = Duration::from_millis(120);

/// How long an operation took, and how much it had to do.
#[derive(Clone, Debug)]
pub struct OpTiming {
    /// The operation and the type of its weights.
    pub name: String,
    /// The sizes it was given.
    pub size: String,
    /// Median time of one call.
    pub seconds: f64,
    /// Arithmetic operations of one call.
    pub flops: f64,
    /// Bytes of weights and activations that one call reads or writes.
    pub bytes: f64,
}

/// Times a matrix product whose one weight matrix is used again and again, so that it is read from the nearest
/// cache that holds it.
pub fn measure_linear(
    cpu_threads: usize,
    dtype: DType,
    outputs: usize,
    inputs: usize,
    rows: usize,
) -> OpTiming {
    measure_copies(cpu_threads, dtype, [outputs, inputs, rows], 1)
}

/// As [`measure_linear`] with every call on a different weight matrix, as in a model, and all of them
/// together too large for any cache.
pub fn measure_linear_uncached(
    cpu_threads: usize,
    dtype: DType,
    outputs: usize,
    inputs: usize,
    rows: usize,
) -> OpTiming {
    let one = dtype.bytes_for(outputs * inputs).map_or(1, |bytes| bytes.max(1));
    measure_copies(
        cpu_threads,
        dtype,
        [outputs, inputs, rows],
        BEYOND_CACHES.div_ceil(one),
    )
}

fn measure_copies(threads: usize, dtype: DType, sizes: [usize; 3], copies: usize) -> OpTiming {
    let [outputs, inputs, rows] = sizes;
    let pool = Pool::new(threads, Instructions::detect());
    let data = random_data(dtype, outputs * inputs, 1);
    let weights: Vec<CpuWeight> = (0..copies).map(|_| pack(dtype, outputs, inputs, &data)).collect();
    let x: Vec<f32> = (0..rows * inputs).map(|i| (i % 17) as f32 * 0.1 - 0.8).collect();
    let mut out = vec![0.0; rows * outputs];
    let view = Out::over(&mut out, outputs);
    let seconds = median_seconds(&weights, |w| {
        linear(&pool, In::over(&x, inputs), w, None, None, view);
    });
    black_box(&out);
    OpTiming {
        name: format!("linear {dtype}"),
        size: format!("{rows} x [{outputs}, {inputs}]"),
        seconds,
        flops: 2.0 * (rows * outputs * inputs) as f64,
        bytes: (weights[0].bytes() + (x.len() + out.len()) * size_of::<f32>()) as f64,
    }
}

/// GB/s at which all threads together read `bytes` of memory, which should be more than the caches hold.
pub fn measure_bandwidth(threads: usize, bytes: usize) -> f64 {
    /// Elements of a piece, and of what is timed at a time.
    const PIECE: usize = 1 << 15;
    const WINDOW: usize = 1 << 20;
    let pool = Pool::new(threads, Instructions::detect());
    // Ones rather than zeros: pages that were never written all read the same physical page.
    let data = vec![1.0_f32; (bytes / size_of::<f32>()).max(LANES)];
    let windows: Vec<&[f32]> = data.chunks_exact(WINDOW.min(data.len())).collect();
    let total = AtomicU32::new(0);
    let seconds = median_seconds(&windows, |window| {
        pool.run(window.len().div_ceil(PIECE), |piece, _| {
            let part = &window[piece * PIECE..window.len().min((piece + 1) * PIECE)];
            let sum = pool.instructions().run(Sum(part));
            total.fetch_xor(sum.to_bits(), Ordering::Relaxed);
        });
    });
    black_box(total.into_inner());
    size_of_val(windows[0]) as f64 / seconds / 1e9
}

/// Median over single calls, so that the machine's other work disturbs few of them. Operands are used in turn.
fn median_seconds<T>(operands: &[T], mut call: impl FnMut(&T)) -> f64 {
    operands.iter().for_each(&mut call);
    let mut times = Vec::new();
    let begin = Instant::now();
    for pass in 0.. {
        if pass >= PASSES && begin.elapsed() >= ENOUGH {
            break;
        }
        for operand in operands {
            let start = Instant::now();
            call(operand);
            times.push(start.elapsed());
        }
    }
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}

struct Sum<'a>(&'a [f32]);

impl Kernel for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let mut sums = [s.splat(0.0); 8];
        let (vectors, _) = self.0.as_chunks::<LANES>();
        let (lines, _) = vectors.as_chunks::<8>();
        for line in lines {
            for (sum, vector) in sums.iter_mut().zip(line) {
                *sum = s.add(*sum, s.load(vector));
            }
        }
        sums.into_iter().map(|sum| s.sum(sum)).sum()
    }
}

fn pack(dtype: DType, rows: usize, columns: usize, data: &[u8]) -> CpuWeight {
    let part = WeightPart {
        name: "random",
        dtype,
        stored_rows: rows,
        columns,
        data,
        order: RowOrder::Stored,
    };
    CpuWeight::pack(&[part], None).expect("inputs are whole blocks and memory suffices")
}

/// Random stored elements: any bytes, with scales of sane size.
pub(crate) fn random_data(dtype: DType, elements: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let blocks = elements / dtype.block_len();
    let mut data = Vec::with_capacity(blocks * dtype.block_bytes());
    for _ in 0..blocks {
        let start = data.len();
        match dtype {
            DType::F32 => data.extend(random.number().to_le_bytes()),
            DType::F16 => data.extend(f16::from_f32(random.number()).to_le_bytes()),
            DType::BF16 => data.extend(bf16::from_f32(random.number()).to_le_bytes()),
            _ => {
                data.extend((0..dtype.block_bytes()).map(|_| (random.bits() >> 9) as u8));
                let scales: &[usize] = match dtype {
                    DType::Q6K => &[208],
                    DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => &[0, 2],
                    _ => &[0],
                };
                for at in scales {
                    let scale = f16::from_f32(random.number() * 0.01).to_le_bytes();
                    data[start + at..start + at + 2].copy_from_slice(&scale);
                }
            }
        }
    }
    data
}

/// Random numbers that are the same every time.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15))
    }

    fn bits(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// Between -1 and 1.
    pub(crate) fn number(&mut self) -> f32 {
        self.bits() as f32 / 2_147_483_648.0 - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timings_state_the_work_of_one_call() {
        let timing = measure_linear(1, DType::Q8_0, 32, 64, 2);
        assert_eq!(
            (timing.name.as_str(), timing.size.as_str()),
            ("linear Q8_0", "2 x [32, 64]")
        );
        assert!(timing.seconds > 0.0);
        assert!((timing.flops - 8192.0).abs() < 0.5);
        assert!((timing.bytes - (32.0 * 68.0 + 4.0 * 192.0)).abs() < 0.5);
        assert!(measure_bandwidth(2, 1 << 16) > 0.0);
    }
}
