//! Operations on rows: products, activations, routing.

use crate::arguments::{Ptr, arguments};
use crate::cuda::Cuda;
use crate::launch::{Grid, Kernel};
use crate::ops::checks::Checks;
use crate::ops::inputs::RoundedInputs;
use crate::ops::norms::check_add_norm;
use crate::ops::product::{Strips, Target};
use crate::storage::CudaTensor;
use crate::views::{Matrix, RoundedRows, optional};
use crate::weight::{CudaWeight, Kind};
use paceline_device::{Activation, Epilogue, Product, ResidualNorm, RouteScores, Router};

arguments! { "dense.h";
    /// A product with an f32 weight. With experts, each strip of rows has its own, and `rows` names the row of each slot.
    struct ExactArgs {
        x: Matrix,
        out: Matrix,
        weight: Ptr<f32>,
        bias: Ptr<f32>,
        scale: Ptr<f32>,
        weights: Ptr<u64>,
        rows: Ptr<i32>,
        pitch: u32,
    }

    /// A norm of rows.
    struct NormArgs {
        x: Matrix,
        out: Matrix,
        weight: Ptr<f32>,
        rounded: RoundedRows,
        eps: f32,
    }

    /// An addition to the residual stream and the norm behind it.
    struct ResidualNormArgs {
        residual: Matrix,
        out: Matrix,
        weight: Ptr<f32>,
        scale: f32,
        eps: f32,
    }

    /// What is added, and the rest.
    struct AddNormArgs {
        delta: Matrix,
        norm: ResidualNormArgs,
        rounded: RoundedRows,
    }

    /// A norm by groups with a gate.
    struct GatedNormArgs {
        x: Matrix,
        gate: Matrix,
        out: Matrix,
        weight: Ptr<f32>,
        rounded: RoundedRows,
        weight_per_column: u32,
        group: u32,
        gate_first: u32,
        eps: f32,
    }

    /// A weighted addition.
    struct AddArgs {
        acc: Matrix,
        x: Matrix,
        gate: Matrix,
        gated: u32,
        scale: f32,
    }

    /// An activation.
    struct ActivateArgs {
        x: Matrix,
        out: Matrix,
        rounded: RoundedRows,
        gate_scale: f32,
    }

    /// The choice of experts. `shared`: the last logit is the gate of a shared expert, the last of those that are chosen.
    struct RouteArgs {
        logits: Matrix,
        weights: Matrix,
        ids: Ptr<i32>,
        bias: Ptr<f32>,
        chosen: u32,
        sigmoid: u32,
        groups: u32,
        kept_groups: u32,
        renormalise: u32,
        shared: u32,
        scale: f32,
        fault: Ptr<i32>,
    }
}

const EXACT_16: Kernel<ExactArgs> = Kernel::new("exact", "exact_16");
const EXACT_64: Kernel<ExactArgs> = Kernel::new("exact", "exact_64");
const ADD_ROWS: Kernel<AddArgs> = Kernel::new("element", "add_rows");
const SILU_GATED: Kernel<ActivateArgs> = Kernel::new("element", "silu_gated");
const RELU_SQUARED: Kernel<ActivateArgs> = Kernel::new("element", "relu_squared");
const ROUTE: Kernel<RouteArgs> = Kernel::new("route", "route");

/// Rows of a strip of experts with f32 matrices.
pub(crate) const EXACT_STRIP: usize = 16;
/// Threads of a thread block in the kernels of this group.
const THREADS: u32 = 256;
/// Experts that the routing kernel can tell apart.
const MOST_EXPERTS: usize = 2048;
/// Experts of a row at most: a lane of a warp has each.
const MOST_CHOSEN: usize = 32;

impl Cuda {
    pub(crate) fn enqueue_linear(
        &self,
        x: &CudaTensor,
        w: &CudaWeight,
        epilogue: &Epilogue<'_, Self>,
        out: &CudaTensor,
    ) {
        check_linear(x, w, epilogue, out);
        if w.kind() == Kind::F32 {
            self.exact_product(x, w, epilogue, out);
        } else if let Some(pieces) = self.enqueue_product(x, w, epilogue, Target::new(out).partly()) {
            self.finish_rows(&pieces, None, out);
        }
    }

