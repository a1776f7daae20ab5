//! Operations on rows: products, norms, activations, experts.

use crate::checks::Checks;
use crate::cpu::Cpu;
use crate::ops::experts::{ExpertsArgs, run_experts};
use crate::ops::{activate, gated_norm, linear, norm, route};
use crate::storage::{CpuBuffer, CpuTensor};
use crate::weight::CpuWeight;
use paceline_device::{Activation, Epilogue, Experts, GatedNorm, ResidualNorm, RouteScores, Router};

impl Cpu {
    pub(crate) fn enqueue_linear(
        &self,
        x: &CpuTensor,
        w: &CpuWeight,
        epilogue: &Epilogue<'_, Self>,
        out: &CpuTensor,
    ) {
        let check = Checks("linear");
        check.same_rows(x, out);
        check.columns("x", x, w.inputs());
        check.columns("out", out, w.outputs());
        check.apart(out, &[x]);
        for buffer in [epilogue.bias, epilogue.scale].into_iter().flatten() {
            check.length("bias or scale", buffer, w.outputs());
        }
        let (x, w, out) = (x.clone(), w.clone(), out.clone());
        let (bias, scale) = (epilogue.bias.cloned(), epilogue.scale.cloned());
        self.stream.enqueue(move |pool| {
            // SAFETY: see the module header.
            unsafe {
                let bias = bias.as_ref().map(|bias| bias.read());
                let scale = scale.as_ref().map(|scale| scale.read());
                linear::linear(pool, x.read(), &w, bias, scale, out.write());
            }
        });
    }

    pub(crate) fn enqueue_rms_norm(&self, x: &CpuTensor, weight: &CpuBuffer<f32>, eps: f32, out: &CpuTensor) {
        let check = Checks("rms_norm");
        check.same_shape(x, out);
        check.length("weight", weight, x.columns);
        check.apart(out, &[x]);
        let (x, weight, out) = (x.clone(), weight.clone(), out.clone());
        self.stream.enqueue(move |pool| {
            // SAFETY: see the module header.
            unsafe { norm::rms_norm(pool, x.read(), weight.read(), eps, out.write()) };
        });
    }

    pub(crate) fn enqueue_add_rms_norm(&self, delta: &CpuTensor, args: &ResidualNorm<'_, Self>) {
        let check = Checks("add_rms_norm");
        check.same_shape(args.residual, delta);
        check.same_shape(args.residual, args.out);
        check.length("weight", args.weight, args.out.columns);
        check.apart(args.residual, &[delta, args.out]);
        check.apart(args.out, &[delta]);
        let (residual, delta, out) = (args.residual.clone(), delta.clone(), args.out.clone());
        let (weight, scale, eps) = (args.weight.clone(), args.scale, args.eps);
        self.stream.enqueue(move |pool| {
            // SAFETY: see the module header.
            let args = unsafe {
                norm::AddRmsNorm {
                    residual: residual.write(),
                    delta: delta.read(),
                    scale,
                    weight: weight.read(),
                    eps,
                    out: out.write(),
                }
            };
            norm::add_rms_norm(pool, args);
        });
    }

    pub(crate) fn enqueue_add(&self, acc: &CpuTensor, x: &CpuTensor, scale: f32, gate: Option<&CpuTensor>) {
        let check = Checks("add");
        check.same_shape(acc, x);
        check.apart(acc, &[x]);
        if let Some(gate) = gate {
            check.same_rows(acc, gate);
            check.columns("gate", gate, 1);
            check.apart(acc, &[gate]);
        }
        let (acc, x, gate) = (acc.clone(), x.clone(), gate.cloned());
        self.stream.enqueue(move |pool| {
            // SAFETY: see the module header.
            unsafe {
                let gate = gate.as_ref().map(|gate| gate.read());
                norm::add(pool, acc.write(), x.read(), scale, gate);
            }
        });
    }

    pub(crate) fn enqueue_activate(&self, x: &CpuTensor, activation: Activation, out: &CpuTensor) {
        let check = Checks("activate");
        check.same_rows(x, out);
        check.columns("x", x, out.columns * activation.fan_in());
        check.apart(out, &[x]);
        let (x, out) = (x.clone(), out.clone());
        self.stream.enqueue(move |pool| {
            // SAFETY: see the module header.
            unsafe { activate::activate(pool, x.read(), activation, out.write()) };
        });
    }

