//! How panels are read: one [`Layout`] per stored type.
//!
//! | type | per panel |
//! |---|---|
//! | F32, F16 | the weights of input 0 for 16 outputs, of input 1, ... |
//! | BF16 | the same, outputs in the order 0, 8, 1, 9, ... so that one load widens into two vectors |
//! | Q8_0, Q5_0, Q4_0, IQ4_NL | per 32 inputs: 16 f16 scales, codes |
//! | Q4_1, Q5_1 | per 32 inputs: 16 f16 scales, 16 f16 minima, codes |
//! | Q4_K, Q5_K | per 256 inputs: 16 f16 scales, 16 f16 scales of minima, then 8 times 16 scales, 16 minima, codes |
//! | Q2_K | the same with 16 times 16 scales, 16 minima, codes |
//! | Q6_K, Q3_K | per 256 inputs: 16 f16 scales, then 16 times 16 scales, codes |
//! | IQ4_XS | the same with 8 times 16 scales, codes |
//!
//! Codes are 16 bytes per input, or for the four-bit types 16 bytes per two inputs, the first in the low nibbles.
//! Other codes take a byte each, those of IQ4 as the numbers that they stand for: putting split bits together costs as
//! much time as the bytes that it saves.

use super::PANEL;
use crate::simd::{LANES, Lanes, Simd};
use paceline_types::DType;
use std::marker::PhantomData;

/// The weights of one input for the sixteen outputs of a panel.
pub(crate) type Wide<S> = [<S as Lanes>::F; 2];

/// Reads a panel. All functions ask for a pointer to a whole panel of the layout's type.
pub(crate) trait Layout: Send + Sync + 'static {
    /// Inputs that share scales. Blocks of inputs that kernels work on start at multiples of it.
    const GROUP: usize;
    /// Panels to work on at a time for a single row: four where weights are read as they are, fewer where
    /// widening them already fills the time that a multiply-add takes.
    const PANELS: usize = 2;
    /// Bytes of the codes of two inputs.
    const PAIR_BYTES: usize;
    /// Whether the two inputs of a pair are read apart at no extra cost.
    const APART: bool = false;
    /// Whether the scales of several panels are too many to be kept in registers.
    const RELOAD_SCALES: bool = false;
    /// What a group needs besides its codes.
    type Scales<S: Simd>: Copy;

    /// The scales of the group that starts at input `k`, and its codes.
    ///
    /// # Safety
    /// `k` is a multiple of [`GROUP`](Self::GROUP) inside the panel.
    unsafe fn group<S: Simd>(s: S, panel: *const u8, k: usize) -> (Self::Scales<S>, *const u8);

    /// The weights of inputs `2·pair` and `2·pair + 1` of a group.
    ///
    /// # Safety
    /// Both inputs are inside the panel.
    unsafe fn pair<S: Simd>(s: S, scales: Self::Scales<S>, codes: *const u8, pair: usize) -> [Wide<S>; 2];

    /// The weights of one input.
    ///
    /// # Safety
    /// The input is inside the panel.
    unsafe fn last<S: Simd>(s: S, scales: Self::Scales<S>, codes: *const u8, k: usize) -> Wide<S> {
        // SAFETY: types with blocks have even lengths, so the pair is inside too; plain ones override this.
        unsafe { Self::pair(s, scales, codes, k / 2)[k % 2] }
    }

    /// The panel itself, where it already is what [`decode`] would make of it.
    fn as_f32(_panel: *const u8) -> Option<*const f32> {
        None
    }
}

/// Writes the weights of `count` inputs from `k` on as f32, sixteen per input.
///
/// # Safety
/// The inputs are inside the panel, `k` is a multiple of the layout's group, `tile` has room.
#[inline(always)]
pub(crate) unsafe fn decode<S: Simd, L: Layout>(
    s: S,
    panel: *const u8,
    k: usize,
    count: usize,
    tile: *mut f32,
) {
    let mut done = 0;
    while done < count {
        let n = L::GROUP.min(count - done);
        // SAFETY: inside the panel and the tile as the caller promises.
        unsafe {
            let (scales, codes) = L::group(s, panel, k + done);
            let to = tile.add(done * PANEL);
            for pair in 0..n / 2 {
                let [first, second] = L::pair(s, scales, codes, pair);
                let to = to.add(pair * 2 * PANEL);
                s.store_ptr(first[0], to);
                s.store_ptr(first[1], to.add(LANES));
                s.store_ptr(second[0], to.add(PANEL));
                s.store_ptr(second[1], to.add(PANEL + LANES));
            }
            if n % 2 == 1 {
                let last = L::last(s, scales, codes, n - 1);
                s.store_ptr(last[0], to.add((n - 1) * PANEL));
                s.store_ptr(last[1], to.add((n - 1) * PANEL + LANES));
            }
        }
        done += n;
    }
}

