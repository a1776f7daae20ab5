//! Eight lanes of f32, once with AVX2 and once in portable code, with the same results to the last bit.
//!
//! A kernel is written once against [`Simd`] and run through [`Instructions::run`], which picks the
//! instruction set. Every operation here is exact or correctly rounded in both versions, and reductions add lanes
//! in one fixed order, so the choice never changes a result.

/// Lanes of a vector.
pub(crate) const LANES: usize = 8;

/// Eight f32 lanes. Values of this type exist only where the instructions they stand for do.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// Eight lanes.
    type F: Copy;

    fn splat(self, value: f32) -> Self::F;
    fn load(self, from: &[f32; LANES]) -> Self::F;
    fn store(self, value: Self::F, to: &mut [f32; LANES]);
    /// # Safety
    /// Eight readable elements at `from`; no alignment needed.
    unsafe fn load_ptr(self, from: *const f32) -> Self::F;
    /// # Safety
    /// Eight writable elements at `to`.
    unsafe fn store_ptr(self, value: Self::F, to: *mut f32);
    /// Eight IEEE half-precision numbers.
    /// # Safety
    /// Eight readable elements at `from`.
    unsafe fn load_f16(self, from: *const u16) -> Self::F;
    /// Eight signed bytes as numbers.
    /// # Safety
    /// Eight readable bytes at `from`.
    unsafe fn load_i8(self, from: *const i8) -> Self::F;
    /// The low and the high nibbles of eight bytes as numbers.
    /// # Safety
    /// Eight readable bytes at `from`.
    unsafe fn load_nibbles(self, from: *const u8) -> (Self::F, Self::F);
    /// As [`load_nibbles`](Self::load_nibbles) for nibbles in two's complement.
    /// # Safety
    /// Eight readable bytes at `from`.
    unsafe fn load_signed_nibbles(self, from: *const u8) -> (Self::F, Self::F);
    /// Sixteen bf16 numbers: those at even places, and those at odd ones.
    /// # Safety
    /// Sixteen readable elements at `from`.
    unsafe fn load_bf16_pairs(self, from: *const u16) -> [Self::F; 2];

    /// Asks for a cache line that will be needed soon. Any address will do.
    fn prefetch(self, at: *const u8);
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a·b + c` with one rounding.
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The second operand where either is NaN, as the x86 instruction does.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// To the nearest integer, ties to even.
    fn round(self, a: Self::F) -> Self::F;
    /// `2^n` for integral lanes within -126..=127.
    fn power_of_two(self, n: Self::F) -> Self::F;
    /// `yes` where `a < b`, else `no`.
    fn select_less(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F;
    /// `((l0+l4)+(l2+l6)) + ((l1+l5)+(l3+l7))`.
    fn sum(self, a: Self::F) -> f32;
    /// The [`sum`](Self::sum) of each of eight vectors.
    fn sums(self, a: [Self::F; LANES]) -> Self::F;
    /// The largest lane.
    fn largest(self, a: Self::F) -> f32;

    /// `e^x` to about two units in the last place; 0 below -87.3, capped above 88.
    #[inline(always)]
    fn exp(self, x: Self::F) -> Self::F {
        const COEFFICIENTS: [f32; 6] = [
            1.987_569_1e-4,
            1.398_199_9e-3,
            8.333_452e-3,
            4.166_579_6e-2,
            1.666_666_5e-1,
            0.5,
        ];
        let lowest = self.splat(-87.3);
        let clamped = self.max(self.min(x, self.splat(88.0)), lowest);
        let n = self.round(self.mul(clamped, self.splat(std::f32::consts::LOG2_E)));
        // ln 2 in two parts, so that n·ln 2 is subtracted without losing bits.
        let r = self.mul_add(n, self.splat(-0.693_359_4), clamped);
        let r = self.mul_add(n, self.splat(2.121_944_4e-4), r);
        let mut p = self.splat(COEFFICIENTS[0]);
        for coefficient in &COEFFICIENTS[1..] {
            p = self.mul_add(p, r, self.splat(*coefficient));
        }
        let p = self.mul_add(self.mul(p, r), r, self.add(r, self.splat(1.0)));
        let value = self.mul(p, self.power_of_two(n));
        self.select_less(x, lowest, self.splat(0.0), value)
    }

    /// `1 / (1 + e^-x)`.
    #[inline(always)]
    fn sigmoid(self, x: Self::F) -> Self::F {
        let one = self.splat(1.0);
        self.div(one, self.add(one, self.exp(self.sub(self.splat(0.0), x))))
    }

    /// `x · sigmoid(x)`.
    #[inline(always)]
    fn silu(self, x: Self::F) -> Self::F {
        self.mul(x, self.sigmoid(x))
    }
}

/// A computation to be run with the best instructions of the machine.
///
/// Implementations mark `run` `#[inline(always)]`, and so every helper below it that is generic over [`Simd`]:
/// only then is the whole kernel compiled for the chosen instruction set.
pub(crate) trait Kernel {
    type Output;
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// The instructions that kernels are run with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// Plain Rust, any machine.
    Portable,
    /// AVX2 + FMA + F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
}

impl Instructions {
    /// The best this machine has.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = Avx2::detect() {
            return Self::Avx2(simd);
        }
        Self::Portable
    }

    /// Name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "AVX2+FMA+F16C",
        }
    }

    /// Runs a kernel.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Self::Portable => kernel.run(Portable),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the value proves that the instructions are there.
            Self::Avx2(simd) => unsafe { avx2::run(kernel, simd) },
        }
    }
}

