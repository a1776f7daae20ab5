//! Time as the loop sees it.

use std::time::Instant;

/// A clock that never goes back.
pub trait Clock {
    /// Nanoseconds since some fixed moment.
    fn now_ns(&self) -> u64;
}

/// The machine's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct RealClock(Instant);

impl RealClock {
    /// A clock that starts at 0 now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// A clock with a given zero, to share it with a device.
    pub fn since(zero: Instant) -> Self {
        Self(zero)
    }
}

impl Clock for RealClock {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
