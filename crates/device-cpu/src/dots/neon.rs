//! NEON with its dot products: four vectors per panel. The instruction multiplies signed with signed bytes, so inputs come as
//! two planes as with VNNI, and weights are made signed by taking 128 from each. With I8MM, which multiplies matrices of
//! two rows, unsigned with signed, two outputs meet eight inputs in both planes at once.

use super::{DotKernel, Dots, GROUP, NoTiles, QUAD, encode_planes};
use crate::simd::Neon;
use crate::weight::PANEL;
#[allow(
    clippy::wildcard_imports,
    reason = "a list of intrinsics says nothing the code does not"
)]
use std::arch::aarch64::*;
use std::arch::asm;

/// Vectors of a panel.
const VECTORS: usize = 4;

/// Four unsigned bytes for each output of a panel.
type Bytes = [uint8x16_t; VECTORS];
/// Unfinished sums of both planes.
type Sums = [[int32x4_t; VECTORS]; 2];

/// Families that add products of bytes to 32-bit sums.
///
/// # Safety
/// A value of the type proves that its instructions are there.
pub(super) unsafe trait Products: Copy + Send + Sync + 'static {
    /// As [`Dots::OFFSET`].
    const OFFSET: i32;

    fn encode(inputs: &[i16; GROUP]) -> [u8; 2 * GROUP];
    /// # Safety
    /// As [`Dots::dot`].
    unsafe fn add_products(self, sums: Sums, weights: [Bytes; 2], group: *const u8, pair: usize) -> Sums;
    /// The sums of the upper and of the lower bytes, for outputs `4·i` to `4·i + 3`.
    fn planes(self, sums: Sums, i: usize) -> [int32x4_t; 2];
}

// SAFETY: that is what it proves.
unsafe impl Products for Neon {
    const OFFSET: i32 = 128;

    #[inline(always)]
    fn encode(inputs: &[i16; GROUP]) -> [u8; 2 * GROUP] {
        encode_planes(inputs)
    }
    #[inline(always)]
    unsafe fn add_products(self, mut sums: Sums, weights: [Bytes; 2], group: *const u8, pair: usize) -> Sums {
        // SAFETY: `self` proves that the instructions exist, and the inputs are in the group as the caller promises.
        unsafe {
            for quad in 0..2 {
                let at = group.add(QUAD * (2 * pair + quad));
                let upper = i32::from_le_bytes(at.cast::<[u8; QUAD]>().read());
                let lower = i32::from_le_bytes(at.add(GROUP).cast::<[u8; QUAD]>().read());
                let (upper, lower) = (vdupq_n_s32(upper), vdupq_n_s32(lower));
                for i in 0..VECTORS {
                    let signed = veorq_u8(weights[quad][i], vdupq_n_u8(128));
                    sums[0][i] = sdot(sums[0][i], signed, upper);
                    sums[1][i] = sdot(sums[1][i], signed, lower);
                }
            }
        }
        sums
    }
    #[inline(always)]
    fn planes(self, sums: Sums, i: usize) -> [int32x4_t; 2] {
        [sums[0][i], sums[1][i]]
    }
}

/// Proof that products of matrices are there.
#[derive(Clone, Copy)]
pub(super) struct I8mm(());

impl I8mm {
    pub(super) fn from(neon: Neon) -> Option<Self> {
        neon.i8mm().then_some(Self(()))
    }
}

// SAFETY: `from` is the only source of values.
unsafe impl Products for I8mm {
    const OFFSET: i32 = 0;

