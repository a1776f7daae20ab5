//! Products through tensor cores: which kernels run for a shape, and the end of a product together with what follows it.
//!
//! Inputs are rounded to the type of the weight first, those of 8-bit floats to bf16. Few rows then stream the weight past them, a thread block per worker of
//! the weight's plan, and leave partial sums that a last kernel adds up, alone or with what comes next; many rows get their
//! results in one go. Which way it is depends on shapes alone, and all ways give the same bits.

use crate::arguments::{Ptr, arguments};
use crate::cuda::Cuda;
use crate::launch::{Grid, Kernel};
use crate::ops::inputs::RoundedInputs;
use crate::ops::widths::{self, Width, few, many, many_whole, most};
use crate::pack::Architecture;
use crate::scratch::ScratchKind;
use crate::storage::{CudaBuffer, CudaTensor};
use crate::unread::Written;
use crate::views::{KPlan, Matrix, RoundedRows, optional};
use crate::weight::{CudaWeight, Kind, TILE};
use paceline_device::{Activation, Epilogue};
use std::mem::offset_of;

arguments! { "product.h";
    /// Inputs on their way to a product. For experts: the number of slots, and the row of each where rows are not slots.
    struct RoundArgs {
        x: Matrix,
        to: Ptr<u8>,
        rows: Ptr<i32>,
        slots: Ptr<i32>,
        strips: u32,
        height: u32,
        blocks: u32,
        gate_scale: f32,
    }

    /// A product that leaves partial sums, or the results of tiles that are not cut, if there is a place for them.
    struct StreamArgs {
        weight: Ptr<u8>,
        inputs: Ptr<u8>,
        pieces: Ptr<f32>,
        live: Ptr<i32>,
        plan: KPlan,
        /// Whether tiles that are not cut are finished.
        finishes: u32,
        gated: u32,
        gate_scale: f32,
        out: Matrix,
        bias: Ptr<f32>,
        scale: Ptr<f32>,
        rounded: RoundedRows,
    }

    /// A product that leaves results. With experts, `live` counts strips, and each strip has its own of `weights`.
    struct WideArgs {
        weight: Ptr<u8>,
        inputs: Ptr<u8>,
        out: Matrix,
        bias: Ptr<f32>,
        scale: Ptr<f32>,
        live: Ptr<i32>,
        weights: Ptr<u64>,
        /// Which slots of a strip of up to 32 have rows, a bit for each.
        slots: Ptr<u32>,
        plan: KPlan,
        /// The tiles to multiply with.
        first_tile: u32,
        tiles: u32,
        /// Where the results of gate and up are left for the next product too.
        rounded: RoundedRows,
        gated: u32,
        gate_scale: f32,
        /// All strips have the same inputs.
        together: u32,
        /// Strips are known before the kernel ahead has ended.
        early: u32,
    }
}

/// Kernels by the type of the weight: bf16, f16.
pub(crate) type Pair<A> = [Kernel<A>; 2];

pub(crate) static ROUND: Pair<RoundArgs> = [
    Kernel::new("round", "round_bf16"),
    Kernel::new("round", "round_f16"),
];
static ROUND_SILU: Pair<RoundArgs> = [
    Kernel::new("round", "round_silu_bf16"),
    Kernel::new("round", "round_silu_f16"),
];
static ROUND_RELU: Pair<RoundArgs> = [
    Kernel::new("round", "round_relu_bf16"),
    Kernel::new("round", "round_relu_f16"),
];

/// How a product of a number of rows is made.
enum Way {
    /// With partial sums.
    Stream(&'static Width<StreamArgs>),
    /// With results in one go: by the second kernel, if there is one, for tiles whose sums are not cut.
    Wide(&'static Width<WideArgs>, Option<&'static Width<WideArgs>>),
}

/// A product whose partial sums wait to be added up.
pub(crate) struct Pieces<'a> {
    pub(crate) sums: u64,
    pub(crate) width: usize,
    pub(crate) w: &'a CudaWeight,
    pub(crate) bias: Option<&'a CudaBuffer<f32>>,
    pub(crate) scale: Option<&'a CudaBuffer<f32>>,
    /// Tiles whose results are there, and where they are rounded too.
    pub(crate) finished: u32,
    pub(crate) rounded: Option<RoundedInputs>,
}

/// Where the results of a product go.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    out: &'a CudaTensor,
    /// If gate and up take turns in the weight: results are those of the activation.
    gate_scale: Option<f32>,
    /// Whether some may be there while others are left in pieces.
    partly: bool,
}

impl<'a> Target<'a> {
    pub(crate) const fn new(out: &'a CudaTensor) -> Self {
        Self {
            out,
            gate_scale: None,
            partly: false,
        }
    }

