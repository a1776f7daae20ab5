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
mod quantise;

use crate::packed::PackedWeights;
use crate::storage::Storage;
use layout::{Layout, Place};
use paceline_device::{DeviceError, HostMap, RowOrder, WeightPart};
use paceline_types::DType;
use std::ops::Range;
use std::sync::Arc;

/// Outputs of a panel.
pub(crate) use crate::simd::PANEL;

/// Where panels are.
#[derive(Clone)]
enum Panels {
    Own(Arc<Storage<f32>>),
    /// From this byte of a file on.
    Mapped(Arc<HostMap>, usize),
}

impl Panels {
    fn start(&self) -> *const u8 {
        match self {
            Self::Own(storage) => storage.as_ptr().cast(),
            Self::Mapped(map, at) => map[*at..].as_ptr(),
        }
    }
}

/// Consecutive outputs that are stored alike.
#[derive(Clone)]
pub(crate) struct Segment {
    pub(crate) dtype: DType,
    /// First output of the segment in the whole weight.
    pub(crate) first: usize,
    pub(crate) outputs: usize,
    pub(crate) panel_bytes: usize,
    /// Panels that are stored: more than there are outputs for where these are the first of a weight.
    stored: usize,
    data: Panels,
}

impl Segment {
    /// Panels of the segment.
    pub(crate) fn panels(&self) -> usize {
        self.outputs.div_ceil(PANEL)
    }

    /// The start of a panel, `panel_bytes` long and aligned to a cache line. Panels of this type follow each other.
    pub(crate) fn panel(&self, panel: usize) -> *const u8 {
        assert!(panel < self.panels(), "panel {panel} of {}", self.panels());
        // SAFETY: all panels are there.
        unsafe { self.data.start().add(panel * self.panel_bytes) }
    }

    /// Where a panel of this layout is.
    pub(crate) fn place<L: Layout>(&self, panel: usize) -> Place {
        if L::ABREAST == 1 {
            let start = self.panel(panel);
            return Place { start, abreast: 1 };
        }
        assert!(panel < self.panels(), "panel {panel} of {}", self.panels());
        let (at, abreast) = layout::place(panel, self.stored, self.panel_bytes, L::PAIR_BYTES);
        // SAFETY: all panels are there.
        let start = unsafe { self.data.start().add(at) };
        Place { start, abreast }
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
    /// Packs parts stacked along the outputs, each in its own type or all converted to `store_as`, on at most `threads`
    /// threads. Floating-point parts can be quantised to the types that `quantise` knows.
    pub(crate) fn pack(
        parts: &[WeightPart<'_>],
        store_as: Option<DType>,
        threads: usize,
    ) -> Result<Self, DeviceError> {
        if let Some(dtype) = store_as.filter(|dtype| dtype.is_quantised())
            && let Some(part) = parts.iter().find(|part| !quantise::can(part.dtype, dtype))
        {
            let why = format!("cannot be converted from {} to {dtype}", part.dtype);
            return Err(bad(part.name, why));
        }
        let inputs = parts.first().map_or(0, |part| part.columns);
        let (mut segments, mut outputs) = (Vec::new(), 0);
        for (dtype, group) in alike(parts, store_as) {
            let mut rows = Vec::with_capacity(group.iter().map(WeightPart::rows).sum());
            let bytes: Vec<_> = group.iter().map(WeightPart::bytes).collect();
            for (part, bytes) in group.iter().zip(&bytes) {
                push_rows((part, bytes), inputs, &mut rows)?;
            }
            if rows.is_empty() {
                continue;
            }
            let blocks;
            if dtype.is_quantised() && store_as.is_some() {
                blocks = quantise::rows(&rows, dtype, inputs, threads.clamp(1, pack::MOST_THREADS))?;
                let row_bytes = blocks.len() / rows.len();
                for (row, data) in rows.iter_mut().zip(blocks.chunks_exact(row_bytes)) {
                    row.data = data;
                }
            }
            let (storage, panel_bytes) = pack::pack(&rows, dtype, inputs, threads)?;
            segments.push(Segment {
                dtype,
                first: outputs,
                outputs: rows.len(),
                panel_bytes,
                stored: rows.len().div_ceil(PANEL),
                data: Panels::Own(storage),
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

    /// What [`pack`](Self::pack) would make of these parts, if it is in a file.
    pub(crate) fn mapped(
        parts: &[WeightPart<'_>],
        store_as: Option<DType>,
        packed: &PackedWeights,
    ) -> Option<Self> {
        let (map, range) = packed.find(parts, store_as)?;
        let inputs = parts.first()?.columns;
        let (mut segments, mut outputs, mut at) = (Vec::<Segment>::new(), 0, range.start);
        for (dtype, group) in alike(parts, store_as) {
            let rows: usize = group.iter().map(WeightPart::rows).sum();
            let segment = Segment {
                dtype,
                first: outputs,
                outputs: rows,
                panel_bytes: pack::panel_bytes(dtype, inputs),
                stored: rows.div_ceil(PANEL),
                data: Panels::Mapped(Arc::clone(&map), at),
            };
            if segment.outputs == 0 {
                continue;
            }
            outputs += segment.outputs;
            at += segment.panels() * segment.panel_bytes;
            segments.push(segment);
        }
        let inner = Inner {
            segments,
            outputs,
            inputs,
        };
        // A file is believed no more than this: panels of these shapes are inside it.
        (at == range.end && outputs > 0).then(|| Self {
            inner: Arc::new(inner),
        })
    }

    /// The panels of each segment.
    pub(crate) fn panel_bytes(&self) -> impl Iterator<Item = &[u8]> {
        self.inner.segments.iter().map(|segment| {
            let bytes = segment.panels() * segment.panel_bytes;
            // SAFETY: all panels are there, and nothing changes them once they are packed.
            unsafe { std::slice::from_raw_parts(segment.data.start(), bytes) }
        })
    }

    /// Whether the panels are in a file.
    #[cfg(test)]
    pub(crate) fn is_mapped(&self) -> bool {
        let mapped = |segment: &Segment| matches!(segment.data, Panels::Mapped(..));
        self.inner.segments.iter().all(mapped)
    }

    /// The first `outputs` rows, in the same storage: panels up to the last that has one of them.
    pub(crate) fn first_outputs(&self, outputs: usize) -> Self {
        let all = self.outputs();
        assert!(
            (1..=all).contains(&outputs),
            "first_outputs: {outputs} of {all} rows"
        );
        let segments = self.inner.segments.iter();
        let segments = segments
            .filter(|segment| segment.first < outputs)
            .map(|segment| Segment {
                outputs: segment.outputs.min(outputs - segment.first),
                ..segment.clone()
            });
        Self {
            inner: Arc::new(Inner {
                segments: segments.collect(),
                outputs,
                inputs: self.inputs(),
            }),
        }
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

/// Runs of parts that are kept in one type.
fn alike<'a, 'p>(
    parts: &'a [WeightPart<'p>],
    store_as: Option<DType>,
) -> impl Iterator<Item = (DType, &'a [WeightPart<'p>])> {
    let kept = move |part: &WeightPart<'_>| store_as.unwrap_or(part.dtype);
    let groups = parts.chunk_by(move |a, b| kept(a) == kept(b));
    groups.map(move |group| (kept(&group[0]), group))
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
