//! The inner loops of a matrix product.
//!
//! Few rows: weights are widened in registers and meet all rows at once, in one pass over the inputs; one or two rows
//! take several panels at a time, so that enough independent sums are under way to hide the latency of a
//! multiply-add. Many rows: per panel, a block of inputs is widened to an f32 tile that stays in the first-level
//! cache while six rows at a time pass over it; sums wait in a scratch array between blocks. Storing and reloading
//! a sum does not change it, so both ways give the same bits.
//!
//! No closures around vector operations here: one that is not inlined is compiled without the instructions.

use super::{Product, ROW_BLOCK};
use crate::simd::{Kernel, LANES, Simd};
use crate::weight::layout::{Layout, Wide, decode};
use crate::weight::{PANEL, Segment};
use std::hint::black_box;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{Ordering, compiler_fence};

/// Inputs of a tile; a multiple of every layout's group.
const TILE: usize = 256;

/// Quantised panels are short, so the machine's own prefetching starts anew all the time. Therefore the next panels
/// are asked for while the present ones are read, if they fit into this many bytes, and else what comes some way
/// on. For wider types that makes nothing faster.
const NEAR: usize = 64 << 10;
const AHEAD: usize = 4 << 10;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Rows that pass over a tile together: with two vectors each, twelve of sixteen registers hold sums.
const TOGETHER: usize = 6;

/// Inputs between two looks at the loop over a tile.
const UNROLL: usize = 4;

/// Some panels of one segment for some rows.
pub(super) struct Span<'a, L> {
    product: &'a Product<'a>,
    segment: &'a Segment,
    panels: Range<usize>,
    rows: Range<usize>,
    layout: PhantomData<L>,
}

impl<'a, L: Layout> Span<'a, L> {
    pub(super) fn new(
        product: &'a Product<'a>,
        segment: &'a Segment,
        panels: Range<usize>,
        rows: Range<usize>,
    ) -> Self {
        assert!(rows.len() <= ROW_BLOCK && panels.end <= segment.panels());
        Self {
            product,
            segment,
            panels,
            rows,
            layout: PhantomData,
        }
    }

    fn input(&self, row: usize) -> *const f32 {
        self.product.x.row(self.product.input_row(row)).as_ptr()
    }

    /// `R` rows from `row` on by `P` panels from `first` on, in one pass.
    #[inline(always)]
    fn few<S: Simd, const R: usize, const P: usize>(&self, s: S, first: usize, row: usize) {
        let x: [*const f32; R] = std::array::from_fn(|r| self.input(row + r));
        let panels: [*const u8; P] = std::array::from_fn(|p| self.segment.panel(first + p));
        let inputs = self.product.w.inputs();
        let mut sums = [[[s.splat(0.0); 2]; P]; R];
        let ahead = match P * self.segment.panel_bytes {
            next if next <= NEAR => next,
            _ => AHEAD,
        };
        let mut k = 0;
        while k < inputs {
            let n = L::GROUP.min(inputs - k);
            // SAFETY: `k` counts groups inside the panels and the rows.
            unsafe {
                let mut groups = [L::group(s, panels[0], k); P];
                for p in 1..P {
                    groups[p] = L::group(s, panels[p], k);
                }
                let x = x.map(|x| x.add(k));
                if const { crowded::<L>(R, P) } {
                    // What might be seen elsewhere is read where it is used, see `settle`.
                    black_box(&groups);
                }
                add_group::<S, L, R, P>(s, x, n, &groups, ahead, &mut sums);
            }
            k += n;
        }
        for (r, sums) in sums.into_iter().enumerate() {
            for (p, sums) in sums.into_iter().enumerate() {
                let mut lanes = [0.0; PANEL];
                // SAFETY: two vectors fill the array.
                unsafe {
                    s.store_ptr(sums[0], lanes.as_mut_ptr());
                    s.store_ptr(sums[1], lanes.as_mut_ptr().add(LANES));
                }
                self.product.finish(self.segment, first + p, row + r, &lanes);
            }
        }
    }

    /// `R` rows over all panels, `P` at a time.
    #[inline(always)]
    fn few_rows<S: Simd, const R: usize, const P: usize>(&self, s: S) {
        let mut panel = self.panels.start;
        while panel + P <= self.panels.end {
            self.few::<S, R, P>(s, panel, self.rows.start);
            panel += P;
        }
        while panel < self.panels.end {
            self.few::<S, R, 1>(s, panel, self.rows.start);
            panel += 1;
        }
    }

    /// Seven or eight rows as two passes over every panel, the second of which finds it in the cache.
    #[inline(always)]
    fn halves<S: Simd>(&self, s: S) {
        let middle = self.rows.start + 4;
        for panel in self.panels.clone() {
            self.few::<S, 4, 1>(s, panel, self.rows.start);
            if self.rows.end - middle == 3 {
                self.few::<S, 3, 1>(s, panel, middle);
            } else {
                self.few::<S, 4, 1>(s, panel, middle);
            }
        }
    }

