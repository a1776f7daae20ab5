//! Products with quantised weights for many rows, where there are instructions for tiles.
//!
//! A tile is up to sixteen rows and the sixteen outputs of a panel. The exact sums of a group come out of the tiles as they do
//! out of [`quantised`](super::quantised), and the same multiply-adds follow, so a result is the same to the bit. Codes are
//! unpacked on the way for a panel's first tile and kept for the others. Groups are taken some at a time, and sums wait for the
//! next ones, so that what is unpacked stays in the first-level cache and the inputs of all tiles in the second.

use super::activations::Together;
use super::quantised::{AHEAD, LINE, Span};
use crate::dots::{DotKernel, Dots, GROUP, Numbers, QUAD, TILE_ROWS, TILE_SUMS, Tiles};
use crate::simd::Instructions;
use crate::weight::PANEL;
use crate::weight::formats::{Codes as _, Format};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;

/// Rows from which on tiles are quicker than a few rows at a time: up to eight, what it takes to unpack the weights outweighs the rest.
const FEWEST: usize = 9;

/// Whether a product of so many rows is made by tiles.
pub(super) const fn worth(instructions: Instructions, rows: usize) -> bool {
    instructions.has_tiles() && rows >= FEWEST
}

/// Groups at a time, whose unpacked weights are kept.
const STRETCH: usize = 24;

/// Bytes of a group's unpacked weights, as floats.
const GROUP_BYTES: usize = 2 * GROUP * PANEL;

/// Sums of a part of a group.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Sums([i32; TILE_SUMS]);

/// Unpacked weights of a group.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Weights([u8; GROUP_BYTES]);

/// Memory of a thread, kept between calls. Some sums are written while others are used.
struct Space {
    sums: [Sums; 2],
    /// Those of a stretch.
    weights: Vec<Weights>,
    /// The outputs of each panel and tile so far.
    outputs: Vec<Outputs>,
}

/// What the rows of a tile have of a panel's outputs.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Outputs([[f32; PANEL]; TILE_ROWS]);

thread_local! {
    /// Taken while it is used: a closure around a kernel might be compiled without the instructions.
    static SPACE: Cell<Option<Box<Space>>> = const { Cell::new(None) };
}

impl Space {
    fn take(outputs: usize) -> Box<Self> {
        let mut space = SPACE.take().unwrap_or_else(|| {
            Box::new(Self {
                sums: [Sums([0; TILE_SUMS]); 2],
                weights: vec![Weights([0; GROUP_BYTES]); STRETCH],
                outputs: Vec::new(),
            })
        });
        if space.outputs.len() < outputs {
            space.outputs.resize(outputs, Outputs([[0.0; PANEL]; TILE_ROWS]));
        }
        space
    }
}

/// The same with tiles: a kernel of its own, so that few rows do not carry its weight.
pub(super) struct Tiled<'a, T>(pub(super) Span<'a, T>);

impl<T: Format> DotKernel for Tiled<'_, T> {
    #[inline(always)]
    fn run<D: Dots>(self, d: D) {
        let tiles = d.tiles().expect("instructions for tiles");
        if const { T::SMALL } {
            self.0.run_tiles::<D, true>(d, tiles);
        } else {
            self.0.run_tiles::<D, false>(d, tiles);
        }
    }
}

