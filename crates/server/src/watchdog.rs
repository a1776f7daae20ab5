//! Looks whether the engine gets on with its work, from a thread that waits for nothing else.

use crate::lifecycle::Lifecycle;
use paceline::Handle;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often it looks, unless its patience is shorter.
const INTERVAL: Duration = Duration::from_millis(500);

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
        let interval = INTERVAL.min(patience / 4).max(Duration::from_millis(1));
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

/// What counts of the time between two looks. If it is much more than it should be, the whole process stood still, by a
/// signal or because the machine slept, and the engine could not have got on either.
fn counted(passed: Duration, interval: Duration) -> Duration {
    passed.min(2 * interval)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_the_process_stood_still_does_not_count() {
        let interval = Duration::from_millis(500);
        assert_eq!(
            counted(Duration::from_millis(510), interval),
            Duration::from_millis(510)
        );
        assert_eq!(counted(Duration::from_hours(1), interval), 2 * interval);
    }
}
