//! How panels of float types are read: one [`Layout`] per type. `formats` has the quantised ones.
//!
//! | type | per panel |
//! |---|---|
//! | F32, F16 | the weights of input 0 for 16 outputs, of input 1, ... |
//! | BF16 | inputs in pairs: for output 0 the weights of both, for output 1, ...; an odd last one beside zeros |
//! | F8_E4M3 | per 128 inputs: 256 times the f32 scales of 16 outputs, then a 256th of the weights, in pairs as in BF16 |
//!
//! A pair of bf16 numbers is widened by a shift and a mask, whatever the width of vectors.
//!
//! Four panels at a time lie side by side, two inputs of each in turn, since a kernel takes as many: what it reads is then one
//! stream, which machines fetch from memory half as fast again as four of them. Scaled panels follow each other.

use super::PANEL;
use crate::simd::Simd;
use half::f16;
use paceline_device::{SCALE_BLOCK, e4m3_value};
use paceline_types::DType;

/// Reads a panel.
pub(crate) trait Layout: Send + Sync + 'static {
    /// Bytes of the weights of two inputs.
    const PAIR_BYTES: usize;

    /// Whether [`SCALE_BLOCK`] inputs at a time are multiplied by a scale.
    const SCALED: bool = false;

    /// Panels that lie side by side.
    const ABREAST: usize = if Self::SCALED { 1 } else { MOST_ABREAST };

    /// The weights of the first of two inputs (`WHICH` = 0) or of the second (1) for sixteen outputs.
    ///
    /// # Safety
    /// `pair` is where two inputs start in a panel, and the input is inside the panel.
    unsafe fn input<S: Simd, const WHICH: usize>(s: S, pair: *const u8) -> S::P;

    /// The weight of input `k` for an output of the panel.
    ///
    /// # Safety
    /// The input is inside the panel, and the output is one of sixteen.
    unsafe fn weight(panel: Place, k: usize, output: usize) -> f32;
}

/// Most panels that lie side by side.
pub(crate) const MOST_ABREAST: usize = 4;

/// Where a panel is.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) start: *const u8,
    /// How many panels lie side by side with it, itself included.
    pub(crate) abreast: usize,
}

impl Place {
    /// Where the pair of inputs that has input `k` starts, of `bytes` bytes.
    #[inline(always)]
    const fn pair(self, k: usize, bytes: usize) -> *const u8 {
        self.start.wrapping_add(k / 2 * bytes * self.abreast)
    }
}

/// How far the first pair of a panel is from that of the first one, and how many panels lie side by side there: of `panels` panels of
/// `panel_bytes` bytes, whose pairs have `pair_bytes`.
pub(super) fn place(panel: usize, panels: usize, panel_bytes: usize, pair_bytes: usize) -> (usize, usize) {
    let first = panel / MOST_ABREAST * MOST_ABREAST;
    let at = first * panel_bytes + (panel - first) * pair_bytes;
    (at, MOST_ABREAST.min(panels - first))
}

/// Bytes of two inputs of a panel of this type, if panels lie side by side.
pub(super) fn abreast_by(dtype: DType) -> Option<usize> {
    struct PairBytes;
    impl ForLayout for PairBytes {
        type Output = Option<usize>;
        fn run<L: Layout>(self) -> Option<usize> {
            (L::ABREAST > 1).then_some(L::PAIR_BYTES)
        }
    }
    if dtype.is_quantised() {
        None
    } else {
        with_layout(dtype, PairBytes)
    }
}

/// Bytes of the scales of a block.
pub(crate) const SCALE_BYTES: usize = PANEL * 4;
/// Bytes of a block of scaled inputs.
pub(crate) const SCALED_BLOCK_BYTES: usize = SCALE_BYTES + SCALE_BLOCK * PANEL;

/// Weights as they are.
pub(crate) struct F32Panel;
/// IEEE half precision.
pub(crate) struct F16Panel;
/// bf16, inputs in pairs.
pub(crate) struct Bf16Panel;
/// 8-bit floats, inputs in pairs, with scales.
pub(crate) struct E4m3Panel;

#[expect(clippy::cast_ptr_alignment, reason = "panels start at cache lines")]
impl Layout for F32Panel {
    const PAIR_BYTES: usize = 2 * PANEL * 4;

