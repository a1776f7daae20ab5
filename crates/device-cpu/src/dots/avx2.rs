//! AVX2: two 256-bit vectors per panel. Weights are widened to 16 bits and multiplied with inputs pair by pair. AVX-VNNI adds
//! the products to the sums in the same instruction. It has one for bytes, too, as AVX-512 has it; that multiplies as many
//! inputs per instruction, since ours have two bytes, and needs twice the registers for sums, of which there are sixteen.

use super::{DotKernel, Dots, GROUP, NoTiles, QUAD, encode_words};
use crate::simd::Avx2;
#[allow(
    clippy::wildcard_imports,
    reason = "a list of intrinsics says nothing the code does not"
)]
use std::arch::x86_64::*;

/// Families that add products of pairs of 16-bit numbers to 32-bit sums.
///
/// # Safety
/// A value of the type proves that its instructions are there, and AVX2, FMA and F16C.
pub(super) unsafe trait Pairs: Copy + Send + Sync + 'static {
    fn add_products(self, sums: __m256i, a: __m256i, b: __m256i) -> __m256i;
}

// SAFETY: that is what it proves.
unsafe impl Pairs for Avx2 {
    #[inline(always)]
    fn add_products(self, sums: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: `self` proves that the instructions exist.
        unsafe { _mm256_add_epi32(sums, _mm256_madd_epi16(a, b)) }
    }
}

/// Proof that AVX-VNNI is there.
#[derive(Clone, Copy)]
pub(super) struct AvxVnni(());

impl AvxVnni {
    pub(super) fn from(simd: Avx2) -> Option<Self> {
        simd.vnni().then_some(Self(()))
    }
}

// SAFETY: `from` is the only source of values.
unsafe impl Pairs for AvxVnni {
    #[inline(always)]
    fn add_products(self, sums: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: `self` proves that the instructions exist.
        unsafe { _mm256_dpwssd_avx_epi32(sums, a, b) }
    }
}

/// AVX-VNNI's instruction as AVX-512 writes it: it does the same where tests have nothing but AVX-512.
#[cfg(test)]
#[derive(Clone, Copy)]
pub(super) struct Twin(());

#[cfg(test)]
impl Twin {
    pub(super) fn detect() -> Option<Self> {
        let family = crate::simd::Instructions::detect();
        let vnni = matches!(family, crate::simd::Instructions::Avx512(simd) if simd.vnni());
        vnni.then_some(Self(()))
    }
}

