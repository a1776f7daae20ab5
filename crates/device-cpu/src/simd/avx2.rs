//! AVX2, FMA and F16C: eight lanes for every family that has them, and panels of two vectors.

use super::{Kernel, LANES, Lanes, Simd};
#[allow(
    clippy::wildcard_imports,
    reason = "a list of intrinsics says nothing the code does not"
)]
use std::arch::x86_64::*;

/// Proof that AVX2, FMA and F16C are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2 {
    vnni: bool,
}

impl Avx2 {
    /// The family without AVX-VNNI, and with it, as far as they are there.
    pub(super) fn detect() -> Vec<Self> {
        let present = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        let vnni = is_x86_feature_detected!("avxvnni");
        let kinds = [(false, present), (true, present && vnni)];
        let kinds = kinds.into_iter().filter(|(_, present)| *present);
        kinds.map(|(vnni, _)| Self { vnni }).collect()
    }

    /// Whether this is proof of AVX-VNNI too.
    pub(crate) const fn vnni(self) -> bool {
        self.vnni
    }
}

/// A family of instructions that these belong to.
///
/// # Safety
/// A value of the type proves that AVX2, FMA and F16C are there.
pub(super) unsafe trait WithAvx2: Copy + Send + Sync + 'static {}

// SAFETY: `detect` is the only source of values.
unsafe impl WithAvx2 for Avx2 {}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run<K: Kernel>(kernel: K, simd: Avx2) -> K::Output {
    kernel.run(simd)
}

/// The 8-bit floats in the upper bytes as half-precision numbers of a 256th: the sign stays, the rest moves down by one.
/// # Safety
/// The instructions exist.
#[inline(always)]
pub(super) unsafe fn e4m3_as_f16(upper: __m256i) -> __m256i {
    // SAFETY: as the caller promises.
    unsafe {
        let kept = _mm256_set1_epi16(0xbf80_u16 as i16);
        _mm256_and_si256(_mm256_srai_epi16::<1>(upper), kept)
    }
}

// SAFETY of every block below: `self` proves that the instructions exist; memory operands are either
// references to arrays or vouched for by the caller.
impl Simd for Avx2 {
    type P = [__m256; 2];
    const PANEL_REGISTERS: usize = 8;

    #[inline(always)]
    fn panel_splat(self, value: f32) -> [__m256; 2] {
        [self.splat(value); 2]
    }
    #[inline(always)]
    unsafe fn panel_load(self, from: *const f32) -> [__m256; 2] {
        // SAFETY: see above.
        unsafe { [self.load_ptr(from), self.load_ptr(from.add(LANES))] }
    }
    #[inline(always)]
    unsafe fn panel_store(self, value: [__m256; 2], to: *mut f32) {
        // SAFETY: see above.
        unsafe {
            self.store_ptr(value[0], to);
            self.store_ptr(value[1], to.add(LANES));
        }
    }
    #[inline(always)]
    unsafe fn panel_load_f16(self, from: *const u16) -> [__m256; 2] {
        // SAFETY: see above.
        unsafe {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(from.add(LANES).cast())),
            ]
        }
    }
    #[inline(always)]
    unsafe fn panel_load_bf16_pairs(self, from: *const u16) -> [[__m256; 2]; 2] {
        // SAFETY: see above.
        unsafe {
            let low = _mm256_loadu_si256(from.cast());
            let high = _mm256_loadu_si256(from.add(2 * LANES).cast());
            let mask = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            [
                [
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
                ],
                [
                    _mm256_castsi256_ps(_mm256_and_si256(low, mask)),
                    _mm256_castsi256_ps(_mm256_and_si256(high, mask)),
                ],
            ]
        }
    }
    #[inline(always)]
    unsafe fn panel_load_e4m3_pairs(self, from: *const u8) -> [[__m256; 2]; 2] {
        // SAFETY: see above.
        unsafe {
            let pairs = _mm256_loadu_si256(from.cast());
            [_mm256_slli_epi16::<8>(pairs), pairs].map(|high| {
                let halves = e4m3_as_f16(high);
                [
                    _mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
                    _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves)),
                ]
            })
        }
    }
    #[inline(always)]
    fn panel_mul_add(self, a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        [self.mul_add(a[0], b[0], c[0]), self.mul_add(a[1], b[1], c[1])]
    }
}

impl<A: WithAvx2> Lanes for A {
    type F = __m256;

    #[inline(always)]
    fn splat(self, value: f32) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_set1_ps(value) }
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_loadu_ps(from.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, value: __m256, to: &mut [f32; LANES]) {
        // SAFETY: see above.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), value) }
    }
    #[inline(always)]
    unsafe fn load_ptr(self, from: *const f32) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, value: __m256, to: *mut f32) {
        // SAFETY: see above.
        unsafe { _mm256_storeu_ps(to, value) }
    }
    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: see above; this reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_min_ps(a, b) }
    }
    #[inline(always)]
    fn round(self, a: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn power_of_two(self, n: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe {
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
        }
    }
    #[inline(always)]
    fn select_less(self, a: __m256, b: __m256, yes: __m256, no: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)) }
    }
    #[inline(always)]
    fn sum(self, a: __m256) -> f32 {
        // SAFETY: see above.
        unsafe {
            let quad = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let pair = _mm_add_ps(quad, _mm_movehl_ps(quad, quad));
            _mm_cvtss_f32(_mm_add_ss(pair, _mm_shuffle_ps::<1>(pair, pair)))
        }
    }
    #[inline(always)]
    fn sums(self, a: [__m256; LANES]) -> __m256 {
        // SAFETY: see above.
        unsafe {
            // The additions of `sum`, with the vectors side by side in the lanes that fall free.
            let halves = |a, b| {
                let low = _mm256_permute2f128_ps::<0x20>(a, b);
                _mm256_add_ps(low, _mm256_permute2f128_ps::<0x31>(a, b))
            };
            let pairs = |a, b| {
                let even = _mm256_shuffle_ps::<0x44>(a, b);
                _mm256_add_ps(even, _mm256_shuffle_ps::<0xee>(a, b))
            };
            let x = pairs(halves(a[0], a[4]), halves(a[1], a[5]));
            let y = pairs(halves(a[2], a[6]), halves(a[3], a[7]));
            _mm256_add_ps(_mm256_shuffle_ps::<0x88>(x, y), _mm256_shuffle_ps::<0xdd>(x, y))
        }
    }
    #[inline(always)]
    fn largest(self, a: __m256) -> f32 {
        // SAFETY: see above.
        unsafe {
            let quad = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let pair = _mm_max_ps(quad, _mm_movehl_ps(quad, quad));
            _mm_cvtss_f32(_mm_max_ss(pair, _mm_shuffle_ps::<1>(pair, pair)))
        }
    }
    #[inline(always)]
    fn to_f16(self, a: __m256) -> [u16; LANES] {
        let mut bits = [0; LANES];
        // SAFETY: see above.
        unsafe {
            let nearest = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(a);
            _mm_storeu_si128(bits.as_mut_ptr().cast(), nearest);
        }
        bits
    }
}