    #[inline(always)]
    unsafe fn input<S: Simd, const WHICH: usize>(s: S, pair: *const u8) -> S::P {
        // SAFETY: as the caller promises.
        unsafe { s.panel_load(pair.cast::<f32>().add(WHICH * PANEL)) }
    }

    #[inline(always)]
    unsafe fn weight(panel: Place, k: usize, output: usize) -> f32 {
        let pair = panel.pair(k, Self::PAIR_BYTES).cast::<f32>();
        // SAFETY: as the caller promises.
        unsafe { *pair.add(k % 2 * PANEL + output) }
    }
}

#[expect(clippy::cast_ptr_alignment, reason = "panels start at cache lines")]
impl Layout for F16Panel {
    const PAIR_BYTES: usize = 2 * PANEL * 2;

    #[inline(always)]
    unsafe fn input<S: Simd, const WHICH: usize>(s: S, pair: *const u8) -> S::P {
        // SAFETY: as the caller promises.
        unsafe { s.panel_load_f16(pair.cast::<u16>().add(WHICH * PANEL)) }
    }

    #[inline(always)]
    unsafe fn weight(panel: Place, k: usize, output: usize) -> f32 {
        let pair = panel.pair(k, Self::PAIR_BYTES).cast::<f16>();
        // SAFETY: as the caller promises.
        unsafe { *pair.add(k % 2 * PANEL + output) }.to_f32()
    }
}

#[expect(clippy::cast_ptr_alignment, reason = "panels start at cache lines")]
impl Layout for Bf16Panel {
    const PAIR_BYTES: usize = 2 * PANEL * 2;

    #[inline(always)]
    unsafe fn input<S: Simd, const WHICH: usize>(s: S, pair: *const u8) -> S::P {
        // SAFETY: as the caller promises; panels are whole cache lines, so there is room for both inputs.
        unsafe { s.panel_load_bf16_pairs(pair.cast())[WHICH] }
    }

    #[inline(always)]
    unsafe fn weight(panel: Place, k: usize, output: usize) -> f32 {
        let pair = panel.pair(k, Self::PAIR_BYTES).cast::<half::bf16>();
        // SAFETY: as the caller promises.
        unsafe { *pair.add(pair_place(k % 2, output)) }.to_f32()
    }
}

#[expect(clippy::cast_ptr_alignment, reason = "panels start at cache lines")]
impl Layout for E4m3Panel {
    const PAIR_BYTES: usize = 2 * PANEL;
    const SCALED: bool = true;

    #[inline(always)]
    unsafe fn input<S: Simd, const WHICH: usize>(s: S, pair: *const u8) -> S::P {
        // SAFETY: as the caller promises; there is room for both inputs.
        unsafe { s.panel_load_e4m3_pairs(pair)[WHICH] }
    }

    #[inline(always)]
    unsafe fn weight(panel: Place, k: usize, output: usize) -> f32 {
        // SAFETY: as the caller promises.
        unsafe {
            let block = panel.start.add(k / SCALE_BLOCK * SCALED_BLOCK_BYTES);
            let code = *block.add(SCALE_BYTES + pair_place(k % SCALE_BLOCK, output));
            e4m3_value(code) / 256.0 * *block.cast::<f32>().add(output)
        }
    }
}

/// Where the weight of an input and an output lies among inputs in pairs.
pub(super) const fn pair_place(k: usize, output: usize) -> usize {
    k / 2 * (2 * PANEL) + 2 * output + k % 2
}

/// A computation that is compiled once per layout.
pub(crate) trait ForLayout {
    type Output;
    fn run<L: Layout>(self) -> Self::Output;
}

/// Runs a computation with the layout of a type.
pub(crate) fn with_layout<T: ForLayout>(dtype: DType, task: T) -> T::Output {
    match dtype {
        DType::F32 => task.run::<F32Panel>(),
        DType::F16 => task.run::<F16Panel>(),
        DType::BF16 => task.run::<Bf16Panel>(),
        DType::F8E4M3 => task.run::<E4m3Panel>(),
        quantised => unreachable!("{quantised} has no layout for products with f32"),
    }
}