    #[inline(always)]
    fn many_rows<S: Simd>(&self, s: S) {
        let mut tile = [const { MaybeUninit::<f32>::uninit() }; TILE * PANEL];
        let mut sums = [[0.0_f32; PANEL]; ROW_BLOCK];
        let rows = self.rows.len();
        let sums = &mut sums[..rows];
        let chunks = rows.div_ceil(TOGETHER);
        let inputs = self.product.w.inputs();
        for panel in self.panels.clone() {
            sums.fill([0.0; PANEL]);
            let start = self.segment.panel(panel);
            for k in (0..inputs).step_by(TILE) {
                let count = TILE.min(inputs - k);
                let weights = if let Some(weights) = L::as_f32(start) {
                    // SAFETY: inside the panel.
                    unsafe { weights.add(k * PANEL) }
                } else {
                    // SAFETY: inside the panel; the tile has room for `TILE` inputs.
                    unsafe { decode::<S, L>(s, start, k, count, tile.as_mut_ptr().cast()) };
                    tile.as_ptr().cast()
                };
                for chunk in 0..chunks {
                    let part = rows * chunk / chunks..rows * (chunk + 1) / chunks;
                    let block = Block { weights, k, count };
                    self.chunk(s, &block, part.start, &mut sums[part]);
                }
            }
            for (row, sums) in sums.iter().enumerate() {
                self.product
                    .finish(self.segment, panel, self.rows.start + row, sums);
            }
        }
    }

    #[inline(always)]
    fn chunk<S: Simd>(&self, s: S, block: &Block, row: usize, sums: &mut [[f32; PANEL]]) {
        let row = self.rows.start + row;
        match sums.len() {
            1 => self.over_tile::<S, 1>(s, block, row, sums),
            2 => self.over_tile::<S, 2>(s, block, row, sums),
            3 => self.over_tile::<S, 3>(s, block, row, sums),
            4 => self.over_tile::<S, 4>(s, block, row, sums),
            5 => self.over_tile::<S, 5>(s, block, row, sums),
            _ => self.over_tile::<S, TOGETHER>(s, block, row, sums),
        }
    }

    #[inline(always)]
    fn over_tile<S: Simd, const R: usize>(&self, s: S, block: &Block, row: usize, sums: &mut [[f32; PANEL]]) {
        let sums: &mut [[f32; PANEL]; R] = sums.try_into().expect("as many sums as rows");
        // SAFETY: rows have as many elements as the weight has inputs.
        let x: [*const f32; R] = std::array::from_fn(|r| unsafe { self.input(row + r).add(block.k) });
        // SAFETY: sixteen sums are two vectors; the block's inputs are inside the tile and the rows.
        unsafe {
            let mut wide = [[s.splat(0.0); 2]; R];
            for (wide, sums) in wide.iter_mut().zip(&*sums) {
                *wide = [s.load_ptr(sums.as_ptr()), s.load_ptr(sums.as_ptr().add(LANES))];
            }
            let even = block.count / UNROLL * UNROLL;
            for k in (0..even).step_by(UNROLL) {
                for k in k..k + UNROLL {
                    add_input(s, block.weights.add(k * PANEL), x.map(|x| x.add(k)), &mut wide);
                }
            }
            for k in even..block.count {
                add_input(s, block.weights.add(k * PANEL), x.map(|x| x.add(k)), &mut wide);
            }
            for (sums, wide) in sums.iter_mut().zip(wide) {
                s.store_ptr(wide[0], sums.as_mut_ptr());
                s.store_ptr(wide[1], sums.as_mut_ptr().add(LANES));
            }
        }
    }
}

