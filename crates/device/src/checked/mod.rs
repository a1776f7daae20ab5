//! A backend around any backend that checks the contract.
//!
//! It looks at what is asked of the device, not at what the device does: every buffer has room for the rows that an
//! operation is shaped for; an operation reads nothing of a tensor but what an earlier operation of the same program
//! wrote, over the same rows, not as scratch, and not into memory that has been handed out again; it writes over nothing
//! that it reads; a weight is used by the operations that it was packed for; behind [`Checked::seal`] nothing is
//! allocated, captured or run outside the programs that exist by then; and no place of a ring is written while a step in
//! flight has it. A breach is a panic that names the operation. It also can be lost on purpose. For tests.

mod backend;
mod handles;
mod operands;
mod operations;
#[cfg(test)]
mod tests;
mod watch;
mod wide;

pub use handles::{CheckedArrival, CheckedBuffer, CheckedProgram, CheckedRing, CheckedTensor, CheckedWeight};

use crate::Backend;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use watch::Watch;

/// The backend and what it has seen.
#[derive(Clone)]
pub struct Checked<B: Backend> {
    inner: B,
    shared: Shared,
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Watch>>);

impl Shared {
    /// A breach of the contract panics with the lock held; what the watch knows is still true.
    fn lock(&self) -> MutexGuard<'_, Watch> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: Backend> Checked<B> {
    /// Checks what is asked of `inner`.
    pub fn new(inner: B) -> Self {
        Self {
            inner,
            shared: Shared::default(),
        }
    }

    /// The backend inside.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    /// The device is lost behind this many launches: nothing runs any more, and whoever waits is told.
    pub fn lose_after(&self, launches: u64) {
        self.shared.lock().lose_after(launches);
    }

    /// The start is over: nothing is allocated or captured from now on, and nothing runs but programs.
    pub fn seal(&self) {
        self.shared.lock().seal();
    }
}
