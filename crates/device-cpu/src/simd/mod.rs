//! Vectors of f32 with AVX-512, with AVX2 and in portable code, with the same results to the last bit.
//!
//! A kernel is written once against [`Simd`] and run through [`Instructions::run`], which picks the
//! instruction set. Every operation here is exact or correctly rounded in all versions, and reductions add eight lanes
//! in one fixed order, whatever the width of the machine's vectors, so the choice never changes a result.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
#[cfg(test)]
pub(crate) use portable::ASKED;
pub(crate) use portable::Portable;

/// Lanes of a vector.
pub(crate) const LANES: usize = 8;

/// Lanes of a panel.
pub(crate) const PANEL: usize = 16;

/// What kernels are written against: vectors of eight lanes, which reductions are defined by, and panels of sixteen,
/// which are never reduced and so may be as wide as the machine likes.
pub(crate) trait Simd: Lanes {
    /// Sixteen lanes.
    type P: Copy;

    /// Panels that the registers hold.
    const PANEL_REGISTERS: usize;

    fn panel_splat(self, value: f32) -> Self::P;
    /// # Safety
    /// Sixteen readable elements at `from`; no alignment needed.
    unsafe fn panel_load(self, from: *const f32) -> Self::P;
    /// # Safety
    /// Sixteen writable elements at `to`.
    unsafe fn panel_store(self, value: Self::P, to: *mut f32);
    /// Sixteen IEEE half-precision numbers.
    /// # Safety
    /// Sixteen readable elements at `from`.
    unsafe fn panel_load_f16(self, from: *const u16) -> Self::P;
    /// Thirty-two bf16 numbers: those at even places, and those at odd ones.
    /// # Safety
    /// Thirty-two readable elements at `from`.
    unsafe fn panel_load_bf16_pairs(self, from: *const u16) -> [Self::P; 2];
    /// Thirty-two 8-bit floats: a 256th of those at even places, and of those at odd ones. They are half-precision numbers
    /// once their bits are moved, which machines widen, small ones too, as fast as others.
    /// # Safety
    /// Thirty-two readable elements at `from`.
    unsafe fn panel_load_e4m3_pairs(self, from: *const u8) -> [Self::P; 2];
    /// `a·b + c` with one rounding.
    fn panel_mul_add(self, a: Self::P, b: Self::P, c: Self::P) -> Self::P;
}

/// Eight f32 lanes. Values of this type exist only where the instructions they stand for do.
pub(crate) trait Lanes: Copy + Send + Sync + 'static {
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

    /// Asks for a cache line, up to the second-level cache. Any address will do.
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
    /// The nearest of IEEE half precision, ties to even.
    fn to_f16(self, a: Self::F) -> [u16; LANES];

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
    /// AVX2 + FMA + F16C, with or without AVX-VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX-512 (F, BW, DQ, VL), with or without VNNI, and with it with or without AMX.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    /// NEON with dot products, with or without I8MM.
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
}

impl Instructions {
    /// The best this machine has.
    pub fn detect() -> Self {
        *Self::all().last().expect("plain Rust is always there")
    }

    /// All that this machine has, the plainest first.
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = Avx2::detect();
            all.extend(avx2.iter().copied().map(Self::Avx2));
            let avx512 = avx2.first().map(|avx2| Avx512::detect(*avx2));
            all.extend(avx512.into_iter().flatten().map(Self::Avx512));
        }
        #[cfg(target_arch = "aarch64")]
        all.extend(Neon::detect().into_iter().map(Self::Neon));
        all
    }

    /// Name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(simd) if simd.vnni() => "AVX2+FMA+F16C+VNNI",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "AVX2+FMA+F16C",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(simd) if simd.amx() => "AVX-512+VNNI+AMX",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(simd) if simd.vnni() => "AVX-512+VNNI",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "AVX-512",
            #[cfg(target_arch = "aarch64")]
            Self::Neon(neon) if neon.i8mm() => "NEON+DotProd+I8MM",
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => "NEON+DotProd",
        }
    }

    /// Whether products of many rows are made by tiles.
    pub(crate) const fn has_tiles(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(simd) => simd.amx(),
            _ => false,
        }
    }

    /// Runs a kernel.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Self::Portable => kernel.run(Portable),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the value proves that the instructions are there.
            Self::Avx2(simd) => unsafe { avx2::run(kernel, simd) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Avx512(simd) => unsafe { avx512::run(kernel, simd) },
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => kernel.run(Portable),
        }
    }
}

#[cfg(test)]
mod tests;