/// Adds the products of `n` inputs, and asks for the codes that lie `ahead`.
///
/// # Safety
/// The inputs are inside the rows and the groups.
#[inline(always)]
unsafe fn add_group<S: Simd, L: Layout, const R: usize, const P: usize>(
    s: S,
    x: [*const f32; R],
    n: usize,
    groups: &[(L::Scales<S>, *const u8); P],
    ahead: usize,
    sums: &mut [[Wide<S>; P]; R],
) {
    // SAFETY: as the caller promises.
    unsafe {
        for pair in 0..n / 2 {
            if L::PAIR_BYTES < LINE {
                for group in groups {
                    s.prefetch(group.1.wrapping_add(pair * L::PAIR_BYTES + ahead));
                }
            }
            if const { crowded::<L>(R, P) && L::APART } {
                add_one::<S, L, 0, R, P>(s, x, pair, groups, sums);
                add_one::<S, L, 1, R, P>(s, x, pair, groups, sums);
                continue;
            }
            if R <= 2 && L::PANELS == 4 {
                // Panel by panel takes fewer instructions and more time: the compiler moves sums to memory.
                let mut weights = [[[s.splat(0.0); 2]; 2]; P];
                for p in 0..P {
                    weights[p] = L::pair(s, groups[p].0, groups[p].1, pair);
                }
                for which in 0..2 {
                    for r in 0..R {
                        let x = s.splat(*x[r].add(2 * pair + which));
                        for p in 0..P {
                            accumulate(s, x, weights[p][which], &mut sums[r][p]);
                        }
                    }
                }
                continue;
            }
            for p in 0..P {
                let scales = if const { L::RELOAD_SCALES && !crowded::<L>(R, P) } {
                    // So that they are not held in registers, see `settle`.
                    std::ptr::read_volatile(&raw const groups[p].0)
                } else {
                    groups[p].0
                };
                let weights = L::pair(s, scales, groups[p].1, pair);
                for which in 0..2 {
                    for r in 0..R {
                        let x = s.splat(*x[r].add(2 * pair + which));
                        accumulate(s, x, weights[which], &mut sums[r][p]);
                    }
                }
                if const { crowded::<L>(R, P) } {
                    settle();
                }
            }
        }
        if n % 2 == 1 {
            for p in 0..P {
                let weights = L::last(s, groups[p].0, groups[p].1, n - 1);
                for r in 0..R {
                    accumulate(s, s.splat(*x[r].add(n - 1)), weights, &mut sums[r][p]);
                }
            }
        }
    }
}

/// Adds the products of input `2·pair + WHICH`.
///
/// # Safety
/// The input is inside the rows and the groups.
#[inline(always)]
unsafe fn add_one<S: Simd, L: Layout, const WHICH: usize, const R: usize, const P: usize>(
    s: S,
    x: [*const f32; R],
    pair: usize,
    groups: &[(L::Scales<S>, *const u8); P],
    sums: &mut [[Wide<S>; P]; R],
) {
    for p in 0..P {
        // SAFETY: as the caller promises.
        unsafe {
            let weights = L::pair(s, groups[p].0, groups[p].1, pair)[WHICH];
            for r in 0..R {
                let x = s.splat(*x[r].add(2 * pair + WHICH));
                accumulate(s, x, weights, &mut sums[r][p]);
            }
        }
    }
    settle();
}

/// Whether the sums leave little room for anything else in sixteen registers.
const fn crowded<L: Layout>(rows: usize, panels: usize) -> bool {
    match (rows, panels) {
        // Plain weights need no scales.
        (2, 2) => L::PANELS < 4,
        (rows, _) => rows == 6,
    }
}

/// Keeps the compiler from reading anything early that comes after this, or keeping what it has read before. Left to
/// itself, it widens more weights and holds more scales and inputs than there are registers, and moves sums out to
/// memory instead, where every addition then waits for the one before.
#[inline(always)]
fn settle() {
    compiler_fence(Ordering::SeqCst);
}

/// Adds the products of one input with its widened weights.
///
/// # Safety
/// Sixteen weights and an input of each row.
#[inline(always)]
unsafe fn add_input<S: Simd, const R: usize>(
    s: S,
    weights: *const f32,
    x: [*const f32; R],
    sums: &mut [Wide<S>; R],
) {
    // SAFETY: as the caller promises.
    unsafe {
        let weights = [s.load_ptr(weights), s.load_ptr(weights.add(LANES))];
        for r in 0..R {
            accumulate(s, s.splat(*x[r]), weights, &mut sums[r]);
        }
    }
}

/// Widened weights of `count` inputs from `k` on.
struct Block {
    weights: *const f32,
    k: usize,
    count: usize,
}

#[inline(always)]
fn accumulate<S: Simd>(s: S, x: S::F, weights: Wide<S>, sums: &mut Wide<S>) {
    sums[0] = s.mul_add(x, weights[0], sums[0]);
    sums[1] = s.mul_add(x, weights[1], sums[1]);
}

impl<L: Layout> Kernel for Span<'_, L> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.rows.len() {
            0 => {}
            1 if L::PANELS == 4 => self.few_rows::<S, 1, 4>(s),
            1 => self.few_rows::<S, 1, 2>(s),
            2 => self.few_rows::<S, 2, 2>(s),
            3 => self.few_rows::<S, 3, 1>(s),
            4 => self.few_rows::<S, 4, 1>(s),
            // Nibbles take more registers on the way, and scales take theirs.
            5 if L::APART || L::RELOAD_SCALES => self.few_rows::<S, 5, 1>(s),
            6 if L::APART => self.few_rows::<S, 6, 1>(s),
            7 | 8 if L::PANELS == 4 => self.halves(s),
            _ => self.many_rows(s),
        }
    }
}
