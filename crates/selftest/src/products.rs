//! Matrix products, alone and with what comes behind them.
//!
//! f32 products are exact: one chain of fused multiply-adds over the inputs per output. A device may multiply 16-bit
//! weights with activations rounded to 16 bits, and GGUF weights as 16-bit ones; inputs that fit into 16 bits leave the
//! former no excuse.

use crate::compare::{Limit, grain};
use crate::judge::Judge;
use crate::rig::within;
use crate::rows::{Batched, Input, Operands, Out, Packed, RowOperation, judge_rows};
use paceline_device::{Activation, Backend, Epilogue, Product, ResidualNorm, SCALE_BLOCK};
use paceline_testkit::Matrix;
use paceline_types::DType;

/// Matrices of the reference models, and ones that no tile divides.
const SMALL: [(usize, usize); 7] = [
    (64, 64),
    (320, 64),
    (64, 160),
    (256, 64),
    (97, 45),
    (1, 64),
    (33, 1000),
];
/// Qwen3.5-4B: Gated DeltaNet in and out, feed-forward in and out, attention.
const LARGE: [(usize, usize); 5] = [
    (12_288, 2560),
    (2560, 4096),
    (18_432, 2560),
    (2560, 9216),
    (10_240, 2560),
];
/// Sums in another order, and products whose sums are cut off at 24 bits.
const ORDER: f64 = 3e-4;
/// Token rows at a time that give the same bits.
const BATCHES: [usize; 8] = [1, 2, 3, 8, 17, 64, 255, 2048];

pub(crate) fn judge<B: Backend>(judge: &mut Judge<'_, B>) {
    for (outputs, inputs) in SMALL {
        for epilogue in [false, true] {
            let linear = Linear::new(judge, Matrix::new(DType::F32, outputs, inputs), epilogue);
            judge_rows(judge, "linear f32", &linear.name(), &linear);
        }
    }
    for dtype in [DType::BF16, DType::F16] {
        let operation = named("linear", dtype);
        for (outputs, inputs) in SMALL {
            let linear = Linear::new(judge, Matrix::new(dtype, outputs, inputs), true);
            judge_rows(judge, &operation, &linear.name(), &linear);
            let any = linear.any_inputs();
            judge_rows(judge, &format!("{operation}, any input"), &any.name(), &any);
        }
    }
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_quantised()) {
        let linear = Linear::new(judge, Matrix::new(dtype, 130, 512), true);
        judge_rows(judge, "linear gguf", &linear.name(), &linear);
    }
    for (outputs, inputs) in SMALL.into_iter().chain([(130, 512), (384, 1280)]) {
        let linear = Linear::new(judge, Matrix::new(DType::F8E4M3, outputs, inputs), true);
        judge_rows(judge, "linear f8_e4m3", &linear.name(), &linear);
    }
    first_rows(judge);
    large(judge, DType::BF16);
    large(judge, DType::F8E4M3);
    wide(judge);
}

/// The first rows of a weight, seen as one of its own: less than a tile or a panel, whole ones, and one more.
fn first_rows<B: Backend>(judge: &mut Judge<'_, B>) {
    for dtype in [
        DType::F32,
        DType::BF16,
        DType::F16,
        DType::Q8_0,
        DType::Q4K,
        DType::F8E4M3,
    ] {
        for first in [1, 16, 100, 128, 129, 255] {
            let linear = Linear::new(judge, Matrix::new(dtype, 300, 256), true);
            let part = Linear {
                first: Some(first),
                ..linear
            };
            judge_rows(judge, "first_outputs", &part.name(), &part);
        }
    }
}

