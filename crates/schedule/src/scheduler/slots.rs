//! Slots and their generations.

use crate::request::RequestId;
use paceline_types::SlotId;

/// The owner of each slot. A slot's generation grows with every new owner, so that late results find none.
#[derive(Debug)]
pub(super) struct Slots {
    free: Vec<SlotId>,
    generations: Vec<u32>,
    owners: Vec<Option<RequestId>>,
}

impl Slots {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            free: (0..slots as u32).rev().map(SlotId).collect(),
            generations: vec![0; slots],
            owners: vec![None; slots],
        }
    }

    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// Gives a free slot to a request.
    pub(super) fn take(&mut self, id: RequestId) -> Option<(SlotId, u32)> {
        let slot = self.free.pop()?;
        let index = slot.0 as usize;
        assert!(self.owners[index].is_none(), "slot {index} was free and owned");
        self.owners[index] = Some(id);
        self.generations[index] = self.generations[index].wrapping_add(1);
        Some((slot, self.generations[index]))
    }

    pub(super) fn release(&mut self, slot: SlotId, generation: u32) {
        let index = slot.0 as usize;
        assert!(
            self.generations[index] == generation,
            "slot {index} was released by a former owner"
        );
        assert!(
            self.owners[index].take().is_some(),
            "slot {index} was released twice"
        );
        self.free.push(slot);
    }

    /// The owner, if it is still the one of that generation.
    pub(super) fn owner(&self, slot: SlotId, generation: u32) -> Option<RequestId> {
        let index = slot.0 as usize;
        self.owners[index].filter(|_| self.generations[index] == generation)
    }

    /// Panics unless every slot is either free or owned.
    pub(super) fn check_integrity(&self) {
        let owned = self.owners.iter().flatten().count();
        assert!(
            owned + self.free.len() == self.owners.len(),
            "{owned} slots owned, {} free",
            self.free.len()
        );
        for slot in &self.free {
            assert!(
                self.owners[slot.0 as usize].is_none(),
                "slot {} is free and owned",
                slot.0
            );
        }
    }
}
