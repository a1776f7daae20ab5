//! Experts of a mixture.
//!
//! The chosen (row, expert) pairs of a step are sorted by expert into strips of rows. Each strip goes through the two matrices of
//! its expert, and every row adds up its results, best first. A pair's result is the same whatever else its expert is given: no
//! sum over the inputs of an expert's matrix is cut.

use crate::arguments::Ptr;
use crate::cuda::Cuda;
use crate::ops::checks::Checks;
use crate::ops::dense::{EXACT_STRIP, gate_scale};
use crate::ops::product::{Before, StripProduct, Strips};
use crate::scratch::ScratchKind;
use crate::storage::CudaBuffer;
use crate::views::{Matrix, RoundedRows};
use crate::weight::{BLOCK, CudaWeight, Kind};
use paceline_device::{Activation, Backend, DeviceError, Experts};
use std::sync::Arc;

/// Rows of a step that all experts are given, rather than those alone that chose them.
const TOGETHER: usize = 16;

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

    fn addresses(&self) -> Ptr<u64> {
        Ptr::new(self.addresses.address())
    }
}

impl CudaExperts {
    /// Groups matrices: `gate_up[e]` is a gated weight of `[2·width, hidden]` or `[width, hidden]`, `down[e]` is `[hidden, width]`.
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
        let gated = gate_up[0].gated();
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
            if up.gated() != gated || down.gated() != 0 {
                return Err(bad(format!(
                    "gate and up of expert {expert} lie otherwise than those of expert 0"
                )));
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

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.inner.len
    }

    /// Where the two matrices of each expert are.
    pub(crate) fn addresses(&self) -> [Ptr<u64>; 2] {
        [self.inner.gate_up.addresses(), self.inner.down.addresses()]
    }

    /// Whether they are f32.
    pub(crate) fn is_exact(&self) -> bool {
        self.inner.gate_up.first.kind() == Kind::F32
    }
}

impl Cuda {
    pub(crate) fn enqueue_experts(&self, args: &Experts<'_, Self>) {
        check_experts(args);
        // Without memory nothing is enqueued, and whoever waits next is told.
        let _ = self.run_sorted(args);
    }

    fn run_sorted(&self, args: &Experts<'_, Self>) -> Option<()> {
        let sorted = self.sort_pairs(args)?;
        let results = self.expert_products(args, &sorted.strips)?;
        self.combine(args, &sorted, results);
        Some(())
    }

    /// How high strips of experts are in a program of so many rows and pairs, and whether each strip has all rows.
    pub(crate) fn strips_of(&self, experts: &CudaExperts, rows: usize, pairs: usize) -> (usize, bool) {
        if experts.is_exact() {
            return (EXACT_STRIP, false);
        }
        if rows <= TOGETHER {
            return (self.input_height(rows), true);
        }
        (self.strip_height(pairs.div_ceil(experts.len())), false)
    }

    /// Enqueues the two products of each strip; the result has a row per slot.
    pub(crate) fn expert_products(&self, args: &Experts<'_, Self>, strips: &Strips) -> Option<Matrix> {
        let (inner, x) = (&args.experts.inner, args.x);
        let (up, down) = (&inner.gate_up.first, &inner.down.first);
        let results = self.slot_rows(ScratchKind::ExpertDown, strips, down.outputs())?;
        let [ups, downs] = strips.matrices;
        if args.experts.is_exact() {
            let up_out = self.slot_rows(ScratchKind::ExpertUp, strips, up.outputs())?;
            self.exact_strips((up, ups), strips, (Matrix::of(x), true), up_out);
            let active = self.slot_rows(ScratchKind::ExpertActive, strips, down.inputs())?;
            self.activate_rows(up_out, args.activation, active, RoundedRows::NOWHERE);
            self.exact_strips((down, downs), strips, (active, false), results);
            return Some(results);
        }
        let inputs = if strips.together {
            self.round_inputs(x, up, strips.height)?
        } else {
            self.round_strips(Matrix::of(x), up, strips, Before::Lookup)?
        };
        let first = StripProduct {
            w: up,
            matrices: ups,
            inputs,
            together: strips.together,
            early: false,
            gate_scale: None,
            rounded: RoundedRows::NOWHERE,
        };
        let (inputs, early) = self.active_strips(first, args.activation, (down, strips))?;
        let second = StripProduct {
            w: down,
            matrices: downs,
            inputs,
            together: false,
            early,
            gate_scale: None,
            rounded: RoundedRows::NOWHERE,
        };
        self.strip_product(&second, strips, results);
        Some(results)
    }

    /// Enqueues the first product and the activation; says where the inputs of the second one are, and whether nothing is
    /// between the two. Where gate and up take turns, the product itself leaves them there.
    fn active_strips(
        &self,
        first: StripProduct<'_>,
        activation: Activation,
        (down, strips): (&CudaWeight, &Strips),
    ) -> Option<(u64, bool)> {
        let width = down.inputs();
        let Some(gate_scale) = gate_scale(first.w, activation) else {
            let out = self.slot_rows(ScratchKind::ExpertUp, strips, first.w.outputs())?;
            self.strip_product(&first, strips, out);
            let before = Before::Activation(activation);
            return Some((self.round_strips(out, down, strips, before)?, false));
        };
        let gated = StripProduct {
            gate_scale: Some(gate_scale),
            ..first
        };
        if !width.is_multiple_of(BLOCK) {
            let out = self.slot_rows(ScratchKind::ExpertUp, strips, width)?;
            self.strip_product(&gated, strips, out);
            return Some((self.round_strips(out, down, strips, Before::Nothing)?, false));
        }
        let bytes = (strips.slots() * width * 2) as u64;
        let inputs = self.scratch(ScratchKind::ExpertActive, bytes)?;
        let rounded = RoundedRows {
            data: Ptr::new(inputs),
            height: strips.height as u32,
            blocks: down.input_blocks(),
            half: u32::from(down.kind().inputs() == Kind::F16),
        };
        let out = Matrix {
            data: Ptr::NULL,
            ..strips.rows_at(0, width)
        };
        self.strip_product(&StripProduct { rounded, ..gated }, strips, out);
        Some((inputs, true))
    }

    /// Scratch with a row per slot.
    fn slot_rows(&self, kind: ScratchKind, strips: &Strips, columns: usize) -> Option<Matrix> {
        let stride = columns.next_multiple_of(4);
        let data = self.scratch(kind, (strips.slots() * stride) as u64 * 4)?;
        Some(strips.rows_at(data, columns))
    }
}

/// Whether the operands of experts belong together.
pub(crate) fn check_experts(args: &Experts<'_, Cuda>) {
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
}