/// Inputs between two looks at the loop in layouts without scales.
const PLAIN_GROUP: usize = 32;

macro_rules! plain_layout {
    ($name:ident, $element:ty, $doc:literal, |$s:ident, $from:ident| $load:expr $(, $as_f32:item)?) => {
        #[doc = $doc]
        pub(crate) struct $name;

        #[expect(clippy::cast_ptr_alignment, reason = "panels start at cache lines")]
        impl Layout for $name {
            const GROUP: usize = PLAIN_GROUP;
            const PANELS: usize = 4;
            const APART: bool = true;
            const PAIR_BYTES: usize = 2 * PANEL * size_of::<$element>();
            type Scales<S: Simd> = ();

            #[inline(always)]
            unsafe fn group<S: Simd>(_s: S, panel: *const u8, k: usize) -> ((), *const u8) {
                // SAFETY: inside the panel.
                ((), unsafe { panel.add(k * PANEL * size_of::<$element>()) })
            }

            #[inline(always)]
            unsafe fn pair<S: Simd>(s: S, (): (), codes: *const u8, pair: usize) -> [Wide<S>; 2] {
                // SAFETY: as the caller promises.
                unsafe { [Self::last(s, (), codes, 2 * pair), Self::last(s, (), codes, 2 * pair + 1)] }
            }

            #[inline(always)]
            unsafe fn last<S: Simd>($s: S, (): (), codes: *const u8, k: usize) -> Wide<S> {
                // SAFETY: as the caller promises.
                unsafe {
                    let $from = codes.cast::<$element>().add(k * PANEL);
                    $load
                }
            }

            $($as_f32)?
        }
    };
}

plain_layout!(
    F32Panel,
    f32,
    "Weights as they are.",
    |s, from| [s.load_ptr(from), s.load_ptr(from.add(LANES))],
    fn as_f32(panel: *const u8) -> Option<*const f32> {
        Some(panel.cast())
    }
);
plain_layout!(F16Panel, u16, "IEEE half precision.", |s, from| [
    s.load_f16(from),
    s.load_f16(from.add(LANES))
]);
plain_layout!(Bf16Panel, u16, "bf16, outputs interleaved.", |s, from| s
    .load_bf16_pairs(from));

/// How codes are read.
pub(crate) trait Codes: Send + Sync + 'static {
    /// Bytes of two inputs.
    const PAIR_BYTES: usize;
    /// Whether the two share no bytes.
    const APART: bool;
    /// The codes of two inputs for sixteen outputs.
    ///
    /// # Safety
    /// `PAIR_BYTES` readable bytes at `from`.
    unsafe fn pair<S: Simd>(s: S, from: *const u8) -> [Wide<S>; 2];
}

/// A signed byte per code.
pub(crate) struct Bytes;
/// A nibble per code.
pub(crate) struct Nibbles;
/// A nibble per code, in two's complement.
pub(crate) struct SignedNibbles;

impl Codes for Bytes {
    const PAIR_BYTES: usize = 2 * PANEL;
    const APART: bool = true;
    #[inline(always)]
    unsafe fn pair<S: Simd>(s: S, from: *const u8) -> [Wide<S>; 2] {
        let from = from.cast::<i8>();
        // SAFETY: 32 bytes as the caller promises.
        unsafe {
            [
                [s.load_i8(from), s.load_i8(from.add(8))],
                [s.load_i8(from.add(16)), s.load_i8(from.add(24))],
            ]
        }
    }
}

impl Codes for Nibbles {
    const PAIR_BYTES: usize = PANEL;
    const APART: bool = false;
    #[inline(always)]
    unsafe fn pair<S: Simd>(s: S, from: *const u8) -> [Wide<S>; 2] {
        // SAFETY: 16 bytes as the caller promises.
        let ((a, c), (b, d)) = unsafe { (s.load_nibbles(from), s.load_nibbles(from.add(8))) };
        [[a, b], [c, d]]
    }
}

