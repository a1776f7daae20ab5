//! The pool of saved recurrent states: a fixed number of places, each free, reserved for a state that a step
//! may write, or published: attached to a block of the prefix index.
//!
//! Published states have their own order of use; the least recently used one makes way when a place is wanted
//! and none is free. A state that a planned admission starts from is pinned and stays until it is unpinned.
//! Every operation but [`SnapshotPool::check_integrity`] is O(1).

use crate::list::{Links, List};
use paceline_types::{BlockId, SnapshotId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Reserved,
    /// `None`: its block has left the index while the state was pinned.
    Published(Option<BlockId>),
}

/// Places for states, without their content.
#[derive(Debug)]
pub struct SnapshotPool {
    states: Vec<State>,
    pins: Vec<u32>,
    links: Links,
    free: List,
    /// Published and not pinned.
    unused: List,
    reserved: usize,
}

/// A place for a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The place that was reserved.
    pub id: SnapshotId,
    /// The block whose state made way: the caller detaches it in the index.
    pub evicted_from: Option<BlockId>,
}

impl SnapshotPool {
    /// A pool of free places.
    pub fn new(snapshots: usize) -> Self {
        let mut pool = Self {
            states: vec![State::Free; snapshots],
            pins: vec![0; snapshots],
            links: Links::new(snapshots),
            free: List::new(),
            unused: List::new(),
            reserved: 0,
        };
        for id in 0..snapshots as u32 {
            pool.free.push_newest(&mut pool.links, id);
        }
        pool
    }

    /// Places that fit a budget.
    pub fn places(budget_bytes: u64, bytes_per_snapshot: u64) -> usize {
        assert!(bytes_per_snapshot > 0, "a state has a size");
        (budget_bytes / bytes_per_snapshot) as usize
    }

    /// Places in all.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Whether the pool has no places at all.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Places that are neither reserved nor published.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Places reserved.
    pub fn reserved(&self) -> usize {
        self.reserved
    }

    /// Reserves a place, evicting the least recently used state if none is free.
    pub fn reserve(&mut self) -> Option<Reserved> {
        let (id, evicted_from) = if let Some(id) = self.free.pop_oldest(&mut self.links) {
            (id, None)
        } else {
            let id = self.unused.pop_oldest(&mut self.links)?;
            let State::Published(Some(block)) = self.states[id as usize] else {
                panic!("snapshot {id} waits for eviction without a block");
            };
            (id, Some(block))
        };
        self.states[id as usize] = State::Reserved;
        self.reserved += 1;
        Some(Reserved {
            id: SnapshotId(id),
            evicted_from,
        })
    }

    /// Gives a reserved place back.
    pub fn release(&mut self, id: SnapshotId) {
        self.end_reservation(id);
        self.states[id.0 as usize] = State::Free;
        self.free.push_newest(&mut self.links, id.0);
    }

    /// Attaches a reserved place, written by now, to a block.
    pub fn publish(&mut self, id: SnapshotId, block: BlockId) {
        self.end_reservation(id);
        self.states[id.0 as usize] = State::Published(Some(block));
        self.unused.push_newest(&mut self.links, id.0);
    }

    /// Keeps a published state from being evicted.
    pub fn pin(&mut self, id: SnapshotId) {
        let index = id.0 as usize;
        assert!(
            matches!(self.states[index], State::Published(Some(_))),
            "snapshot {} is pinned while {:?}",
            id.0,
            self.states[index]
        );
        if self.pins[index] == 0 {
            self.unused.remove(&mut self.links, id.0);
        }
        self.pins[index] += 1;
    }

    /// Takes a pin away; the last one makes the state the most recently used.
    pub fn unpin(&mut self, id: SnapshotId) {
        let index = id.0 as usize;
        assert!(self.pins[index] > 0, "snapshot {} was unpinned twice", id.0);
        self.pins[index] -= 1;
        if self.pins[index] > 0 {
            return;
        }
        if self.states[index] == State::Published(None) {
            self.states[index] = State::Free;
            self.free.push_newest(&mut self.links, id.0);
        } else {
            self.unused.push_newest(&mut self.links, id.0);
        }
    }

    /// Notes that a published state's block has left the index: the place is free once it is not pinned.
    pub fn detach(&mut self, id: SnapshotId) {
        let index = id.0 as usize;
        assert!(
            matches!(self.states[index], State::Published(Some(_))),
            "snapshot {} was detached while {:?}",
            id.0,
            self.states[index]
        );
        if self.pins[index] > 0 {
            self.states[index] = State::Published(None);
        } else {
            self.unused.remove(&mut self.links, id.0);
            self.states[index] = State::Free;
            self.free.push_newest(&mut self.links, id.0);
        }
    }

    /// Notes that another block stands for a published state's block.
    pub fn moved(&mut self, id: SnapshotId, block: BlockId) {
        let State::Published(holder @ Some(_)) = &mut self.states[id.0 as usize] else {
            panic!("snapshot {} moved without a block", id.0);
        };
        *holder = Some(block);
    }

    /// Panics unless every place is in exactly one state and `attached` is what the index says. Linear.
    pub fn check_integrity(&self, attached: &[(BlockId, SnapshotId)]) {
        let mut listed = vec![0; self.len()];
        for id in self.free.items(&self.links) {
            assert!(
                self.states[id as usize] == State::Free,
                "snapshot {id} is free and in use"
            );
            listed[id as usize] += 1;
        }
        for id in self.unused.items(&self.links) {
            assert!(
                self.pins[id as usize] == 0,
                "snapshot {id} is pinned and evictable"
            );
            assert!(
                matches!(self.states[id as usize], State::Published(Some(_))),
                "snapshot {id} is evictable without being published"
            );
            listed[id as usize] += 1;
        }
        for (id, listed) in listed.iter().enumerate() {
            let alone = self.states[id] == State::Reserved || self.pins[id] > 0;
            assert!(
                *listed == usize::from(!alone),
                "snapshot {id} is in {listed} lists"
            );
            assert!(
                self.pins[id] > 0 || self.states[id] != State::Published(None),
                "snapshot {id} has lost its block and is kept"
            );
        }
        let reserved = self
            .states
            .iter()
            .filter(|state| **state == State::Reserved)
            .count();
        assert!(
            reserved == self.reserved,
            "{reserved} snapshots reserved, {} counted",
            self.reserved
        );
        for (block, id) in attached {
            assert!(
                self.states[id.0 as usize] == State::Published(Some(*block)),
                "block {} names snapshot {}, which is {:?}",
                block.0,
                id.0,
                self.states[id.0 as usize]
            );
        }
        let published = |state: &&State| matches!(state, State::Published(Some(_)));
        let published = self.states.iter().filter(published).count();
        assert!(
            published == attached.len(),
            "{published} snapshots published, {} attached",
            attached.len()
        );
    }

    fn end_reservation(&mut self, id: SnapshotId) {
        assert!(
            self.states[id.0 as usize] == State::Reserved,
            "snapshot {} is not reserved but {:?}",
            id.0,
            self.states[id.0 as usize]
        );
        self.reserved -= 1;
    }
}
