//! Products with float weights.
//!
//! A register tile of some rows by some panels passes over all inputs: weights are widened on the way, meet every row of
//! the tile, and sums never leave the registers. Rows beyond one tile pass over the same panels again, which the caches
//! hold by then; widening anew is hidden behind the multiply-adds. So a result is the same for any number of rows, and
//! there is nothing between weights and registers.
//!
//! No closures around vector operations here: one that is not inlined is compiled without the instructions.

use super::Product;
use crate::simd::{Kernel, PANEL, Simd};
use crate::weight::Segment;
use crate::weight::layout::{Layout, MOST_ABREAST, SCALE_BYTES, SCALED_BLOCK_BYTES};
use paceline_device::SCALE_BLOCK;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{Ordering, compiler_fence};

/// How far ahead of the weights in use others are asked for: arithmetic between two loads keeps the machine from looking as far by
/// itself. Few rows are all loads, and better left alone: asking takes the place of loads.
const AHEAD: usize = 4 << 10;
const FEW_ROWS: usize = 3;

/// Bytes of a cache line.
const LINE: usize = 64;

/// A loop over up to eight indices without a loop: sums are kept in registers only if no index into their array is left to
/// be found out when it runs, and the compiler unrolls loops late.
macro_rules! unrolled {
    ($index:ident < $count:expr, $body:block) => {
        unrolled!($index < $count, $body, 0 1 2 3 4 5 6 7)
    };
    ($index:ident < $count:expr, $body:block, $($at:literal)*) => {
        $(if $at < $count {
            let $index: usize = $at;
            $body
        })*
    };
}

/// Some panels of one segment for some rows.
pub(super) struct Span<'a, L> {
    product: &'a Product<'a>,
    segment: &'a Segment,
    panels: Range<usize>,
    rows: Range<usize>,
    layout: PhantomData<L>,
}

/// Where a tile begins.
#[derive(Clone, Copy)]
struct Corner {
    panel: usize,
    row: usize,
}

impl<'a, L: Layout> Span<'a, L> {
    pub(super) fn new(
        product: &'a Product<'a>,
        segment: &'a Segment,
        panels: Range<usize>,
        rows: Range<usize>,
    ) -> Self {
        assert!(panels.end <= segment.panels());
        Self {
            product,
            segment,
            panels,
            rows,
            layout: PhantomData,
        }
    }

    /// All rows, in parts of about the same size and `most` at most, over all panels.
    #[inline(always)]
    fn pass<S: Simd, T: Tile<S, L>>(&self, s: S, most: usize) {
        let (first, rows) = (self.rows.start, self.rows.len());
        let parts = rows.div_ceil(most);
        let together = T::panels(rows.div_ceil(parts));
        let mut panel = self.panels.start;
        while panel < self.panels.end {
            // Where panels lie side by side, a tile stays among them.
            let side = match L::ABREAST {
                1 => self.panels.end,
                abreast => (panel / abreast + 1) * abreast,
            };
            let count = match self.panels.end.min(side) - panel {
                left if left >= together => together,
                _ => 1,
            };
            for part in 0..parts {
                let [start, end] = [part, part + 1].map(|part| first + rows * part / parts);
                let corner = Corner { panel, row: start };
                T::run(self, s, corner, (end - start, count));
            }
            panel += count;
        }
    }

