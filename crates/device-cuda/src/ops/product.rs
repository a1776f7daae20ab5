//! Products through tensor cores: which kernels run for a shape, and the end of a product together with what follows it.
//!
//! Inputs are rounded to the type of the weight first, those of 8-bit floats to bf16. Few rows then stream the weight past them, a thread block per worker of
//! the weight's plan, and leave partial sums that a last kernel adds up, alone or with what comes next; many rows get their
//! results in one go. Which way it is depends on shapes alone, and all ways give the same bits.

use crate::arguments::{Ptr, arguments};
use crate::cuda::Cuda;
use crate::launch::{Grid, Kernel};
use crate::ops::inputs::RoundedInputs;
use crate::pack::Architecture;
use crate::scratch::ScratchKind;
use crate::storage::{CudaBuffer, CudaTensor};
use crate::views::{KPlan, Matrix, RoundedRows, optional};
use crate::weight::{BLOCK, CudaWeight, Kind, TILE};
use paceline_device::{Activation, Epilogue, SCALE_BLOCK};

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

    /// A product that leaves results. With experts, `live` counts strips, and each strip has one of `weights`.
    struct WideArgs {
        weight: Ptr<u8>,
        inputs: Ptr<u8>,
        out: Matrix,
        bias: Ptr<f32>,
        scale: Ptr<f32>,
        live: Ptr<i32>,
        experts: Ptr<i32>,
        weights: Ptr<u64>,
        plan: KPlan,
        /// Where the results of gate and up are left for the next product too.
        rounded: RoundedRows,
        gated: u32,
        gate_scale: f32,
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

/// Kernels for so many rows of tokens.
struct Width<A: 'static> {
    rows: usize,
    threads: u32,
    /// Shared memory of a thread block: a ring of stages, aligned to a kilobyte, and what is kept beside it.
    shared: usize,
    /// bf16 and f16, or 8-bit floats.
    kernels: &'static [Kernel<A>],
}

macro_rules! widths {
    ($file:literal, $kind:literal, $threads:literal, $($rows:literal, $stages:literal;)*) => {
        [$(Width {
            rows: $rows,
            threads: $threads,
            shared: 1024 + $stages * (TILE + $rows) * BLOCK * 2,
            kernels: &[
                Kernel::new($file, concat!($kind, "_bf16_", $rows)),
                Kernel::new($file, concat!($kind, "_f16_", $rows)),
            ],
        },)*]
    };
}

static STREAM: [Width<StreamArgs>; 6] =
    widths!("stream", "stream", 320, 8, 9; 16, 8; 32, 8; 64, 6; 128, 6; 256, 4;);
static WIDE: [Width<WideArgs>; 3] = widths!("wide", "wide", 384, 8, 10; 32, 8; 128, 5;);
static PIECES: [Width<StreamArgs>; 4] = widths!("plain", "pieces", 256, 8, 4; 16, 4; 32, 4; 64, 4;);
static TOTALS: [Width<WideArgs>; 3] = widths!("plain", "totals", 256, 8, 4; 32, 4; 64, 4;);

/// Those of 8-bit floats: rows, of which a thread block takes no more than the kernel is named after; threads; stages; bytes
/// beside the ring.
macro_rules! scaled_widths {
    ($file:literal, $kind:literal, $($rows:literal, $own:literal, $threads:literal, $stages:literal, $beside:literal;)*) => {
        [$(Width {
            rows: $rows,
            threads: $threads,
            shared: 1024 + $stages * ($own * SCALE_BLOCK * 2 + SCALED_STAGE) + $beside,
            kernels: &[Kernel::new($file, concat!($kind, "_f8_", $own))],
        },)*]
    };
}

/// Bytes of a block of 8-bit floats in a ring, as `kernels/f8.cuh` has it.
const SCALED_STAGE: usize = (TILE * (SCALE_BLOCK + 4)).next_multiple_of(1024);

static STREAM_F8: [Width<StreamArgs>; 6] = scaled_widths!("stream_f8", "stream",
    8, 8, 288, 5, 0; 16, 16, 288, 5, 0; 32, 32, 288, 4, 0; 64, 64, 288, 3, 0; 128, 128, 384, 4, 0; 256, 128, 384, 4, 0;);
static WIDE_F8: [Width<WideArgs>; 3] = scaled_widths!("wide_f8", "wide",
    8, 8, 384, 8, 4096; 32, 32, 384, 7, 16384; 128, 128, 384, 3, 65536;);
static PIECES_F8: [Width<StreamArgs>; 4] = scaled_widths!("plain_f8", "pieces",
    8, 8, 256, 4, 0; 16, 16, 256, 4, 0; 32, 32, 256, 3, 0; 64, 64, 256, 2, 0;);
static TOTALS_F8: [Width<WideArgs>; 3] = scaled_widths!("plain_f8", "totals",
    8, 8, 256, 4, 0; 32, 32, 256, 3, 0; 64, 64, 256, 2, 0;);

impl<A> Width<A> {
    /// How high the strips of its inputs are: the same for all kernels of many rows, so that whoever makes inputs need not
    /// know which one comes.
    fn height(&self) -> usize {
        self.rows.min(MOST_HEIGHT)
    }

    fn kernel(&self, kind: Kind) -> &Kernel<A> {
        &self.kernels[usize::from(kind == Kind::F16)]
    }
}

/// Kernels of few rows for a kind of weight, on a GPU with wgmma or without.
fn few(kind: Kind, wgmma: bool) -> &'static [Width<StreamArgs>] {
    match (kind, wgmma) {
        (Kind::F8, true) => &STREAM_F8,
        (Kind::F8, false) => &PIECES_F8,
        (_, true) => &STREAM,
        (_, false) => &PIECES,
    }
}

