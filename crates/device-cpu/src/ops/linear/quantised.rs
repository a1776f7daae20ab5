//! The inner loops of products with quantised weights.
//!
//! A group of 32 inputs is one integer sum per output, exact, and becomes one fused multiply-add with the product of both
//! scales; groups follow each other in order. So a result depends on its row alone, and is the same on every machine.
//! Codes are unpacked in registers, for as many rows as fit there, and stay in the first-level cache for the next ones.
//!
//! No closures around vector operations here: one that is not inlined is compiled without the instructions.

use super::Product;
use super::activations::{Activations, Codes, Head, PARTS, Together};
use crate::dots::{DotKernel, Dots, GROUP, QUAD};
use crate::weight::formats::{Codes as _, Format};
use crate::weight::{PANEL, Segment};
use std::marker::PhantomData;
use std::ops::Range;

/// How far ahead codes are asked for: arithmetic between two loads keeps the machine from looking as far by itself, for a single row
/// too. On a Xeon a third more is read from memory per second than without; 2 and 8 kilobytes do about as well.
pub(super) const AHEAD: usize = 4 << 10;

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// Some panels of one segment for some rows.
pub(super) struct Span<'a, T> {
    pub(super) product: &'a Product<'a>,
    pub(super) activations: &'a Activations<'a>,
    pub(super) segment: &'a Segment,
    pub(super) panels: Range<usize>,
    pub(super) rows: Range<usize>,
    pub(super) format: PhantomData<T>,
}

impl<T: Format> Span<'_, T> {
    /// `R` rows from `row` on, whose inputs are `x`, with a panel.
    #[inline(always)]
    fn rows<D: Dots, const R: usize>(&self, d: D, panel: usize, row: usize, x: &Together) {
        let start = self.segment.panel(panel);
        let mut sums = [d.splat(0.0); R];
        let mut inputs = x.first();
        for index in 0..x.groups {
            // SAFETY: the panel has as many groups as a row of inputs.
            unsafe {
                let (block, group) = T::group(start, index);
                for line in (0..T::GROUP_BYTES).step_by(LINE) {
                    d.prefetch(group.wrapping_add(AHEAD + line));
                }
                for part in 0..T::PARTS {
                    add_part::<D, T, R>(d, (block, group), inputs, part, &mut sums);
                }
            }
            inputs = x.next(inputs);
        }
        for r in 0..R {
            let mut lanes = [0.0; PANEL];
            // SAFETY: the array has sixteen elements.
            unsafe { d.store(sums[r], lanes.as_mut_ptr()) };
            self.product.finish(self.segment, panel, row + r, &lanes);
        }
    }

    #[inline(always)]
    fn some_rows<D: Dots>(&self, d: D, panel: usize, rows: Range<usize>, x: &Together) {
        // There are never more than `D::ROWS`: nothing is compiled for more, which would be most of this crate's code.
        match rows.len() {
            0 => {}
            1 => self.rows::<D, 1>(d, panel, rows.start, x),
            _ if const { D::ROWS <= 2 } => self.rows::<D, 2>(d, panel, rows.start, x),
            2 => self.rows::<D, 2>(d, panel, rows.start, x),
            3 => self.rows::<D, 3>(d, panel, rows.start, x),
            _ if const { D::ROWS <= 4 } => self.rows::<D, 4>(d, panel, rows.start, x),
            4 => self.rows::<D, 4>(d, panel, rows.start, x),
            5 => self.rows::<D, 5>(d, panel, rows.start, x),
            6 => self.rows::<D, 6>(d, panel, rows.start, x),
            7 => self.rows::<D, 7>(d, panel, rows.start, x),
            _ => self.rows::<D, 8>(d, panel, rows.start, x),
        }
    }
}

/// Adds the products of a part of a group, whose block and codes start where `weights` says, with inputs of `R` rows.
///
/// # Safety
/// The group is inside the panel and inside the rows of inputs.
#[inline(always)]
unsafe fn add_part<D: Dots, T: Format, const R: usize>(
    d: D,
    (block, group): (*const u8, *const u8),
    (codes, heads): (*const Codes, *const Head),
    part: usize,
    sums: &mut [D::F; R],
) {
    let pairs = GROUP / (2 * QUAD) / T::PARTS;
    // SAFETY: as the caller promises.
    unsafe {
        let mut integers = [d.zero(); R];
        for pair in part * pairs..(part + 1) * pairs {
            let weights = T::Codes::pair(d, group.add(T::GROUP_HEAD * PANEL), pair);
            for r in 0..R {
                integers[r] = d.dot(integers[r], weights, codes.add(r).cast(), pair);
            }
        }
        let scale = T::scale(d, block, group, part);
        for r in 0..R {
            let head = &*heads.add(r);
            let offset = (D::OFFSET - T::Codes::ZERO).wrapping_mul(head.sum::<T>(part));
            let sum = d.total(integers[r], offset);
            sums[r] = d.mul_add(sum, d.mul(scale, d.splat(head.scale)), sums[r]);
        }
        if T::MINIMUM {
            let minimum = T::minimum(d, block, group, part);
            for r in 0..R {
                let head = &*heads.add(r);
                sums[r] = d.mul_add(minimum, d.splat(head.scaled_sum::<T>(part)), sums[r]);
            }
        }
    }
}

impl Head {
    /// The sum of a part's codes, or of all if the format has one part. It never wraps, but a check would keep a kernel from
    /// leaving it out where the format has no use for it.
    #[inline(always)]
    fn sum<T: Format>(&self, part: usize) -> i32 {
        if T::PARTS == PARTS {
            self.sums[part]
        } else {
            self.sums[0].wrapping_add(self.sums[1])
        }
    }

    /// The same times the scale.
    #[inline(always)]
    pub(super) fn scaled_sum<T: Format>(&self, part: usize) -> f32 {
        if T::PARTS == PARTS {
            self.sums[part] as f32 * self.scale
        } else {
            self.sum
        }
    }
}

impl<T: Format> DotKernel for Span<'_, T> {
    #[inline(always)]
    fn run<D: Dots>(self, d: D) {
        let mut first = self.rows.start;
        while first < self.rows.end {
            let rows = first..self.activations.end_of_block(first).min(self.rows.end);
            let x = self.activations.rows(rows.clone());
            first = rows.end;
            if rows.len() <= D::ROWS {
                for panel in self.panels.clone() {
                    self.some_rows(d, panel, rows.clone(), &x);
                }
                continue;
            }
            let (count, chunks) = (rows.len(), rows.len().div_ceil(D::ROWS));
            for panel in self.panels.clone() {
                for chunk in 0..chunks {
                    let [start, end] = [count * chunk / chunks, count * (chunk + 1) / chunks];
                    self.some_rows(d, panel, rows.start + start..rows.start + end, &x.from(start));
                }
            }
        }
    }
}
