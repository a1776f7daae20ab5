//! Matrix products.
//!
//! Every output is one sequential sum over the inputs, in order, with fused multiply-adds: whatever rows, threads
//! or instructions take part, the same operations happen in the same order. Vector lanes are outputs, so nothing
//! is ever summed across lanes. With float weights a term is one input; with quantised ones it is 32 inputs, which were
//! turned into integers and summed exactly.

mod activations;
mod kernel;
mod quantised;
mod tiles;

use crate::dots;
use crate::pool::Pool;
use crate::simd::Instructions;
use crate::storage::{In, Out};
use crate::weight::formats::{ForFormat, Format, with_format};
use crate::weight::layout::{ForLayout, Layout, MOST_ABREAST, with_layout};
use crate::weight::{CpuWeight, PANEL, Segment};
pub(crate) use activations::{Activations, Scratch};
use std::marker::PhantomData;
use std::ops::Range;

/// Rows that a piece works on at most: their inputs stay in the second-level cache while weights stream by.
const ROW_BLOCK: usize = 96;

/// Panels of float weights come in multiples of this, as many as lie side by side. Quantised ones are taken one by one.
const PANEL_STEP: usize = MOST_ABREAST;

/// Bounds of a piece's estimated nanoseconds: short enough to share out evenly, long enough that claiming it, which takes a line of
/// memory from the other threads, is little beside it.
const PIECE_NS: (usize, usize) = (12_000, 60_000);

/// Estimated nanoseconds of a piece that are worth claiming where a thread would have none else.
const LEAST_PIECE_NS: usize = 4_000;

/// Inputs from which on those of a piece's rows, as tiles take them, do not stay in the second-level cache from one piece to the next,
/// and the most that a piece then takes: they are used for several panels while they are there.
const WIDE: usize = 3_000;
const WIDE_PIECE_NS: usize = 480_000;

/// Rows whose inputs are integers at a time: they stay in the second-level cache.
const STRIP: usize = 512;

/// A product of some rows with a weight. Output row `i` comes from input row `pick[i]`, or `i`; integers are there for output rows.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    pub(crate) x: In<'a>,
    /// The inputs of each output row as integers, if the weight has quantised outputs.
    pub(crate) activations: Option<Activations<'a>>,
    pub(crate) pick: Option<&'a [u32]>,
    pub(crate) w: &'a CpuWeight,
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) scale: Option<&'a [f32]>,
    pub(crate) out: Out<'a>,
}

/// `out = (x · wᵀ + bias) · scale`, bias and scale per output and optional.
pub(crate) fn linear(
    pool: &Pool,
    x: In<'_>,
    w: &CpuWeight,
    bias: Option<&[f32]>,
    scale: Option<&[f32]>,
    out: Out<'_>,
) {
    assert_eq!(x.rows, out.rows, "rows in and out");
    let product = Product {
        x,
        activations: None,
        pick: None,
        w,
        bias,
        scale,
        out,
    };
    product.check();
    if !w.has_quantised() {
        product.run_rows(pool, 0, out.rows);
        return;
    }
    Scratch::with(|scratch| {
        for first in (0..out.rows).step_by(STRIP) {
            let count = STRIP.min(out.rows - first);
            let activations = Some(scratch.quantise(pool, x, None, first, count));
            Product {
                activations,
                ..product
            }
            .run_rows(pool, first, count);
        }
    });
}

/// How a product over `rows` rows is cut into pieces: blocks of rows by groups of panels.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    rows: usize,
    row_blocks: usize,
    panels: usize,
    panel_step: usize,
    panel_groups: usize,
}

impl Plan {
    /// A plan for a product that takes about `total_ns` on one thread, or is part of work that does.
    pub(crate) fn new(w: &CpuWeight, rows: usize, pool: &Pool, total_ns: usize) -> Self {
        let threads = pool.threads();
        let row_blocks = rows.div_ceil(ROW_BLOCK);
        let panels = w.panels();
        let instructions = pool.instructions();
        let tiled = w.has_quantised() && tiles::worth(instructions, rows);
        let longest = if tiled && w.inputs() >= WIDE {
            WIDE_PIECE_NS
        } else {
            PIECE_NS.1
        };
        let piece_ns = (total_ns / (4 * threads)).clamp(PIECE_NS.0, longest);
        let own_ns = nanoseconds(w, rows, instructions);
        let one_each = threads.min(own_ns / LEAST_PIECE_NS);
        let mut wanted = ((own_ns / piece_ns).max(one_each) / row_blocks.max(1)).max(1);
        if wanted > threads {
            // As many for every thread, so that none waits for another's last one.
            wanted = wanted.next_multiple_of(threads);
        }
        let panel_step = if w.has_quantised() { 1 } else { PANEL_STEP };
        let panel_groups = wanted.min(panels.div_ceil(panel_step));
        Self {
            rows,
            row_blocks,
            panels,
            panel_step,
            panel_groups,
        }
    }

    /// Number of pieces; they may run in any order.
    pub(crate) fn pieces(&self) -> usize {
        self.row_blocks * self.panel_groups
    }

    /// Runs one piece of the product whose rows start at `first` in the outputs.
    pub(crate) fn run(&self, piece: usize, pool: &Pool, product: &Product<'_>, first: usize) {
        let (block, group) = (piece / self.panel_groups, piece % self.panel_groups);
        // Tiles are not cut.
        let tiles = self.rows.div_ceil(dots::TILE_ROWS);
        let [start, end] = [block, block + 1]
            .map(|block| first + self.rows.min(tiles * block / self.row_blocks * dots::TILE_ROWS));
        let rows = start..end;
        let steps = self.panels.div_ceil(self.panel_step);
        let panels = steps * group / self.panel_groups * self.panel_step
            ..(steps * (group + 1) / self.panel_groups * self.panel_step).min(self.panels);
        product.run(pool, panels, rows);
    }
}