    pub(crate) fn enqueue_linear_activate(
        &self,
        product: &Product<'_, Self>,
        activation: Activation,
        out: &CudaTensor,
    ) {
        check_activate(product.out, activation, out);
        let Product { x, w, epilogue, .. } = product;
        // Gate and up are read four columns at a time.
        if w.kind() == Kind::F32 || !out.columns.is_multiple_of(4) {
            self.enqueue_linear(x, w, epilogue, product.out);
            return self.enqueue_activate(product.out, activation, out);
        }
        check_product(x, w, epilogue, product.out);
        Checks("linear_activate").apart(out, &[x]);
        let gate_scale = gate_scale(w, activation);
        let target = match gate_scale {
            Some(_) => Target::new(out).gated(gate_scale).partly(),
            None => Target::new(product.out),
        };
        match self.enqueue_product(x, w, epilogue, target) {
            Some(pieces) => self.finish_rows(&pieces, Some(activation), out),
            None if gate_scale.is_some() => {}
            None => self.enqueue_activate(product.out, activation, out),
        }
    }

    pub(crate) fn enqueue_linear_add_norm(&self, product: &Product<'_, Self>, norm: &ResidualNorm<'_, Self>) {
        if product.w.kind() == Kind::F32 {
            self.enqueue_linear(product.x, product.w, &product.epilogue, product.out);
            return self.enqueue_add_rms_norm(product.out, norm);
        }
        check_linear(product.x, product.w, &product.epilogue, product.out);
        check_add_norm(product.out, norm);
        Checks("linear_add_norm").apart(norm.out, &[product.x]);
        Checks("linear_add_norm").apart(norm.residual, &[product.x]);
        let target = Target::new(product.out);
        match self.enqueue_product(product.x, product.w, &product.epilogue, target) {
            Some(pieces) => self.finish_add_norm(&pieces, norm),
            None => self.enqueue_add_rms_norm(product.out, norm),
        }
    }

    fn exact_product(&self, x: &CudaTensor, w: &CudaWeight, epilogue: &Epilogue<'_, Self>, out: &CudaTensor) {
        let (kernel, height) = if x.bucket <= 16 {
            (&EXACT_16, 16)
        } else {
            (&EXACT_64, 64)
        };
        let blocks = [
            w.outputs().div_ceil(64) as u32,
            x.bucket.div_ceil(height) as u32,
            1,
        ];
        let arguments = ExactArgs {
            x: Matrix::of(x),
            out: Matrix::of(out),
            weight: Ptr::new(w.address()),
            bias: optional(epilogue.bias),
            scale: optional(epilogue.scale),
            weights: Ptr::NULL,
            rows: Ptr::NULL,
            pitch: w.pitch() as u32,
        };
        self.enqueue(kernel, Grid::of(blocks, THREADS), &arguments);
    }

    /// Enqueues a product of strips of [`EXACT_STRIP`] slots, each with the f32 matrix of its expert, to rows of slots.
    /// Inputs are looked up by slot, or are rows of slots too.
    pub(crate) fn exact_strips(
        &self,
        (w, weights): (&CudaWeight, Ptr<u64>),
        strips: &Strips,
        (x, lookup): (Matrix, bool),
        out: Matrix,
    ) {
        let arguments = ExactArgs {
            x,
            out,
            weight: Ptr::NULL,
            bias: Ptr::NULL,
            scale: Ptr::NULL,
            weights,
            rows: if lookup { strips.rows } else { Ptr::NULL },
            pitch: w.pitch() as u32,
        };
        let blocks = [w.outputs().div_ceil(64) as u32, strips.most as u32, 1];
        self.enqueue(&EXACT_16, Grid::of(blocks, THREADS), &arguments);
    }

    pub(crate) fn enqueue_add(
        &self,
        acc: &CudaTensor,
        x: &CudaTensor,
        scale: f32,
        gate: Option<&CudaTensor>,
    ) {
        let check = Checks("add");
        check.same_shape(acc, x);
        check.apart(acc, &[x]);
        if let Some(gate) = gate {
            check.same_rows(acc, gate);
            check.columns("gate", gate, 1);
            check.apart(acc, &[gate]);
        }
        let arguments = AddArgs {
            acc: Matrix::of(acc),
            x: Matrix::of(x),
            gate: Matrix::of(gate.unwrap_or(x)),
            gated: u32::from(gate.is_some()),
            scale,
        };
        self.enqueue(&ADD_ROWS, elements(x.bucket, x.columns), &arguments);
    }

    pub(crate) fn enqueue_activate(&self, x: &CudaTensor, activation: Activation, out: &CudaTensor) {
        check_activate(x, activation, out);
        let next = self.next_inputs(out);
        self.activate_rows(
            Matrix::of(x),
            activation,
            Matrix::of(out),
            RoundedInputs::rows(next),
        );
        self.keep_inputs(next);
    }