impl Codes for SignedNibbles {
    const PAIR_BYTES: usize = PANEL;
    const APART: bool = false;
    #[inline(always)]
    unsafe fn pair<S: Simd>(s: S, from: *const u8) -> [Wide<S>; 2] {
        // SAFETY: 16 bytes as the caller promises.
        let ((a, c), (b, d)) = unsafe { (s.load_signed_nibbles(from), s.load_signed_nibbles(from.add(8))) };
        [[a, b], [c, d]]
    }
}

/// Sixteen f16 numbers.
///
/// # Safety
/// They are readable at `from`.
#[inline(always)]
#[expect(clippy::cast_ptr_alignment, reason = "headers start at even addresses")]
unsafe fn halves<S: Simd>(s: S, from: *const u8) -> Wide<S> {
    let from = from.cast::<u16>();
    // SAFETY: as the caller promises.
    unsafe { [s.load_f16(from), s.load_f16(from.add(LANES))] }
}

/// Sixteen signed bytes, each times a factor.
///
/// # Safety
/// They are readable at `from`.
#[inline(always)]
unsafe fn scaled_bytes<S: Simd>(s: S, factor: Wide<S>, from: *const u8) -> Wide<S> {
    let from = from.cast::<i8>();
    // SAFETY: as the caller promises.
    let codes = unsafe { [s.load_i8(from), s.load_i8(from.add(LANES))] };
    [s.mul(factor[0], codes[0]), s.mul(factor[1], codes[1])]
}

#[inline(always)]
fn scaled<S: Simd>(s: S, scale: Wide<S>, codes: [Wide<S>; 2]) -> [Wide<S>; 2] {
    let [first, second] = codes;
    [
        [s.mul(scale[0], first[0]), s.mul(scale[1], first[1])],
        [s.mul(scale[0], second[0]), s.mul(scale[1], second[1])],
    ]
}

#[inline(always)]
fn affine<S: Simd>(s: S, [scale, min]: [Wide<S>; 2], codes: [Wide<S>; 2]) -> [Wide<S>; 2] {
    let [first, second] = codes;
    [
        [
            s.mul_add(scale[0], first[0], min[0]),
            s.mul_add(scale[1], first[1], min[1]),
        ],
        [
            s.mul_add(scale[0], second[0], min[0]),
            s.mul_add(scale[1], second[1], min[1]),
        ],
    ]
}

const BLOCK: usize = 32;
const SUPER: usize = 256;
/// Bytes of sixteen f16 numbers.
const HALVES: usize = 2 * PANEL;

/// `d·q`, a scale per 32 inputs.
pub(crate) struct Scaled<C>(PhantomData<C>);

impl<C: Codes> Layout for Scaled<C> {
    const GROUP: usize = BLOCK;
    const APART: bool = C::APART;
    const PAIR_BYTES: usize = C::PAIR_BYTES;
    type Scales<S: Simd> = Wide<S>;

    #[inline(always)]
    unsafe fn group<S: Simd>(s: S, panel: *const u8, k: usize) -> (Wide<S>, *const u8) {
        let block = HALVES + BLOCK / 2 * C::PAIR_BYTES;
        // SAFETY: inside the panel as the caller promises.
        unsafe {
            let at = panel.add(k / BLOCK * block);
            (halves(s, at), at.add(HALVES))
        }
    }

    #[inline(always)]
    unsafe fn pair<S: Simd>(s: S, scale: Wide<S>, codes: *const u8, pair: usize) -> [Wide<S>; 2] {
        // SAFETY: inside the panel as the caller promises.
        scaled(s, scale, unsafe { C::pair(s, codes.add(pair * C::PAIR_BYTES)) })
    }
}

/// `d·q + m`, both per 32 inputs.
pub(crate) struct Affine<C>(PhantomData<C>);

impl<C: Codes> Layout for Affine<C> {
    const GROUP: usize = BLOCK;
    const PAIR_BYTES: usize = C::PAIR_BYTES;
    const APART: bool = C::APART;
    const RELOAD_SCALES: bool = true;
    type Scales<S: Simd> = [Wide<S>; 2];

    #[inline(always)]
    unsafe fn group<S: Simd>(s: S, panel: *const u8, k: usize) -> ([Wide<S>; 2], *const u8) {
        let block = 2 * HALVES + BLOCK / 2 * C::PAIR_BYTES;
        // SAFETY: inside the panel as the caller promises.
        unsafe {
            let at = panel.add(k / BLOCK * block);
            ([halves(s, at), halves(s, at.add(HALVES))], at.add(2 * HALVES))
        }
    }