/// Plain Rust, any machine.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
unsafe fn gather<T: Copy>(from: *const T, convert: impl Fn(T) -> f32) -> [f32; LANES] {
    // SAFETY: the caller vouches for eight elements.
    std::array::from_fn(|i| convert(unsafe { from.add(i).read_unaligned() }))
}

impl Simd for Portable {
    type F = [f32; LANES];

    fn splat(self, value: f32) -> Self::F {
        [value; LANES]
    }
    fn load(self, from: &[f32; LANES]) -> Self::F {
        *from
    }
    fn store(self, value: Self::F, to: &mut [f32; LANES]) {
        *to = value;
    }
    unsafe fn load_ptr(self, from: *const f32) -> Self::F {
        // SAFETY: forwarded.
        unsafe { gather(from, |x| x) }
    }
    unsafe fn store_ptr(self, value: Self::F, to: *mut f32) {
        // SAFETY: forwarded.
        unsafe { to.cast::<Self::F>().write_unaligned(value) }
    }
    unsafe fn load_f16(self, from: *const u16) -> Self::F {
        // SAFETY: forwarded.
        unsafe { gather(from, |bits| half::f16::from_bits(bits).to_f32()) }
    }
    unsafe fn load_i8(self, from: *const i8) -> Self::F {
        // SAFETY: forwarded.
        unsafe { gather(from, f32::from) }
    }
    unsafe fn load_nibbles(self, from: *const u8) -> (Self::F, Self::F) {
        // SAFETY: forwarded.
        unsafe {
            (
                gather(from, |byte| f32::from(byte & 15)),
                gather(from, |byte| f32::from(byte >> 4)),
            )
        }
    }
    unsafe fn load_signed_nibbles(self, from: *const u8) -> (Self::F, Self::F) {
        let from = from.cast::<i8>();
        // SAFETY: forwarded.
        unsafe {
            (
                gather(from, |byte| f32::from(byte << 4 >> 4)),
                gather(from, |byte| f32::from(byte >> 4)),
            )
        }
    }
    unsafe fn load_bf16_pairs(self, from: *const u16) -> [Self::F; 2] {
        let from = from.cast::<[u16; 2]>();
        // SAFETY: forwarded.
        [0, 1].map(|place| unsafe { gather(from, |pair| f32::from_bits(u32::from(pair[place]) << 16)) })
    }
    fn prefetch(self, _at: *const u8) {}
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a / b)
    }
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    fn round(self, a: Self::F) -> Self::F {
        a.map(f32::round_ties_even)
    }
    fn power_of_two(self, n: Self::F) -> Self::F {
        n.map(|n| f32::from_bits(((n as i32 + 127) << 23) as u32))
    }
    fn select_less(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F {
        std::array::from_fn(|i| if a[i] < b[i] { yes[i] } else { no[i] })
    }
    fn sum(self, l: Self::F) -> f32 {
        ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]))
    }
    fn sums(self, a: [Self::F; LANES]) -> Self::F {
        a.map(|a| self.sum(a))
    }
    fn largest(self, a: Self::F) -> f32 {
        a.into_iter().fold(
            f32::NEG_INFINITY,
            |best, lane| if lane > best { lane } else { best },
        )
    }
}

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{Kernel, LANES, Simd};
    #[allow(
        clippy::wildcard_imports,
        reason = "a list of intrinsics says nothing the code does not"
    )]
    use std::arch::x86_64::*;

    /// Proof that AVX2, FMA and F16C are there.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Avx2(());

    impl Avx2 {
        pub(super) fn detect() -> Option<Self> {
            let present = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            present.then_some(Self(()))
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn run<K: Kernel>(kernel: K, simd: Avx2) -> K::Output {
        kernel.run(simd)
    }

    // SAFETY of every block below: `self` proves that the instructions exist; memory operands are either
    // references to arrays or vouched for by the caller.
    impl Simd for Avx2 {
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
        unsafe fn load_f16(self, from: *const u16) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
        }
        #[inline(always)]
        unsafe fn load_i8(self, from: *const i8) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) }
        }
        #[inline(always)]
        unsafe fn load_nibbles(self, from: *const u8) -> (__m256, __m256) {
            // SAFETY: see above.
            unsafe {
                let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()));
                let low = _mm256_and_si256(bytes, _mm256_set1_epi32(15));
                (
                    _mm256_cvtepi32_ps(low),
                    _mm256_cvtepi32_ps(_mm256_srli_epi32::<4>(bytes)),
                )
            }
        }
        #[inline(always)]
        unsafe fn load_signed_nibbles(self, from: *const u8) -> (__m256, __m256) {
            // SAFETY: see above.
            unsafe {
                let bytes = _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()));
                let low = _mm256_srai_epi32::<28>(_mm256_slli_epi32::<28>(bytes));
                (
                    _mm256_cvtepi32_ps(low),
                    _mm256_cvtepi32_ps(_mm256_srai_epi32::<4>(bytes)),
                )
            }
        }
        #[inline(always)]
        unsafe fn load_bf16_pairs(self, from: *const u16) -> [__m256; 2] {
            // SAFETY: see above.
            unsafe {
                let pairs = _mm256_loadu_si256(from.cast());
                let high = _mm256_set1_epi32(0xffff_0000_u32 as i32);
                [
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)),
                    _mm256_castsi256_ps(_mm256_and_si256(pairs, high)),
                ]
            }
        }
        #[inline(always)]
        fn prefetch(self, at: *const u8) {
            // SAFETY: see above; this reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
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
    }
}

#[cfg(test)]
mod tests;