#[cfg(test)]
// SAFETY: `detect` is the only source of values.
unsafe impl Pairs for Twin {
    #[inline(always)]
    fn add_products(self, sums: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: `self` proves that the instructions exist.
        unsafe { _mm256_dpwssd_epi32(sums, a, b) }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run<K: DotKernel>(kernel: K, dots: Avx2) {
    kernel.run(dots);
}

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(super) unsafe fn run_vnni<K: DotKernel>(kernel: K, dots: AvxVnni) {
    kernel.run(dots);
}

#[cfg(test)]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512vnni")]
pub(super) unsafe fn run_twin<K: DotKernel>(kernel: K, dots: Twin) {
    kernel.run(dots);
}

// SAFETY of every block below: `self` proves that the instructions exist; memory operands are vouched for by the caller.
impl<P: Pairs> Dots for P {
    const ROWS: usize = 4;
    type Bytes = [__m256i; 2];
    type Sums = [__m256i; 2];
    type F = [__m256; 2];
    type Tiles = NoTiles;

    #[inline(always)]
    fn tiles(self) -> Option<NoTiles> {
        None
    }

    #[inline(always)]
    fn round(self, inputs: &[f32; GROUP], factor: f32) -> ([i16; GROUP], [i32; 2]) {
        let (mut codes, mut sums) = ([0; GROUP], [0; 2]);
        // SAFETY: see above.
        unsafe {
            let factor = _mm256_set1_ps(factor);
            for half in 0..2 {
                let from = inputs.as_ptr().add(half * GROUP / 2);
                let low = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from), factor));
                let high = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from.add(8)), factor));
                let eight = _mm256_add_epi32(low, high);
                let four = _mm_add_epi32(
                    _mm256_castsi256_si128(eight),
                    _mm256_extracti128_si256::<1>(eight),
                );
                let two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
                sums[half] = _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<1>(two)));
                // Packed lane by lane: the middle ones change places.
                let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(low, high));
                _mm256_storeu_si256(codes.as_mut_ptr().add(half * GROUP / 2).cast(), packed);
            }
        }
        (codes, sums)
    }
    #[inline(always)]
    fn encode(self, inputs: &[i16; GROUP]) -> [u8; 2 * GROUP] {
        encode_words(inputs)
    }
    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe {
            [
                _mm256_loadu_si256(from.cast()),
                _mm256_loadu_si256(from.add(32).cast()),
            ]
        }
    }
    #[inline(always)]
    fn shift_and(self, bytes: [__m256i; 2], by: i32, mask: u8) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe {
            let (count, mask) = (_mm_cvtsi32_si128(by.abs()), _mm256_set1_epi8(mask as i8));
            let [low, high] = bytes;
            let shifted = if by < 0 {
                [_mm256_sll_epi32(low, count), _mm256_sll_epi32(high, count)]
            } else {
                [_mm256_srl_epi32(low, count), _mm256_srl_epi32(high, count)]
            };
            [
                _mm256_and_si256(shifted[0], mask),
                _mm256_and_si256(shifted[1], mask),
            ]
        }
    }
    #[inline(always)]
    fn or(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe { [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])] }
    }
    #[inline(always)]
    fn look_up(self, bytes: [__m256i; 2], table: &[u8; 16]) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            [
                _mm256_shuffle_epi8(table, bytes[0]),
                _mm256_shuffle_epi8(table, bytes[1]),
            ]
        }
    }
    #[inline(always)]
    fn zero(self) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe { [_mm256_setzero_si256(); 2] }
    }
    #[inline(always)]
    unsafe fn dot(
        self,
        sums: [__m256i; 2],
        weights: [[__m256i; 2]; 2],
        group: *const u8,
        pair: usize,
    ) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe {
            let first = add_quad(self, sums, weights[0], group.add(4 * QUAD * pair));
            add_quad(self, first, weights[1], group.add(4 * QUAD * pair + 2 * QUAD))
        }
    }
    #[inline(always)]
    fn total(self, sums: [__m256i; 2], add: i32) -> [__m256; 2] {
        // SAFETY: see above.
        unsafe {
            let add = _mm256_set1_epi32(add);
            [
                _mm256_cvtepi32_ps(_mm256_add_epi32(sums[0], add)),
                _mm256_cvtepi32_ps(_mm256_add_epi32(sums[1], add)),
            ]
        }
    }
    #[inline(always)]
    fn splat(self, value: f32) -> [__m256; 2] {
        // SAFETY: see above.
        unsafe { [_mm256_set1_ps(value); 2] }
    }
    #[inline(always)]
    fn mul(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: see above.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn mul_add(self, a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: see above.
        unsafe {
            [
                _mm256_fmadd_ps(a[0], b[0], c[0]),
                _mm256_fmadd_ps(a[1], b[1], c[1]),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> [__m256; 2] {
        // SAFETY: see above.
        unsafe {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(from.add(16).cast())),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, from: *const u8) -> [__m256; 2] {
        // SAFETY: see above.
        unsafe {
            let low = _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()));
            let high = _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.add(8).cast()));
            [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)]
        }
    }
    #[inline(always)]
    unsafe fn store(self, value: [__m256; 2], to: *mut f32) {
        // SAFETY: see above.
        unsafe {
            _mm256_storeu_ps(to, value[0]);
            _mm256_storeu_ps(to.add(8), value[1]);
        }
    }
    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: see above; this reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}

/// Adds the products of four inputs with their weights.
///
/// # Safety
/// Four encoded inputs at `inputs`.
#[inline(always)]
unsafe fn add_quad<P: Pairs>(
    pairs: P,
    sums: [__m256i; 2],
    weights: [__m256i; 2],
    inputs: *const u8,
) -> [__m256i; 2] {
    // SAFETY: `pairs` proves that the instructions exist, and the inputs are there as the caller promises.
    unsafe {
        let inputs = inputs.cast::<[[u8; QUAD]; 2]>().read();
        let [even, odd] = [inputs[0], inputs[1]].map(i32::from_le_bytes);
        let (even, odd) = (_mm256_set1_epi32(even), _mm256_set1_epi32(odd));
        let mut next = sums;
        for half in 0..2 {
            let low = _mm256_and_si256(weights[half], _mm256_set1_epi16(0xff));
            let high = _mm256_srli_epi16::<8>(weights[half]);
            next[half] = pairs.add_products(next[half], low, even);
            next[half] = pairs.add_products(next[half], high, odd);
        }
        next
    }
}
