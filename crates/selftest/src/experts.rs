//! Mixtures of experts: which are chosen, with which weights, and what they make of a row.

use crate::compare::{Limit, Output, grain};
use crate::judge::{Case, Judge};
use crate::rig::{Rig, within};
use crate::rows::joined;
use paceline_device::{
    self as device, Activation, Backend, DeviceError, Epilogue, Experts, MoeRouting, Product, ResidualNorm,
    RouteScores, Router, RowOrder, StepTables, WeightData, WeightPart,
};
use paceline_testkit::Matrix;
use paceline_types::DType;

const ROWS: usize = 37;
/// Tokens at a time, and the bucket.
const CUTS: [(usize, usize); 5] = [(37, 37), (1, 1), (3, 4), (8, 8), (17, 64)];
const MORE_CUTS: [(usize, usize); 5] = [(16, 16), (13, 16), (32, 32), (30, 128), (37, 256)];

pub(crate) fn judge<B: Backend>(judge: &mut Judge<'_, B>) {
    for routing in ROUTINGS {
        let route = |(batch, bucket)| Route {
            routing,
            batch,
            bucket,
        };
        judge.compare("route", &routing.name(), &route((ROWS, 64)));
        judge.law("route", &routing.name(), CUTS.map(|cut| (named(cut), route(cut))));
    }
    let gated = Activation::SiluGated { gate_scale: 1.0 };
    for dtype in [DType::F32, DType::BF16, DType::F8E4M3] {
        for (routing, hidden, width, activation) in [
            (ROUTINGS[0], 64, 32, gated),
            (ROUTINGS[1], 64, 32, Activation::ReluSquared),
            (ROUTINGS[3], 256, 96, gated),
            (ROUTINGS[0], 256, 128, gated),
        ] {
            let limit = limit(dtype, hidden, judge.elements().activations);
            let layer = |(batch, bucket)| Mixture {
                route: Route {
                    routing,
                    batch,
                    bucket,
                },
                dtype,
                hidden,
                width,
                activation,
                limit,
            };
            let operation = format!("run_experts {}", dtype.name().to_lowercase());
            let case = format!("{}, [{hidden}, {width}], {activation:?}", routing.name());
            let variants = CUTS.map(|cut| (named(cut), layer(cut)));
            let whole = layer((ROWS, 64));
            judge.compare(&operation, &case, &whole);
            judge.law(&operation, &case, variants);
            for shared in [false, true] {
                let mixed = |cut| Mixed {
                    layer: layer(cut),
                    shared,
                };
                let operation = format!("mix_experts {}", dtype.name().to_lowercase());
                let case = format!("{case}{}", if shared { ", one shared" } else { "" });
                let variants = [CUTS, MORE_CUTS].concat();
                let variants = variants.into_iter().map(|cut| (named(cut), mixed(cut)));
                judge.compare(&operation, &case, &mixed((ROWS, 64)));
                judge.law(&operation, &case, variants);
            }
        }
    }
}

/// How far experts may be from the reference. What is between their two products is rounded to 16 bits, and so are 8-bit floats
/// whose rows are no whole blocks: of 150 seeds, that alone moves a row by up to 1.2 % of its norm, and a single element, where
/// large terms cancel, by up to 3.8 % of the mean.
fn limit(dtype: DType, hidden: usize, stored: DType) -> Limit {
    match dtype {
        DType::F32 => within(1e-5, stored),
        _ => Limit::Rows {
            columns: hidden,
            tolerance: 2e-2 + 2.0 * grain(stored),
        },
    }
}

fn named((batch, bucket): (usize, usize)) -> String {
    format!("{batch} of {ROWS} rows in a bucket of {bucket}")
}

/// How experts are chosen.
#[derive(Clone, Copy, Debug)]
struct Routing {
    experts: usize,
    chosen: usize,
    /// Groups and how many of them are kept; none for softmax.
    groups: Option<(usize, usize)>,
    renormalise: bool,
}

const ROUTINGS: [Routing; 6] = [
    Routing::new(8, 2, None, true),
    Routing::new(8, 3, Some((4, 2)), true),
    Routing::new(8, 3, None, false),
    Routing::new(64, 8, None, true),
    Routing::new(256, 8, Some((8, 4)), false),
    Routing::new(512, 10, None, true),
];

impl Routing {
    const fn new(experts: usize, chosen: usize, groups: Option<(usize, usize)>, renormalise: bool) -> Self {
        Self {
            experts,
            chosen,
            groups,
            renormalise,
        }
    }