/// The same for many rows.
fn many(kind: Kind, wgmma: bool) -> &'static [Width<WideArgs>; 3] {
    match (kind, wgmma) {
        (Kind::F8, true) => &WIDE_F8,
        (Kind::F8, false) => &TOTALS_F8,
        (_, true) => &WIDE,
        (_, false) => &TOTALS,
    }
}

/// How high a strip of inputs is at most.
const MOST_HEIGHT: usize = 128;

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
    /// The expert of each strip.
    pub(crate) experts: Ptr<i32>,
    /// The row of each slot, negative where there is none.
    pub(crate) rows: Ptr<i32>,
}

impl Strips {
    /// The number of slots.
    pub(crate) fn slots(&self) -> Ptr<i32> {
        Ptr::new(self.counts + 4)
    }
}

/// What inputs of experts go through before they are rounded.
#[derive(Clone, Copy)]
pub(crate) enum Before {
    /// Rows are looked up.
    Lookup,
    /// Rows are slots, and an activation is applied.
    Activation(Activation),
}

impl Cuda {
    fn has_wgmma(&self) -> bool {
        self.options.wgmma && self.context.architecture == Architecture::Sm90a
    }

    /// How high the strips of a product's inputs are, whatever the weight.
    pub(crate) fn input_height(&self, rows: usize) -> usize {
        match PIECES.iter().find(|width| rows <= width.rows) {
            Some(width) => width.rows,
            None if self.has_wgmma() => MOST_HEIGHT,
            None => TOTALS[2].rows,
        }
    }

    fn way(&self, w: &CudaWeight, rows: usize) -> Way {
        let (tiles, multiprocessors) = (w.plan().tiles as usize, self.multiprocessors() as usize);
        let wgmma = self.has_wgmma();
        let (few, wide) = (few(w.kind(), wgmma), &many(w.kind(), wgmma)[2]);
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
                // A kernel of 8-bit floats has no registers for more rows than a strip is high.
                let strips = match w.kind() {
                    Kind::F8 => width.rows / width.height(),
                    _ => 1,
                };
                let grid = Grid::of([w.plan().workers, strips as u32, 1], width.threads);
                let grid = grid.shared(width.shared as u32);
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
                    experts: Ptr::NULL,
                    weights: Ptr::NULL,
                    plan: w.plan(),
                    rounded: RoundedInputs::rows(next),
                    gated: u32::from(gate_scale.is_some()),
                    gate_scale: gate_scale.unwrap_or(1.0),
                };
                self.enqueue_wide(width, w.kind(), x.bucket.div_ceil(width.rows), &arguments);
                if next.is_some() {
                    self.keep_inputs(next);
                }
                None
            }
        }
    }

    /// Enqueues a product of strips, each with the matrix of its expert, to rows of slots.
    pub(crate) fn strip_product(
        &self,
        (w, weights): (&CudaWeight, Ptr<u64>),
        strips: &Strips,
        inputs: u64,
        out: Matrix,
    ) {
        let widths = many(w.kind(), self.has_wgmma());
        let width = widths.iter().find(|width| width.rows == strips.height);
        let arguments = WideArgs {
            weight: Ptr::NULL,
            inputs: Ptr::new(inputs),
            out,
            bias: Ptr::NULL,
            scale: Ptr::NULL,
            live: Ptr::new(strips.counts),
            experts: strips.experts,
            weights,
            plan: KPlan::whole((w.outputs(), w.inputs()), w.kind().block()),
            rounded: RoundedRows::NOWHERE,
            gated: 0,
            gate_scale: 1.0,
        };
        self.enqueue_wide(width.unwrap_or(&widths[2]), w.kind(), strips.most, &arguments);
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
            Before::Lookup => (&ROUND, 1.0),
            Before::Activation(Activation::SiluGated { gate_scale }) => (&ROUND_SILU, gate_scale),
            Before::Activation(Activation::ReluSquared) => (&ROUND_RELU, 1.0),
        };
        let arguments = RoundArgs {
            x,
            to: Ptr::NULL,
            rows: strips.rows,
            slots: strips.slots(),
            strips: strips.most as u32,
            height: strips.height as u32,
            blocks: w.input_blocks(),
            gate_scale,
        };
        self.enqueue_round(kernels, w.kind().inputs(), arguments)
    }

    /// How high strips of an expert's rows are, if there are so many rows for an expert on average.
    pub(crate) fn strip_height(&self, average: usize) -> usize {
        // As high for all kinds of weights.
        let widths = many(Kind::Bf16, self.has_wgmma());
        widths
            .iter()
            .find(|width| 2 * average <= width.rows)
            .unwrap_or(&widths[2])
            .rows
    }

    fn enqueue_wide(&self, width: &Width<WideArgs>, kind: Kind, strips: usize, arguments: &WideArgs) {
        let tiles = arguments.plan.tiles;
        let grid = if self.has_wgmma() {
            Grid::new((tiles * strips as u32).min(self.multiprocessors()), width.threads)
        } else {
            Grid::of([tiles, strips as u32, 1], width.threads)
        };
        let grid = grid.shared(width.shared as u32);
        self.enqueue_beside_inputs(width.kernel(kind), grid, arguments);
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
        for width in few(w.kind(), self.has_wgmma())
            .iter()
            .filter(|width| width.rows <= rows)
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
    u64::from(plan.tiles) * u64::from(plan.pieces) * (width * TILE * 4) as u64
}