    pub(crate) fn enqueue_gated_norm(&self, args: &GatedNorm<'_, Self>) {
        let check = Checks("gated_norm");
        check.same_shape(args.x, args.gate);
        check.same_shape(args.x, args.out);
        check.divides("group", args.group, args.x.columns);
        check.apart(args.out, &[args.x, args.gate]);
        if let Some(weight) = args.weight
            && weight.storage.len() != args.group
        {
            check.length("weight", weight, args.x.columns);
        }
        let (x, gate, out) = (args.x.clone(), args.gate.clone(), args.out.clone());
        let weight = args.weight.cloned();
        let (group, order, eps) = (args.group, args.order, args.eps);
        self.stream.enqueue(move |pool| {
            // SAFETY: see the module header.
            let args = unsafe {
                gated_norm::Gated {
                    x: x.read(),
                    gate: gate.read(),
                    weight: weight.as_ref().map(|weight| weight.read()),
                    group,
                    order,
                    eps,
                    out: out.write(),
                }
            };
            gated_norm::gated_norm(pool, args);
        });
    }

    pub(crate) fn enqueue_route(&self, args: &Router<'_, Self>) {
        let check = Checks("route");
        let (logits, chosen) = (args.logits, args.out.chosen);
        check.same_rows(logits, &args.out.weights);
        check.columns("weights", &args.out.weights, chosen);
        check.room("ids", &args.out.ids, logits.bucket * chosen);
        check.apart(&args.out.weights, &[logits]);
        let shared = usize::from(args.shared);
        assert!(
            logits.columns > shared && chosen >= shared,
            "route: a shared expert and no other"
        );
        let (scores, available) = OwnedScores::of(&args.scores, logits.columns - shared);
        assert!(
            chosen - shared <= available,
            "route: {chosen} of {available} experts"
        );
        let (logits, ids, weights) = (logits.clone(), args.out.ids.clone(), args.out.weights.clone());
        self.stream.enqueue(move |pool| {
            // SAFETY: see the module header.
            let args = unsafe {
                route::Route {
                    logits: logits.read(),
                    scores: scores.view(),
                    ids: &ids.storage,
                    weights: weights.write(),
                    chosen: chosen - shared,
                    shared: shared == 1,
                }
            };
            route::route(pool, args);
        });
    }

    pub(crate) fn enqueue_experts(&self, args: &Experts<'_, Self>) {
        let check = Checks("run_experts");
        let routing = args.routing;
        check.same_shape(args.x, args.out);
        check.same_rows(args.x, &routing.weights);
        check.columns("weights", &routing.weights, routing.chosen);
        check.room("ids", &routing.ids, args.x.bucket * routing.chosen);
        check.apart(args.out, &[args.x, &routing.weights]);
        let (x, out, experts) = (args.x.clone(), args.out.clone(), args.experts.clone());
        let (ids, weights, chosen) = (routing.ids.clone(), routing.weights.clone(), routing.chosen);
        let activation = args.activation;
        self.stream.enqueue(move |pool| {
            // SAFETY: see the module header.
            let args = unsafe {
                ExpertsArgs {
                    x: x.read(),
                    ids: ids.read(),
                    weights: weights.read(),
                    chosen,
                    experts: &experts,
                    activation,
                    out: out.write(),
                }
            };
            run_experts(pool, &args);
        });
    }
}

/// [`RouteScores`] with its own handle of the bias.
enum OwnedScores {
    Softmax {
        renormalise: bool,
    },
    Sigmoid {
        bias: CpuBuffer<f32>,
        groups: usize,
        kept_groups: usize,
        renormalise: bool,
        scale: f32,
    },
}

impl OwnedScores {
    /// The scores, and how many experts can be chosen from.
    fn of(scores: &RouteScores<'_, Cpu>, experts: usize) -> (Self, usize) {
        let check = Checks("route");
        match *scores {
            RouteScores::Softmax { renormalise } => (Self::Softmax { renormalise }, experts),
            RouteScores::Sigmoid {
                bias,
                groups,
                kept_groups,
                renormalise,
                scale,
            } => {
                check.length("bias", bias, experts);
                check.divides("groups", groups, experts);
                let owned = Self::Sigmoid {
                    bias: bias.clone(),
                    groups,
                    kept_groups,
                    renormalise,
                    scale,
                };
                (owned, experts / groups * kept_groups.min(groups))
            }
        }
    }

    /// # Safety
    /// As [`CpuBuffer::read`].
    unsafe fn view(&self) -> route::Scores<'_> {
        match *self {
            Self::Softmax { renormalise } => route::Scores::Softmax { renormalise },
            Self::Sigmoid {
                ref bias,
                groups,
                kept_groups,
                renormalise,
                scale,
            } => route::Scores::Sigmoid {
                // SAFETY: forwarded.
                bias: unsafe { bias.read() },
                groups,
                kept_groups,
                renormalise,
                scale,
            },
        }
    }
}
