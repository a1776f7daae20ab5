//! The inner loops of a matrix product.
//!
//! Few rows: several panels at once (so that enough independent sums are under way to hide the latency of a
//! multiply-add), weights widened in registers, one pass over the inputs. Many rows: per panel, a block of inputs
//! is widened to an f32 tile that stays in the first-level cache while six rows at a time pass over it; sums wait
//! in a scratch array between blocks. Storing and reloading a sum does not change it, so both ways give the
//! same bits.
//!
//! No closures around vector operations here: one that is not inlined is compiled without the instructions.

use super::{Product, ROW_BLOCK};
use crate::simd::{Kernel, LANES, Simd};
use crate::weight::layout::{Layout, Wide, decode};
use crate::weight::{PANEL, Segment};
use std::marker::PhantomData;
use std::ops::Range;

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
        let row = self.product.pick.map_or(row, |pick| pick[row] as usize);
        self.product.x.row(row).as_ptr()
    }

    /// Writes the finished sums of a panel and a row.
    #[inline(always)]
    fn finish(&self, panel: usize, row: usize, sums: &[f32; PANEL]) {
        let outputs = self.segment.outputs_of(panel);
        // SAFETY: pieces that run at the same time differ in panels or rows.
        let out = unsafe { self.product.out.part(row, outputs.clone()) };
        out.copy_from_slice(&sums[..outputs.len()]);
        if let Some(bias) = self.product.bias {
            for (out, bias) in out.iter_mut().zip(&bias[outputs.clone()]) {
                *out += bias;
            }
        }
        if let Some(scale) = self.product.scale {
            for (out, scale) in out.iter_mut().zip(&scale[outputs]) {
                *out *= scale;
            }
        }
    }

    /// `R` rows by `P` panels in one pass.
    #[inline(always)]
    fn few<S: Simd, const R: usize, const P: usize>(&self, s: S, first: usize) {
        let x: [*const f32; R] = std::array::from_fn(|r| self.input(self.rows.start + r));
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
                self.finish(first + p, self.rows.start + r, &lanes);
            }
        }
    }

    /// `R` rows over all panels, `P` at a time.
    #[inline(always)]
    fn few_rows<S: Simd, const R: usize, const P: usize>(&self, s: S) {
        let mut panel = self.panels.start;
        while panel + P <= self.panels.end {
            self.few::<S, R, P>(s, panel);
            panel += P;
        }
        while panel < self.panels.end {
            self.few::<S, R, 1>(s, panel);
            panel += 1;
        }
    }

    #[inline(always)]
    fn many_rows<S: Simd>(&self, s: S) {
        let mut tile = [0.0_f32; TILE * PANEL];
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
                    unsafe { decode::<S, L>(s, start, k, count, tile.as_mut_ptr()) };
                    tile.as_ptr()
                };
                for chunk in 0..chunks {
                    let part = rows * chunk / chunks..rows * (chunk + 1) / chunks;
                    let block = Block { weights, k, count };
                    self.chunk(s, &block, part.start, &mut sums[part]);
                }
            }
            for (row, sums) in sums.iter().enumerate() {
                self.finish(panel, self.rows.start + row, sums);
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
            for k in 0..block.count {
                let from = block.weights.add(k * PANEL);
                let weights = [s.load_ptr(from), s.load_ptr(from.add(LANES))];
                for r in 0..R {
                    accumulate(s, s.splat(*x[r].add(k)), weights, &mut wide[r]);
                }
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
            if L::RELOAD_SCALES {
                // Left to itself, the compiler keeps more scales in registers than there are and moves sums out
                // to memory instead, where every addition then waits for the one before.
                for p in 0..P {
                    let scales = std::ptr::read_volatile(&raw const groups[p].0);
                    let weights = L::pair(s, scales, groups[p].1, pair);
                    for r in 0..R {
                        let x = x[r].add(2 * pair);
                        accumulate(s, s.splat(*x), weights[0], &mut sums[r][p]);
                        accumulate(s, s.splat(*x.add(1)), weights[1], &mut sums[r][p]);
                    }
                }
                continue;
            }
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
            3 if L::PANELS == 4 => self.few_rows::<S, 3, 2>(s),
            3 => self.few_rows::<S, 3, 1>(s),
            _ => self.many_rows(s),
        }
    }
}