impl<T: Format> Span<'_, T> {
    #[inline(always)]
    fn run_tiles<D: Dots, const FLOATS: bool>(&self, d: D, tiles: D::Tiles) {
        assert!(self.activations.has_floats(), "floats for so many rows");
        let groups = self.product.x.columns / GROUP;
        // Rows may begin and end within a tile.
        let mut space = Space::take(self.panels.len() * (self.rows.len().div_ceil(TILE_ROWS) + 1));
        let mut configured = 0;
        // A single tile has no use for weights a second time.
        let alone = self.activations.end_of_block(self.rows.start) >= self.rows.end;
        let length = if alone { groups } else { STRETCH };
        for start in (0..groups).step_by(length) {
            let stretch = start..groups.min(start + length);
            let mut place = 0;
            for panel in self.panels.clone() {
                let mut first = self.rows.start;
                while first < self.rows.end {
                    let rows = first..self.activations.end_of_block(first).min(self.rows.end);
                    if rows.len() != configured {
                        configured = rows.len();
                        tiles.configure::<FLOATS>(configured, GROUP / T::PARTS);
                    }
                    first = rows.end;
                    self.tile::<D, FLOATS>(d, tiles, (panel, rows, stretch.clone()), place, &mut space);
                    place += 1;
                }
            }
        }
        tiles.release();
        SPACE.set(Some(space));
    }

    /// A panel with the rows of a tile, for some groups; the first one unpacks the panel's codes.
    #[inline(always)]
    fn tile<D: Dots, const FLOATS: bool>(
        &self,
        d: D,
        tiles: D::Tiles,
        (panel, rows, stretch): (usize, Range<usize>, Range<usize>),
        place: usize,
        space: &mut Space,
    ) {
        let x = self.activations.rows(rows.clone());
        let groups = Groups::<D, T, FLOATS> {
            d,
            tiles,
            panel: self.segment.panel(panel),
            unpack: rows.start == self.rows.start,
            x: &x,
            stretch: stretch.clone(),
            sums: space.sums.as_mut_ptr(),
            weights: space.weights.as_mut_ptr(),
            format: PhantomData,
        };
        let outputs = &mut space.outputs[place];
        // SAFETY: there are as many groups in the panel and in the rows, weights are kept where they are used again, and there are as
        // many rows as are configured.
        unsafe {
            match rows.len() {
                0..=4 => groups.run::<4>(outputs),
                5..=8 => groups.run::<8>(outputs),
                _ => groups.run::<TILE_ROWS>(outputs),
            }
        }
        if stretch.end == x.groups {
            for (row, lanes) in rows.zip(&outputs.0) {
                self.product.finish(self.segment, panel, row, lanes);
            }
        }
    }
}

/// The groups of a panel and of some rows.
struct Groups<'a, D: Dots, T, const FLOATS: bool> {
    d: D,
    tiles: D::Tiles,
    panel: *const u8,
    /// Whether the panel's codes have not been unpacked yet.
    unpack: bool,
    x: &'a Together,
    /// Which of them.
    stretch: Range<usize>,
    sums: *mut Sums,
    weights: *mut Weights,
    format: PhantomData<T>,
}

