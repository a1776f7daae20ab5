//! Products through tensor cores: which kernels run for a shape, and the end of a product together with what follows it.
//!
//! Inputs are rounded to the type of the weight first, those of 8-bit floats to bf16. Few rows then stream the weight past them, a thread block per worker of
//! the weight's plan, and leave partial sums that a last kernel adds up, alone or with what comes next; many rows get their
//! results in one go. Which way it is depends on shapes alone, and all ways give the same bits.

use crate::arguments::{Ptr, arguments};
use crate::cuda::Cuda;
use crate::launch::{Grid, Kernel};
use crate::ops::inputs::RoundedInputs;
use crate::ops::widths::{self, Width, few, many, most};
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

    /// A product that leaves partial sums.
    struct StreamArgs {
        weight: Ptr<u8>,
        inputs: Ptr<u8>,
        pieces: Ptr<f32>,
        live: Ptr<i32>,
        plan: KPlan,
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
    /// With results in one go.
    Wide(&'static Width<WideArgs>),
}

/// A product whose partial sums wait to be added up.
pub(crate) struct Pieces<'a> {
    pub(crate) sums: u64,
    pub(crate) width: usize,
    pub(crate) w: &'a CudaWeight,
    pub(crate) bias: Option<&'a CudaBuffer<f32>>,
    pub(crate) scale: Option<&'a CudaBuffer<f32>>,
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
            _ => Way::Wide(wide),
        }
    }

    /// Enqueues `x · wᵀ` with a weight in tiles. Results go to `out`, unless partial sums are returned. `None` also if
    /// there was no memory, which whoever waits next is told. With `gate_scale`, gate and up take turns in the weight, and
    /// results are those of the activation.
    pub(crate) fn enqueue_product<'a>(
        &self,
        x: &CudaTensor,
        w: &'a CudaWeight,
        epilogue: &Epilogue<'a, Self>,
        (out, gate_scale): (&CudaTensor, Option<f32>),
    ) -> Option<Pieces<'a>> {
        self.reserve_pieces(w, x.bucket)?;
        match self.way(w, x.bucket) {
            Way::Stream(width) => {
                let inputs = self.round_inputs(x, w, width.height())?;
                let pieces = self.scratch(ScratchKind::Pieces, piece_bytes(w, width.rows))?;
                let arguments = StreamArgs {
                    weight: Ptr::new(w.address()),
                    inputs: Ptr::new(inputs),
                    pieces: Ptr::new(pieces),
                    live: x.live.ptr(),
                    plan: w.plan(),
                };
                let blocks = [w.plan().workers, width.strips(w.kind()), 1];
                let grid = width.grid(w.kind(), blocks);
                self.enqueue_beside_inputs(width.kernel(w.kind()), grid, &arguments);
                Some(Pieces {
                    sums: pieces,
                    width: width.rows,
                    w,
                    bias: epilogue.bias,
                    scale: epilogue.scale,
                })
            }
            Way::Wide(width) => {
                let inputs = self.round_inputs(x, w, width.height())?;
                let next = gate_scale.and_then(|_| self.next_inputs_apart(out, inputs));
                let arguments = WideArgs {
                    weight: Ptr::new(w.address()),
                    inputs: Ptr::new(inputs),
                    out: Matrix::of(out),
                    bias: optional(epilogue.bias),
                    scale: optional(epilogue.scale),
                    live: x.live.ptr(),
                    weights: Ptr::NULL,
                    slots: Ptr::NULL,
                    plan: w.plan(),
                    rounded: RoundedInputs::rows(next),
                    gated: u32::from(gate_scale.is_some()),
                    gate_scale: gate_scale.unwrap_or(1.0),
                    together: 0,
                    early: 0,
                };
                let written = Written::new(out, offset_of!(WideArgs, out)).spare_if(next.is_some());
                let strips = x.bucket.div_ceil(width.rows);
                self.enqueue_wide((width, w.kind()), strips, &arguments, Some(written));
                if next.is_some() {
                    self.keep_inputs(next);
                }
                None
            }
        }
    }

    /// Enqueues a product of strips, each with the matrix of its expert, to rows of slots, or to where the next product looks
    /// for its inputs.
    pub(crate) fn strip_product(&self, product: &StripProduct<'_>, strips: &Strips, out: Matrix) {
        let (w, gated) = (product.w, product.gate_scale.is_some());
        let widths = many(self.has_wgmma());
        let width = widths.iter().find(|width| width.rows == strips.height);
        let arguments = WideArgs {
            weight: Ptr::NULL,
            inputs: Ptr::new(product.inputs),
            out,
            bias: Ptr::NULL,
            scale: Ptr::NULL,
            live: Ptr::new(strips.counts),
            weights: product.matrices,
            slots: strips.taken,
            plan: KPlan::whole((w.outputs(), w.inputs()), w.kind().block()),
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
        let tiles = arguments.plan.tiles;
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
        for width in few(self.has_wgmma()).iter().filter(|width| width.rows <= rows) {
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
    u64::from(plan.tiles) * u64::from(plan.pieces) * (width * TILE * 4) as u64
}
