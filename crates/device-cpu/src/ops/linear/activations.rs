//! Inputs of products with quantised weights: 16-bit integers with a scale per group.
//!
//! Weights of few bits make floats of the inputs a waste: integers are multiplied four at a time. With sixteen bits and a
//! scale of its own for every 32 inputs the rounding is 256 times finer than that of the finest quantised weights.

use crate::dots::{self, DotKernel, Dots, GROUP, LARGEST};
use crate::ops::split;
use crate::pool::Pool;
use crate::storage::In;
use std::cell::RefCell;

/// Parts of a group whose inputs are summed separately, for weights with a scale per part.
pub(super) const PARTS: usize = 2;

/// Inputs that are as small as this everywhere in a group count as zeros, so that no scale is subnormal.
const NEGLIGIBLE: f32 = 1e-30;

/// [`GROUP`] inputs of a row.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Group {
    /// As [`Dots::encode`] makes them.
    pub(super) codes: [u8; 2 * GROUP],
    pub(super) scale: f32,
    /// Sums of the codes of each part.
    pub(super) sums: [i32; PARTS],
    /// The sum of all codes times the scale.
    pub(super) sum: f32,
}

impl Group {
    const ZERO: Self = Self {
        codes: [0; 2 * GROUP],
        scale: 0.0,
        sums: [0; PARTS],
        sum: 0.0,
    };

    /// Inputs that are not finite give a scale that is not, and so do the sums of products with it.
    #[inline(always)]
    fn of<D: Dots>(inputs: &[f32; GROUP]) -> Self {
        // As integers, so that NaN counts as the largest.
        let mut largest = 0;
        for input in inputs {
            largest = largest.max(input.to_bits() & 0x7fff_ffff);
        }
        let largest = f32::from_bits(largest);
        if largest < NEGLIGIBLE {
            return Self::ZERO;
        }
        let factor = f32::from(LARGEST) / largest;
        // Loops rather than closures: one that is not inlined is compiled without the vector instructions.
        let mut codes = [0; GROUP];
        for (code, input) in codes.iter_mut().zip(inputs) {
            *code = round(input * factor);
        }
        let scale = largest / f32::from(LARGEST);
        let mut sums = [0; PARTS];
        for (sum, codes) in sums.iter_mut().zip(codes.chunks_exact(GROUP / PARTS)) {
            for code in codes {
                *sum += i32::from(*code);
            }
        }
        Self {
            codes: D::encode(&codes),
            scale,
            sums,
            sum: (sums[0] + sums[1]) as f32 * scale,
        }
    }
}

/// To the nearest integer, ties to even: adding this number leaves no bits for fractions.
#[inline(always)]
fn round(value: f32) -> i16 {
    const INTEGERS: f32 = 12_582_912.0;
    (value + INTEGERS).to_bits().wrapping_sub(INTEGERS.to_bits()) as i16
}

/// Some input rows of a product as integers.
#[derive(Clone, Copy)]
pub(crate) struct Activations<'a> {
    groups: &'a [Group],
    first: usize,
    groups_per_row: usize,
}

impl<'a> Activations<'a> {
    /// The groups of an input row.
    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> &'a [Group] {
        &self.groups[(row - self.first) * self.groups_per_row..][..self.groups_per_row]
    }
}

/// Memory for them, kept between calls.
#[derive(Default)]
pub(crate) struct Scratch(Vec<Group>);

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Scratch {
    /// Calls `work` with scratch that this thread keeps.
    pub(super) fn with<T>(work: impl FnOnce(&mut Self) -> T) -> T {
        SCRATCH.with_borrow_mut(work)
    }

    /// Rows `first` to `first + count` of `x`.
    pub(crate) fn quantise(&mut self, pool: &Pool, x: In<'_>, first: usize, count: usize) -> Activations<'_> {
        let groups_per_row = x.columns / GROUP;
        let groups = count * groups_per_row;
        if self.0.len() < groups {
            self.0.resize(groups, Group::ZERO);
        }
        let to = Target(self.0.as_mut_ptr());
        split(pool, count, x.columns / 6, |rows| {
            dots::run(
                pool.instructions(),
                Quantise {
                    x,
                    rows: first + rows.start..first + rows.end,
                    // SAFETY: as many groups as were made room for; ranges of rows do not overlap.
                    to: unsafe {
                        let to = to.at(rows.start * groups_per_row);
                        std::slice::from_raw_parts_mut(to, rows.len() * groups_per_row)
                    },
                },
            );
        });
        Activations {
            groups: &self.0[..groups],
            first,
            groups_per_row,
        }
    }
}

/// Where groups go; every thread has rows of its own.
struct Target(*mut Group);

impl Target {
    /// # Safety
    /// Inside the memory behind it.
    unsafe fn at(&self, index: usize) -> *mut Group {
        // SAFETY: as the caller promises.
        unsafe { self.0.add(index) }
    }
}

// SAFETY: threads write disjoint rows.
unsafe impl Sync for Target {}

struct Quantise<'a> {
    x: In<'a>,
    rows: std::ops::Range<usize>,
    to: &'a mut [Group],
}

impl DotKernel for Quantise<'_> {
    #[inline(always)]
    fn run<D: Dots>(self, _dots: D) {
        let groups_per_row = self.x.columns / GROUP;
        for (row, to) in self.rows.zip(self.to.chunks_exact_mut(groups_per_row)) {
            for (inputs, to) in self.x.row(row).as_chunks::<GROUP>().0.iter().zip(to) {
                *to = Group::of::<D>(inputs);
            }
        }
    }
}