impl<D: Dots, T: Format, const FLOATS: bool> Groups<'_, D, T, FLOATS> {
    const NUMBERS: Numbers = Numbers::new(T::Codes::END, T::Codes::ZERO);

    /// Sums for up to `R` rows; what is computed for rows that are not there means nothing. While the sums of one part of a group
    /// are made, those of the last one are written and those before them are added: each of these takes a while.
    ///
    /// # Safety
    /// All there is to it is there: groups of the panel, of rows as configured, and places for all of them.
    #[inline(always)]
    unsafe fn run<const R: usize>(&self, outputs: &mut Outputs) {
        let (d, parts) = (self.d, self.stretch.len() * T::PARTS);
        let mut sums = [d.splat(0.0); R];
        // SAFETY: as the caller promises.
        unsafe {
            if self.stretch.start > 0 {
                for r in 0..R {
                    sums[r] = self.tiles.load(outputs.0[r].as_ptr());
                }
            }
            if self.unpack {
                self.unpack(0);
            }
            for part in 0..parts + 2 {
                if part < parts {
                    self.start(part);
                }
                if part >= 2 {
                    self.add(part - 2, &mut sums);
                }
                if (1..=parts).contains(&part) {
                    let part = part - 1;
                    self.tiles
                        .finish::<FLOATS>(part % 2 == 1, self.sums.add(part % 2).cast());
                }
            }
            for r in 0..R {
                d.store(sums[r], outputs.0[r].as_mut_ptr());
            }
        }
    }

    /// Starts the products of a part, counted from the first of the stretch, and unpacks the next group.
    ///
    /// # Safety
    /// There is that part, and its group has been unpacked.
    #[inline(always)]
    unsafe fn start(&self, part: usize) {
        let (index, part_of_group) = (part / T::PARTS, part % T::PARTS);
        // SAFETY: as the caller promises.
        unsafe {
            if self.unpack && part_of_group == 0 && index + 1 < self.stretch.len() {
                self.unpack(index + 1);
            }
            let mut inputs = if FLOATS {
                self.x.floats(self.stretch.start + index)
            } else {
                let upper = self.x.group(self.stretch.start + index).0.cast::<u8>();
                [upper, upper.add(GROUP)]
            };
            let bytes = if FLOATS { 2 * GROUP } else { GROUP };
            for input in &mut inputs {
                *input = input.add(part_of_group * bytes / T::PARTS);
            }
            let weights = self.weights.add(index % STRETCH).cast::<u8>();
            let weights = weights.add(part_of_group * bytes * PANEL / T::PARTS);
            self.tiles.start::<FLOATS>(part % 2 == 1, inputs, weights);
        }
    }

    /// # Safety
    /// `index` is that of a group of the stretch.
    #[inline(always)]
    unsafe fn unpack(&self, index: usize) {
        let d = self.d;
        // SAFETY: as the caller promises.
        unsafe {
            let (_, group) = T::group(self.panel, self.stretch.start + index);
            for line in (0..T::GROUP_BYTES).step_by(LINE) {
                d.prefetch(group.wrapping_add(AHEAD + line));
            }
            let mut to = self.weights.add(index % STRETCH).cast::<u8>();
            for pair in 0..GROUP / (2 * QUAD) {
                let codes = T::Codes::pair(d, group.add(T::GROUP_HEAD * PANEL), pair);
                for half in 0..2 {
                    self.tiles.keep::<FLOATS>(codes[half], &Self::NUMBERS, to);
                    to = to.add(QUAD * PANEL * if FLOATS { 2 } else { 1 });
                }
            }
        }
    }

    /// Adds the sums of a part to those of the rows.
    ///
    /// # Safety
    /// They have been written, and nothing else since in the same place.
    #[inline(always)]
    unsafe fn add<const R: usize>(&self, part: usize, to: &mut [D::F; R]) {
        let (index, part_of_group) = (part / T::PARTS, part % T::PARTS);
        let d = self.d;
        // SAFETY: as the caller promises.
        unsafe {
            let index = self.stretch.start + index;
            let (block, group) = T::group(self.panel, index);
            let (heads, sums) = (self.x.group(index).1, self.sums.add(part % 2));
            let scale = T::scale(d, block, group, part_of_group);
            for r in 0..R {
                let total = self.tiles.total::<FLOATS>(sums.cast(), r);
                to[r] = d.mul_add(total, d.mul(scale, d.splat((*heads.add(r)).scale)), to[r]);
            }
            if T::MINIMUM {
                let minimum = T::minimum(d, block, group, part_of_group);
                for r in 0..R {
                    let sum = (*heads.add(r)).scaled_sum::<T>(part_of_group);
                    to[r] = d.mul_add(minimum, d.splat(sum), to[r]);
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::ops::linear::linear;
    use crate::pool::Pool;
    use crate::storage::{In, Out};
    use crate::weight::tests::{numbers, stored};
    use paceline_types::DType;

    /// Whether a product by this thread used tiles, whose memory it would keep.
    fn used(family: Instructions, dtype: DType, rows: usize) -> bool {
        let (inputs, outputs) = (256, PANEL);
        let weight = stored(dtype, outputs, inputs, 1).pack(None);
        let (x, mut out) = (numbers(rows * inputs, 2), vec![0.0; rows * outputs]);
        SPACE.set(None);
        let out = Out::over(&mut out, outputs);
        linear(
            &Pool::new(1, family),
            In::over(&x, inputs),
            &weight,
            None,
            None,
            out,
        );
        SPACE.take().is_some()
    }

    /// Sums are the same without them, so nothing else would show that they are left out.
    #[test]
    fn where_there_are_tiles_every_type_uses_them_for_many_rows_and_not_for_few() {
        for family in Instructions::all() {
            for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_quantised()) {
                let told = |rows| used(family, dtype, rows);
                assert_eq!(
                    [FEWEST, 40].map(told),
                    [family.has_tiles(); 2],
                    "{family:?}, {dtype}"
                );
                assert_eq!([1, FEWEST - 1].map(told), [false; 2], "{family:?}, {dtype}");
            }
        }
    }
}