    fn name(self) -> String {
        let Self {
            experts,
            chosen,
            groups,
            renormalise,
        } = self;
        let scores = match groups {
            None => "softmax".to_owned(),
            Some((groups, kept)) => format!("sigmoid, {kept} of {groups} groups"),
        };
        format!("{chosen} of {experts}, {scores}, renormalised {renormalise}")
    }

    fn scores<B: Backend>(self, bias: &B::Buffer<f32>) -> RouteScores<'_, B> {
        match self.groups {
            None => RouteScores::Softmax {
                renormalise: self.renormalise,
            },
            Some((groups, kept_groups)) => RouteScores::Sigmoid {
                bias,
                groups,
                kept_groups,
                renormalise: self.renormalise,
                scale: 2.5,
            },
        }
    }

    /// Logits in steps that no rounding bridges, with ties among them.
    fn logits<B: Backend>(self, rig: &Rig<'_, B>) -> Result<B::Weight, DeviceError> {
        let numbers = rig.random("logits").numbers(ROWS * self.experts, 6.0);
        let steps: Vec<f32> = numbers.iter().map(|x| (x * 16.0).round() / 16.0).collect();
        rig.table(&steps, self.experts)
    }
}

#[derive(Clone, Copy)]
struct Route {
    routing: Routing,
    batch: usize,
    bucket: usize,
}

/// What experts are chosen into.
fn routing<B: Backend>(
    rig: &Rig<'_, B>,
    step: &StepTables<B>,
    chosen: usize,
) -> Result<MoeRouting<B>, DeviceError> {
    Ok(MoeRouting {
        ids: rig.device.buffer(step.tokens.bucket * chosen)?,
        weights: rig.device.tensor(&step.tokens, chosen)?,
        chosen,
    })
}

fn again<B: Backend>(routing: &MoeRouting<B>) -> MoeRouting<B> {
    MoeRouting {
        ids: routing.ids.clone(),
        weights: routing.weights.clone(),
        chosen: routing.chosen,
    }
}

impl Case for Route {
    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<Vec<Output>, DeviceError> {
        let Routing { experts, chosen, .. } = self.routing;
        let step = rig.token_tables(self.bucket)?;
        let table = self.routing.logits(rig)?;
        let logits = rig.device.tensor(&step.tokens, experts)?;
        let bias = rig.buffer("bias", experts, 0.2)?;
        let routed = routing(rig, &step, chosen)?;
        let program = rig.program(|device| {
            device.embed(&step, &table, 1.0, &mut logits.clone());
            device.route(Router {
                logits: &logits,
                scores: self.routing.scores(&bias),
                shared: false,
                out: &mut again(&routed),
            });
        });
        let mut batches = Vec::new();
        for start in (0..ROWS).step_by(self.batch) {
            let rows = start..ROWS.min(start + self.batch);
            let count = rows.len();
            rig.write_ids(&step, rows);
            program.launch();
            batches.push(vec![
                Output::words("ids", rig.read(&routed.ids, count * chosen)?),
                rig.output("weights", &routed.weights, within(1e-5, rig.elements.activations))?,
            ]);
        }
        Ok(joined(batches))
    }
}

/// Routing and the experts themselves.
struct Mixture {
    route: Route,
    dtype: DType,
    hidden: usize,
    width: usize,
    activation: Activation,
    limit: Limit,
}

impl Mixture {
    /// The matrices of so many experts.
    fn matrices<B: Backend>(&self, rig: &Rig<'_, B>, experts: usize) -> Result<B::Experts, DeviceError> {
        let (dtype, hidden, width) = (self.dtype, self.hidden, self.width);
        let (mut gate_up, mut down) = (Vec::new(), Vec::new());
        for expert in 0..experts {
            let rows = width * self.activation.fan_in();
            let (name, matrix) = (format!("in {expert}"), Matrix::new(dtype, rows, hidden));
            gate_up.push(match self.activation {
                Activation::SiluGated { .. } => rig.gated_weight(&name, matrix)?,
                Activation::ReluSquared => rig.weight(&name, matrix)?,
            });
            down.push(rig.weight(&format!("out {expert}"), Matrix::new(dtype, hidden, width))?);
        }
        rig.device.experts(gate_up, down)
    }
}