    /// `R` rows by `P` panels.
    #[inline(always)]
    fn tile<S: Simd, const R: usize, const P: usize>(&self, s: S, corner: Corner) {
        let Corner { panel: first, row } = corner;
        let rows: [*const f32; R] = std::array::from_fn(|r| {
            let row = self.product.input_row(row + r);
            self.product.x.row(row).as_ptr()
        });
        let place = self.segment.place::<L>(first);
        let apart = match P {
            MOST_ABREAST if L::ABREAST > 1 => P * L::PAIR_BYTES,
            _ => place.abreast * L::PAIR_BYTES,
        };
        let panels: [*const u8; P] = std::array::from_fn(|p| match L::ABREAST {
            1 => self.segment.panel(first + p),
            _ => place.start.wrapping_add(p * L::PAIR_BYTES),
        });
        let inputs = self.product.w.inputs();
        let mut lanes = [[[0.0; PANEL]; P]; R];
        if const { !L::SCALED } {
            let sums = Self::sums(s, rows, panels, (inputs, apart));
            unrolled!(r < R, {
                unrolled!(p < P, {
                    // SAFETY: a panel fills the array.
                    unsafe { s.panel_store(sums[r][p], lanes[r][p].as_mut_ptr()) };
                });
            });
        } else {
            for block in 0..inputs.div_ceil(SCALE_BLOCK) {
                let first = block * SCALE_BLOCK;
                let x = rows.map(|row| row.wrapping_add(first));
                let at = panels.map(|panel| panel.wrapping_add(block * SCALED_BLOCK_BYTES));
                let weights = at.map(|at| at.wrapping_add(SCALE_BYTES));
                let sums = Self::sums(s, x, weights, (SCALE_BLOCK.min(inputs - first), apart));
                // SAFETY: a block of the panels, and panels fill the arrays.
                unsafe { add_scaled(s, at, sums, &mut lanes) };
            }
        }
        for (r, lanes) in lanes.iter().enumerate() {
            for (p, lanes) in lanes.iter().enumerate() {
                self.product.finish(self.segment, first + p, row + r, lanes);
            }
        }
    }

    /// The products of `inputs` inputs, added up one after the other; pairs of inputs are `apart` bytes apart.
    #[inline(always)]
    fn sums<S: Simd, const R: usize, const P: usize>(
        s: S,
        rows: [*const f32; R],
        panels: [*const u8; P],
        (inputs, apart): (usize, usize),
    ) -> [[S::P; P]; R] {
        let mut sums = [[s.panel_splat(0.0); P]; R];
        for pair in 0..inputs / 2 {
            let x = rows.map(|row| row.wrapping_add(2 * pair));
            let weights = pairs_of::<L, P>(panels, pair * apart);
            if R > FEW_ROWS {
                for line in 0..P * L::PAIR_BYTES / LINE {
                    s.prefetch(weights[0].wrapping_add(AHEAD + line * LINE));
                }
            }
            // SAFETY: both inputs are inside the rows and the panels.
            unsafe {
                add_input::<S, L, 0, R, P>(s, x, weights, &mut sums);
                add_input::<S, L, 1, R, P>(s, x.map(|x| x.add(1)), weights, &mut sums);
            }
        }
        if inputs % 2 == 1 {
            let x = rows.map(|row| row.wrapping_add(inputs - 1));
            let weights = pairs_of::<L, P>(panels, inputs / 2 * apart);
            // SAFETY: the input is inside the rows and the panels.
            unsafe { add_input::<S, L, 0, R, P>(s, x, weights, &mut sums) };
        }
        sums
    }
}

/// Where a pair of inputs is in each panel: one address is enough for panels side by side.
#[inline(always)]
fn pairs_of<L: Layout, const P: usize>(panels: [*const u8; P], at: usize) -> [*const u8; P] {
    if L::ABREAST == 1 {
        return panels.map(|panel| panel.wrapping_add(at));
    }
    let first = panels[0].wrapping_add(at);
    std::array::from_fn(|p| first.wrapping_add(p * L::PAIR_BYTES))
}

/// Adds the sums of a block, each times the scale of its output.
///
/// # Safety
/// Scales of as many outputs as a panel has at `scales`.
#[inline(always)]
unsafe fn add_scaled<S: Simd, const R: usize, const P: usize>(
    s: S,
    scales: [*const u8; P],
    sums: [[S::P; P]; R],
    to: &mut [[[f32; PANEL]; P]; R],
) {
    unrolled!(p < P, {
        // SAFETY: as the caller promises.
        let scale = unsafe { s.panel_load(scales[p].cast()) };
        unrolled!(r < R, {
            let to = to[r][p].as_mut_ptr();
            // SAFETY: a panel fills the array.
            unsafe { s.panel_store(s.panel_mul_add(scale, sums[r][p], s.panel_load(to)), to) };
        });
    });
}

