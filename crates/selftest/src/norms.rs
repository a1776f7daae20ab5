//! Norms, sums and activations.

use crate::compare::Limit;
use crate::judge::Judge;
use crate::rig::within;
use crate::rows::{Input, Operands, Out, RowOperation, judge_rows};
use paceline_device::{Activation, Backend, GateOrder, GatedNorm, ResidualNorm};

/// Sums in another order, and other roots and exponentials.
const TOLERANCE: f64 = 1e-5;
const EPS: f32 = 1e-5;

/// Columns: of the reference models, of Qwen3.5-4B and Nemotron-H, and a number that nothing divides.
const WIDTHS: [usize; 6] = [16, 64, 128, 1037, 2560, 4096];

pub(crate) fn judge<B: Backend>(judge: &mut Judge<'_, B>) {
    let limit = within(TOLERANCE, judge.elements().activations);
    for columns in WIDTHS {
        let case = format!("{columns} columns");
        judge_rows(judge, "rms_norm", &case, &RmsNorm { columns, limit });
        judge_rows(judge, "add_rms_norm", &case, &AddRmsNorm { columns, limit });
        for gated in [false, true] {
            let add = Add {
                columns,
                gated,
                limit,
            };
            let gate = if gated { ", gated" } else { "" };
            judge_rows(judge, "add", &format!("{case}{gate}"), &add);
        }
    }
    for columns in [48, 203, 9216] {
        for activation in [
            Activation::SiluGated { gate_scale: 1.0 },
            Activation::SiluGated { gate_scale: 0.5 },
            Activation::ReluSquared,
        ] {
            let activate = Activate {
                columns,
                activation,
                limit,
            };
            let case = format!("{activation:?}, {columns} columns");
            judge_rows(judge, "activate", &case, &activate);
        }
    }
    for (columns, group) in [(64, 16), (132, 44), (128, 128), (4096, 128), (8192, 1024)] {
        for order in [GateOrder::NormThenGate, GateOrder::GateThenNorm] {
            let weights = if columns < 4096 {
                vec![0, group, columns]
            } else {
                vec![group]
            };
            for weights in weights {
                let norm = Gated {
                    columns,
                    group,
                    weights,
                    order,
                    limit,
                };
                let case = format!("{order:?}, {columns} columns in groups of {group}, {weights} weights");
                judge_rows(judge, "gated_norm", &case, &norm);
            }
        }
    }
}

struct RmsNorm {
    columns: usize,
    limit: Limit,
}

impl RowOperation for RmsNorm {
    fn inputs(&self) -> Vec<Input> {
        vec![Input::new(self.columns, 3.0)]
    }

    fn outs(&self) -> Vec<Out> {
        vec![Out::Tensor(self.columns, self.limit)]
    }

    fn buffers(&self) -> Vec<(usize, f32)> {
        vec![(self.columns, 2.0)]
    }

    fn enqueue<B: Backend>(&self, device: &B, operands: &Operands<B>) {
        let (x, weight) = (&operands.inputs[0], &operands.buffers[0]);
        device.rms_norm(x, weight, EPS, &mut operands.outs[0].clone());
    }
}

struct AddRmsNorm {
    columns: usize,
    limit: Limit,
}

impl RowOperation for AddRmsNorm {
    fn inputs(&self) -> Vec<Input> {
        vec![Input::new(self.columns, 3.0), Input::new(self.columns, 1.0)]
    }

    fn outs(&self) -> Vec<Out> {
        vec![Out::Tensor(self.columns, self.limit), Out::Input(0, self.limit)]
    }

    fn buffers(&self) -> Vec<(usize, f32)> {
        vec![(self.columns, 2.0)]
    }

    fn enqueue<B: Backend>(&self, device: &B, operands: &Operands<B>) {
        let norm = ResidualNorm {
            residual: &mut operands.outs[1].clone(),
            scale: 0.25,
            weight: &operands.buffers[0],
            eps: EPS,
            out: &mut operands.outs[0].clone(),
        };
        device.add_rms_norm(&operands.inputs[1], norm);
    }
}

struct Add {
    columns: usize,
    gated: bool,
    limit: Limit,
}

impl RowOperation for Add {
    fn inputs(&self) -> Vec<Input> {
        let whole = |scale| Input::new(self.columns, scale);
        vec![whole(3.0), whole(1.0), Input::new(1, 4.0)]
    }

    fn outs(&self) -> Vec<Out> {
        vec![Out::Input(0, self.limit)]
    }

    fn enqueue<B: Backend>(&self, device: &B, operands: &Operands<B>) {
        let gate = self.gated.then_some(&operands.inputs[2]);
        device.add(&mut operands.outs[0].clone(), &operands.inputs[1], 0.7, gate);
    }
}

struct Activate {
    columns: usize,
    activation: Activation,
    limit: Limit,
}

impl RowOperation for Activate {
    fn inputs(&self) -> Vec<Input> {
        vec![Input::new(self.columns * self.activation.fan_in(), 6.0)]
    }

    fn outs(&self) -> Vec<Out> {
        vec![Out::Tensor(self.columns, self.limit)]
    }

    fn enqueue<B: Backend>(&self, device: &B, operands: &Operands<B>) {
        device.activate(
            &operands.inputs[0],
            self.activation,
            &mut operands.outs[0].clone(),
        );
    }
}

struct Gated {
    columns: usize,
    group: usize,
    /// 0 for none.
    weights: usize,
    order: GateOrder,
    limit: Limit,
}

impl RowOperation for Gated {
    fn inputs(&self) -> Vec<Input> {
        vec![Input::new(self.columns, 3.0), Input::new(self.columns, 4.0)]
    }

    fn outs(&self) -> Vec<Out> {
        vec![Out::Tensor(self.columns, self.limit)]
    }

    fn buffers(&self) -> Vec<(usize, f32)> {
        vec![(self.weights.max(1), 2.0)]
    }

    fn enqueue<B: Backend>(&self, device: &B, operands: &Operands<B>) {
        device.gated_norm(GatedNorm {
            x: &operands.inputs[0],
            gate: &operands.inputs[1],
            weight: (self.weights > 0).then_some(&operands.buffers[0]),
            group: self.group,
            order: self.order,
            eps: EPS,
            out: &mut operands.outs[0].clone(),
        });
    }
}
