//! Inputs of products with quantised weights: 16-bit integers with a scale per group.
//!
//! Weights of few bits make floats of the inputs a waste: integers are multiplied four at a time. With sixteen bits and a
//! scale of its own for every 32 inputs the rounding is 256 times finer than that of the finest quantised weights.

use super::tiles;
use crate::dots::{self, DotKernel, Dots, GROUP, LARGEST, TILE_ROWS, Tiles};
use crate::ops::split;
use crate::pool::Pool;
use crate::storage::In;
use std::cell::RefCell;
use std::ops::Range;

/// Parts of a group whose inputs are summed separately, for weights with a scale per part.
pub(super) const PARTS: usize = 2;

/// Inputs that are as small as this everywhere in a group count as zeros, so that no scale is subnormal.
const NEGLIGIBLE: f32 = 1e-30;

/// The codes of [`GROUP`] inputs of a row, as [`Dots::encode`] makes them.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Codes(pub(super) [u8; 2 * GROUP]);

/// What belongs to them.
#[derive(Clone, Copy)]
pub(super) struct Head {
    pub(super) scale: f32,
    /// Sums of the codes of each part.
    pub(super) sums: [i32; PARTS],
    /// The sum of all codes times the scale.
    pub(super) sum: f32,
}

/// The same as floats, upper or lower bytes of them.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Floats([u16; GROUP]);

impl Codes {
    const ZERO: Self = Self([0; 2 * GROUP]);
}

impl Head {
    const ZERO: Self = Self {
        scale: 0.0,
        sums: [0; PARTS],
        sum: 0.0,
    };
}

/// Inputs that are not finite give a scale that is not, and so do the sums of products with it.
#[inline(always)]
fn quantised<D: Dots>(d: D, inputs: &[f32; GROUP]) -> ([i16; GROUP], Head) {
    let largest = d.largest(inputs);
    if largest < NEGLIGIBLE {
        return ([0; GROUP], Head::ZERO);
    }
    let (codes, sums) = d.round(inputs, f32::from(LARGEST) / largest);
    let scale = largest / f32::from(LARGEST);
    // Inputs that are not finite may be any integers.
    let sum = sums[0].wrapping_add(sums[1]) as f32 * scale;
    (codes, Head { scale, sums, sum })
}

/// Some input rows of a product as integers, named by the output rows that they are for. Blocks of up to [`TILE_ROWS`] rows
/// follow each other; a block has its rows' first groups side by side, then their second ones, and so on.
#[derive(Clone, Copy)]
pub(crate) struct Activations<'a> {
    codes: &'a [Codes],
    /// For each group of a block, upper bytes of all rows, then lower ones; empty if nothing takes them.
    floats: &'a [Floats],
    heads: &'a [Head],
    layout: Blocks,
    first: usize,
}

/// Where groups of rows are.
#[derive(Clone, Copy)]
struct Blocks {
    /// Rows of a block.
    height: usize,
    /// Groups of a row.
    groups: usize,
}

impl Blocks {
    /// For so many rows: fewer than a block's lie as close together as they can.
    fn new(rows: usize, groups: usize) -> Self {
        let height = rows.clamp(1, TILE_ROWS);
        Self { height, groups }
    }

    /// Where a row begins. Its next groups follow at every [`height`](Self::height)th place.
    #[inline(always)]
    const fn row(self, row: usize) -> usize {
        row / self.height * self.height * self.groups + row % self.height
    }
}

/// Rows whose groups lie side by side.
#[derive(Clone, Copy)]
pub(super) struct Together {
    codes: *const Codes,
    floats: *const Floats,
    heads: *const Head,
    height: usize,
    pub(super) groups: usize,
}

impl Together {
    /// The same without some rows at the start.
    #[inline(always)]
    pub(super) const fn from(&self, row: usize) -> Self {
        Self {
            codes: self.codes.wrapping_add(row),
            floats: self.floats.wrapping_add(row),
            heads: self.heads.wrapping_add(row),
            ..*self
        }
    }

    /// The first group of the first of the rows.
    #[inline(always)]
    pub(super) const fn first(&self) -> (*const Codes, *const Head) {
        (self.codes, self.heads)
    }

    /// The group behind one.
    #[inline(always)]
    pub(super) const fn next(&self, group: (*const Codes, *const Head)) -> (*const Codes, *const Head) {
        (
            group.0.wrapping_add(self.height),
            group.1.wrapping_add(self.height),
        )
    }

    /// Group `index` of the first of the rows; those of the others follow.
    ///
    /// # Safety
    /// `index < self.groups`. What follows may be read for as many rows as were asked for; beyond them, [`TILE_ROWS`] heads in
    /// all may be read too, but mean nothing.
    #[inline(always)]
    pub(super) unsafe fn group(&self, index: usize) -> (*const Codes, *const Head) {
        let place = index.wrapping_mul(self.height);
        // SAFETY: as the caller promises.
        unsafe { (self.codes.add(place), self.heads.add(place)) }
    }

