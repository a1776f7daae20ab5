//! Operations that move rows: embeddings, gathers, copies, angles.

use super::checks::Checks;
use crate::arguments::{Ptr, arguments};
use crate::cuda::Cuda;
use crate::launch::{Grid, Kernel};
use crate::ops::inputs::RoundedInputs;
use crate::storage::{CudaBuffer, CudaTensor};
use crate::unread::Written;
use crate::views::{Matrix, RoundedRows, RowSource};
use crate::weight::CudaWeight;
use paceline_device::StepTables;
use paceline_device::abi::{LogitsRow, TokenRow};
use std::mem::offset_of;

arguments! { "tokens.h";
    struct EmbedArgs {
        out: Matrix,
        table: RowSource,
        tokens: Ptr<TokenRow>,
        fault: Ptr<i32>,
        scale: f32,
    }

    /// Which rows of `x`: those of `index`, or those of `logits`.
    struct GatherArgs {
        x: Matrix,
        out: Matrix,
        rounded: RoundedRows,
        index: Ptr<i32>,
        logits: Ptr<LogitsRow>,
        fault: Ptr<i32>,
    }

    struct CopyArgs {
        x: Matrix,
        out: Matrix,
    }

    struct SpreadArgs {
        x: Matrix,
        out: Matrix,
        columns: Ptr<i32>,
        fault: Ptr<i32>,
    }

    struct AnglesArgs {
        out: Matrix,
        tokens: Ptr<TokenRow>,
        frequencies: Ptr<f32>,
        /// Frequencies.
        count: u32,
        factor: f32,
    }
}

const EMBED: Kernel<EmbedArgs> = Kernel::new("tokens", "embed");
const GATHER: Kernel<GatherArgs> = Kernel::new("tokens", "gather");
const GATHER_SAMPLED: Kernel<GatherArgs> = Kernel::new("tokens", "gather_sampled");
const COPY_ROWS: Kernel<CopyArgs> = Kernel::new("tokens", "copy_rows");
const SPREAD: Kernel<SpreadArgs> = Kernel::new("tokens", "spread");
const ROPE_ANGLES: Kernel<AnglesArgs> = Kernel::new("tokens", "rope_angles");

/// Threads of a block that moves a row: `MOVERS`.
pub(super) const MOVERS: u32 = 256;
/// Columns of a row that one thread block spreads.
const SPREAD_PART: usize = 16 << 10;

/// A thread block per row.
pub(super) fn per_row(rows: usize) -> Grid {
    Grid::new(rows as u32, MOVERS)
}

impl Cuda {
    pub(crate) fn enqueue_embed(
        &self,
        step: &StepTables<Self>,
        table: &CudaWeight,
        scale: f32,
        out: &CudaTensor,
    ) {
        let check = Checks("embed");
        check.room("token rows", &step.token_rows, out.bucket);
        check.columns("out", out, table.inputs());
        let arguments = EmbedArgs {
            out: Matrix::of(out),
            table: table.row_source(),
            tokens: step.token_rows.ptr(),
            fault: self.fault(),
            scale,
        };
        self.enqueue(&EMBED, per_row(out.bucket), &arguments);
    }

    pub(crate) fn enqueue_gather(&self, x: &CudaTensor, index: &CudaBuffer<i32>, out: &CudaTensor) {
        let check = Checks("gather");
        check.room("index", index, out.bucket);
        check.columns("out", out, x.columns);
        check.apart(out, &[x]);
        let arguments = GatherArgs {
            x: Matrix::of(x),
            out: Matrix::of(out),
            rounded: RoundedRows::NOWHERE,
            index: index.ptr(),
            logits: Ptr::NULL,
            fault: self.fault(),
        };
        self.enqueue(&GATHER, per_row(out.bucket), &arguments);
    }

    pub(crate) fn enqueue_gather_sampled(&self, x: &CudaTensor, step: &StepTables<Self>, out: &CudaTensor) {
        let check = Checks("gather_sampled");
        check.room("rows of logits", &step.logits_rows, out.bucket);
        check.columns("out", out, x.columns);
        check.apart(out, &[x]);
        let next = self.next_inputs(out);
        let arguments = GatherArgs {
            x: Matrix::of(x),
            out: Matrix::of(out),
            rounded: RoundedInputs::rows(next),
            index: Ptr::NULL,
            logits: step.logits_rows.ptr(),
            fault: self.fault(),
        };
        let written = Written::new(out, offset_of!(GatherArgs, out)).spare_if(next.is_some());
        self.enqueue_writing(&GATHER_SAMPLED, per_row(out.bucket), &arguments, Some(written));
        self.keep_inputs(next);
    }

    pub(crate) fn enqueue_copy(&self, x: &CudaTensor, out: &CudaTensor) {
        let check = Checks("copy");
        check.same_shape(x, out);
        check.apart(out, &[x]);
        let arguments = CopyArgs {
            x: Matrix::of(x),
            out: Matrix::of(out),
        };
        self.enqueue(&COPY_ROWS, per_row(out.bucket), &arguments);
    }

    pub(crate) fn enqueue_spread(&self, x: &CudaTensor, columns: &CudaBuffer<i32>, out: &CudaTensor) {
        let check = Checks("spread");
        check.same_rows(x, out);
        check.room("columns", columns, x.columns);
        check.apart(out, &[x]);
        let arguments = SpreadArgs {
            x: Matrix::of(x),
            out: Matrix::of(out),
            columns: columns.ptr(),
            fault: self.fault(),
        };
        let parts = out.columns.div_ceil(SPREAD_PART).max(1) as u32;
        self.enqueue(
            &SPREAD,
            Grid::of([parts, out.bucket as u32, 1], MOVERS),
            &arguments,
        );
    }

    pub(crate) fn enqueue_rope_angles(
        &self,
        step: &StepTables<Self>,
        frequencies: &CudaBuffer<f32>,
        factor: f32,
        out: &CudaTensor,
    ) {
        let check = Checks("rope_angles");
        check.room("token rows", &step.token_rows, out.bucket);
        check.columns("out", out, 2 * frequencies.len());
        let arguments = AnglesArgs {
            out: Matrix::of(out),
            tokens: step.token_rows.ptr(),
            frequencies: frequencies.ptr(),
            count: frequencies.len() as u32,
            factor,
        };
        self.enqueue(&ROPE_ANGLES, per_row(out.bucket), &arguments);
    }
}
