//! Handles of a [`Checked`] backend: those of the backend inside, with names.

use super::watch::Place;
use super::{Checked, Shared};
use crate::{
    Backend, DeviceError, Element, MoeRouting, NgramIndex, Pending, PoolTable, Rows, SlotTable, StepRecord,
    StepRings, StepTables,
};

/// A buffer and its length.
#[derive(Clone)]
pub struct CheckedBuffer<B: Backend, T: Element> {
    pub(super) inner: B::Buffer<T>,
    pub(super) name: u64,
    pub(super) len: usize,
}

impl<B: Backend, T: Element> CheckedBuffer<B, T> {
    /// The buffer inside.
    pub fn inner(&self) -> &B::Buffer<T> {
        &self.inner
    }
}

/// A tensor and its place.
#[derive(Clone)]
pub struct CheckedTensor<B: Backend> {
    pub(super) inner: B::Tensor,
    pub(super) place: Place,
    /// Rows that the program is shaped for.
    pub(super) bucket: usize,
    /// Rows and columns that the storage has room for.
    pub(super) room: (usize, usize),
}

/// A program and its name.
#[derive(Clone)]
pub struct CheckedProgram<B: Backend> {
    pub(super) inner: B::Program,
    pub(super) name: u64,
}

/// A ring and the words of a place.
#[derive(Clone)]
pub struct CheckedRing<B: Backend> {
    pub(super) inner: B::Ring,
    pub(super) words: usize,
}

/// A record in flight, and what to say when it is there.
pub struct CheckedArrival<B: Backend> {
    pub(super) inner: B::Arrival,
    pub(super) shared: Shared,
    /// The place that the step gives back.
    pub(super) place: usize,
}

impl<B: Backend> Pending<Vec<i32>> for CheckedArrival<B> {
    fn wait(self) -> Result<Vec<i32>, DeviceError> {
        let record = self.inner.wait();
        self.shared.lock().arrived(self.place);
        record
    }
}

impl<B: Backend> Checked<B> {
    pub(super) fn rows(rows: &Rows<Self>) -> Rows<B> {
        Rows {
            bucket: rows.bucket,
            live: rows.live.inner.clone(),
        }
    }

    /// The tables of the backend inside. Their buffers have room for the rows that the program is shaped for.
    pub(super) fn step(tables: &StepTables<Self>) -> StepTables<B> {
        let room = [
            ("token rows", tables.token_rows.len, tables.tokens.bucket),
            ("request rows", tables.request_rows.len, tables.requests.bucket),
            ("rows of logits", tables.logits_rows.len, tables.samples.bucket),
        ];
        for (what, len, bucket) in room {
            assert!(
                bucket <= len,
                "contract: a program for {bucket} {what}, of which there are {len}"
            );
        }
        StepTables {
            limits: tables.limits,
            tokens: Self::rows(&tables.tokens),
            requests: Self::rows(&tables.requests),
            samples: Self::rows(&tables.samples),
            token_rows: tables.token_rows.inner.clone(),
            request_rows: tables.request_rows.inner.clone(),
            logits_rows: tables.logits_rows.inner.clone(),
            block_table: tables.block_table.inner.clone(),
        }
    }

    pub(super) fn slots(slots: &SlotTable<Self>) -> SlotTable<B> {
        let limits = slots.limits;
        assert!(
            slots.state.len >= limits.slots
                && slots.block_table.len >= limits.slots * limits.blocks_per_slot
                && slots.history.len >= limits.blocks * limits.block_size,
            "contract: a table of slots is smaller than its limits say"
        );
        SlotTable {
            limits,
            state: slots.state.inner.clone(),
            lists: slots.lists.inner.clone(),
            block_table: slots.block_table.inner.clone(),
            history: slots.history.inner.clone(),
            drafter_saved: slots.drafter_saved.inner.clone(),
        }
    }

    pub(super) fn record(record: &StepRecord<Self>) -> StepRecord<B> {
        StepRecord {
            header: record.header.inner.clone(),
            rows: record.rows.inner.clone(),
        }
    }

    pub(super) fn rings(rings: &StepRings<Self>) -> StepRings<B> {
        StepRings {
            depth: rings.depth,
            plans: rings.plans.inner.clone(),
            records: rings.records.inner.clone(),
            begun: rings.begun.inner.clone(),
        }
    }

    pub(super) fn pool(table: &PoolTable<Self>) -> PoolTable<B> {
        PoolTable {
            sums: table.sums.inner.clone(),
            done: table.done.inner.clone(),
            width: table.width,
        }
    }

    pub(super) fn ngrams(index: &NgramIndex<Self>) -> NgramIndex<B> {
        NgramIndex {
            min: index.min,
            max: index.max,
            entries: index.entries.inner.clone(),
            buckets: index.buckets,
        }
    }

    pub(super) fn routing(routing: &MoeRouting<Self>) -> MoeRouting<B> {
        MoeRouting {
            ids: routing.ids.inner.clone(),
            weights: routing.weights.inner.clone(),
            chosen: routing.chosen,
        }
    }
}
