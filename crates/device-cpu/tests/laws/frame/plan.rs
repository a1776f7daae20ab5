//! The rows that tests plan, and their words.

use paceline_device::{plan, slot};

/// A request's start in a slot.
pub(crate) struct Admission {
    pub(crate) slot: usize,
    pub(super) generation: i32,
    pub(super) max_length: usize,
    pub(super) stops: Vec<i32>,
    pub(crate) restore: i32,
}

impl Admission {
    pub(crate) fn new(slot: usize, generation: i32, max_length: usize, stops: &[i32]) -> Self {
        let stops = stops.to_vec();
        Self {
            slot,
            generation,
            max_length,
            stops,
            restore: -1,
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
    pub(super) generation: i32,
    pub(crate) work: Work,
    pub(crate) snapshot: Option<(i32, i32)>,
    /// Drafts that equal the choice in their place.
    pub(super) agree: usize,
    /// The choice where they first differ, and behind the last one.
    pub(crate) fresh: i32,
}

impl Row {
    pub(crate) fn prefill(slot: usize, generation: i32, start: usize, count: usize, flags: i32) -> Self {
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

    pub(crate) fn verify(slot: usize, generation: i32, planned: usize, agree: usize) -> Self {
        Self {
            work: Work::Verify { planned },
            agree,
            ..Self::prefill(slot, generation, 0, 0, 0)
        }
    }
}

impl Row {
    pub(super) fn encode(&self) -> [i32; plan::ROW] {
        let mut words = [0; plan::ROW];
        words[plan::ROW_SLOT] = self.slot as i32;
        words[plan::ROW_GENERATION] = self.generation;
        match &self.work {
            Work::Prefill {
                start,
                tokens,
                flags,
                following,
            } => {
                words[plan::ROW_KIND] = plan::PREFILL;
                words[plan::ROW_START] = *start as i32;
                words[plan::ROW_COUNT] = tokens.len() as i32;
                words[plan::ROW_FLAGS] = *flags;
                words[plan::ROW_FOLLOWING] = *following;
            }
            Work::Verify { planned } => {
                words[plan::ROW_KIND] = plan::VERIFY;
                words[plan::ROW_COUNT] = *planned as i32;
            }
        }
        let (position, id) = self.snapshot.unwrap_or((-1, -1));
        words[plan::ROW_SNAPSHOT_AT] = position;
        words[plan::ROW_SNAPSHOT] = id;
        words
    }
}

impl Admission {
    /// The admission's words in a plan.
    pub(super) fn encode(&self) -> Vec<i32> {
        let mut state = [0; slot::INTS];
        state[slot::GENERATION] = self.generation;
        state[slot::MAX_LENGTH] = self.max_length as i32;
        state[slot::RESTORE] = self.restore;
        let lists = [&[self.stops.len() as i32], &self.stops[..], &[0, 0]].concat();
        [&[self.slot as i32, lists.len() as i32], &state[..], &lists].concat()
    }
}