    /// Eight upper bytes, then the lower ones of the same inputs.
    #[inline(always)]
    fn encode(inputs: &[i16; GROUP]) -> [u8; 2 * GROUP] {
        let (planes, mut pairs) = (encode_planes(inputs), [0; 2 * GROUP]);
        for (pair, to) in pairs.chunks_exact_mut(4 * QUAD).enumerate() {
            to[..2 * QUAD].copy_from_slice(&planes[2 * QUAD * pair..][..2 * QUAD]);
            to[2 * QUAD..].copy_from_slice(&planes[GROUP + 2 * QUAD * pair..][..2 * QUAD]);
        }
        pairs
    }
    /// Sums are those of the first two of four outputs, and of the last two: of either, upper and lower bytes.
    #[inline(always)]
    unsafe fn add_products(self, mut sums: Sums, weights: [Bytes; 2], group: *const u8, pair: usize) -> Sums {
        // SAFETY: `self` proves that the instructions exist, and the inputs are in the group as the caller promises.
        unsafe {
            let inputs = vld1q_u8(group.add(4 * QUAD * pair));
            for i in 0..VECTORS {
                let (a, b) = (
                    vreinterpretq_u32_u8(weights[0][i]),
                    vreinterpretq_u32_u8(weights[1][i]),
                );
                sums[0][i] = usmmla(sums[0][i], vreinterpretq_u8_u32(vzip1q_u32(a, b)), inputs);
                sums[1][i] = usmmla(sums[1][i], vreinterpretq_u8_u32(vzip2q_u32(a, b)), inputs);
            }
        }
        sums
    }
    #[inline(always)]
    fn planes(self, sums: Sums, i: usize) -> [int32x4_t; 2] {
        // SAFETY: `self` proves that the instructions exist.
        unsafe {
            [
                vuzp1q_s32(sums[0][i], sums[1][i]),
                vuzp2q_s32(sums[0][i], sums[1][i]),
            ]
        }
    }
}

#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn run<K: DotKernel>(kernel: K, dots: Neon) {
    kernel.run(dots);
}

#[target_feature(enable = "neon,dotprod,i8mm")]
pub(super) unsafe fn run_i8mm<K: DotKernel>(kernel: K, dots: I8mm) {
    kernel.run(dots);
}

// SAFETY of every block below: `self` proves that the instructions exist; memory operands are vouched for by the caller.
impl<P: Products> Dots for P {
    const ROWS: usize = 2;
    const OFFSET: i32 = P::OFFSET;
    type Bytes = Bytes;
    type Sums = Sums;
    type F = [float32x4_t; VECTORS];
    type Tiles = NoTiles;

    #[inline(always)]
    fn tiles(self) -> Option<NoTiles> {
        None
    }

