//! Matrix products, and what they and copies say of the bandwidth of memory.

use super::timing::{OpTiming, seconds};
use paceline_device::{Backend, DeviceError, Epilogue, RowOrder, Rows, WeightData, WeightPart};
use paceline_types::DType;

/// Rows from which on a product is bound by arithmetic and its matrix may as well stay in the caches.
pub(super) const PREFILL_ROWS: usize = 64;
/// Memory that no cache holds.
const BEYOND_CACHES: usize = 160 << 20;
/// Columns of matrices that are only moved.
const COLUMNS: usize = 8192;

/// A matrix product.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinearCase {
    pub(super) dtype: DType,
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    pub(super) rows: usize,
}

impl LinearCase {
    pub(super) fn name(self) -> String {
        format!("linear {}", self.dtype)
    }

    pub(super) fn size(self) -> String {
        format!("{} x [{}, {}]", self.rows, self.outputs, self.inputs)
    }

    /// Times it. At few token rows every call has another matrix, as in a model, and all of them together are too large
    /// for any cache.
    pub(super) fn measure<B: Backend>(self, backend: &B) -> Result<OpTiming, DeviceError> {
        let Self {
            dtype,
            outputs,
            inputs,
            rows,
        } = self;
        let data = stored(dtype, outputs * inputs);
        let copies = if rows < PREFILL_ROWS {
            BEYOND_CACHES.div_ceil(data.len())
        } else {
            1
        };
        let parts = [WeightPart {
            name: "w",
            dtype,
            stored_rows: outputs,
            columns: inputs,
            data: WeightData::Stored(&data),
            order: RowOrder::Stored,
        }];
        let weights = (0..copies).map(|_| backend.weight(&parts, None));
        let weights = weights.collect::<Result<Vec<_>, _>>()?;
        let space = live_rows(backend, rows)?;
        let (x, mut out) = (backend.tensor(&space, inputs)?, backend.tensor(&space, outputs)?);
        let mut turns = weights.iter().cycle();
        let seconds = seconds(backend, || {
            if let Some(w) = turns.next() {
                backend.linear(&x, w, Epilogue::NONE, &mut out);
            }
        })?;
        let activations =
            rows as u64 * (inputs + outputs) as u64 * backend.info().elements.activation_bytes();
        Ok(OpTiming {
            name: self.name(),
            size: self.size(),
            seconds,
            flops: 2.0 * (rows * outputs * inputs) as f64,
            bytes: (data.len() as u64 + activations) as f64,
        })
    }
}

/// Bytes per second that memory gives: the better of a product with one row, which reads `bytes`, and a copy of as many.
pub(super) fn bandwidth<B: Backend>(backend: &B, bytes: usize) -> Result<f64, DeviceError> {
    let read = LinearCase {
        dtype: DType::F32,
        outputs: bytes / size_of::<f32>() / COLUMNS,
        inputs: COLUMNS,
        rows: 1,
    };
    let read = read.measure(backend)?;
    let row = COLUMNS * backend.info().elements.activation_bytes() as usize;
    let space = live_rows(backend, bytes / row)?;
    let (mut one, mut other) = (backend.tensor(&space, COLUMNS)?, backend.tensor(&space, COLUMNS)?);
    // Pages that were never written are all one page to the system, and read too fast.
    backend.copy(&one, &mut other);
    let copied = seconds(backend, || backend.copy(&other, &mut one))?;
    Ok(f64::max(
        read.bytes / read.seconds,
        2.0 * (bytes / row * row) as f64 / copied,
    ))
}

/// A row space, all of whose rows carry data.
fn live_rows<B: Backend>(backend: &B, rows: usize) -> Result<Rows<B>, DeviceError> {
    let space = Rows::new(backend, rows)?;
    backend.write(&space.live, &[rows as i32]);
    Ok(space)
}

/// Stored elements. Bytes of this range make a small number of every type, and a sane scale of every block.
fn stored(dtype: DType, elements: usize) -> Vec<u8> {
    let bytes = elements / dtype.block_len() * dtype.block_bytes();
    (0..bytes).map(|index| 0x21 + (index * 7 % 13) as u8).collect()
}
