//! Norms of rows: alone, behind an addition to the residual stream, and by groups with a gate.

use crate::cuda::Cuda;
use crate::launch::{Grid, Kernel};
use crate::ops::checks::Checks;
use crate::ops::dense::{AddNormArgs, GatedNormArgs, NormArgs, ResidualNormArgs};
use crate::ops::inputs::RoundedInputs;
use crate::storage::{CudaBuffer, CudaTensor};
use crate::unread::Written;
use crate::views::{Matrix, RoundedRows, optional};
use paceline_device::{GateOrder, GatedNorm, ResidualNorm};
use std::mem::offset_of;

const RMS_NORM: [Kernel<NormArgs>; 3] = [
    Kernel::new("norm", "rms_norm_256"),
    Kernel::new("norm", "rms_norm_512"),
    Kernel::new("norm", "rms_norm_768"),
];
const ADD_RMS_NORM: [Kernel<AddNormArgs>; 3] = [
    Kernel::new("norm", "add_rms_norm_256"),
    Kernel::new("norm", "add_rms_norm_512"),
    Kernel::new("norm", "add_rms_norm_768"),
];
/// For more rows than [`TOGETHER`] thread blocks on every multiprocessor, of up to [`MANY_COLUMNS`] columns that lie in fours.
const ADD_RMS_NORM_MANY: Kernel<AddNormArgs> = Kernel::new("norm", "add_rms_norm_many_768");
const TOGETHER: u32 = 2;
const MANY_COLUMNS: u32 = 4 * 768;
const GATED_NORM: [Kernel<GatedNormArgs>; 3] = [
    Kernel::new("norm", "gated_norm_256"),
    Kernel::new("norm", "gated_norm_512"),
    Kernel::new("norm", "gated_norm_768"),
];
const GATED_NORM_WARPS: Kernel<GatedNormArgs> = Kernel::new("norm", "gated_norm_32");
const GATED_NORM_FOURS: Kernel<GatedNormArgs> = Kernel::new("norm", "gated_norm_128");
/// Columns of its groups, and groups of a warp: `GROUP` and `GROUPS` of the kernel.
const FOURS_GROUP: (usize, usize) = (128, 4);
/// Threads of a thread block of warps.
const THREADS: u32 = 256;
/// Columns that a warp normalises; longer groups take a thread block.
const WARP_GROUP: usize = 512;

impl Cuda {
    pub(crate) fn enqueue_rms_norm(
        &self,
        x: &CudaTensor,
        weight: &CudaBuffer<f32>,
        eps: f32,
        out: &CudaTensor,
    ) {
        let check = Checks("rms_norm");
        check.same_shape(x, out);
        check.length("weight", weight, x.columns);
        check.apart(out, &[x]);
        let (next, rounded) = self.next_columns(out).unzip();
        let arguments = NormArgs {
            x: Matrix::of(x),
            out: Matrix::of(out),
            weight: weight.ptr(),
            rounded: rounded.unwrap_or(RoundedRows::NOWHERE),
            eps,
        };
        let (at, threads) = by_columns(x.columns);
        self.enqueue(&RMS_NORM[at], Grid::new(x.bucket as u32, threads), &arguments);
        self.keep_inputs(next);
    }

    pub(crate) fn enqueue_add_rms_norm(&self, delta: &CudaTensor, norm: &ResidualNorm<'_, Self>) {
        check_add_norm(delta, norm);
        let next = self.next_inputs(norm.out);
        let arguments = AddNormArgs {
            delta: Matrix::of(delta),
            norm: ResidualNormArgs::of(norm),
            rounded: RoundedInputs::rows(next),
        };
        let (at, threads) = by_columns(delta.columns);
        let (rows, room) = (delta.bucket as u32, TOGETHER * self.multiprocessors());
        let (kernel, blocks) = if rows > room && threads == 768 && arguments.in_fours() {
            (&ADD_RMS_NORM_MANY, room)
        } else {
            (&ADD_RMS_NORM[at], rows)
        };
        let written = norm_written(norm, offset_of!(AddNormArgs, norm)).spare_if(next.is_some());
        self.enqueue_writing(kernel, Grid::new(blocks, threads), &arguments, Some(written));
        self.keep_inputs(next);
    }