    /// Enqueues an activation of rows that are known to fit.
    pub(crate) fn activate_rows(&self, x: Matrix, activation: Activation, out: Matrix, rounded: RoundedRows) {
        let (kernel, gate_scale) = match activation {
            Activation::SiluGated { gate_scale } => (&SILU_GATED, gate_scale),
            Activation::ReluSquared => (&RELU_SQUARED, 1.0),
        };
        let grid = elements(out.bucket as usize, out.columns as usize);
        let arguments = ActivateArgs {
            x,
            out,
            rounded,
            gate_scale,
        };
        self.enqueue(kernel, grid, &arguments);
    }

    pub(crate) fn enqueue_route(&self, args: &Router<'_, Self>) {
        let arguments = self.route_arguments(args);
        let shared = (2 * args.logits.columns as u32 + arguments.groups) * 4;
        let grid = Grid::new(args.logits.bucket as u32, 32).shared(shared);
        self.enqueue(&ROUTE, grid, &arguments);
    }

    /// Checks a choice of experts.
    pub(crate) fn route_arguments(&self, args: &Router<'_, Self>) -> RouteArgs {
        let check = Checks("route");
        let (logits, chosen) = (args.logits, args.out.chosen);
        let shared = usize::from(args.shared);
        assert!(
            logits.columns > shared && chosen >= shared,
            "route: a shared expert and no other"
        );
        let experts = logits.columns - shared;
        check.same_rows(logits, &args.out.weights);
        check.columns("weights", &args.out.weights, chosen);
        check.room("ids", &args.out.ids, logits.bucket * chosen);
        check.apart(&args.out.weights, &[logits]);
        let mut arguments = RouteArgs {
            logits: Matrix::of(logits),
            weights: Matrix::of(&args.out.weights),
            ids: args.out.ids.ptr(),
            bias: Ptr::NULL,
            chosen: chosen as u32,
            sigmoid: 0,
            groups: 1,
            kept_groups: 1,
            renormalise: 0,
            shared: u32::from(args.shared),
            scale: 1.0,
            fault: Ptr::new(self.context.fault),
        };
        match args.scores {
            RouteScores::Softmax { renormalise } => arguments.renormalise = u32::from(renormalise),
            RouteScores::Sigmoid {
                bias,
                groups,
                kept_groups,
                renormalise,
                scale,
            } => {
                check.length("bias", bias, experts);
                check.divides("groups", groups, experts);
                arguments.bias = bias.ptr();
                arguments.sigmoid = 1;
                arguments.groups = groups as u32;
                arguments.kept_groups = kept_groups.min(groups) as u32;
                arguments.renormalise = u32::from(renormalise);
                arguments.scale = scale;
            }
        }
        let available = experts / arguments.groups as usize * arguments.kept_groups as usize;
        assert!(
            chosen - shared <= available && chosen <= MOST_CHOSEN,
            "route: {chosen} of {available} experts, or more than {MOST_CHOSEN}"
        );
        assert!(
            experts <= MOST_EXPERTS,
            "route: {experts} experts, more than {MOST_EXPERTS}"
        );
        arguments
    }
}

/// A thread for four columns, a column of thread blocks per row: there may be more rows than a grid is high.
pub(crate) fn elements(rows: usize, columns: usize) -> Grid {
    let across = columns.div_ceil(4 * THREADS as usize) as u32;
    Grid::of([rows as u32, across, 1], THREADS)
}

/// The scale of the gate, if gate and up take turns in the weight.
pub(crate) fn gate_scale(w: &CudaWeight, activation: Activation) -> Option<f32> {
    match activation {
        Activation::SiluGated { gate_scale } => (w.gated() > 0).then_some(gate_scale),
        Activation::ReluSquared => {
            assert!(w.gated() == 0, "linear_activate: a gated weight without a gate");
            None
        }
    }
}

pub(crate) fn check_linear(x: &CudaTensor, w: &CudaWeight, epilogue: &Epilogue<'_, Cuda>, out: &CudaTensor) {
    assert!(w.gated() == 0, "linear: the weight is for a gated activation");
    check_product(x, w, epilogue, out);
}

fn check_product(x: &CudaTensor, w: &CudaWeight, epilogue: &Epilogue<'_, Cuda>, out: &CudaTensor) {
    let check = Checks("linear");
    check.same_rows(x, out);
    check.columns("x", x, w.inputs());
    check.columns("out", out, w.outputs());
    check.apart(out, &[x]);
    for buffer in [epilogue.bias, epilogue.scale].into_iter().flatten() {
        check.length("bias or scale", buffer, w.outputs());
    }
}

fn check_activate(x: &CudaTensor, activation: Activation, out: &CudaTensor) {
    let check = Checks("activate");
    check.same_rows(x, out);
    check.columns("x", x, out.columns * activation.fan_in());
    check.apart(out, &[x]);
}