impl Case for Mixture {
    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<Vec<Output>, DeviceError> {
        let Route {
            routing: Routing { experts, chosen, .. },
            batch,
            bucket,
        } = self.route;
        let (device, dtype, hidden) = (rig.device, self.dtype, self.hidden);
        let step = rig.token_tables(bucket)?;
        let tables = [
            self.route.routing.logits(rig)?,
            rig.inputs("x", (ROWS, hidden), (1.7, dtype != DType::F32))?,
        ];
        let logits = device.tensor(&step.tokens, experts)?;
        let (x, out) = (
            device.tensor(&step.tokens, hidden)?,
            device.tensor(&step.tokens, hidden)?,
        );
        let bias = rig.buffer("bias", experts, 0.2)?;
        let routed = routing(rig, &step, chosen)?;
        let packed = self.matrices(rig, experts)?;
        let program = rig.program(|device| {
            device.embed(&step, &tables[0], 1.0, &mut logits.clone());
            device.embed(&step, &tables[1], 1.0, &mut x.clone());
            device.route(Router {
                logits: &logits,
                scores: self.route.routing.scores(&bias),
                shared: false,
                out: &mut again(&routed),
            });
            device.run_experts(Experts {
                x: &x,
                routing: &routed,
                experts: &packed,
                activation: self.activation,
                out: &mut out.clone(),
            });
        });
        let mut batches = Vec::new();
        for start in (0..ROWS).step_by(batch) {
            rig.write_ids(&step, start..ROWS.min(start + batch));
            program.launch();
            batches.push(vec![rig.output("out", &out, self.limit)?]);
        }
        Ok(joined(batches))
    }
}

/// The whole of a mixture, with its router and its end.
struct Mixed {
    layer: Mixture,
    shared: bool,
}

impl Mixed {
    /// Numbers of a few bits: a sum of their products is the same in any order, so that all devices choose the same experts.
    fn coarse<B: Backend>(rig: &Rig<'_, B>, name: &str, count: usize, steps: f32) -> Vec<f32> {
        let numbers = rig.random(name).numbers(count, 1.5);
        numbers.iter().map(|x| (x * steps).round() / steps).collect()
    }

    fn router<B: Backend>(&self, rig: &Rig<'_, B>, outputs: usize) -> Result<B::Weight, DeviceError> {
        let hidden = self.layer.hidden;
        let numbers = Self::coarse(rig, "router", outputs * hidden, 4.0);
        let part = WeightPart {
            name: "router",
            dtype: DType::F32,
            stored_rows: outputs,
            columns: hidden,
            data: WeightData::Stored(bytemuck::cast_slice(&numbers)),
            order: RowOrder::Stored,
        };
        let store_as = (self.layer.dtype != DType::F32).then_some(DType::BF16);
        rig.device.weight(&[part], store_as)
    }
}

impl Case for Mixed {
    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<Vec<Output>, DeviceError> {
        let Mixture {
            route:
                Route {
                    routing: choice,
                    batch,
                    bucket,
                },
            hidden,
            activation,
            limit,
            ..
        } = self.layer;
        let (device, shared) = (rig.device, usize::from(self.shared));
        let (experts, chosen) = (choice.experts + shared, choice.chosen + shared);
        let step = rig.token_tables(bucket)?;
        let tables = [
            rig.table(&Self::coarse(rig, "x", ROWS * hidden, 8.0), hidden)?,
            rig.inputs("residual", (ROWS, hidden), (2.0, false))?,
        ];
        let (x, residual, out) = (
            device.tensor(&step.tokens, hidden)?,
            device.tensor(&step.tokens, hidden)?,
            device.tensor(&step.tokens, hidden)?,
        );
        let logits = device.tensor(&step.tokens, experts)?;
        let (bias, weight) = (
            rig.buffer("bias", choice.experts, 0.2)?,
            rig.buffer("norm", hidden, 1.5)?,
        );
        let (router, routed) = (self.router(rig, experts)?, routing(rig, &step, chosen)?);
        let packed = self.layer.matrices(rig, experts)?;
        let program = rig.program(|device| {
            device.embed(&step, &tables[0], 1.0, &mut x.clone());
            device.embed(&step, &tables[1], 1.0, &mut residual.clone());
            let mixture = device::Mixture {
                router: Product {
                    x: &x,
                    w: &router,
                    epilogue: Epilogue::NONE,
                    out: &mut logits.clone(),
                },
                scores: choice.scores(&bias),
                shared: self.shared,
                routing: &mut again(&routed),
                experts: &packed,
                activation,
                out: &mut out.clone(),
            };
            // The norm's result takes the place of the input, as it does in a model.
            let norm = ResidualNorm {
                residual: &mut residual.clone(),
                scale: 0.22,
                weight: &weight,
                eps: 1e-5,
                out: &mut x.clone(),
            };
            device.mix_experts(mixture, norm);
        });
        let mut batches = Vec::new();
        for start in (0..ROWS).step_by(batch) {
            rig.write_ids(&step, start..ROWS.min(start + batch));
            program.launch();
            batches.push(vec![
                rig.output("normed", &x, limit)?,
                rig.output("residual", &residual, limit)?,
            ]);
        }
        Ok(joined(batches))
    }
}
