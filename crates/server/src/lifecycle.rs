//! Serving, draining, failed: the state of the server, and how tasks wait for a change of it.

use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// Where the server stands. It only ever moves down this list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Requests are taken.
    Serving,
    /// What runs may finish; nothing new is taken.
    Draining,
    /// The engine is gone, for this reason.
    Failed(String),
}

/// The state of the whole server.
pub(crate) struct Lifecycle {
    phase: watch::Sender<Phase>,
    /// Ends every generation that can go on elsewhere.
    moving: CancellationToken,
    /// Ends every generation that is still running.
    abort: CancellationToken,
    /// Generations that run, from their admission to the last byte of their reply.
    active: AtomicUsize,
    idle: Notify,
}

impl Lifecycle {
    pub(crate) fn new() -> Self {
        Self {
            phase: watch::Sender::new(Phase::Serving),
            moving: CancellationToken::new(),
            abort: CancellationToken::new(),
            active: AtomicUsize::new(0),
            idle: Notify::new(),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase.borrow().clone()
    }

    /// Takes no new requests from now on, and ends those that can go on elsewhere.
    pub(crate) fn drain(&self) {
        self.phase.send_if_modified(|phase| {
            let serving = *phase == Phase::Serving;
            if serving {
                *phase = Phase::Draining;
            }
            serving
        });
        self.moving.cancel();
    }

    /// The engine is gone. The first reason counts.
    pub(crate) fn fail(&self, reason: &str) {
        let news = self.phase.send_if_modified(|phase| {
            let first = !matches!(phase, Phase::Failed(_));
            if first {
                *phase = Phase::Failed(reason.to_owned());
            }
            first
        });
        if news {
            tracing::error!("the engine has failed: {reason}");
        }
    }

    /// Waits for a failure and returns its reason.
    pub(crate) async fn failed(&self) -> String {
        let mut phases = self.phase.subscribe();
        loop {
            if let Phase::Failed(reason) = &*phases.borrow_and_update() {
                return reason.clone();
            }
            if phases.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Ends what still runs.
    pub(crate) fn abort(&self) {
        self.abort.cancel();
    }

    /// Tells a generation that can go on elsewhere when it has to.
    pub(crate) fn moving_token(&self) -> CancellationToken {
        self.moving.clone()
    }

    /// Tells a generation when it has to end.
    pub(crate) fn abort_token(&self) -> CancellationToken {
        self.abort.clone()
    }

    /// Generations that run.
    pub(crate) fn active(&self) -> usize {
        self.active.load(Ordering::Acquire)
    }

    pub(crate) fn enter(&self) -> usize {
        self.active.fetch_add(1, Ordering::AcqRel)
    }

    pub(crate) fn leave(&self) {
        if self.active.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.idle.notify_waiters();
        }
    }

    /// Waits until no generation runs.
    pub(crate) async fn idle(&self) {
        loop {
            let notified = self.idle.notified();
            if self.active() == 0 {
                return;
            }
            notified.await;
        }
    }
}
