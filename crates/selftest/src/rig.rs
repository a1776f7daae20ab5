//! A device with what a case needs of it: inputs, weights and programs.

use crate::compare::{Limit, Output, grain, rounded};
use paceline_device::abi::TokenRow;
use paceline_device::{
    Backend, BlockScales, DeviceError, Element, ElementTypes, Pending, RowOrder, SCALE_BLOCK, StepLimits,
    StepTables, WeightData, WeightPart,
};
use paceline_testkit::{Matrix, Random};
use paceline_types::DType;

/// How operations reach the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// One by one.
    Eager,
    /// Captured as a program once, and launched.
    Captured,
}

/// A device and how it is used.
pub(crate) struct Rig<'a, B: Backend> {
    pub(crate) device: &'a B,
    mode: Mode,
    /// How the device that is judged stores things; the reference gets the same inputs.
    pub(crate) elements: ElementTypes,
    pub(crate) seed: u64,
}

/// Operations that can be launched again and again.
pub(crate) struct Launcher<'a, B: Backend, F: Fn(&B)> {
    device: &'a B,
    enqueue: F,
    program: Option<B::Program>,
}

impl<B: Backend, F: Fn(&B)> Launcher<'_, B, F> {
    pub(crate) fn launch(&self) {
        match &self.program {
            Some(program) => self.device.launch(program),
            None => (self.enqueue)(self.device),
        }
    }
}

impl<'a, B: Backend> Rig<'a, B> {
    pub(crate) fn new(device: &'a B, mode: Mode, elements: ElementTypes, seed: u64) -> Self {
        Self {
            device,
            mode,
            elements,
            seed,
        }
    }

    /// Random numbers for a purpose.
    pub(crate) fn random(&self, name: &str) -> Random {
        Random::new(self.seed, name)
    }

    /// These operations, captured if that is how the device is used. They read what changes from buffers.
    pub(crate) fn program<F: Fn(&B)>(&self, enqueue: F) -> Launcher<'a, B, F> {
        let program = (self.mode == Mode::Captured).then(|| {
            self.device.begin_capture();
            enqueue(self.device);
            self.device.end_capture()
        });
        Launcher {
            device: self.device,
            enqueue,
            program,
        }
    }

    /// Numbers in a buffer, which devices keep in full precision.
    pub(crate) fn buffer(&self, name: &str, len: usize, scale: f32) -> Result<B::Buffer<f32>, DeviceError> {
        self.device.buffer_from(&self.random(name).numbers(len, scale))
    }

    /// An f32 table whose rows become the rows of a tensor. Its numbers are ones that the device's tensors can hold; with
    /// `coarse`, also ones that 16-bit products can.
    pub(crate) fn inputs(
        &self,
        name: &str,
        (rows, columns): (usize, usize),
        (scale, coarse): (f32, bool),
    ) -> Result<B::Weight, DeviceError> {
        let mut numbers = self.random(name).numbers(rows * columns, scale);
        for number in &mut numbers {
            *number = rounded(*number, self.elements.activations);
            if coarse {
                *number = rounded(*number, DType::BF16);
            }
        }
        self.table(&numbers, columns)
    }

    /// An f32 table with these rows.
    pub(crate) fn table(&self, numbers: &[f32], columns: usize) -> Result<B::Weight, DeviceError> {
        let part = WeightPart {
            name: "inputs",
            dtype: DType::F32,
            stored_rows: numbers.len() / columns,
            columns,
            data: WeightData::Stored(bytemuck::cast_slice(numbers)),
            order: RowOrder::Stored,
        };
        self.device.weight(&[part], None)
    }

    /// A random weight.
    pub(crate) fn weight(&self, name: &str, matrix: Matrix) -> Result<B::Weight, DeviceError> {
        self.packed(name, matrix, |part| self.device.weight(&[part], None))
    }

    /// A random weight of a gated feed-forward layer.
    pub(crate) fn gated_weight(&self, name: &str, matrix: Matrix) -> Result<B::Weight, DeviceError> {
        self.packed(name, matrix, |part| self.device.gated_weight(&[part], None))
    }

    fn packed(
        &self,
        name: &str,
        matrix: Matrix,
        pack: impl FnOnce(WeightPart<'_>) -> Result<B::Weight, DeviceError>,
    ) -> Result<B::Weight, DeviceError> {
        let data = matrix.stored(&mut self.random(name));
        pack(WeightPart {
            name,
            dtype: matrix.dtype,
            stored_rows: matrix.outputs,
            columns: matrix.inputs,
            data: weight_data(matrix, &data),
            order: RowOrder::Stored,
        })
    }

    /// Tables for steps of up to `bucket` tokens that have ids and nothing else.
    pub(crate) fn token_tables(&self, bucket: usize) -> Result<StepTables<B>, DeviceError> {
        let limits = StepLimits {
            tokens: bucket,
            requests: 1,
            samples: bucket,
            blocks_per_request: 1,
            block_size: 16,
        };
        StepTables::new(self.device, limits)
    }

    /// Makes these ids the step's tokens.
    pub(crate) fn write_ids(&self, step: &StepTables<B>, ids: impl IntoIterator<Item = usize>) {
        let tokens: Vec<TokenRow> = ids
            .into_iter()
            .enumerate()
            .map(|(position, id)| TokenRow {
                id: id as i32,
                position: position as i32,
                request: 0,
            })
            .collect();
        self.device.write(&step.token_rows, &tokens);
        self.device.write(&step.tokens.live, &[tokens.len() as i32]);
    }

    pub(crate) fn read<T: Element>(&self, buffer: &B::Buffer<T>, len: usize) -> Result<Vec<T>, DeviceError> {
        self.device.read(buffer, len).wait()
    }

    /// The value of a counter.
    pub(crate) fn count(&self, counter: &B::Buffer<i32>) -> Result<usize, DeviceError> {
        let value = self.read(counter, 1)?;
        Ok(usize::try_from(value[0]).unwrap_or(0))
    }

    /// The live rows of a tensor, as an output.
    pub(crate) fn output(&self, what: &str, tensor: &B::Tensor, limit: Limit) -> Result<Output, DeviceError> {
        Ok(Output::numbers(
            what,
            self.device.read_tensor(tensor).wait()?,
            limit,
        ))
    }
}

/// A tolerance, and room for what numbers of a type round off: half a step where it is stored and half a step where it is
/// read, both of them where numbers are large.
pub(crate) fn within(tolerance: f64, stored: DType) -> Limit {
    Limit::Within(tolerance + 2.0 * grain(stored))
}

/// Where the elements of a stored [`Matrix`] are: 8-bit floats have scales behind them.
fn weight_data(matrix: Matrix, data: &[u8]) -> WeightData<'_> {
    if matrix.dtype != DType::F8E4M3 {
        return WeightData::Stored(data);
    }
    let (elements, scales) = data.split_at(matrix.outputs * matrix.inputs);
    let scales = BlockScales {
        data: scales,
        dtype: DType::F32,
        rows: SCALE_BLOCK,
        columns: matrix.inputs.div_ceil(SCALE_BLOCK),
    };
    WeightData::Scaled(elements, scales)
}
