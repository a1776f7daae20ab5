//! Inputs of products, rounded once.
//!
//! A product finds its inputs rounded to the type of its weight in scratch. What was rounded there last is remembered until a
//! kernel runs that may write it or its source, so that further products with the same inputs, and those whose inputs the
//! kernel ahead of them has left there, need no rounding of their own.

use crate::arguments::Ptr;
use crate::context::lock;
use crate::cuda::Cuda;
use crate::ops::product::{ROUND, RoundArgs};
use crate::scratch::ScratchKind;
use crate::storage::CudaTensor;
use crate::views::{Matrix, RoundedRows};
use crate::weight::{BLOCK, CudaWeight, Kind};

/// The inputs of products on a device.
#[derive(Default)]
pub(crate) struct Inputs {
    /// What lies rounded in scratch, if that is known.
    kept: Option<RoundedInputs>,
    /// The type that inputs were rounded to last, and most likely will be next.
    kind: Option<Kind>,
}

/// Which rows lie rounded in scratch, and how.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RoundedInputs {
    /// The source: its first element, its row length, its columns, its rows, and the number of those that carry data.
    source: (u64, usize, usize, usize, u64),
    /// Columns of the rows that they are a part of, from the first one on: as many lie side by side.
    across: usize,
    kind: Kind,
    height: usize,
    address: u64,
}

impl RoundedRows {
    /// Nothing is rounded.
    pub(crate) const NOWHERE: Self = Self {
        data: Ptr::NULL,
        height: 1,
        blocks: 1,
        half: 0,
    };
}

impl RoundedInputs {
    fn new(x: &CudaTensor, kind: Kind, height: usize, address: u64) -> Self {
        let first = x.storage.address() + x.first as u64 * 4;
        Self {
            source: (first, x.stride, x.columns, x.bucket, x.live.address()),
            across: x.columns,
            kind,
            height,
            address,
        }
    }

    /// The place as kernels see it.
    pub(crate) fn rows(inputs: Option<Self>) -> RoundedRows {
        inputs.map_or(RoundedRows::NOWHERE, |inputs| RoundedRows {
            data: Ptr::new(inputs.address),
            height: inputs.height as u32,
            blocks: inputs.across.div_ceil(BLOCK) as u32,
            half: u32::from(inputs.kind == Kind::F16),
        })
    }
}

impl Cuda {
    /// Remembers what lies rounded in scratch from now on.
    pub(crate) fn keep_inputs(&self, inputs: Option<RoundedInputs>) {
        lock(&self.inputs).kept = inputs;
    }

    /// Where a product finds `x` in strips of `height` rows; enqueues the rounding unless it has been done.
    pub(crate) fn round_inputs(&self, x: &CudaTensor, w: &CudaWeight, height: usize) -> Option<u64> {
        let kept = lock(&self.inputs).kept;
        if let Some(kept) = kept
            && kept == RoundedInputs::new(x, w.kind().inputs(), height, kept.address)
        {
            return Some(kept.address);
        }
        let arguments = RoundArgs {
            x: Matrix::of(x),
            to: Ptr::NULL,
            rows: Ptr::NULL,
            slots: Ptr::NULL,
            strips: x.bucket.div_ceil(height) as u32,
            height: height as u32,
            blocks: w.input_blocks(),
            gate_scale: 1.0,
        };
        let kind = w.kind().inputs();
        let address = self.enqueue_round(&ROUND, kind, arguments)?;
        *lock(&self.inputs) = Inputs {
            kept: Some(RoundedInputs::new(x, kind, height, address)),
            kind: Some(kind),
        };
        Some(address)
    }

    /// Where a kernel leaves its result for a product too, if one is likely to ask for it: rows of whole blocks. Rows
    /// without data are left as they are there; no other row sees them.
    pub(crate) fn next_inputs(&self, out: &CudaTensor) -> Option<RoundedInputs> {
        self.next_inputs_in(ScratchKind::Inputs, out)
    }

    /// The same for a kernel that writes some columns of rows: what is there of the rows with them, and where they go. A product of the
    /// whole rows finds its inputs there if kernel after kernel has written its columns, from the first one on.
    pub(crate) fn next_columns(&self, out: &CudaTensor) -> Option<(RoundedInputs, RoundedRows)> {
        let (before, across) = (out.first, out.stride);
        if out.columns == across {
            let next = self.next_inputs(out)?;
            return Some((next, RoundedInputs::rows(Some(next))));
        }
        let mut whole = out.clone();
        (whole.first, whole.columns) = (0, across);
        let blocks = before.is_multiple_of(BLOCK) && out.columns.is_multiple_of(BLOCK);
        let whole = self.next_inputs(&whole).filter(|_| blocks)?;
        let upto = |columns| {
            let mut part = whole;
            part.source.2 = columns;
            part
        };
        if before > 0 && lock(&self.inputs).kept != Some(upto(before)) {
            return None;
        }
        let skipped = (before / BLOCK * whole.height * BLOCK * 2) as u64;
        let rows = RoundedRows {
            data: Ptr::new(whole.address + skipped),
            ..RoundedInputs::rows(Some(whole))
        };
        Some((upto(before + out.columns), rows))
    }

    /// The same for a kernel that itself reads inputs at an address: not there.
    pub(crate) fn next_inputs_apart(&self, out: &CudaTensor, read: u64) -> Option<RoundedInputs> {
        let kinds = [ScratchKind::OtherInputs, ScratchKind::Inputs];
        kinds
            .into_iter()
            .filter_map(|scratch| self.next_inputs_in(scratch, out))
            .find(|next| next.address != read)
    }

    fn next_inputs_in(&self, scratch: ScratchKind, out: &CudaTensor) -> Option<RoundedInputs> {
        let height = self.input_height(out.bucket);
        let kind = lock(&self.inputs).kind?;
        if !out.columns.is_multiple_of(BLOCK) {
            return None;
        }
        let rows = out.bucket.next_multiple_of(height);
        let address = self.scratch(scratch, (rows * out.columns * 2) as u64)?;
        Some(RoundedInputs::new(out, kind, height, address))
    }
}