/// Estimated time of a product on one thread: streaming the weights, and the arithmetic.
fn nanoseconds(w: &CpuWeight, rows: usize, instructions: Instructions) -> usize {
    const BYTES_PER_NS: usize = 20;
    let multiply_adds_per_ns = match w.has_quantised() {
        true if tiles::worth(instructions, rows) => 200,
        true => 80,
        false => 40,
    };
    w.bytes() / BYTES_PER_NS + rows * w.outputs() * w.inputs() / multiply_adds_per_ns
}

impl Product<'_> {
    /// Panics when the operands do not fit each other.
    pub(crate) fn check(&self) {
        let (inputs, outputs) = (self.w.inputs(), self.w.outputs());
        assert_eq!(self.x.columns, inputs, "columns of the input");
        assert_eq!(self.out.columns, outputs, "columns of the output");
        assert!(
            self.bias.is_none_or(|bias| bias.len() >= outputs),
            "length of the bias"
        );
        assert!(
            self.scale.is_none_or(|scale| scale.len() >= outputs),
            "length of the scale"
        );
        assert!(
            self.pick.is_none_or(|pick| pick.len() >= self.out.rows),
            "picked rows"
        );
    }

    /// Computes `count` rows from `first` on with all threads.
    fn run_rows(&self, pool: &Pool, first: usize, count: usize) {
        let total_ns = self.nanoseconds(pool, count);
        let plan = Plan::new(self.w, count, pool, total_ns);
        super::pieces(pool, plan.pieces(), total_ns, |piece| {
            plan.run(piece, pool, self, first);
        });
    }

    /// The input row that output row `row` comes from.
    #[inline(always)]
    fn input_row(&self, row: usize) -> usize {
        self.pick.map_or(row, |pick| pick[row] as usize)
    }

    /// Writes the finished sums of a panel and a row.
    #[inline(always)]
    fn finish(&self, segment: &Segment, panel: usize, row: usize, sums: &[f32; PANEL]) {
        let outputs = segment.outputs_of(panel);
        // SAFETY: pieces that run at the same time differ in panels or rows.
        let out = unsafe { self.out.part(row, outputs.clone()) };
        match <&mut [f32; PANEL]>::try_from(&mut *out) {
            Ok(out) if self.bias.is_none() && self.scale.is_none() => *out = *sums,
            _ => self.adjust(outputs, sums, out),
        }
    }

    /// Writes sums with what is added to them and multiplied with them. Apart from kernels, since most products have neither.
    #[inline(never)]
    fn adjust(&self, outputs: Range<usize>, sums: &[f32; PANEL], out: &mut [f32]) {
        out.copy_from_slice(&sums[..outputs.len()]);
        if let Some(bias) = self.bias {
            for (out, bias) in out.iter_mut().zip(&bias[outputs.clone()]) {
                *out += bias;
            }
        }
        if let Some(scale) = self.scale {
            for (out, scale) in out.iter_mut().zip(&scale[outputs]) {
                *out *= scale;
            }
        }
    }

    /// Estimated time of `rows` rows on one thread.
    pub(crate) fn nanoseconds(&self, pool: &Pool, rows: usize) -> usize {
        nanoseconds(self.w, rows, pool.instructions())
    }

    /// Computes the outputs of some panels, counted over all segments, for some rows. Calls that run at the same
    /// time must not share both a panel and a row.
    fn run(&self, pool: &Pool, panels: Range<usize>, rows: Range<usize>) {
        let mut first = 0;
        for segment in self.w.segments() {
            let end = first + segment.panels();
            let here = panels.start.max(first)..panels.end.min(end);
            if !here.is_empty() && !rows.is_empty() {
                let task = SegmentTask {
                    pool,
                    product: self,
                    segment,
                    panels: here.start - first..here.end - first,
                    rows: rows.clone(),
                };
                if segment.dtype.is_quantised() {
                    with_format(segment.dtype, task);
                } else {
                    with_layout(segment.dtype, task);
                }
            }
            first = end;
        }
    }
}

struct SegmentTask<'a> {
    pool: &'a Pool,
    product: &'a Product<'a>,
    segment: &'a Segment,
    panels: Range<usize>,
    rows: Range<usize>,
}

impl ForLayout for SegmentTask<'_> {
    type Output = ();

    fn run<L: Layout>(self) {
        self.pool.instructions().run(kernel::Span::<L>::new(
            self.product,
            self.segment,
            self.panels,
            self.rows,
        ));
    }
}

impl ForFormat for SegmentTask<'_> {
    type Output = ();

    fn run<T: Format>(self) {
        let activations = self
            .product
            .activations
            .as_ref()
            .expect("integers for a quantised weight");
        let instructions = self.pool.instructions();
        let tiled = tiles::worth(instructions, self.rows.len());
        let span = quantised::Span::<T> {
            product: self.product,
            activations,
            segment: self.segment,
            panels: self.panels,
            rows: self.rows,
            format: PhantomData,
        };
        if tiled {
            dots::run(instructions, tiles::Tiled(span));
        } else {
            dots::run(instructions, span);
        }
    }
}

#[cfg(all(test, not(loom), target_os = "linux", target_arch = "x86_64"))]
pub(super) mod counts;
#[cfg(test)]
mod tests;
