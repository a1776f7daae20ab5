//! How long a compilation may take, and how it is given up.

use crate::error::GrammarError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The time for one compilation. It is looked at between the steps of the work, each of which is bounded by the limits
/// on what is compiled; so a compilation that is given up ends soon. Clones share it.
#[derive(Clone, Debug)]
pub struct CompileBudget {
    until: Instant,
    time: Duration,
    cancelled: Arc<AtomicBool>,
}

impl CompileBudget {
    /// This much time, from now on.
    pub fn new(time: Duration) -> Self {
        Self {
            until: Instant::now() + time,
            time,
            cancelled: Arc::default(),
        }
    }

    /// The request that asked for the grammar has given up.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether the work may go on.
    pub(crate) fn check(&self) -> Result<(), GrammarError> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(GrammarError::Cancelled);
        }
        if Instant::now() >= self.until {
            return Err(GrammarError::TooSlow { time: self.time });
        }
        Ok(())
    }
}

impl Default for CompileBudget {
    /// What a grammar within the limits never needs on a machine that is not overloaded.
    fn default() -> Self {
        Self::new(Duration::from_secs(10))
    }
}
