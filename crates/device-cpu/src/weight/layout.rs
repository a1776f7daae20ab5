//! How panels of float types are read: one [`Layout`] per type. `formats` has the quantised ones.
//!
//! | type | per panel |
//! |---|---|
//! | F32, F16 | the weights of input 0 for 16 outputs, of input 1, ... |
//! | BF16 | the same, outputs in the order 0, 8, 1, 9, ... so that one load widens into two vectors |

use super::PANEL;
use crate::simd::{LANES, Lanes, Simd};
use paceline_types::DType;

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
        quantised => unreachable!("{quantised} has no layout for products with f32"),
    }
}