    /// The same for whoever adds up what is left.
    pub(crate) const fn partly(self) -> Self {
        Self { partly: true, ..self }
    }

    /// The same behind a gated activation, if there is one.
    pub(crate) const fn gated(self, gate_scale: Option<f32>) -> Self {
        Self { gate_scale, ..self }
    }
}

/// Rows of experts in strips, as they lie on the device.
#[derive(Clone, Copy)]
pub(crate) struct Strips {
    /// Slots of a strip.
    pub(crate) height: usize,
    /// Strips at most.
    pub(crate) most: usize,
    /// How many strips and how many slots there are.
    pub(crate) counts: u64,
    /// Where the two matrices of each strip's expert are.
    pub(crate) matrices: [Ptr<u64>; 2],
    /// Which slots have rows, see [`WideArgs::slots`].
    pub(crate) taken: Ptr<u32>,
    /// Whether each strip has all rows, a slot for each.
    pub(crate) together: bool,
    /// The row of each slot, negative where there is none.
    pub(crate) rows: Ptr<i32>,
}

impl Strips {
    /// Slots at most.
    pub(crate) fn slots(&self) -> usize {
        self.most * self.height
    }

    /// The number of slots.
    fn live_slots(&self) -> Ptr<i32> {
        Ptr::new(self.counts + 4)
    }

    /// A matrix with a row per slot.
    pub(crate) fn rows_at(&self, data: u64, columns: usize) -> Matrix {
        Matrix {
            data: Ptr::new(data),
            live: self.live_slots(),
            stride: columns.next_multiple_of(4) as u32,
            columns: columns as u32,
            bucket: self.slots() as u32,
        }
    }
}

/// A product of strips.
#[derive(Clone, Copy)]
pub(crate) struct StripProduct<'a> {
    /// A matrix that stands for the shape of all.
    pub(crate) w: &'a CudaWeight,
    /// That of each strip.
    pub(crate) matrices: Ptr<u64>,
    pub(crate) inputs: u64,
    /// Whether all strips have the same inputs.
    pub(crate) together: bool,
    /// Whether strips are known when this begins, since what sorted them has ended.
    pub(crate) early: bool,
    /// If gate and up take turns in the matrices.
    pub(crate) gate_scale: Option<f32>,
    /// Where the next product looks for the results, if they are left there.
    pub(crate) rounded: RoundedRows,
}

/// What inputs of experts go through before they are rounded.
#[derive(Clone, Copy)]
pub(crate) enum Before {
    /// Rows are looked up.
    Lookup,
    /// Rows are slots.
    Nothing,
    /// Rows are slots, and an activation is applied.
    Activation(Activation),
}

impl Cuda {
    fn has_wgmma(&self) -> bool {
        self.options.wgmma && self.context.architecture == Architecture::Sm90a
    }

    /// How high the strips of a product's inputs are, whatever the weight.
    pub(crate) fn input_height(&self, rows: usize) -> usize {
        widths::input_height(rows, self.has_wgmma())
    }

    fn way(&self, w: &CudaWeight, rows: usize) -> Way {
        let (tiles, multiprocessors) = (w.plan().tiles as usize, self.multiprocessors() as usize);
        let wgmma = self.has_wgmma();
        let (few, wide) = (few(wgmma), most(many(wgmma)));
        // Up to 256 rows a weight that is read once is worth the traffic of partial sums, unless it is an output matrix: a
        // tile of fewer rows would bring the same weights and inputs from L2 again and again.
        let huge = tiles >= 4 * multiprocessors;
        match few.iter().find(|width| rows <= width.rows) {
            Some(width) if width.rows <= 64 || !huge => Way::Stream(width),
            _ => Way::Wide(wide, self.way_of_whole(w, rows)),
        }
    }

