//! Weight matrices on the device.
//!
//! A weight is kept in one of four types, whatever its parts are stored as: f32, bf16, f16 or 8-bit floats with scales. Quantised
//! parts become bf16, rounded to nearest even, and so do 8-bit floats whose rows are no whole blocks of 128. Parts that differ
//! become f32, which holds them all. f32 lies row by row and is multiplied exactly; the others lie in tiles for tensor cores
//! (`kernels/weight.cuh`, `kernels/f8.cuh`), padded with zeros.

mod load;
mod plan;

use crate::arguments::Ptr;
use crate::cuda::Cuda;
use crate::views::{KPlan, RowSource};
use paceline_device::{DeviceError, RowOrder, SCALE_BLOCK, WeightData, WeightPart};
use paceline_types::DType;
use std::sync::Arc;

pub(crate) use load::Staging;
#[cfg(test)]
pub(crate) use load::header;

/// Outputs of a tile.
pub(crate) const TILE: usize = 128;
/// Inputs of a block.
pub(crate) const BLOCK: usize = 64;

/// Bytes of a tile's block of 8-bit floats, with a scale per output.
const SCALED_TILE: usize = TILE * (SCALE_BLOCK + 4);

/// How a weight is kept. The numbers are those of `kernels/weight.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    F32 = 0,
    Bf16 = 1,
    F16 = 2,
    F8 = 3,
}

impl Kind {
    /// The kind that holds parts of this type with this many inputs.
    fn of(dtype: DType, inputs: usize) -> Self {
        match dtype {
            DType::F32 => Self::F32,
            DType::F16 => Self::F16,
            DType::F8E4M3 if inputs.is_multiple_of(SCALE_BLOCK) => Self::F8,
            _ => Self::Bf16,
        }
    }

    /// The kind that a product's inputs are rounded to.
    pub(crate) const fn inputs(self) -> Self {
        match self {
            Self::F8 => Self::Bf16,
            other => other,
        }
    }

    /// Inputs of a block, at which sums may be cut.
    pub(crate) const fn block(self) -> usize {
        match self {
            Self::F8 => SCALE_BLOCK,
            _ => BLOCK,
        }
    }

    const fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
            Self::F8 => DType::F8E4M3,
        }
    }
}

struct Inner {
    kind: Kind,
    outputs: usize,
    inputs: usize,
    /// Rows of gate and of up, which take turns; 0 where they do not.
    gated: usize,
    address: u64,
    bytes: u64,
    plan: KPlan,
}

/// A packed weight matrix. Clones share the storage.
#[derive(Clone)]
pub struct CudaWeight {
    inner: Arc<Inner>,
}

