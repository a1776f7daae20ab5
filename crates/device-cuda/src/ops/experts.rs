//! Experts of a mixture.
//!
//! The chosen (row, expert) pairs of a step are sorted by expert into strips of rows. Each strip goes through the two matrices of
//! its expert, and every row adds up its results, best first. A pair's result is the same whatever else its expert is given: no
//! sum over the inputs of an expert's matrix is cut.

use crate::arguments::{Ptr, arguments};
use crate::cuda::Cuda;
use crate::launch::{Grid, Kernel};
use crate::ops::checks::Checks;
use crate::ops::dense::{EXACT_STRIP, elements};
use crate::ops::product::{Before, Strips};
use crate::scratch::ScratchKind;
use crate::storage::CudaBuffer;
use crate::views::{Matrix, RoundedRows};
use crate::weight::{CudaWeight, Kind};
use paceline_device::{Backend, DeviceError, Experts};
use std::sync::Arc;

arguments! { "experts.h";
    /// Pairs to be sorted by expert.
    struct SortArgs {
        /// The expert of each pair, rows one behind the other.
        ids: Ptr<i32>,
        live: Ptr<i32>,
        /// Strips and slots.
        counts: Ptr<i32>,
        strip_expert: Ptr<i32>,
        slot_row: Ptr<i32>,
        pair_slot: Ptr<i32>,
        bucket: u32,
        chosen: u32,
        experts: u32,
        height: u32,
    }

    /// Results of slots that rows add up.
    struct CombineArgs {
        results: Matrix,
        weights: Matrix,
        out: Matrix,
        pair_slot: Ptr<i32>,
        chosen: u32,
    }
}

const SORT_PAIRS: Kernel<SortArgs> = Kernel::new("experts", "sort_pairs");
const COMBINE: Kernel<CombineArgs> = Kernel::new("experts", "combine");

/// Warps of the thread block that sorts.
const SORT_WARPS: usize = 16;

/// The matrices of a layer's experts. Clones share them.
#[derive(Clone)]
pub struct CudaExperts {
    inner: Arc<Inner>,
}

struct Inner {
    gate_up: Matrices,
    down: Matrices,
    len: usize,
}

/// Equal matrices of all experts.
struct Matrices {
    /// The first one stands for the shape of all.
    first: CudaWeight,
    /// Where each begins, two words each.
    addresses: CudaBuffer<i32>,
}

impl Matrices {
    fn new(cuda: &Cuda, weights: &[CudaWeight]) -> Result<Self, DeviceError> {
        let words: Vec<i32> = weights
            .iter()
            .flat_map(|weight| [weight.address() as i32, (weight.address() >> 32) as i32])
            .collect();
        let addresses = cuda.buffer(words.len())?;
        cuda.write_at(&addresses, 0, &words);
        Ok(Self {
            first: weights[0].clone(),
            addresses,
        })
    }

    fn pointers(&self) -> (&CudaWeight, Ptr<u64>) {
        (&self.first, Ptr::new(self.addresses.address()))
    }
}

impl CudaExperts {
    /// Groups matrices: `gate_up[e]` is `[2·width, hidden]` or `[width, hidden]`, `down[e]` is `[hidden, width]`.
    pub(crate) fn new(cuda: &Cuda, gate_up: &[CudaWeight], down: &[CudaWeight]) -> Result<Self, DeviceError> {
        let bad = |why: String| DeviceError::BadWeight {
            what: "experts".to_owned(),
            why,
        };
        if gate_up.is_empty() || gate_up.len() != down.len() {
            let (ups, downs) = (gate_up.len(), down.len());
            return Err(bad(format!("{ups} first and {downs} second matrices")));
        }
        let shape = |w: &CudaWeight| (w.outputs(), w.inputs());
        let ((up_outputs, hidden), (outputs, width)) = (shape(&gate_up[0]), shape(&down[0]));
        if outputs != hidden || (up_outputs != width && up_outputs != 2 * width) {
            return Err(bad(format!(
                "matrices [{up_outputs}, {hidden}] and [{outputs}, {width}] do not follow each other"
            )));
        }
        let kinds = (gate_up[0].kind(), down[0].kind());
        for (expert, (up, down)) in gate_up.iter().zip(down).enumerate() {
            if shape(up) != (up_outputs, hidden) || shape(down) != (outputs, width) {
                return Err(bad(format!("expert {expert} differs in shape from expert 0")));
            }
            let exact = up.kind() == Kind::F32;
            if (up.kind(), down.kind()) != kinds || exact != (down.kind() == Kind::F32) {
                return Err(bad(format!(
                    "expert {expert} differs in element type from expert 0"
                )));
            }
        }
        Ok(Self {
            inner: Arc::new(Inner {
                gate_up: Matrices::new(cuda, gate_up)?,
                down: Matrices::new(cuda, down)?,
                len: gate_up.len(),
            }),
        })
    }
}

