//! Keys and values as they are stored and read again.

use super::*;
use crate::simd::{Instructions, Kernel};
use half::bf16;

struct Store<'a>(&'a CpuKvCache, Run, &'a [f32]);

impl Kernel for Store<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (key, value) = self.2.split_at(self.2.len() / 2);
        // SAFETY: nothing else uses the cache.
        unsafe { self.0.store(s, self.1, key, value) };
    }
}

#[test]
fn numbers_come_back_as_the_nearest_of_their_type_and_stay_finite() {
    let shape = KvShape {
        blocks: 2,
        block_size: 3,
        heads: 2,
        head_dim: 21,
    };
    let mut row: Vec<f32> = (0..42).map(|i| (i as f32 - 5.0) * 0.3).collect();
    (row[3], row[4], row[30], row[31]) = (1e6, -1e9, 1e-7, -65_520.0);
    // Halfway between two neighbours of bf16 and of f16.
    (row[6], row[7], row[8], row[9]) = [1.0 / 256.0, 3.0 / 256.0, 1.0 / 2048.0, 3.0 / 2048.0]
        .map(|half| 1.0 + half)
        .into();
    for instructions in Instructions::all() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let Ok(cache) = CpuKvCache::new(shape, dtype) else {
                panic!("there is memory for this");
            };
            instructions.run(Store(&cache, cache.place(1, 2, 1), &row));
            let rounded: Vec<f32> = row
                .iter()
                .map(|x| match dtype {
                    DType::F16 => f16::from_f32(x.clamp(-65_504.0, 65_504.0)).to_f32(),
                    DType::BF16 => bf16::from_f32(*x).to_f32(),
                    _ => *x,
                })
                .collect();
            for block in 0..2 {
                for place in 0..6 {
                    // SAFETY: as above.
                    let found = unsafe { cache.row(block, place % 3, place / 3) };
                    let written = (block, place) == (1, 5);
                    let expected = if written { &rounded } else { &vec![0.0; 42] };
                    assert_eq!(&found, expected, "{dtype}, {instructions:?}, {block}, {place}");
                }
            }
        }
    }
    assert!(f32::from_bits(u32::from(to_bf16(f32::NAN)) << 16).is_nan());
    let nan = to_f16(crate::simd::Portable, &[f32::NAN])[0];
    assert!(f16::from_bits(nan).is_nan());
}

#[test]
fn blocks_that_are_handed_back_hold_nothing_and_can_be_written_again() {
    let shape = KvShape {
        blocks: 64,
        block_size: 16,
        heads: 2,
        head_dim: 64,
    };
    for dtype in [DType::F32, DType::BF16] {
        let Ok(cache) = CpuKvCache::new(shape, dtype) else {
            panic!("there is memory for this");
        };
        for number in [1.5, 2.5] {
            // SAFETY: nothing else uses the cache.
            unsafe {
                cache.fill(number);
                assert_eq!(cache.row(32, 3, 1), [number; 128]);
                cache.hand_back();
                // In the middle: what is on no whole page of its own stays.
                let left = if cfg!(target_os = "linux") { 0.0 } else { number };
                assert_eq!(cache.row(32, 3, 1), [left; 128], "{dtype}");
            }
        }
    }
}