/// The products of a large model, and the law at up to 2048 tokens where the device is made for that.
fn large<B: Backend>(judge: &mut Judge<'_, B>, dtype: DType) {
    let operation = &named("linear", dtype);
    let shapes = if judge.is_whole() {
        &LARGE[..]
    } else {
        &LARGE[1..2]
    };
    for (outputs, inputs) in shapes {
        let linear = Linear::new(judge, Matrix::new(dtype, *outputs, *inputs), false);
        let batched = |rows, batch| Batched {
            operation: &linear,
            rows,
            batch,
            bucket: batch,
        };
        judge.compare(operation, &linear.name(), &batched(9, 9));
        if !judge.is_whole() {
            let variants = [9, 1, 4].map(|batch| (format!("{batch} of 9 rows"), batched(9, batch)));
            judge.law(operation, &linear.name(), variants);
            continue;
        }
        // Few rows at a time over all of them would take long and say no more than over some.
        let mut rows = 1;
        for pair in BATCHES.windows(2) {
            rows = rows.max(pair[1]);
            let variants =
                [rows, pair[0]].map(|batch| (format!("{batch} of {rows} rows"), batched(rows, batch)));
            judge.law(operation, &linear.name(), variants);
        }
    }
}

fn wide<B: Backend>(judge: &mut Judge<'_, B>) {
    let gated = Activation::SiluGated { gate_scale: 0.8 };
    for dtype in [DType::F32, DType::BF16, DType::F8E4M3] {
        // Rows of whole blocks, where there are blocks.
        let whole = |inputs: usize| match dtype {
            DType::F8E4M3 => inputs.next_multiple_of(SCALE_BLOCK),
            _ => inputs,
        };
        for activation in [gated, Activation::ReluSquared] {
            for (width, inputs) in [(160, 64), (96, 48), (48, 200)] {
                let inputs = whole(inputs);
                let layer = FeedForward {
                    matrix: Matrix::new(dtype, width * activation.fan_in(), inputs),
                    activation,
                    limit: tolerance(judge, dtype),
                };
                let case = format!("{activation:?}, {dtype} [{}, {inputs}]", layer.matrix.outputs);
                judge_rows(judge, &named("linear_activate", dtype), &case, &layer);
            }
        }
        for (outputs, inputs) in [(64, 160), (2560, 128), (45, 64)] {
            let inputs = whole(inputs);
            let layer = AddNorm {
                matrix: Matrix::new(dtype, outputs, inputs),
                limit: tolerance(judge, dtype),
            };
            let case = format!("{dtype} [{outputs}, {inputs}]");
            judge_rows(judge, &named("linear_add_norm", dtype), &case, &layer);
        }
    }
}

fn named(operation: &str, dtype: DType) -> String {
    format!("{operation} {}", dtype.name().to_lowercase())
}

/// What a product and a function of it may be off by.
fn tolerance<B: Backend>(judge: &Judge<'_, B>, dtype: DType) -> Limit {
    let product = match dtype {
        DType::F32 => 1e-5,
        _ => ORDER,
    };
    within(product, judge.elements().activations)
}

struct Linear {
    matrix: Matrix,
    /// Its first rows, if it is not all of them.
    first: Option<usize>,
    epilogue: bool,
    coarse: bool,
    limit: Limit,
}

impl Linear {
    fn new<B: Backend>(judge: &Judge<'_, B>, matrix: Matrix, epilogue: bool) -> Self {
        let stored = judge.elements().activations;
        let limit = match matrix.dtype {
            DType::F32 => Limit::Exact,
            // Rows of whole blocks are multiplied as they are stored.
            DType::F8E4M3 if matrix.inputs.is_multiple_of(SCALE_BLOCK) => within(ORDER, stored),
            dtype if dtype.is_quantised() || dtype == DType::F8E4M3 => {
                within(2.0 * grain(DType::BF16), stored)
            }
            _ => within(ORDER, stored),
        };
        Self {
            coarse: matrix.dtype != DType::F32,
            first: None,
            matrix,
            epilogue,
            limit,
        }
    }

    /// The same with inputs that a device may have to round.
    fn any_inputs(&self) -> Self {
        Self {
            coarse: false,
            limit: Limit::Within(4.0 * grain(DType::BF16)),
            ..*self
        }
    }

    fn outputs(&self) -> usize {
        self.first.unwrap_or(self.matrix.outputs)
    }

    fn name(&self) -> String {
        let Matrix {
            dtype,
            outputs,
            inputs,
        } = self.matrix;
        let first = self.first.map(|first| format!("the first {first} rows of "));
        let first = first.unwrap_or_default();
        let epilogue = if self.epilogue { ", bias and scale" } else { "" };
        let inputs_are = if self.coarse { ", 16-bit inputs" } else { "" };
        format!("{first}{dtype} [{outputs}, {inputs}]{epilogue}{inputs_are}")
    }
}

