//! AVX-512: a panel is one vector. Eight lanes are those of AVX2, with twice the registers.

use super::avx2::{Avx2, WithAvx2, e4m3_as_f16};
use super::{Kernel, Simd};
#[allow(
    clippy::wildcard_imports,
    reason = "a list of intrinsics says nothing the code does not"
)]
use std::arch::x86_64::*;

/// Proof that AVX-512 F, BW, DQ and VL are there, and what [`Avx2`] proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512 {
    avx2: Avx2,
    vnni: bool,
    amx: bool,
}

impl Avx512 {
    /// The family without VNNI, with it, and with AMX besides, as far as they are there.
    pub(super) fn detect(avx2: Avx2) -> Vec<Self> {
        let present = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        let vnni = is_x86_feature_detected!("avx512vnni");
        if !present {
            return Vec::new();
        }
        let mut kinds = vec![(false, false)];
        if vnni {
            kinds.push((true, false));
        }
        if vnni && allow_amx() {
            kinds.push((true, true));
        }
        let family = |(vnni, amx)| Self { avx2, vnni, amx };
        kinds.into_iter().map(family).collect()
    }

    /// Proof of what it is proof of besides.
    pub(crate) const fn avx2(self) -> Avx2 {
        self.avx2
    }

    /// Whether this is proof of VNNI too.
    pub(crate) const fn vnni(self) -> bool {
        self.vnni
    }

    /// Whether this is proof of AMX with bytes and bf16 too, and that this process may use it.
    pub(crate) const fn amx(self) -> bool {
        self.amx
    }
}

/// Whether there is AMX with bytes and bf16, and the system lets this process use it: tiles are eight kilobytes that it saves whenever
/// another thread's turn comes, so it wants to be asked.
#[cfg(target_os = "linux")]
fn allow_amx() -> bool {
    const WANTED: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    const ASK: libc::c_int = 0x1023;
    const TILE_DATA: libc::c_ulong = 18;
    let leaves = __cpuid(0).eax;
    if leaves < 7 || __cpuid_count(7, 0).edx & WANTED != WANTED {
        return false;
    }
    // SAFETY: the call takes two numbers and changes nothing but what this process may do.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ASK, TILE_DATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn allow_amx() -> bool {
    false
}

// SAFETY: `detect` is the only source of values, and asks for proof of the rest.
unsafe impl WithAvx2 for Avx512 {}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn run<K: Kernel>(kernel: K, simd: Avx512) -> K::Output {
    kernel.run(simd)
}

// SAFETY of every block below: `self` proves that the instructions exist; memory operands are vouched for by the
// caller.
impl Simd for Avx512 {
    type P = __m512;
    const PANEL_REGISTERS: usize = 32;

    #[inline(always)]
    fn panel_splat(self, value: f32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn panel_load(self, from: *const f32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn panel_store(self, value: __m512, to: *mut f32) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_ps(to, value) }
    }
    #[inline(always)]
    unsafe fn panel_load_f16(self, from: *const u16) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn panel_load_bf16_pairs(self, from: *const u16) -> [__m512; 2] {
        // SAFETY: see above.
        unsafe {
            let pairs = _mm512_loadu_si512(from.cast());
            let high = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            [
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)),
                _mm512_castsi512_ps(_mm512_and_si512(pairs, high)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn panel_load_e4m3_pairs(self, from: *const u8) -> [__m512; 2] {
        // SAFETY: see above.
        unsafe {
            let pairs = _mm256_loadu_si256(from.cast());
            [_mm256_slli_epi16::<8>(pairs), pairs].map(|high| _mm512_cvtph_ps(e4m3_as_f16(high)))
        }
    }
    #[inline(always)]
    fn panel_mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
}