/// Adds the products of one input.
///
/// # Safety
/// The input is inside the rows and the panels.
#[inline(always)]
unsafe fn add_input<S: Simd, L: Layout, const WHICH: usize, const R: usize, const P: usize>(
    s: S,
    x: [*const f32; R],
    panels: [*const u8; P],
    sums: &mut [[S::P; P]; R],
) {
    // SAFETY: as the caller promises.
    unsafe {
        let mut weights = [s.panel_splat(0.0); P];
        unrolled!(p < P, {
            weights[p] = L::input::<S, WHICH>(s, panels[p]);
        });
        unrolled!(r < R, {
            let x = s.panel_splat(*x[r]);
            unrolled!(p < P, {
                sums[r][p] = s.panel_mul_add(x, weights[p], sums[r][p]);
            });
        });
    }
    if R > 1 {
        settle();
    }
}

/// Keeps the compiler from reading early what comes after this. Left to itself, it widens more weights than there are
/// registers, and moves sums out to memory instead, where every addition then waits for the one before.
#[inline(always)]
fn settle() {
    compiler_fence(Ordering::SeqCst);
}

/// Which tiles the registers hold.
trait Tile<S: Simd, L: Layout> {
    /// Panels that `rows` rows at most take at a time.
    fn panels(rows: usize) -> usize;
    /// Runs the tile of so many rows and panels, which are one or as many as `panels` says.
    fn run(span: &Span<'_, L>, s: S, at: Corner, size: (usize, usize));
}

/// Thirty-two panels in registers: up to 24 sums, the weights of an input, and one input.
struct Large;

impl<S: Simd, L: Layout> Tile<S, L> for Large {
    fn panels(rows: usize) -> usize {
        if rows <= 6 { 4 } else { 3 }
    }

    #[inline(always)]
    fn run(span: &Span<'_, L>, s: S, at: Corner, size: (usize, usize)) {
        match size {
            (1, 4) => span.tile::<S, 1, 4>(s, at),
            (2, 4) => span.tile::<S, 2, 4>(s, at),
            (3, 4) => span.tile::<S, 3, 4>(s, at),
            (4, 4) => span.tile::<S, 4, 4>(s, at),
            (5, 4) => span.tile::<S, 5, 4>(s, at),
            (6, 4) => span.tile::<S, 6, 4>(s, at),
            (6, 3) if const { L::SCALED } => span.tile::<S, 6, 3>(s, at),
            (7, 3) if const { L::SCALED } => span.tile::<S, 7, 3>(s, at),
            (8, 3) if const { L::SCALED } => span.tile::<S, 8, 3>(s, at),
            (1, 1) => span.tile::<S, 1, 1>(s, at),
            (2, 1) => span.tile::<S, 2, 1>(s, at),
            (3, 1) => span.tile::<S, 3, 1>(s, at),
            (4, 1) => span.tile::<S, 4, 1>(s, at),
            (5, 1) => span.tile::<S, 5, 1>(s, at),
            (6, 1) => span.tile::<S, 6, 1>(s, at),
            (7, 1) if const { L::SCALED } => span.tile::<S, 7, 1>(s, at),
            (8, 1) if const { L::SCALED } => span.tile::<S, 8, 1>(s, at),
            _ => unreachable!("a tile of {size:?} rows and panels"),
        }
    }
}

/// Eight panels in registers, as pairs of vectors.
struct Small;

impl<S: Simd, L: Layout> Tile<S, L> for Small {
    fn panels(rows: usize) -> usize {
        match rows {
            1 => 4,
            2 => 2,
            _ => 1,
        }
    }

    #[inline(always)]
    fn run(span: &Span<'_, L>, s: S, at: Corner, size: (usize, usize)) {
        match size {
            (1, 4) => span.tile::<S, 1, 4>(s, at),
            (2, 2) => span.tile::<S, 2, 2>(s, at),
            (1, 1) => span.tile::<S, 1, 1>(s, at),
            (2, 1) => span.tile::<S, 2, 1>(s, at),
            (3, 1) => span.tile::<S, 3, 1>(s, at),
            (4, 1) => span.tile::<S, 4, 1>(s, at),
            (5, 1) => span.tile::<S, 5, 1>(s, at),
            _ => unreachable!("a tile of {size:?} rows and panels"),
        }
    }
}

impl<L: Layout> Kernel for Span<'_, L> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if const { S::PANEL_REGISTERS >= 32 } {
            // Eight rows would meet three panels, and four lie side by side.
            self.pass::<S, Large>(s, if L::SCALED { 8 } else { 6 });
        } else {
            self.pass::<S, Small>(s, 5);
        }
    }
}
