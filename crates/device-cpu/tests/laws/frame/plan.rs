//! The rows that tests plan.

use paceline_device::abi::{PlanMessage, PlanRow, SamplingRow, Slot, SlotLists};

/// A request's start in a slot.
pub(crate) struct Admission {
    pub(crate) slot: usize,
    pub(super) generation: u32,
    pub(super) max_length: usize,
    pub(super) stops: Vec<i32>,
    pub(crate) restore: i32,
    pub(crate) sampling: SamplingRow,
}

impl Admission {
    /// A request with parameters of its own that asks for log-probabilities.
    pub(crate) fn new(slot: usize, generation: u32, max_length: usize, stops: &[i32]) -> Self {
        let stops = stops.to_vec();
        let sampling = SamplingRow {
            temperature: 0.5 + slot as f32,
            top_p: 0.9,
            top_k: 10 + generation,
            min_p: 0.01,
            seed: (u64::from(generation) << 32 | slot as u64).into(),
            logprobs: 0,
        };
        Self {
            slot,
            generation,
            max_length,
            stops,
            restore: -1,
            sampling,
        }
    }
}

pub(crate) enum Work {
    Prefill {
        start: usize,
        tokens: Vec<i32>,
        flags: i32,
        following: i32,
    },
    Verify {
        planned: usize,
    },
}

/// A row of a plan, and what the model will choose for it.
pub(crate) struct Row {
    pub(super) slot: usize,
    pub(super) generation: u32,
    pub(crate) work: Work,
    pub(crate) snapshot: Option<(i32, i32)>,
    /// Drafts that equal the choice in their place.
    pub(super) agree: usize,
    /// The choice where they first differ, and behind the last one.
    pub(crate) fresh: i32,
}

impl Row {
    pub(crate) fn prefill(slot: usize, generation: u32, start: usize, count: usize, flags: i32) -> Self {
        let tokens = (start..start + count)
            .map(|p| (p * 3 + slot) as i32 % 12)
            .collect();
        let work = Work::Prefill {
            start,
            tokens,
            flags,
            following: -1,
        };
        Self {
            slot,
            generation,
            work,
            snapshot: None,
            agree: 0,
            fresh: 50,
        }
    }

    pub(crate) fn verify(slot: usize, generation: u32, planned: usize, agree: usize) -> Self {
        Self {
            work: Work::Verify { planned },
            agree,
            ..Self::prefill(slot, generation, 0, 0, 0)
        }
    }
}

impl Row {
    /// Adds the row to a plan.
    pub(super) fn write(&self, message: &mut PlanMessage) {
        let (snapshot_at, snapshot) = self.snapshot.unwrap_or((-1, -1));
        let row = PlanRow {
            slot: self.slot as u32,
            generation: self.generation,
            snapshot_at,
            snapshot,
            ..PlanRow::default()
        };
        match &self.work {
            Work::Prefill {
                start,
                tokens,
                flags,
                following,
            } => {
                let row = PlanRow {
                    kind: PlanRow::PREFILL,
                    start: *start as i32,
                    count: tokens.len() as i32,
                    flags: *flags,
                    following: *following,
                    ..row
                };
                message.push(row, tokens.iter().copied(), []);
            }
            Work::Verify { planned } => {
                let row = PlanRow {
                    kind: PlanRow::VERIFY,
                    count: *planned as i32,
                    ..row
                };
                message.push(row, [], []);
            }
        }
    }
}

impl Admission {
    /// Adds the admission to a plan.
    pub(super) fn write(&self, message: &mut PlanMessage) {
        let state = Slot {
            generation: self.generation,
            max_length: self.max_length as i32,
            restore: self.restore,
            sampling: self.sampling,
            ..Slot::default()
        };
        let stops: Vec<u32> = self.stops.iter().map(|token| *token as u32).collect();
        message.admit(self.slot as u32, state, &SlotLists::encode(&stops, &[], &[]));
    }
}
