//! AVX-512 with VNNI: one 512-bit vector per panel. The instruction multiplies unsigned with signed bytes, so inputs come as
//! two planes, upper bytes and lower bytes, each in two's complement.

use super::amx::Amx;
use super::{DotKernel, Dots, GROUP, QUAD};
use crate::simd::Avx512;
#[allow(
    clippy::wildcard_imports,
    reason = "a list of intrinsics says nothing the code does not"
)]
use std::arch::x86_64::*;

/// Proof that the instructions are there, and those for tiles, if they are.
#[derive(Clone, Copy)]
pub(super) struct Vnni {
    tiles: Option<Amx>,
}

impl Vnni {
    pub(super) fn from(simd: Avx512) -> Option<Self> {
        let tiles = Amx::from(simd);
        simd.vnni().then_some(Self { tiles })
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) unsafe fn run<K: DotKernel>(kernel: K, dots: Vnni) {
    kernel.run(dots);
}

/// Both halves of a group of inputs.
///
/// # Safety
/// The instructions exist.
#[inline(always)]
unsafe fn halves(inputs: &[f32; GROUP]) -> [__m512; 2] {
    // SAFETY: as the caller promises, and there are 32 numbers.
    unsafe {
        [
            _mm512_loadu_ps(inputs.as_ptr()),
            _mm512_loadu_ps(inputs.as_ptr().add(GROUP / 2)),
        ]
    }
}

// SAFETY of every block below: `self` proves that the instructions exist; memory operands are vouched for by the caller.
impl Dots for Vnni {
    const ROWS: usize = 8;
    type Bytes = __m512i;
    /// Products with the upper bytes, and with the lower ones.
    type Sums = [__m512i; 2];
    type F = __m512;
    type Tiles = Amx;

    #[inline(always)]
    fn tiles(self) -> Option<Amx> {
        self.tiles
    }

    #[inline(always)]
    fn largest(self, inputs: &[f32; GROUP]) -> f32 {
        // SAFETY: see above.
        unsafe {
            let [low, high] = halves(inputs);
            let magnitude = _mm512_set1_epi32(0x7fff_ffff);
            let low = _mm512_and_si512(_mm512_castps_si512(low), magnitude);
            let high = _mm512_and_si512(_mm512_castps_si512(high), magnitude);
            f32::from_bits(_mm512_reduce_max_epi32(_mm512_max_epi32(low, high)) as u32)
        }
    }
    #[inline(always)]
    fn round(self, inputs: &[f32; GROUP], factor: f32) -> ([i16; GROUP], [i32; 2]) {
        let (mut codes, mut sums) = ([0; GROUP], [0; 2]);
        // SAFETY: see above.
        unsafe {
            let (factor, inputs) = (_mm512_set1_ps(factor), halves(inputs));
            for half in 0..2 {
                let nearest = _mm512_cvtps_epi32(_mm512_mul_ps(inputs[half], factor));
                sums[half] = _mm512_reduce_add_epi32(nearest);
                let to = codes.as_mut_ptr().add(half * GROUP / 2);
                _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(nearest));
            }
        }
        (codes, sums)
    }
    #[inline(always)]
    fn encode(self, inputs: &[i16; GROUP]) -> [u8; 2 * GROUP] {
        let mut planes = [0; 2 * GROUP];
        // SAFETY: see above.
        unsafe {
            let inputs = _mm512_loadu_si512(inputs.as_ptr().cast());
            let upper = _mm512_srai_epi16::<8>(_mm512_add_epi16(inputs, _mm512_set1_epi16(128)));
            let to = planes.as_mut_ptr();
            _mm256_storeu_si256(to.cast(), _mm512_cvtepi16_epi8(upper));
            _mm256_storeu_si256(to.add(GROUP).cast(), _mm512_cvtepi16_epi8(inputs));
        }
        planes
    }
    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    fn shift_and(self, bytes: __m512i, by: i32, mask: u8) -> __m512i {
        // SAFETY: see above.
        unsafe {
            let count = _mm_cvtsi32_si128(by.abs());
            let shifted = if by < 0 {
                _mm512_sll_epi32(bytes, count)
            } else {
                _mm512_srl_epi32(bytes, count)
            };
            _mm512_and_si512(shifted, _mm512_set1_epi8(mask as i8))
        }
    }
    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    fn look_up(self, bytes: __m512i, table: &[u8; 16]) -> __m512i {
        // SAFETY: see above.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, bytes)
        }
    }
    #[inline(always)]
    fn zero(self) -> [__m512i; 2] {
        // SAFETY: see above.
        unsafe { [_mm512_setzero_si512(); 2] }
    }
    #[inline(always)]
    unsafe fn dot(
        self,
        mut sums: [__m512i; 2],
        weights: [__m512i; 2],
        group: *const u8,
        pair: usize,
    ) -> [__m512i; 2] {
        // SAFETY: see above.
        unsafe {
            let planes = [group, group.add(GROUP)];
            for quad in 0..2 {
                for plane in 0..2 {
                    let at = planes[plane].add(QUAD * (2 * pair + quad));
                    let inputs = i32::from_le_bytes(at.cast::<[u8; QUAD]>().read());
                    sums[plane] = _mm512_dpbusd_epi32(sums[plane], weights[quad], _mm512_set1_epi32(inputs));
                }
            }
        }
        sums
    }
    #[inline(always)]
    fn total(self, sums: [__m512i; 2], add: i32) -> __m512 {
        // SAFETY: see above.
        unsafe {
            let upper = _mm512_add_epi32(_mm512_slli_epi32::<8>(sums[0]), _mm512_set1_epi32(add));
            _mm512_cvtepi32_ps(_mm512_add_epi32(upper, sums[1]))
        }
    }
    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_i8(self, from: *const u8) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn store(self, value: __m512, to: *mut f32) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_ps(to, value) }
    }
    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: see above; this reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}
