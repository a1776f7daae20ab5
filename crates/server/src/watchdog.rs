//! Looks whether the engine gets on with its work, from a thread that waits for nobody else.

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
    steps: u64,
    since: Instant,
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
        let mut watch = Watch {
            engine,
            patience,
            steps: 0,
            since: Instant::now(),
        };
        let interval = INTERVAL.min(patience / 4).max(Duration::from_millis(1));
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
        if !working || steps != self.steps {
            (self.steps, self.since) = (steps, Instant::now());
            return None;
        }
        if self.since.elapsed() < self.patience {
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