    #[inline(always)]
    unsafe fn pair<S: Simd>(s: S, scales: [Wide<S>; 2], codes: *const u8, pair: usize) -> [Wide<S>; 2] {
        // SAFETY: inside the panel as the caller promises.
        affine(s, scales, unsafe { C::pair(s, codes.add(pair * C::PAIR_BYTES)) })
    }
}

/// `(d·scale)·q − dmin·min`, scale and minimum per `G` of 256 inputs.
pub(crate) struct SuperAffine<C, const G: usize>(PhantomData<C>);

impl<C: Codes, const G: usize> Layout for SuperAffine<C, G> {
    const GROUP: usize = G;
    const PAIR_BYTES: usize = C::PAIR_BYTES;
    const APART: bool = C::APART;
    const RELOAD_SCALES: bool = true;
    type Scales<S: Simd> = [Wide<S>; 2];

    #[inline(always)]
    unsafe fn group<S: Simd>(s: S, panel: *const u8, k: usize) -> ([Wide<S>; 2], *const u8) {
        let sub = 2 * PANEL + G / 2 * C::PAIR_BYTES;
        let block = 2 * HALVES + SUPER / G * sub;
        // SAFETY: inside the panel as the caller promises.
        unsafe {
            let block = panel.add(k / SUPER * block);
            let at = block.add(2 * HALVES + k % SUPER / G * sub);
            let scale = scaled_bytes(s, halves(s, block), at);
            let min = scaled_bytes(s, halves(s, block.add(HALVES)), at.add(PANEL));
            let minus = s.splat(-1.0);
            let min = [s.mul(min[0], minus), s.mul(min[1], minus)];
            ([scale, min], at.add(2 * PANEL))
        }
    }

    #[inline(always)]
    unsafe fn pair<S: Simd>(s: S, scales: [Wide<S>; 2], codes: *const u8, pair: usize) -> [Wide<S>; 2] {
        // SAFETY: inside the panel as the caller promises.
        affine(s, scales, unsafe { C::pair(s, codes.add(pair * C::PAIR_BYTES)) })
    }
}

/// `(d·scale)·q`, a scale per `G` of 256 inputs.
pub(crate) struct SuperScaled<const G: usize>;

impl<const G: usize> Layout for SuperScaled<G> {
    const GROUP: usize = G;
    const APART: bool = Bytes::APART;
    const PAIR_BYTES: usize = Bytes::PAIR_BYTES;
    type Scales<S: Simd> = Wide<S>;

    #[inline(always)]
    unsafe fn group<S: Simd>(s: S, panel: *const u8, k: usize) -> (Wide<S>, *const u8) {
        let sub = PANEL + G * PANEL;
        let bytes = HALVES + SUPER / G * sub;
        // SAFETY: inside the panel as the caller promises.
        unsafe {
            let block = panel.add(k / SUPER * bytes);
            let at = block.add(HALVES + k % SUPER / G * sub);
            (scaled_bytes(s, halves(s, block), at), at.add(PANEL))
        }
    }

    #[inline(always)]
    unsafe fn pair<S: Simd>(s: S, scale: Wide<S>, codes: *const u8, pair: usize) -> [Wide<S>; 2] {
        // SAFETY: inside the panel as the caller promises.
        scaled(s, scale, unsafe {
            Bytes::pair(s, codes.add(pair * Bytes::PAIR_BYTES))
        })
    }
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
        DType::Q4_0 => task.run::<Scaled<SignedNibbles>>(),
        DType::Q5_0 | DType::Q8_0 | DType::Iq4Nl => task.run::<Scaled<Bytes>>(),
        DType::Q4_1 => task.run::<Affine<Nibbles>>(),
        DType::Q5_1 => task.run::<Affine<Bytes>>(),
        DType::Q4K => task.run::<SuperAffine<Nibbles, BLOCK>>(),
        DType::Q5K => task.run::<SuperAffine<Bytes, BLOCK>>(),
        DType::Q2K => task.run::<SuperAffine<Bytes, 16>>(),
        DType::Q3K | DType::Q6K => task.run::<SuperScaled<16>>(),
        DType::Iq4Xs => task.run::<SuperScaled<BLOCK>>(),
    }
}
