//! AMX: tiles of inputs and weights whose products are summed for sixteen rows and sixteen outputs at once. A panel's codes lie as
//! the second tile wants them, some inputs of an output side by side. What becomes of the sums is done with AVX-512.
//!
//! Sums of small numbers are made of bf16: bytes are exact in it, also times 256, and as long as no sum needs more than 24 bits,
//! f32 loses none of them. So both bytes of an input go into one sum, which is a number already. Others are made of bytes, in
//! two sums of integers. Either way they are exact, and so the same to the bit as everywhere else.

use super::vnni::Vnni;
use super::{GROUP, Numbers, TILE_ROWS, Tiles};
use crate::simd::Avx512;
use crate::weight::PANEL;
use std::arch::asm;
#[allow(
    clippy::wildcard_imports,
    reason = "a list of intrinsics says nothing the code does not"
)]
use std::arch::x86_64::*;

/// Bytes from one row of a tile to the next, in memory: a cache line, whatever the tile is of.
const ROW_BYTES: usize = 64;

/// Bytes of the sums of a byte of inputs.
const PLANE_BYTES: usize = TILE_ROWS * ROW_BYTES;

/// Proof that the instructions are there and that this process may use them.
#[derive(Clone, Copy)]
pub(super) struct Amx(());

impl Amx {
    pub(super) fn from(simd: Avx512) -> Option<Self> {
        simd.amx().then_some(Self(()))
    }
}

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Instructions on tiles 0 to 3, which are sums, two for each of two groups under way; 4 and 5, inputs; 6, weights. They are used
/// by nothing else, so what is in them stays there from one block to the next.
macro_rules! tiles {
    ($($line:expr),* ; $($operands:tt)*) => {
        asm!($($line,)* $($operands)*
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _, out("tmm6") _,
            options(nostack, preserves_flags))
    };
}

/// Sums of products of a group's bytes, in two tiles.
macro_rules! multiply_bytes {
    ($upper:literal, $lower:literal, $inputs:expr, $weights:expr) => {
        tiles!(
            concat!("tilezero ", $upper), concat!("tilezero ", $lower),
            "tileloadd tmm6, [{weights} + {row}]",
            "tileloadd tmm4, [{inputs} + {row}]",
            "tileloadd tmm5, [{inputs} + {row} + 32]",
            concat!("tdpbssd ", $upper, ", tmm4, tmm6"), concat!("tdpbssd ", $lower, ", tmm5, tmm6");
            weights = in(reg) $weights, inputs = in(reg) $inputs, row = in(reg) ROW_BYTES,
        )
    };
}

/// Sums of products of a group's numbers, in one tile.
macro_rules! multiply_floats {
    ($sums:literal, $inputs:expr, $weights:expr) => {
        tiles!(
            concat!("tilezero ", $sums),
            "tileloadd tmm6, [{weights} + {row}]",
            "tileloadd tmm4, [{upper} + {row}]",
            "tileloadd tmm5, [{lower} + {row}]",
            concat!("tdpbf16ps ", $sums, ", tmm4, tmm6"), concat!("tdpbf16ps ", $sums, ", tmm5, tmm6");
            weights = in(reg) $weights, upper = in(reg) $inputs[0], lower = in(reg) $inputs[1], row = in(reg) ROW_BYTES,
        )
    };
}

// SAFETY of every block below: `self` proves that the instructions exist; memory operands are vouched for by the caller.
impl Tiles<Vnni> for Amx {
    #[inline(always)]
    fn configure<const FLOATS: bool>(self, rows: usize, inputs: usize) {
        let (rows, inputs) = (rows.min(TILE_ROWS), inputs.min(GROUP));
        let mut configuration = Configuration {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [ROW_BYTES as u16; 16],
            rows: [rows as u8; 16],
        };
        let bytes = if FLOATS { 2 * inputs } else { inputs };
        configuration.row_bytes[4..6].fill(bytes as u16);
        configuration.rows[6] = (bytes / 4) as u8;
        configuration.row_bytes[7..].fill(0);
        configuration.rows[7..].fill(0);
        // SAFETY: see above.
        unsafe { tiles!("ldtilecfg [{}]"; in(reg) &raw const configuration,) }
    }