impl CudaWeight {
    /// Packs parts stacked along the outputs, as `store_as` or as the type that holds them. Those of a gated layer are gate
    /// and up, as many outputs each.
    pub(crate) fn pack(
        cuda: &Cuda,
        parts: &[WeightPart<'_>],
        store_as: Option<DType>,
        gated: bool,
    ) -> Result<Self, DeviceError> {
        let first = parts.first().map_or("without parts", |part| part.name);
        if let Some(dtype) = store_as
            && dtype.is_quantised()
        {
            return Err(bad(first, format!("cannot be converted to {dtype}")));
        }
        let inputs = parts.first().map_or(0, |part| part.columns);
        parts.iter().try_for_each(|part| check_part(part, inputs))?;
        let outputs: usize = parts.iter().map(WeightPart::rows).sum();
        if outputs == 0 {
            return Err(bad(first, "has no rows".to_owned()));
        }
        let kind = store_as.map_or_else(|| kind_of(parts), |dtype| Kind::of(dtype, inputs));
        let gated = if gated { gated_rows(kind, outputs) } else { 0 };
        let weight = Self::zeroed(cuda, kind, (outputs, inputs, gated), first)?;
        load::load(cuda, &weight, parts)?;
        Ok(weight)
    }

    /// The first `outputs` rows, in the same storage: whole tiles come first. Sums are cut by a plan of their own, so their
    /// bits need not be those of the whole weight.
    pub(crate) fn first_outputs(&self, cuda: &Cuda, outputs: usize) -> Self {
        let (all, inputs) = (self.outputs(), self.inputs());
        assert!(
            (1..=all).contains(&outputs),
            "first_outputs: {outputs} of {all} rows"
        );
        assert!(
            self.gated() == 0,
            "first_outputs: the rows of gate and up take turns"
        );
        let kind = self.kind();
        Self {
            inner: Arc::new(Inner {
                kind,
                outputs,
                inputs,
                gated: 0,
                address: self.address(),
                bytes: stored_bytes(kind, outputs, inputs),
                plan: KPlan::shared((outputs, inputs), kind, cuda.multiprocessors() as usize),
            }),
        }
    }

    /// A weight of zeros.
    fn zeroed(
        cuda: &Cuda,
        kind: Kind,
        (outputs, inputs, gated): (usize, usize, usize),
        name: &str,
    ) -> Result<Self, DeviceError> {
        let bytes = stored_bytes(kind, outputs, inputs);
        let address = cuda.context.zeroed(bytes, name)?;
        Ok(Self {
            inner: Arc::new(Inner {
                kind,
                outputs,
                inputs,
                gated,
                address,
                bytes,
                plan: KPlan::shared((outputs, inputs), kind, cuda.multiprocessors() as usize),
            }),
        })
    }

    /// Rows of the matrix.
    pub fn outputs(&self) -> usize {
        self.inner.outputs
    }

    /// Columns of the matrix.
    pub fn inputs(&self) -> usize {
        self.inner.inputs
    }

    /// Memory held.
    pub fn bytes(&self) -> u64 {
        self.inner.bytes
    }

    pub(crate) fn kind(&self) -> Kind {
        self.inner.kind
    }

    pub(crate) fn address(&self) -> u64 {
        self.inner.address
    }

    /// Rows of gate and of up, which take turns of eight; 0 where rows lie as they are stacked.
    pub(crate) fn gated(&self) -> usize {
        self.inner.gated
    }

    /// Where sums over the inputs are cut; for weights in tiles.
    pub(crate) fn plan(&self) -> KPlan {
        self.inner.plan
    }

    /// f32: elements from one row to the next. Else blocks of inputs.
    pub(crate) fn pitch(&self) -> usize {
        match self.inner.kind {
            Kind::F32 => f32_pitch(self.inner.inputs),
            kind => self.inner.inputs.div_ceil(kind.block()),
        }
    }

    /// Blocks that a product's inputs lie in.
    pub(crate) fn input_blocks(&self) -> u32 {
        self.inner.inputs.div_ceil(BLOCK) as u32
    }

    /// The weight as kernels see it that read rows of it.
    pub(crate) fn row_source(&self) -> RowSource {
        RowSource {
            data: Ptr::new(self.inner.address),
            kind: self.inner.kind as u32,
            rows: self.inner.outputs as u32,
            columns: self.inner.inputs as u32,
            pitch: self.pitch() as u32,
        }
    }
}

/// Bytes of a weight, the padding of tiles included.
fn stored_bytes(kind: Kind, outputs: usize, inputs: usize) -> u64 {
    match kind {
        Kind::F32 => (outputs * f32_pitch(inputs)) as u64 * 4,
        Kind::Bf16 | Kind::F16 => {
            (outputs.next_multiple_of(TILE) * inputs.next_multiple_of(BLOCK)) as u64 * 2
        }
        Kind::F8 => (outputs.div_ceil(TILE) * inputs.div_ceil(SCALE_BLOCK) * SCALED_TILE) as u64,
    }
}

/// Rows of gate and of up, if they can take turns of eight.
fn gated_rows(kind: Kind, outputs: usize) -> usize {
    if kind == Kind::F32 || !outputs.is_multiple_of(16) {
        return 0;
    }
    outputs / 2
}

/// Elements from one row of f32 to the next: rows start at multiples of sixteen bytes.
fn f32_pitch(inputs: usize) -> usize {
    inputs.next_multiple_of(4)
}

/// The kind that holds all parts.
fn kind_of(parts: &[WeightPart<'_>]) -> Kind {
    let mut kinds = parts.iter().map(|part| Kind::of(part.dtype, part.columns));
    let first = kinds.next().unwrap_or(Kind::F32);
    kinds.fold(first, |kind, other| if kind == other { kind } else { Kind::F32 })
}

fn bad(what: &str, why: String) -> DeviceError {
    DeviceError::BadWeight {
        what: what.to_owned(),
        why,
    }
}

/// A part has the weight's inputs, and as many bytes as its shape says.
fn check_part(part: &WeightPart<'_>, inputs: usize) -> Result<(), DeviceError> {
    let (columns, dtype) = (part.columns, part.dtype);
    let bad = |why: String| Err(bad(part.name, why));
    if columns == 0 {
        return bad("has no columns".to_owned());
    }
    if columns != inputs {
        return bad(format!(
            "has {columns} columns where the parts before it have {inputs}"
        ));
    }
    let Some(row_bytes) = dtype.bytes_for(columns) else {
        let block = dtype.block_len();
        return bad(format!(
            "{columns} columns are not whole {dtype} blocks of {block}"
        ));
    };
    if let WeightData::Stored(data) | WeightData::Scaled(data, _) = part.data
        && part.stored_rows.checked_mul(row_bytes) != Some(data.len())
    {
        let (held, stored) = (data.len(), part.stored_rows);
        return bad(format!(
            "{held} bytes do not hold {stored} rows of {columns} {dtype} elements"
        ));
    }
    if let RowOrder::Picked(picked) = &part.order
        && let Some(outside) = picked.iter().find(|index| **index as usize >= part.stored_rows)
    {
        return bad(format!(
            "row {outside} is asked for, but there are {}",
            part.stored_rows
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