    /// The kernel for tiles that are not cut, if it is worth it: its tiles are twice as large, and so are the times for
    /// which multiprocessors at the end have nothing to do.
    fn way_of_whole(&self, w: &CudaWeight, rows: usize) -> Option<&'static Width<WideArgs>> {
        let plan = w.plan();
        let rounds = |tiles: u32, height: usize| {
            (tiles * rows.div_ceil(height) as u32).div_ceil(self.multiprocessors())
        };
        let (whole, cut) = (plan.whole, plan.tiles - plan.whole);
        let width = many_whole(self.has_wgmma()).first()?;
        let apart = 2 * rounds(whole, width.rows) + rounds(cut, width.rows / 2);
        let together = rounds(plan.tiles, width.rows / 2);
        let pays = whole > 0 && rows >= width.rows && 20 * apart <= 21 * together;
        (pays && w.kind() != Kind::F8).then_some(width)
    }

    /// Enqueues `x · wᵀ` with a weight in tiles. Results go to `out`, unless partial sums are returned. `None` also if
    /// there was no memory, which whoever waits next is told.
    pub(crate) fn enqueue_product<'a>(
        &self,
        x: &CudaTensor,
        w: &'a CudaWeight,
        epilogue: &Epilogue<'a, Self>,
        target: Target<'_>,
    ) -> Option<Pieces<'a>> {
        self.reserve_pieces(w, x.bucket)?;
        match self.way(w, x.bucket) {
            Way::Stream(width) => {
                let inputs = self.round_inputs(x, w, width.height())?;
                self.stream((x, inputs), w, epilogue, (target, width))
            }
            Way::Wide(width, whole) => {
                let Target { out, gate_scale, .. } = target;
                let inputs = self.round_inputs(x, w, width.height())?;
                let next = gate_scale.and_then(|_| self.next_inputs_apart(out, inputs));
                let mut arguments = WideArgs {
                    weight: Ptr::new(w.address()),
                    inputs: Ptr::new(inputs),
                    out: Matrix::of(out),
                    bias: optional(epilogue.bias),
                    scale: optional(epilogue.scale),
                    live: x.live.ptr(),
                    weights: Ptr::NULL,
                    slots: Ptr::NULL,
                    plan: w.plan(),
                    first_tile: 0,
                    tiles: w.plan().tiles,
                    rounded: RoundedInputs::rows(next),
                    gated: u32::from(gate_scale.is_some()),
                    gate_scale: gate_scale.unwrap_or(1.0),
                    together: 0,
                    early: 0,
                };
                let written = Written::new(out, offset_of!(WideArgs, out)).spare_if(next.is_some());
                let parts = match whole {
                    Some(whole) => &[
                        (whole, 0..w.plan().whole),
                        (width, w.plan().whole..w.plan().tiles),
                    ][..],
                    None => &[(width, 0..w.plan().tiles)],
                };
                for (width, tiles) in parts {
                    arguments.first_tile = tiles.start;
                    arguments.tiles = tiles.len() as u32;
                    let written = if tiles.start > 0 {
                        written.beside()
                    } else {
                        written
                    };
                    let strips = x.bucket.div_ceil(width.rows);
                    self.enqueue_wide((width, w.kind()), strips, &arguments, Some(written));
                }
                if next.is_some() {
                    self.keep_inputs(next);
                }
                None
            }
        }
    }

    /// Enqueues a product that streams its weight. What it leaves in pieces is returned, unless there is nothing.
    fn stream<'a>(
        &self,
        (x, inputs): (&CudaTensor, u64),
        w: &'a CudaWeight,
        epilogue: &Epilogue<'a, Self>,
        (target, width): (Target<'_>, &'static Width<StreamArgs>),
    ) -> Option<Pieces<'a>> {
        let (plan, Target { out, gate_scale, .. }) = (w.plan(), target);
        let finishes = plan.whole == plan.tiles || (plan.whole > 0 && target.partly);
        let next = gate_scale
            .filter(|_| finishes)
            .and_then(|_| self.next_inputs_apart(out, inputs));
        let pieces = if plan.whole < plan.tiles {
            self.scratch(ScratchKind::Pieces, piece_bytes(w, width.rows))?
        } else {
            0
        };
        let arguments = StreamArgs {
            weight: Ptr::new(w.address()),
            inputs: Ptr::new(inputs),
            pieces: Ptr::new(pieces),
            live: x.live.ptr(),
            plan,
            finishes: u32::from(finishes),
            gated: u32::from(gate_scale.is_some()),
            gate_scale: gate_scale.unwrap_or(1.0),
            out: if finishes { Matrix::of(out) } else { Matrix::NONE },
            bias: optional(epilogue.bias),
            scale: optional(epilogue.scale),
            rounded: RoundedInputs::rows(next),
        };
        let written = Written::new(out, offset_of!(StreamArgs, out)).spare_if(next.is_some());
        let grid = width.grid(w.kind(), [plan.workers, width.strips(w.kind()), 1]);
        self.enqueue_writing(
            width.kernel(w.kind()),
            grid,
            &arguments,
            finishes.then_some(written),
        );
        if plan.whole == plan.tiles {
            if next.is_some() {
                self.keep_inputs(next);
            }
            return None;
        }
        Some(Pieces {
            sums: pieces,
            width: width.rows,
            w,
            bias: epilogue.bias,
            scale: epilogue.scale,
            finished: if finishes { plan.whole } else { 0 },
            rounded: next,
        })
    }

    /// Enqueues a product of strips, each with the matrix of its expert, to rows of slots, or to where the next product looks
    /// for its inputs.
    pub(crate) fn strip_product(&self, product: &StripProduct<'_>, strips: &Strips, out: Matrix) {
        let (w, gated) = (product.w, product.gate_scale.is_some());
        let widths = many(self.has_wgmma());
        let width = widths.iter().find(|width| width.rows == strips.height);
        let plan = KPlan::whole((w.outputs(), w.inputs()), w.kind());
        let arguments = WideArgs {
            weight: Ptr::NULL,
            inputs: Ptr::new(product.inputs),
            out,
            bias: Ptr::NULL,
            scale: Ptr::NULL,
            live: Ptr::new(strips.counts),
            weights: product.matrices,
            slots: strips.taken,
            plan,
            first_tile: 0,
            tiles: plan.tiles,
            rounded: product.rounded,
            gated: u32::from(gated),
            gate_scale: product.gate_scale.unwrap_or(1.0),
            together: u32::from(product.together),
            early: u32::from(product.early),
        };
        let width = width.unwrap_or(most(widths));
        self.enqueue_wide((width, w.kind()), strips.most, &arguments, None);
    }

    /// Enqueues the rounding of experts' inputs to the type of their matrices.
    pub(crate) fn round_strips(
        &self,
        x: Matrix,
        w: &CudaWeight,
        strips: &Strips,
        before: Before,
    ) -> Option<u64> {
        let (kernels, gate_scale) = match before {
            Before::Lookup | Before::Nothing => (&ROUND, 1.0),
            Before::Activation(Activation::SiluGated { gate_scale }) => (&ROUND_SILU, gate_scale),
            Before::Activation(Activation::ReluSquared) => (&ROUND_RELU, 1.0),
        };
        let arguments = RoundArgs {
            x,
            to: Ptr::NULL,
            rows: match before {
                Before::Lookup => strips.rows,
                Before::Nothing | Before::Activation(_) => Ptr::NULL,
            },
            slots: strips.live_slots(),
            strips: strips.most as u32,
            height: strips.height as u32,
            blocks: w.input_blocks(),
            gate_scale,
        };
        self.enqueue_round(kernels, w.kind().inputs(), arguments)
    }

    /// How high strips of an expert's rows are, if there are so many rows for an expert on average.
    pub(crate) fn strip_height(&self, average: usize) -> usize {
        let widths = many(self.has_wgmma());
        widths
            .iter()
            .find(|width| 2 * average <= width.rows)
            .unwrap_or(most(widths))
            .rows
    }

    fn enqueue_wide(
        &self,
        (width, kind): (&Width<WideArgs>, Kind),
        strips: usize,
        arguments: &WideArgs,
        written: Option<Written>,
    ) {
        let tiles = arguments.tiles;
        let blocks = if self.has_wgmma() {
            [(tiles * strips as u32).min(self.multiprocessors()), 1, 1]
        } else {
            [tiles, strips as u32, 1]
        };
        self.enqueue_writing(width.kernel(kind), width.grid(kind, blocks), arguments, written);
    }

    /// Enqueues a rounding to scratch, and says where that is.
    pub(crate) fn enqueue_round(
        &self,
        kernels: &Pair<RoundArgs>,
        kind: Kind,
        mut arguments: RoundArgs,
    ) -> Option<u64> {
        let RoundArgs {
            strips,
            height,
            blocks,
            ..
        } = arguments;
        let chunks = u64::from(strips * height) * u64::from(blocks) * 8;
        let to = self.scratch(ScratchKind::Inputs, chunks * 16)?;
        arguments.to = Ptr::new(to);
        let most = 8 * u64::from(self.multiprocessors());
        let grid = Grid::new(chunks.div_ceil(256).min(most) as u32, 256);
        self.enqueue(&kernels[usize::from(kind == Kind::F16)], grid, &arguments);
        Some(to)
    }

    /// Takes the memory for partial sums of any number of rows up to `rows`: fewer rows may need more of it.
    fn reserve_pieces(&self, w: &CudaWeight, rows: usize) -> Option<()> {
        let cut = w.plan().whole < w.plan().tiles;
        for width in few(self.has_wgmma())
            .iter()
            .filter(|width| cut && width.rows <= rows)
        {
            if let Way::Stream(width) = self.way(w, width.rows) {
                self.scratch(ScratchKind::Pieces, piece_bytes(w, width.rows))?;
            }
        }
        Some(())
    }
}

/// Bytes of the partial sums of a product of `width` rows.
fn piece_bytes(w: &CudaWeight, width: usize) -> u64 {
    let plan = w.plan();
    let places = plan.whole + (plan.tiles - plan.whole) * plan.pieces;
    u64::from(places) * (width * TILE * 4) as u64
}