    #[inline(always)]
    fn encode(self, inputs: &[i16; GROUP]) -> [[u16; GROUP]; 2] {
        /// Inputs 0 and 2 of four, then 1 and 3, in pairs of bytes.
        const ORDER: [u8; 16] = [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15];
        let mut floats = [[0; GROUP]; 2];
        // SAFETY: see above.
        unsafe {
            let order = _mm512_broadcast_i32x4(_mm_loadu_si128(ORDER.as_ptr().cast()));
            let inputs = _mm512_shuffle_epi8(_mm512_loadu_si512(inputs.as_ptr().cast()), order);
            let upper = _mm512_srai_epi16::<8>(_mm512_add_epi16(inputs, _mm512_set1_epi16(128)));
            let upper = _mm512_slli_epi16::<8>(upper);
            for (part, floats) in [upper, _mm512_sub_epi16(inputs, upper)]
                .into_iter()
                .zip(&mut floats)
            {
                let halves = [_mm512_castsi512_si256(part), _mm512_extracti64x4_epi64::<1>(part)];
                for (half, part) in halves.into_iter().enumerate() {
                    let exact = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(part)));
                    let to = floats.as_mut_ptr().add(half * GROUP / 2);
                    _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(exact)));
                }
            }
        }
        floats
    }

    #[inline(always)]
    unsafe fn keep<const FLOATS: bool>(self, codes: __m512i, numbers: &Numbers, to: *mut u8) {
        // SAFETY: see above.
        unsafe {
            if !FLOATS {
                let zero = _mm512_set1_epi8(numbers.zero as i8);
                _mm512_store_si512(to.cast(), _mm512_sub_epi8(codes, zero));
                return;
            }
            let table = numbers.floats.as_ptr();
            let table = [
                _mm512_loadu_si512(table.cast()),
                _mm512_loadu_si512(table.add(32).cast()),
            ];
            let quads = [codes, _mm512_srli_epi16::<8>(codes)];
            for (pair, codes) in quads.into_iter().enumerate() {
                let floats = if numbers.few {
                    _mm512_permutexvar_epi16(codes, table[0])
                } else {
                    _mm512_permutex2var_epi16(table[0], codes, table[1])
                };
                _mm512_store_si512(to.add(pair * ROW_BYTES).cast(), floats);
            }
        }
    }

    #[inline(always)]
    unsafe fn start<const FLOATS: bool>(self, odd: bool, inputs: [*const u8; 2], weights: *const u8) {
        // SAFETY: see above.
        unsafe {
            match (FLOATS, odd) {
                (true, false) => multiply_floats!("tmm0", inputs, weights),
                (true, true) => multiply_floats!("tmm2", inputs, weights),
                (false, false) => multiply_bytes!("tmm0", "tmm1", inputs[0], weights),
                (false, true) => multiply_bytes!("tmm2", "tmm3", inputs[0], weights),
            }
        }
    }

    #[inline(always)]
    unsafe fn finish<const FLOATS: bool>(self, odd: bool, sums: *mut i32) {
        // SAFETY: see above.
        unsafe {
            if odd {
                tiles!("tilestored [{sums} + {row}], tmm2"; sums = in(reg) sums, row = in(reg) ROW_BYTES,);
            } else {
                tiles!("tilestored [{sums} + {row}], tmm0"; sums = in(reg) sums, row = in(reg) ROW_BYTES,);
            }
            if FLOATS {
                return;
            }
            let lower = sums.byte_add(PLANE_BYTES);
            if odd {
                tiles!("tilestored [{sums} + {row}], tmm3"; sums = in(reg) lower, row = in(reg) ROW_BYTES,);
            } else {
                tiles!("tilestored [{sums} + {row}], tmm1"; sums = in(reg) lower, row = in(reg) ROW_BYTES,);
            }
        }
    }

    #[inline(always)]
    unsafe fn total<const FLOATS: bool>(self, sums: *const i32, row: usize) -> __m512 {
        // SAFETY: see above.
        unsafe {
            let upper = sums.add(row * PANEL);
            if FLOATS {
                return _mm512_load_ps(upper.cast());
            }
            let lower = _mm512_load_si512(upper.byte_add(PLANE_BYTES).cast());
            let upper = _mm512_slli_epi32::<8>(_mm512_load_si512(upper.cast()));
            _mm512_cvtepi32_ps(_mm512_add_epi32(upper, lower))
        }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_load_ps(from) }
    }

    #[inline(always)]
    fn release(self) {
        // SAFETY: see above.
        unsafe { tiles!("tilerelease";) }
    }
}