    pub(crate) fn enqueue_gated_norm(&self, args: &GatedNorm<'_, Self>) {
        check_gated_norm(args);
        // Groups are read and rounded four columns at a time.
        let next = self
            .next_inputs(args.out)
            .filter(|_| args.group.is_multiple_of(4));
        let arguments = GatedNormArgs {
            x: Matrix::of(args.x),
            gate: Matrix::of(args.gate),
            out: Matrix::of(args.out),
            weight: optional(args.weight),
            rounded: RoundedInputs::rows(next),
            weight_per_column: u32::from(args.weight.is_some_and(|weight| weight.len() != args.group)),
            group: args.group as u32,
            gate_first: u32::from(args.order == GateOrder::GateThenNorm),
            eps: args.eps,
        };
        let groups = args.x.bucket * (args.x.columns / args.group);
        let warps = THREADS as usize / 32;
        let (kernel, blocks, threads) = if arguments.in_fours() {
            (
                &GATED_NORM_FOURS,
                (groups / FOURS_GROUP.1).div_ceil(warps),
                THREADS,
            )
        } else if args.group <= WARP_GROUP {
            (&GATED_NORM_WARPS, groups.div_ceil(warps), THREADS)
        } else {
            let (at, threads) = by_columns(args.group);
            (&GATED_NORM[at], groups, threads)
        };
        let written = Written::new(args.out, offset_of!(GatedNormArgs, out)).spare_if(next.is_some());
        self.enqueue_writing(
            kernel,
            Grid::new(blocks as u32, threads),
            &arguments,
            Some(written),
        );
        self.keep_inputs(next);
    }
}

impl AddNormArgs {
    /// Whether four elements of anything can be read at a time, and a thread has no more of a row.
    fn in_fours(&self) -> bool {
        let rows = [&self.delta, &self.norm.residual, &self.norm.out];
        let columns = self.delta.columns.is_multiple_of(4) && self.delta.columns <= MANY_COLUMNS;
        columns && rows.iter().all(|matrix| matrix.in_fours()) && self.norm.weight.is_aligned(16)
    }
}

impl GatedNormArgs {
    /// Whether there is a kernel that reads four elements of anything at a time.
    fn in_fours(&self) -> bool {
        let (group, groups) = FOURS_GROUP;
        let rows = [&self.x, &self.gate, &self.out]
            .iter()
            .all(|matrix| matrix.in_fours());
        let weight = !self.weight.is_null() && self.weight.is_aligned(16) && self.weight_per_column == 0;
        let whole = self.group as usize == group && (self.x.columns as usize).is_multiple_of(groups * group);
        rows && weight && whole && self.gate_first == 0
    }
}

impl ResidualNormArgs {
    pub(crate) fn of(norm: &ResidualNorm<'_, Cuda>) -> Self {
        Self {
            residual: Matrix::of(norm.residual),
            out: Matrix::of(norm.out),
            weight: norm.weight.ptr(),
            scale: norm.scale,
            eps: norm.eps,
        }
    }
}

/// The result of a norm whose arguments are `at` bytes behind the begin of a kernel's.
pub(crate) fn norm_written(norm: &ResidualNorm<'_, Cuda>, at: usize) -> Written {
    Written::new(norm.out, at + offset_of!(ResidualNormArgs, out))
}

/// Which of three kernels normalises rows of so many columns, and with how many threads. The order of a sum follows from it,
/// so it may depend on nothing else.
pub(crate) fn by_columns(columns: usize) -> (usize, u32) {
    match columns {
        ..=1024 => (0, 256),
        1025..=2048 => (1, 512),
        _ => (2, 768),
    }
}

pub(crate) fn check_add_norm(delta: &CudaTensor, norm: &ResidualNorm<'_, Cuda>) {
    let check = Checks("add_rms_norm");
    check.same_shape(norm.residual, delta);
    check.same_shape(norm.residual, norm.out);
    check.length("weight", norm.weight, norm.out.columns);
    check.apart(norm.residual, &[delta, norm.out]);
    check.apart(norm.out, &[delta]);
}

/// Whether the operands of a gated norm belong together.
pub(crate) fn check_gated_norm(args: &GatedNorm<'_, Cuda>) {
    let check = Checks("gated_norm");
    check.same_shape(args.x, args.gate);
    check.same_shape(args.x, args.out);
    check.divides("group", args.group, args.x.columns);
    check.apart(args.out, &[args.x, args.gate]);
    if let Some(weight) = args.weight
        && weight.len() != args.group
    {
        check.length("weight", weight, args.x.columns);
    }
}