impl Cuda {
    pub(crate) fn enqueue_experts(&self, args: &Experts<'_, Self>) {
        let check = Checks("run_experts");
        let routing = args.routing;
        check.same_shape(args.x, args.out);
        check.same_rows(args.x, &routing.weights);
        check.columns("weights", &routing.weights, routing.chosen);
        check.room("ids", &routing.ids, args.x.bucket * routing.chosen);
        check.apart(args.out, &[args.x, &routing.weights]);
        let inner = &args.experts.inner;
        check.columns("x", args.x, inner.gate_up.first.inputs());
        let (up, width) = (inner.gate_up.first.outputs(), inner.down.first.inputs());
        assert!(
            up == width * args.activation.fan_in(),
            "run_experts: {up} outputs of the first matrix, {width} inputs of the second"
        );
        // Without memory nothing is enqueued, and whoever waits next is told.
        let _ = self.run_sorted(args);
    }

    fn run_sorted(&self, args: &Experts<'_, Self>) -> Option<()> {
        let (routing, inner) = (args.routing, &args.experts.inner);
        let pairs = args.x.bucket * routing.chosen;
        let exact = inner.gate_up.first.kind() == Kind::F32;
        let height = if exact {
            EXACT_STRIP
        } else {
            self.strip_height(pairs.div_ceil(inner.len))
        };
        let (strips, pair_slot) = self.sort_pairs(args, height)?;
        let slots = strips.most * height;
        let (up, down) = (inner.gate_up.pointers(), inner.down.pointers());
        let up_out = self.slot_rows(ScratchKind::ExpertUp, &strips, slots, up.0.outputs())?;
        let results = self.slot_rows(ScratchKind::ExpertDown, &strips, slots, down.0.outputs())?;
        let x = Matrix::of(args.x);
        if exact {
            self.exact_strips(up, &strips, (x, true), up_out);
            let active = self.slot_rows(ScratchKind::ExpertActive, &strips, slots, down.0.inputs())?;
            self.activate_rows(up_out, args.activation, active, RoundedRows::NOWHERE);
            self.exact_strips(down, &strips, (active, false), results);
        } else {
            let inputs = self.round_strips(x, up.0, &strips, Before::Lookup)?;
            self.strip_product(up, &strips, inputs, up_out);
            let before = Before::Activation(args.activation);
            let inputs = self.round_strips(up_out, down.0, &strips, before)?;
            self.strip_product(down, &strips, inputs, results);
        }
        let arguments = CombineArgs {
            results,
            weights: Matrix::of(&routing.weights),
            out: Matrix::of(args.out),
            pair_slot,
            chosen: routing.chosen as u32,
        };
        self.enqueue(&COMBINE, elements(args.out.bucket, args.out.columns), &arguments);
        Some(())
    }

    /// Enqueues the sorting of pairs into strips; returns them, and where the slot of each pair is found.
    fn sort_pairs(&self, args: &Experts<'_, Self>, height: usize) -> Option<(Strips, Ptr<i32>)> {
        let (routing, experts) = (args.routing, args.experts.inner.len);
        let pairs = args.x.bucket * routing.chosen;
        // All strips but one per expert are full.
        let most = pairs / height + experts.min(pairs);
        let words = 2 + most + most * height + pairs;
        let counts = self.scratch(ScratchKind::Routing, words as u64 * 4)?;
        let at = |words: usize| Ptr::new(counts + words as u64 * 4);
        let strips = Strips {
            height,
            most,
            counts,
            experts: at(2),
            rows: at(2 + most),
        };
        let pair_slot = at(2 + most + most * height);
        let arguments = SortArgs {
            ids: routing.ids.ptr(),
            live: args.x.live.ptr(),
            counts: at(0),
            strip_expert: strips.experts,
            slot_row: strips.rows,
            pair_slot,
            bucket: args.x.bucket as u32,
            chosen: routing.chosen as u32,
            experts: experts as u32,
            height: height as u32,
        };
        let shared = ((SORT_WARPS + 2) * experts * 4) as u32;
        let grid = Grid::new(1, SORT_WARPS as u32 * 32).shared(shared);
        self.enqueue(&SORT_PAIRS, grid, &arguments);
        Some((strips, pair_slot))
    }

    /// Scratch with a row per slot.
    fn slot_rows(&self, kind: ScratchKind, strips: &Strips, slots: usize, columns: usize) -> Option<Matrix> {
        let stride = columns.next_multiple_of(4);
        let data = self.scratch(kind, (slots * stride) as u64 * 4)?;
        Some(Matrix {
            data: Ptr::new(data),
            live: strips.slots(),
            stride: stride as u32,
            columns: columns as u32,
            bucket: slots as u32,
        })
    }
}
