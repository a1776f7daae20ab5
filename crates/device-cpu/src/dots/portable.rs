//! Plain Rust, any machine.

use super::{Dots, GROUP, NoTiles, QUAD, encode_words};
use crate::weight::PANEL;
use half::f16;

#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl Dots for Portable {
    const ROWS: usize = 4;
    type Bytes = [u32; PANEL];
    type Sums = [i32; PANEL];
    type F = [f32; PANEL];
    type Tiles = NoTiles;

    #[inline(always)]
    fn tiles(self) -> Option<NoTiles> {
        None
    }

    fn encode(self, inputs: &[i16; GROUP]) -> [u8; 2 * GROUP] {
        encode_words(inputs)
    }
    unsafe fn load(self, from: *const u8) -> Self::Bytes {
        // SAFETY: 64 bytes as the caller promises.
        unsafe { from.cast::<[[u8; QUAD]; PANEL]>().read() }.map(u32::from_le_bytes)
    }
    fn shift_and(self, bytes: Self::Bytes, by: i32, mask: u8) -> Self::Bytes {
        let mask = u32::from(mask) * 0x0101_0101;
        let shift = |word: u32| if by < 0 { word << -by } else { word >> by };
        bytes.map(|word| shift(word) & mask)
    }
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        std::array::from_fn(|lane| a[lane] | b[lane])
    }
    fn look_up(self, bytes: Self::Bytes, table: &[u8; 16]) -> Self::Bytes {
        bytes.map(|word| u32::from_le_bytes(word.to_le_bytes().map(|byte| table[usize::from(byte & 15)])))
    }
    fn zero(self) -> Self::Sums {
        [0; PANEL]
    }
    unsafe fn dot(
        self,
        sums: Self::Sums,
        weights: [Self::Bytes; 2],
        group: *const u8,
        pair: usize,
    ) -> Self::Sums {
        // SAFETY: the inputs are inside the group as the caller promises.
        let inputs = unsafe { group.add(4 * QUAD * pair).cast::<[[[u8; 2]; QUAD]; 2]>().read() };
        let mut next = sums;
        for (inputs, weights) in inputs.iter().zip(&weights) {
            let [a, c, b, d] = inputs.map(|input| i32::from(i16::from_le_bytes(input)));
            for (sum, weights) in next.iter_mut().zip(weights) {
                let [p, q, r, s] = weights.to_le_bytes().map(i32::from);
                *sum += (a * p + b * q) + (c * r + d * s);
            }
        }
        next
    }
    fn total(self, sums: Self::Sums, add: i32) -> Self::F {
        sums.map(|sum| (sum + add) as f32)
    }
    fn splat(self, value: f32) -> Self::F {
        [value; PANEL]
    }
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        std::array::from_fn(|lane| a[lane] * b[lane])
    }
    // As in `simd/portable.rs`.
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|lane| a[lane].mul_add(b[lane], c[lane]))
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    unsafe fn load_f16(self, from: *const u8) -> Self::F {
        // SAFETY: 32 bytes as the caller promises.
        let halves = unsafe { from.cast::<[[u8; 2]; PANEL]>().read() };
        halves.map(|half| f16::from_le_bytes(half).to_f32())
    }
    unsafe fn load_i8(self, from: *const u8) -> Self::F {
        // SAFETY: 16 bytes as the caller promises.
        unsafe { from.cast::<[i8; PANEL]>().read() }.map(f32::from)
    }
    unsafe fn store(self, value: Self::F, to: *mut f32) {
        // SAFETY: sixteen elements as the caller promises.
        unsafe { to.cast::<Self::F>().write_unaligned(value) }
    }
    fn prefetch(self, _at: *const u8) {}
}
