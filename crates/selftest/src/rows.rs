//! Operations whose rows know nothing of each other, each said in a few lines.

use crate::compare::{Limit, Output};
use crate::judge::{Case, Judge};
use crate::rig::Rig;
use paceline_device::{Backend, DeviceError, StepTables};
use paceline_testkit::Matrix;

/// An input: rows of random numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input {
    pub(crate) columns: usize,
    pub(crate) scale: f32,
    /// Its numbers fit into 16 bits.
    pub(crate) coarse: bool,
}

impl Input {
    pub(crate) const fn new(columns: usize, scale: f32) -> Self {
        Self {
            columns,
            scale,
            coarse: false,
        }
    }
}

/// What is read back.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Out {
    /// A tensor of this many columns.
    Tensor(usize, Limit),
    /// An input that was written to.
    Input(usize, Limit),
    /// A tensor of this many columns that holds nothing afterwards.
    Scratch(usize),
}

/// A weight.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Packed {
    Plain(Matrix),
    Gated(Matrix),
}

/// What an operation is given.
pub(crate) struct Operands<B: Backend> {
    pub(crate) step: StepTables<B>,
    pub(crate) inputs: Vec<B::Tensor>,
    pub(crate) outs: Vec<B::Tensor>,
    pub(crate) buffers: Vec<B::Buffer<f32>>,
    pub(crate) weights: Vec<B::Weight>,
}

/// An operation on rows.
pub(crate) trait RowOperation {
    fn inputs(&self) -> Vec<Input>;
    fn outs(&self) -> Vec<Out>;
    /// Numbers per column or output: how many, and how large.
    fn buffers(&self) -> Vec<(usize, f32)> {
        Vec::new()
    }
    fn weights(&self) -> Vec<Packed> {
        Vec::new()
    }
    fn enqueue<B: Backend>(&self, device: &B, operands: &Operands<B>);
}

/// Rows through an operation, in batches of a given size.
#[derive(Clone, Copy)]
pub(crate) struct Batched<'a, O> {
    pub(crate) operation: &'a O,
    pub(crate) rows: usize,
    pub(crate) batch: usize,
    /// Rows that the program is shaped for.
    pub(crate) bucket: usize,
}

impl<O: RowOperation> Case for Batched<'_, O> {
    fn run<B: Backend>(&self, rig: &Rig<'_, B>) -> Result<Vec<Output>, DeviceError> {
        let step = rig.token_tables(self.bucket)?;
        let (operation, device) = (self.operation, rig.device);
        let mut tables = Vec::new();
        let mut inputs = Vec::new();
        for (index, input) in operation.inputs().into_iter().enumerate() {
            let shape = (self.rows, input.columns);
            tables.push(rig.inputs(&format!("input {index}"), shape, (input.scale, input.coarse))?);
            inputs.push(device.tensor(&step.tokens, input.columns)?);
        }
        let operands = Operands {
            outs: made(operation.outs(), |out| match out {
                Out::Tensor(columns, _) | Out::Scratch(columns) => device.tensor(&step.tokens, columns),
                Out::Input(index, _) => Ok(inputs[index].clone()),
            })?,
            buffers: made(
                operation.buffers().into_iter().enumerate(),
                |(index, (len, scale))| rig.buffer(&format!("buffer {index}"), len, scale),
            )?,
            weights: made(operation.weights().into_iter().enumerate(), |(index, weight)| {
                let name = format!("weight {index}");
                match weight {
                    Packed::Plain(matrix) => rig.weight(&name, matrix),
                    Packed::Gated(matrix) => rig.gated_weight(&name, matrix),
                }
            })?,
            step,
            inputs,
        };
        let program = rig.program(|device| {
            for (table, input) in tables.iter().zip(&operands.inputs) {
                device.embed(&operands.step, table, 1.0, &mut input.clone());
            }
            operation.enqueue(device, &operands);
        });
        let mut results: Vec<Vec<Output>> = Vec::new();
        for start in (0..self.rows).step_by(self.batch) {
            rig.write_ids(&operands.step, start..self.rows.min(start + self.batch));
            program.launch();
            results.push(read(rig, &operation.outs(), &operands.outs)?);
        }
        Ok(joined(results))
    }
}

fn made<T, R>(
    specifications: impl IntoIterator<Item = T>,
    make: impl Fn(T) -> Result<R, DeviceError>,
) -> Result<Vec<R>, DeviceError> {
    specifications.into_iter().map(make).collect()
}

fn read<B: Backend>(
    rig: &Rig<'_, B>,
    outs: &[Out],
    tensors: &[B::Tensor],
) -> Result<Vec<Output>, DeviceError> {
    let mut outputs = Vec::new();
    for (index, (out, tensor)) in outs.iter().zip(tensors).enumerate() {
        if let Out::Tensor(_, limit) | Out::Input(_, limit) = out {
            let what = if index == 0 {
                "out".to_owned()
            } else {
                format!("out {index}")
            };
            outputs.push(rig.output(&what, tensor, *limit)?);
        }
    }
    Ok(outputs)
}

/// Outputs of batch after batch, as those of one.
pub(crate) fn joined(batches: Vec<Vec<Output>>) -> Vec<Output> {
    use crate::compare::Values;
    let mut batches = batches.into_iter();
    let mut all = batches.next().unwrap_or_default();
    for batch in batches {
        for (all, one) in all.iter_mut().zip(batch) {
            match (&mut all.values, one.values) {
                (Values::Numbers(all), Values::Numbers(one)) => all.extend(one),
                (Values::Words(all), Values::Words(one)) => all.extend(one),
                _ => {}
            }
        }
    }
    all
}

/// Rows that no batch below divides.
const ROWS: usize = 37;
/// Tokens at a time, and the bucket: alone, together, and few in a large bucket.
const CUTS: [(usize, usize); 7] = [(37, 37), (1, 1), (2, 2), (3, 8), (8, 8), (17, 32), (5, 256)];

/// An operation against the reference, and against itself in other batches.
pub(crate) fn judge_rows<B: Backend>(
    judge: &mut Judge<'_, B>,
    name: &str,
    case: &str,
    operation: &impl RowOperation,
) {
    let batched = |batch, bucket| Batched {
        operation,
        rows: ROWS,
        batch,
        bucket,
    };
    judge.compare(name, case, &batched(ROWS, 128));
    let cuts = CUTS.map(|(batch, bucket)| {
        (
            format!("{batch} of {ROWS} rows in a bucket of {bucket}"),
            batched(batch, bucket),
        )
    });
    judge.law(name, case, cuts);
}