impl RowOperation for Linear {
    fn inputs(&self) -> Vec<Input> {
        vec![Input {
            columns: self.matrix.inputs,
            scale: 1.7,
            coarse: self.coarse,
        }]
    }

    fn outs(&self) -> Vec<Out> {
        vec![Out::Tensor(self.outputs(), self.limit)]
    }

    fn buffers(&self) -> Vec<(usize, f32)> {
        vec![(self.outputs(), 1.0), (self.outputs(), 2.0)]
    }

    fn weights(&self) -> Vec<Packed> {
        vec![Packed::Plain(self.matrix)]
    }

    fn enqueue<B: Backend>(&self, device: &B, operands: &Operands<B>) {
        let epilogue = if self.epilogue {
            Epilogue {
                bias: Some(&operands.buffers[0]),
                scale: Some(&operands.buffers[1]),
            }
        } else {
            Epilogue::NONE
        };
        let x = &operands.inputs[0];
        let w = match self.first {
            Some(first) => &device.first_outputs(&operands.weights[0], first),
            None => &operands.weights[0],
        };
        device.linear(x, w, epilogue, &mut operands.outs[0].clone());
    }
}

/// A product and its activation.
struct FeedForward {
    matrix: Matrix,
    activation: Activation,
    limit: Limit,
}

impl RowOperation for FeedForward {
    fn inputs(&self) -> Vec<Input> {
        vec![Input {
            columns: self.matrix.inputs,
            scale: 1.7,
            coarse: self.matrix.dtype != DType::F32,
        }]
    }

    fn outs(&self) -> Vec<Out> {
        let width = self.matrix.outputs / self.activation.fan_in();
        vec![Out::Tensor(width, self.limit), Out::Scratch(self.matrix.outputs)]
    }

    fn weights(&self) -> Vec<Packed> {
        vec![match self.activation {
            Activation::SiluGated { .. } => Packed::Gated(self.matrix),
            Activation::ReluSquared => Packed::Plain(self.matrix),
        }]
    }

    fn enqueue<B: Backend>(&self, device: &B, operands: &Operands<B>) {
        let product = Product {
            x: &operands.inputs[0],
            w: &operands.weights[0],
            epilogue: Epilogue::NONE,
            out: &mut operands.outs[1].clone(),
        };
        device.linear_activate(product, self.activation, &mut operands.outs[0].clone());
    }
}

/// A product that is added to the residual stream, and the norm behind it.
struct AddNorm {
    matrix: Matrix,
    limit: Limit,
}

impl RowOperation for AddNorm {
    fn inputs(&self) -> Vec<Input> {
        let x = Input {
            columns: self.matrix.inputs,
            scale: 1.7,
            coarse: self.matrix.dtype != DType::F32,
        };
        vec![x, Input::new(self.matrix.outputs, 2.0)]
    }

    fn outs(&self) -> Vec<Out> {
        let outputs = self.matrix.outputs;
        vec![
            Out::Tensor(outputs, self.limit),
            Out::Input(1, self.limit),
            Out::Scratch(outputs),
        ]
    }

    fn buffers(&self) -> Vec<(usize, f32)> {
        vec![(self.matrix.outputs, 1.5)]
    }

    fn weights(&self) -> Vec<Packed> {
        vec![Packed::Plain(self.matrix)]
    }

    fn enqueue<B: Backend>(&self, device: &B, operands: &Operands<B>) {
        let product = Product {
            x: &operands.inputs[0],
            w: &operands.weights[0],
            epilogue: Epilogue::NONE,
            out: &mut operands.outs[2].clone(),
        };
        let norm = ResidualNorm {
            residual: &mut operands.outs[1].clone(),
            scale: 0.22,
            weight: &operands.buffers[0],
            eps: 1e-5,
            out: &mut operands.outs[0].clone(),
        };
        device.linear_add_norm(product, norm);
    }
}
