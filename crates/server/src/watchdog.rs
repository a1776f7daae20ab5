//! Looks whether the engine gets on with its work, from a thread that waits for nothing else.

use crate::lifecycle::Lifecycle;
use paceline::Handle;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The longest time between two looks.
const INTERVAL: Duration = Duration::from_millis(500);

/// Looks within its patience, at least: time in which the process stood still is told from other time by looks that come
/// late, so they have to be close to each other.
const LOOKS: u32 = 100;

/// A look that comes after this many intervals is late because the process stood still.
const LATE: u32 = 4;

/// The thread; it ends with this.
pub(crate) struct Watchdog {
    _end: Sender<()>,
}

/// What was seen last.
struct Watch {
    engine: Handle,
    patience: Duration,
    interval: Duration,
    /// Steps done when it last got on.
    steps: u64,
    looked: Instant,
    /// How long it has not got on since then.
    stuck: Duration,
}

impl Watchdog {
    /// Starts to look.
    pub(crate) fn start(
        engine: Handle,
        lifecycle: &Arc<Lifecycle>,
        patience: Duration,
    ) -> std::io::Result<Self> {
        let (end, ended) = channel::<()>();
        let lifecycle = Arc::downgrade(lifecycle);
        let interval = INTERVAL.min(patience / LOOKS).max(Duration::from_millis(1));
        let mut watch = Watch {
            engine,
            patience,
            interval,
            steps: 0,
            looked: Instant::now(),
            stuck: Duration::ZERO,
        };
        std::thread::Builder::new()
            .name("paceline-watchdog".to_owned())
            .spawn(move || {
                while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                    if let Some(reason) = watch.look() {
                        tell(&lifecycle, &reason);
                        return;
                    }
                }
            })?;
        Ok(Self { _end: end })
    }
}

fn tell(lifecycle: &Weak<Lifecycle>, reason: &str) {
    if let Some(lifecycle) = lifecycle.upgrade() {
        lifecycle.fail(reason);
    }
}

impl Watch {
    /// Why the engine counts as failed, if it does.
    fn look(&mut self) -> Option<String> {
        if let Some(reason) = self.engine.fault() {
            return Some(reason);
        }
        let stats = self.engine.stats();
        let steps = stats.pipeline.steps;
        let working = stats.running + stats.waiting > 0;
        let passed = self.looked.elapsed();
        self.looked = Instant::now();
        if !working || steps != self.steps {
            (self.steps, self.stuck) = (steps, Duration::ZERO);
            return None;
        }
        self.stuck += counted(passed, self.interval);
        if self.stuck < self.patience {
            return None;
        }
        tracing::error!("the engine is stuck; its numbers:\n{stats}");
        Some(format!(
            "no step for {} s with {} requests running and {} waiting; {} of {} blocks are in use, {steps} steps were done",
            self.patience.as_secs(),
            stats.running,
            stats.waiting,
            stats.blocks_used,
            stats.blocks,
        ))
    }
}

/// What counts of the time between two looks: no more than the time that the watchdog meant to sleep. If it is much more,
/// the whole process stood still, by a signal or because the machine slept, and the engine could not have got on either.
fn counted(passed: Duration, interval: Duration) -> Duration {
    if passed > LATE * interval {
        Duration::ZERO
    } else {
        passed.min(interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What counts of looks that come after these times, with a patience of a second.
    fn sum(passed: impl IntoIterator<Item = u64>) -> Duration {
        let interval = Duration::from_secs(1) / LOOKS;
        let counted = |passed| counted(Duration::from_millis(passed), interval);
        passed.into_iter().map(counted).sum()
    }

    #[test]
    fn time_in_which_the_process_stood_still_does_not_count() {
        assert_eq!(sum([3_600_000]), Duration::ZERO);
        // Stopped again and again, and never awake for long.
        assert_eq!(sum([600; 1000]), Duration::ZERO);
        assert_eq!(sum([400, 5, 400, 5]), Duration::from_millis(10));
    }

    #[test]
    fn time_in_which_the_engine_could_have_got_on_does() {
        assert_eq!(sum([10; 100]), Duration::from_secs(1));
        // Sleeps are somewhat longer than they were meant to be, more so on a busy machine.
        assert_eq!(sum([11, 15, 30, 39].repeat(25)), Duration::from_secs(1));
    }
}
