//! Owners of parts of the caches: dropping one gives its part back.

use crate::hybrid::Store;
use paceline_types::{BlockId, SnapshotId};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The caches behind a lock.
///
/// One thread, the engine's, uses them, so the lock is never contended and costs some twenty nanoseconds; it is
/// there so that owners can be dropped wherever they are and the engine can be built on one thread and moved to
/// another, which a `Rc` would forbid.
#[derive(Clone, Debug)]
pub(crate) struct Shared(Arc<Mutex<Store>>);

impl Shared {
    pub(crate) fn new(store: Store) -> Self {
        Self(Arc::new(Mutex::new(store)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Store> {
        // A panic elsewhere has already stopped the engine; drops on the way out must not panic again.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Blocks that a request holds, in the order of its positions.
#[derive(Debug)]
pub struct Blocks {
    ids: Vec<BlockId>,
    shared: Shared,
}

impl Blocks {
    pub(crate) fn new(shared: Shared) -> Self {
        Self {
            ids: Vec::new(),
            shared,
        }
    }

    /// Takes over a reference.
    pub(crate) fn push(&mut self, block: BlockId) {
        self.ids.push(block);
    }

    /// Gives back all but the first `len`.
    pub fn truncate(&mut self, len: usize) {
        if len < self.ids.len() {
            // From the end, so that the end of a chain is evicted before what it hangs from.
            let mut store = self.shared.lock();
            for block in self.ids.drain(len..).rev() {
                store.blocks.release(block);
            }
        }
    }
}

impl Deref for Blocks {
    type Target = [BlockId];

    fn deref(&self) -> &[BlockId] {
        &self.ids
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        self.truncate(0);
    }
}

/// A place for a recurrent state that a step may write.
#[derive(Debug)]
pub struct Reservation {
    id: SnapshotId,
    /// Whether the place goes back on drop.
    open: bool,
    shared: Shared,
}

impl Reservation {
    pub(crate) fn new(id: SnapshotId, shared: Shared) -> Self {
        Self {
            id,
            open: true,
            shared,
        }
    }

    /// The place.
    pub fn id(&self) -> SnapshotId {
        self.id
    }

    /// Ends the reservation without giving the place back: it is published.
    pub(crate) fn close(mut self) {
        self.open = false;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.open {
            self.shared.lock().snapshots.release(self.id);
        }
    }
}

/// A saved state that an admission starts from: it stays as it is until this is dropped.
#[derive(Debug)]
pub struct Restore {
    id: SnapshotId,
    shared: Shared,
}

impl Restore {
    /// Takes over a pin.
    pub(crate) fn new(id: SnapshotId, shared: Shared) -> Self {
        Self { id, shared }
    }

    /// The state.
    pub fn id(&self) -> SnapshotId {
        self.id
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        self.shared.lock().snapshots.unpin(self.id);
    }
}