    /// Upper and lower bytes of the same as floats.
    ///
    /// # Safety
    /// As [`group`](Self::group), and there are floats.
    #[inline(always)]
    pub(super) unsafe fn floats(&self, index: usize) -> [*const u8; 2] {
        // SAFETY: as the caller promises.
        unsafe {
            let upper = self.floats.add(2 * index.wrapping_mul(self.height));
            [upper.cast(), upper.add(self.height).cast()]
        }
    }
}

impl Activations<'_> {
    /// Where the rows that lie side by side with `row` end.
    #[inline(always)]
    pub(super) const fn end_of_block(&self, row: usize) -> usize {
        let row = row - self.first;
        self.first + (row / self.layout.height + 1) * self.layout.height
    }

    /// Whether there are floats, too.
    pub(super) const fn has_floats(&self) -> bool {
        !self.floats.is_empty()
    }

    /// Some rows of one block.
    #[inline(always)]
    pub(super) fn rows(&self, rows: Range<usize>) -> Together {
        assert!(rows.start < rows.end && rows.end <= self.end_of_block(rows.start));
        let Blocks { height, groups } = self.layout;
        let place = self.layout.row(rows.start - self.first);
        let block = place - (rows.start - self.first) % height;
        let end = block + groups * height;
        assert!(end <= self.codes.len() && end + TILE_ROWS <= self.heads.len());
        assert!(self.floats.is_empty() || 2 * end <= self.floats.len());
        Together {
            codes: self.codes[place..].as_ptr(),
            floats: self.floats.as_ptr().wrapping_add(block + place),
            heads: self.heads[place..].as_ptr(),
            height,
            groups,
        }
    }
}

/// Memory for them, kept between calls.
#[derive(Default)]
pub(crate) struct Scratch {
    codes: Vec<Codes>,
    floats: Vec<Floats>,
    heads: Vec<Head>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Scratch {
    /// Calls `work` with scratch that this thread keeps.
    pub(super) fn with<T>(work: impl FnOnce(&mut Self) -> T) -> T {
        SCRATCH.with_borrow_mut(work)
    }

    /// Inputs for output rows `first` to `first + count`: row `i` of `x` for output row `i`, or row `pick[i]`.
    pub(crate) fn quantise(
        &mut self,
        pool: &Pool,
        x: In<'_>,
        pick: Option<&[u32]>,
        first: usize,
        count: usize,
    ) -> Activations<'_> {
        let layout = Blocks::new(count, x.columns / GROUP);
        let places = count.next_multiple_of(layout.height) * layout.groups;
        if self.codes.len() < places {
            self.codes.resize(places, Codes::ZERO);
            self.heads.resize(places + TILE_ROWS, Head::ZERO);
        }
        let floats = if tiles::worth(pool.instructions(), count) {
            2 * places
        } else {
            0
        };
        if self.floats.len() < floats {
            self.floats.resize(floats, Floats([0; GROUP]));
        }
        let to = Target {
            codes: self.codes.as_mut_ptr(),
            floats: (floats > 0).then_some(self.floats.as_mut_ptr()),
            heads: self.heads.as_mut_ptr(),
            layout,
        };
        split(pool, count, x.columns / 6, |rows| {
            for row in rows {
                let from = pick.map_or(first + row, |pick| pick[first + row] as usize);
                let inputs = x.row(from).as_chunks().0;
                dots::run(pool.instructions(), Quantise { inputs, to: &to, row });
            }
        });
        Activations {
            codes: &self.codes,
            floats: &self.floats[..floats],
            heads: &self.heads,
            layout,
            first,
        }
    }
}

/// Where groups go; every thread has rows of its own.
struct Target {
    codes: *mut Codes,
    floats: Option<*mut Floats>,
    heads: *mut Head,
    layout: Blocks,
}

// SAFETY: threads write disjoint rows.
unsafe impl Sync for Target {}

struct Quantise<'a> {
    inputs: &'a [[f32; GROUP]],
    to: &'a Target,
    row: usize,
}

impl DotKernel for Quantise<'_> {
    #[inline(always)]
    fn run<D: Dots>(self, d: D) {
        let Blocks { height, .. } = self.to.layout;
        let mut place = self.to.layout.row(self.row);
        for inputs in self.inputs {
            let (codes, head) = quantised(d, inputs);
            // SAFETY: there is room for all groups of every row, and no other thread has this row.
            unsafe {
                self.to.codes.add(place).write(Codes(d.encode(&codes)));
                self.to.heads.add(place).write(head);
                if let (Some(floats), Some(tiles)) = (self.to.floats, d.tiles()) {
                    let [upper, lower] = tiles.encode(&codes);
                    let to = floats.add(2 * place - self.row % height);
                    to.write(Floats(upper));
                    to.add(height).write(Floats(lower));
                }
            }
            place += height;
        }
    }
}
