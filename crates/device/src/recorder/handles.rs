//! What a recorder hands out: names and shapes without contents, and how much storage they would take.

use crate::abi::{Plan, PlanRow, RecordHeader};
use crate::{DeviceError, Element, HeadNorms, Pending, Recorder, RouteScores};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that storage would take, for as long as anything refers to it.
#[derive(Debug)]
pub(super) struct Held {
    bytes: u64,
    all: Arc<AtomicU64>,
}

impl Held {
    pub(super) fn new(bytes: u64, all: &Arc<AtomicU64>) -> Arc<Self> {
        all.fetch_add(bytes, Ordering::Relaxed);
        let all = Arc::clone(all);
        Arc::new(Self { bytes, all })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A buffer without contents.
#[derive(Clone, Debug)]
pub struct RecorderBuffer {
    pub(super) id: usize,
    pub(super) len: usize,
    pub(super) _held: Arc<Held>,
}

/// A tensor without contents.
#[derive(Clone, Debug)]
pub struct RecorderTensor {
    pub(super) id: usize,
    pub(super) rows: usize,
    pub(super) columns: Range<usize>,
    pub(super) held: Arc<Held>,
}

/// A weight without contents.
#[derive(Clone, Debug)]
pub struct RecorderWeight {
    pub(super) id: usize,
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    /// Made for a product and its activation.
    pub(super) gated: bool,
}

/// A cache without contents.
#[derive(Clone, Debug)]
pub struct RecorderCache {
    pub(super) id: usize,
}

/// A read that has nothing to give.
pub struct RecorderRead {
    pub(super) len: usize,
    pub(super) waits: Arc<AtomicU64>,
}

impl<T: Element> Pending<Vec<T>> for RecorderRead {
    fn wait(self) -> Result<Vec<T>, DeviceError> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        Ok(vec![T::default(); self.len])
    }
}

/// A record in which nothing was chosen.
pub struct RecorderArrival {
    pub(super) words: Vec<i32>,
    pub(super) waits: Arc<AtomicU64>,
}

impl Pending<Vec<i32>> for RecorderArrival {
    fn wait(self) -> Result<Vec<i32>, DeviceError> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        Ok(self.words)
    }
}

/// A record with all the parts that a plan asks for, and zeroes in them.
pub(super) fn empty_record(plan: &Plan<'_>) -> Vec<i32> {
    let count = |wanted: fn(&PlanRow) -> bool| plan.rows.iter().filter(|row| wanted(row)).count() as u32;
    let known = plan.rows.iter().filter(|row| row.is(PlanRow::SAMPLE_ALL));
    let header = RecordHeader {
        step: plan.header.step,
        rows: plan.header.rows,
        logprobs: known.map(|row| row.count as u32).sum(),
        drafts: count(|row| row.is(PlanRow::SHOW_DRAFTS)),
        embeddings: count(PlanRow::embeds),
        embedding_width: 1,
        ..RecordHeader::default()
    };
    let mut words = vec![0; header.words()];
    words[..RecordHeader::WORDS].copy_from_slice(bytemuck::cast_slice(&[header]));
    words
}

/// `-` for an operand that is absent.
pub(super) struct Optional<'a, T>(pub(super) Option<&'a T>);

impl<T: fmt::Display> fmt::Display for Optional<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(operand) => operand.fmt(f),
            None => f.write_str("-"),
        }
    }
}

impl fmt::Display for HeadNorms<'_, Recorder> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.q, self.k, self.eps)
    }
}

impl fmt::Display for RouteScores<'_, Recorder> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Softmax { renormalise } => write!(f, "softmax {renormalise}"),
            Self::Sigmoid {
                bias,
                groups,
                kept_groups,
                renormalise,
                scale,
            } => write!(f, "sigmoid {bias} {groups} {kept_groups} {renormalise} {scale}"),
        }
    }
}

impl fmt::Display for RecorderBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}[{}]", self.id, self.len)
    }
}

impl fmt::Display for RecorderTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "t{}[{}, {}..{}]",
            self.id, self.rows, self.columns.start, self.columns.end
        )
    }
}

impl fmt::Display for RecorderWeight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.gated { "gated " } else { "" };
        write!(f, "{kind}w{}[{}, {}]", self.id, self.outputs, self.inputs)
    }
}

impl fmt::Display for RecorderCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}", self.id)
    }
}
