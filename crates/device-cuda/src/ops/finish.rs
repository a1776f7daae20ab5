//! The end of products that were left in partial sums, alone or together with what follows.

use crate::arguments::{Ptr, arguments};
use crate::cuda::Cuda;
use crate::launch::{Grid, Kernel};
use crate::ops::dense::ResidualNormArgs;
use crate::ops::inputs::RoundedInputs;
use crate::ops::norms::{by_columns, norm_written};
use crate::ops::product::Pieces;
use crate::storage::CudaTensor;
use crate::unread::Written;
use crate::views::{Matrix, PieceRows, PiecedProduct, RoundedRows, optional};
use crate::weight::TILE;
use paceline_device::{Activation, ResidualNorm};
use std::mem::offset_of;

arguments! { "finish.h";
    /// Results, or results behind an activation.
    struct FinishRowsArgs {
        product: PiecedProduct,
        out: Matrix,
        rounded: RoundedRows,
        gate_scale: f32,
        /// The column to begin with: those before it are there.
        first_column: u32,
    }

    /// Results that are added to the residual stream, and the norm behind that.
    struct FinishAddNormArgs {
        product: PiecedProduct,
        norm: ResidualNormArgs,
        rounded: RoundedRows,
    }
}

/// Kernels of few tokens, and of many.
const FINISH_ROWS: [Kernel<FinishRowsArgs>; 2] = [
    Kernel::new("finish", "finish_rows"),
    Kernel::new("finish", "finish_rows_many"),
];
const FINISH_SILU_GATED: [Kernel<FinishRowsArgs>; 2] = [
    Kernel::new("finish", "finish_silu_gated"),
    Kernel::new("finish", "finish_silu_gated_many"),
];
const FINISH_RELU_SQUARED: [Kernel<FinishRowsArgs>; 2] = [
    Kernel::new("finish", "finish_relu_squared"),
    Kernel::new("finish", "finish_relu_squared_many"),
];
const FINISH_ADD_NORM: [Kernel<FinishAddNormArgs>; 3] = [
    Kernel::new("finish", "finish_add_norm_256"),
    Kernel::new("finish", "finish_add_norm_512"),
    Kernel::new("finish", "finish_add_norm_768"),
];
/// For more rows than multiprocessors, of up to [`MANY_COLUMNS`] columns that lie in fours.
const FINISH_ADD_NORM_MANY: Kernel<FinishAddNormArgs> = Kernel::new("finish", "finish_add_norm_many_768");
const MANY_COLUMNS: usize = 4 * 768;

/// Threads of a thread block that writes rows.
const THREADS: u32 = 128;
/// Most tokens of which a thread has one, and how many it has of more: the kernels' `TOKENS`.
const FEW: usize = 64;
const TOKENS: usize = 4;

impl Pieces<'_> {
    /// The partial sums as kernels see them.
    pub(crate) fn rows(&self) -> PieceRows {
        PieceRows {
            data: Ptr::new(self.sums),
            plan: self.w.plan(),
            width: self.width as u32,
        }
    }

    /// The same with what happens to their sum.
    pub(crate) fn product(&self) -> PiecedProduct {
        PiecedProduct {
            sums: self.rows(),
            bias: optional(self.bias),
            scale: optional(self.scale),
            outputs: self.w.outputs() as u32,
            gated: self.w.gated() as u32,
        }
    }
}

impl Cuda {
    /// Adds partial sums up to the results of a product, through an activation if there is one.
    pub(crate) fn finish_rows(&self, pieces: &Pieces<'_>, activation: Option<Activation>, out: &CudaTensor) {
        let (kernels, gate_scale) = match activation {
            None => (&FINISH_ROWS, 1.0),
            Some(Activation::SiluGated { gate_scale }) => (&FINISH_SILU_GATED, gate_scale),
            Some(Activation::ReluSquared) => (&FINISH_RELU_SQUARED, 1.0),
        };
        // Gate and up of a weight that is not packed for it are in different tiles.
        let apart = matches!(activation, Some(Activation::SiluGated { .. })) && pieces.w.gated() == 0;
        let many = out.bucket > FEW && !apart;
        let tokens = if many { TOKENS } else { 1 };
        let next = if pieces.finished > 0 {
            pieces.rounded
        } else {
            activation.and_then(|_| self.next_inputs(out))
        };
        let width = if pieces.w.gated() > 0 { TILE / 2 } else { TILE };
        let first_column = pieces.finished as usize * width;
        let arguments = FinishRowsArgs {
            product: pieces.product(),
            out: Matrix::of(out),
            rounded: RoundedInputs::rows(next),
            gate_scale,
            first_column: first_column as u32,
        };
        let across = (out.columns - first_column).div_ceil(4 * THREADS as usize) as u32;
        let grid = Grid::of([across, out.bucket.div_ceil(tokens) as u32, 1], THREADS);
        let written = Written::new(out, offset_of!(FinishRowsArgs, out)).spare_if(next.is_some());
        let written = if first_column > 0 {
            written.beside()
        } else {
            written
        };
        self.enqueue_writing(&kernels[usize::from(many)], grid, &arguments, Some(written));
        if next.is_some() {
            self.keep_inputs(next);
        }
    }

    /// Adds partial sums up, adds them to the residual stream, and enqueues the norm behind that.
    pub(crate) fn finish_add_norm(&self, pieces: &Pieces<'_>, norm: &ResidualNorm<'_, Self>) {
        let (at, threads) = by_columns(pieces.w.outputs());
        let next = self.next_inputs(norm.out);
        let arguments = FinishAddNormArgs {
            product: pieces.product(),
            norm: ResidualNormArgs::of(norm),
            rounded: RoundedInputs::rows(next),
        };
        let (rows, columns) = (norm.out.bucket as u32, pieces.w.outputs());
        let in_fours = columns.is_multiple_of(4) && arguments.norm.residual.in_fours();
        let many = rows > self.multiprocessors() && threads == 768 && columns <= MANY_COLUMNS && in_fours;
        let kernel = if many {
            &FINISH_ADD_NORM_MANY
        } else {
            &FINISH_ADD_NORM[at]
        };
        let written = norm_written(norm, offset_of!(FinishAddNormArgs, norm)).spare_if(next.is_some());
        self.enqueue_writing(kernel, Grid::new(rows, threads), &arguments, Some(written));
        self.keep_inputs(next);
    }
}
