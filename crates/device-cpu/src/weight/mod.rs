//! Weight matrices, packed for kernels that compute sixteen outputs side by side.
//!
//! A matrix is cut into panels of [`PANEL`] outputs, the last one padded with zeros. Within a panel the weights of
//! one input for all sixteen outputs lie together and inputs follow each other, so a kernel reads a panel from
//! front to back, and every vector lane is one output with its own sequential sum. Quantised types keep their
//! scales, per sixteen outputs, in front of the codes that they apply to, and four inputs of an output together.
//! `layout` and `formats` say how panels are read, `pack` writes them, `blocks` reads the stored formats.

mod blocks;
pub(crate) mod formats;
pub(crate) mod layout;
mod pack;

use crate::storage::Storage;
use paceline_device::{DeviceError, RowOrder, WeightPart};
use paceline_types::DType;
use std::ops::Range;
use std::sync::Arc;

/// Outputs of a panel.
pub(crate) use crate::simd::PANEL;

/// Consecutive outputs that are stored alike.
pub(crate) struct Segment {
    pub(crate) dtype: DType,
    /// First output of the segment in the whole weight.
    pub(crate) first: usize,
    pub(crate) outputs: usize,
    pub(crate) panel_bytes: usize,
    storage: Arc<Storage<f32>>,
}

impl Segment {
    /// Panels of the segment.
    pub(crate) fn panels(&self) -> usize {
        self.outputs.div_ceil(PANEL)
    }

    /// The start of a panel, `panel_bytes` long and aligned to a cache line.
    pub(crate) fn panel(&self, panel: usize) -> *const u8 {
        assert!(panel < self.panels(), "panel {panel} of {}", self.panels());
        // SAFETY: the storage holds all panels.
        unsafe { self.storage.as_ptr().cast::<u8>().add(panel * self.panel_bytes) }
    }

    /// Outputs of a panel, counted in the whole weight.
    pub(crate) fn outputs_of(&self, panel: usize) -> Range<usize> {
        let end = ((panel + 1) * PANEL).min(self.outputs);
        self.first + panel * PANEL..self.first + end
    }
}

struct Inner {
    segments: Vec<Segment>,
    outputs: usize,
    inputs: usize,
}

/// A packed weight matrix. Clones share the storage.
#[derive(Clone)]
pub struct CpuWeight {
    inner: Arc<Inner>,
}

impl CpuWeight {
    /// Packs parts stacked along the outputs, each in its own type or all converted to `store_as`.
    pub(crate) fn pack(parts: &[WeightPart<'_>], store_as: Option<DType>) -> Result<Self, DeviceError> {
        if let Some(dtype) = store_as
            && dtype.is_quantised()
        {
            let what = parts.first().map_or("", |part| part.name);
            return Err(bad(what, format!("cannot be converted to {dtype}")));
        }
        let inputs = parts.first().map_or(0, |part| part.columns);
        let mut segments = Vec::new();
        let mut outputs = 0;
        let mut index = 0;
        while index < parts.len() {
            let dtype = store_as.unwrap_or(parts[index].dtype);
            let alike = parts[index..]
                .iter()
                .take_while(|part| store_as.unwrap_or(part.dtype) == dtype)
                .count();
            let group = &parts[index..index + alike];
            index += alike;
            let mut rows = Vec::with_capacity(group.iter().map(WeightPart::rows).sum());
            let bytes: Vec<_> = group.iter().map(WeightPart::bytes).collect();
            for part in group.iter().zip(&bytes) {
                push_rows((part.0, part.1), inputs, &mut rows)?;
            }
            if rows.is_empty() {
                continue;
            }
            let (storage, panel_bytes) = pack::pack(&rows, dtype, inputs)?;
            segments.push(Segment {
                dtype,
                first: outputs,
                outputs: rows.len(),
                panel_bytes,
                storage,
            });
            outputs += rows.len();
        }
        if outputs == 0 {
            let what = parts.first().map_or("without parts", |part| part.name);
            return Err(bad(what, "has no rows".to_owned()));
        }
        Ok(Self {
            inner: Arc::new(Inner {
                segments,
                outputs,
                inputs,
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
    pub fn bytes(&self) -> usize {
        let segments = self.inner.segments.iter();
        segments
            .map(|segment| segment.panels() * segment.panel_bytes)
            .sum()
    }

    /// Whether any output is quantised.
    pub(crate) fn has_quantised(&self) -> bool {
        self.inner
            .segments
            .iter()
            .any(|segment| segment.dtype.is_quantised())
    }

    /// Runs of outputs that are stored alike, in order.
    pub(crate) fn segments(&self) -> &[Segment] {
        &self.inner.segments
    }

    /// Panels of all segments.
    pub(crate) fn panels(&self) -> usize {
        self.inner.segments.iter().map(Segment::panels).sum()
    }
}

/// A stored row on its way into a panel.
struct Row<'a> {
    part: &'a WeightPart<'a>,
    index: usize,
    data: &'a [u8],
}

fn bad(what: &str, why: String) -> DeviceError {
    DeviceError::BadWeight {
        what: what.to_owned(),
        why,
    }
}

fn push_rows<'a>(
    (part, bytes): (&'a WeightPart<'a>, &'a [u8]),
    inputs: usize,
    rows: &mut Vec<Row<'a>>,
) -> Result<(), DeviceError> {
    let (name, columns, dtype) = (part.name, part.columns, part.dtype);
    if columns == 0 {
        return Err(bad(name, "has no columns".to_owned()));
    }
    if columns != inputs {
        let why = format!("has {columns} columns where the parts before it have {inputs}");
        return Err(bad(name, why));
    }
    let row_bytes = dtype.bytes_for(columns).ok_or_else(|| {
        let block = dtype.block_len();
        bad(
            name,
            format!("{columns} columns are not whole {dtype} blocks of {block}"),
        )
    })?;
    if part.stored_rows.checked_mul(row_bytes) != Some(bytes.len()) {
        let (held, stored) = (bytes.len(), part.stored_rows);
        let why = format!("{held} bytes do not hold {stored} rows of {columns} {dtype} elements");
        return Err(bad(name, why));
    }
    let row = |index: usize| Row {
        part,
        index,
        data: &bytes[index * row_bytes..(index + 1) * row_bytes],
    };
    match &part.order {
        RowOrder::Stored => rows.extend((0..part.stored_rows).map(row)),
        RowOrder::Picked(picked) => {
            if let Some(outside) = picked.iter().find(|index| **index as usize >= part.stored_rows) {
                let why = format!("row {outside} is asked for, but there are {}", part.stored_rows);
                return Err(bad(name, why));
            }
            rows.extend(picked.iter().map(|index| row(*index as usize)));
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod vectors;