    #[inline(always)]
    fn encode(self, inputs: &[i16; GROUP]) -> [u8; 2 * GROUP] {
        P::encode(inputs)
    }
    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> Self::Bytes {
        // SAFETY: see above.
        unsafe {
            [
                vld1q_u8(from),
                vld1q_u8(from.add(16)),
                vld1q_u8(from.add(32)),
                vld1q_u8(from.add(48)),
            ]
        }
    }
    #[inline(always)]
    fn shift_and(self, mut bytes: Self::Bytes, by: i32, mask: u8) -> Self::Bytes {
        for vector in &mut bytes {
            // SAFETY: see above.
            *vector = unsafe {
                let shifted = vshlq_u32(vreinterpretq_u32_u8(*vector), vdupq_n_s32(-by));
                vandq_u8(vreinterpretq_u8_u32(shifted), vdupq_n_u8(mask))
            };
        }
        bytes
    }
    #[inline(always)]
    fn or(self, mut a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        for i in 0..VECTORS {
            // SAFETY: see above.
            a[i] = unsafe { vorrq_u8(a[i], b[i]) };
        }
        a
    }
    #[inline(always)]
    fn look_up(self, mut bytes: Self::Bytes, table: &[u8; 16]) -> Self::Bytes {
        for vector in &mut bytes {
            // SAFETY: see above.
            *vector = unsafe { vqtbl1q_u8(vld1q_u8(table.as_ptr()), *vector) };
        }
        bytes
    }
    #[inline(always)]
    fn zero(self) -> Self::Sums {
        // SAFETY: see above.
        unsafe { [[vdupq_n_s32(0); VECTORS]; 2] }
    }
    #[inline(always)]
    unsafe fn dot(self, sums: Sums, weights: [Bytes; 2], group: *const u8, pair: usize) -> Sums {
        // SAFETY: as the caller promises.
        unsafe { self.add_products(sums, weights, group, pair) }
    }
    #[inline(always)]
    fn total(self, sums: Self::Sums, add: i32) -> Self::F {
        let mut total = self.splat(0.0);
        for i in 0..VECTORS {
            let [upper, lower] = self.planes(sums, i);
            // SAFETY: see above.
            total[i] = unsafe {
                let upper = vaddq_s32(vshlq_n_s32::<8>(upper), vdupq_n_s32(add));
                vcvtq_f32_s32(vaddq_s32(upper, lower))
            };
        }
        total
    }
    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        // SAFETY: see above.
        unsafe { [vdupq_n_f32(value); VECTORS] }
    }
    #[inline(always)]
    fn mul(self, mut a: Self::F, b: Self::F) -> Self::F {
        for i in 0..VECTORS {
            // SAFETY: see above.
            a[i] = unsafe { vmulq_f32(a[i], b[i]) };
        }
        a
    }
    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, mut c: Self::F) -> Self::F {
        for i in 0..VECTORS {
            // SAFETY: see above.
            c[i] = unsafe { vfmaq_f32(c[i], a[i], b[i]) };
        }
        c
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> Self::F {
        // SAFETY: see above.
        unsafe {
            let (low, high) = (vld1q_u8(from), vld1q_u8(from.add(16)));
            [widen_low(low), widen_high(low), widen_low(high), widen_high(high)]
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, from: *const u8) -> Self::F {
        // SAFETY: see above.
        unsafe {
            let bytes = vld1q_s8(from.cast());
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            [
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                vcvtq_f32_s32(vmovl_high_s16(low)),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                vcvtq_f32_s32(vmovl_high_s16(high)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn store(self, value: Self::F, to: *mut f32) {
        for i in 0..VECTORS {
            // SAFETY: see above.
            unsafe { vst1q_f32(to.add(i * PANEL / VECTORS), value[i]) };
        }
    }
    #[inline(always)]
    fn prefetch(self, _at: *const u8) {}
}

/// Adds the products of four signed bytes per lane.
///
/// # Safety
/// The machine has dot products.
#[inline(always)]
unsafe fn sdot(mut sums: int32x4_t, a: uint8x16_t, b: int32x4_t) -> int32x4_t {
    // SAFETY: as the caller promises; registers only.
    unsafe {
        asm!("sdot {sums:v}.4s, {a:v}.16b, {b:v}.16b", sums = inout(vreg) sums, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// Adds the products of two rows of eight unsigned bytes with two of signed ones: a lane for each two rows.
///
/// # Safety
/// The machine has products of matrices.
#[inline(always)]
unsafe fn usmmla(mut sums: int32x4_t, a: uint8x16_t, b: uint8x16_t) -> int32x4_t {
    // SAFETY: as the caller promises; registers only.
    unsafe {
        asm!("usmmla {sums:v}.4s, {a:v}.16b, {b:v}.16b", sums = inout(vreg) sums, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// The first four of eight half-precision numbers.
///
/// # Safety
/// None but those of NEON.
#[inline(always)]
unsafe fn widen_low(halves: uint8x16_t) -> float32x4_t {
    let wide;
    // SAFETY: registers only.
    unsafe {
        asm!("fcvtl {wide:v}.4s, {halves:v}.4h", wide = out(vreg) wide, halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

/// The last four.
///
/// # Safety
/// As [`widen_low`].
#[inline(always)]
unsafe fn widen_high(halves: uint8x16_t) -> float32x4_t {
    let wide;
    // SAFETY: registers only.
    unsafe {
        asm!("fcvtl2 {wide:v}.4s, {halves:v}.8h", wide = out(vreg) wide, halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags));
    }
    wide
}
