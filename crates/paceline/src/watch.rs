//! Steps as they are done, for those who look. Nothing is recorded while nobody does; nobody who looks is waited for.

use crate::calls::Calls;
use paceline_schedule::{Span, StepRecord};
use paceline_types::MAX_DRAFTS;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Steps kept for those who come later, or read slowly.
const RECENT: usize = 512;

/// Steps kept of an engine that was told to trace.
const TRACED: usize = 1 << 20;

/// A step with what only a viewer wants to know of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchedStep {
    /// The step.
    pub record: StepRecord,
    /// Tokens of prompts that it ran.
    pub prompt_tokens: usize,
    /// Drafts that it accepted, by their place in the verify window.
    pub accepted_by_position: [u32; MAX_DRAFTS],
    /// Handing its outputs to the readers of requests: from where they were taken in until the engine turns to the next.
    pub emit: Span,
}

/// The newest steps, and how many viewers there are.
pub(crate) struct Watch {
    viewers: AtomicUsize,
    /// The engine is called for each of them.
    calls: Arc<Calls>,
    limit: usize,
    recent: Mutex<Recent>,
    #[cfg(test)]
    asked: AtomicUsize,
}

#[derive(Default)]
struct Recent {
    steps: VecDeque<WatchedStep>,
    /// Steps recorded before the first of these.
    dropped: u64,
}

impl Watch {
    /// `always`: as if somebody looked from the start, and with room for many steps.
    pub(crate) fn new(always: bool, calls: Arc<Calls>) -> Self {
        let watch = Self {
            viewers: AtomicUsize::new(0),
            calls,
            limit: if always { TRACED } else { RECENT },
            recent: Mutex::default(),
            #[cfg(test)]
            asked: AtomicUsize::new(0),
        };
        if always {
            watch.begin();
        }
        watch
    }

    fn begin(&self) {
        self.viewers.fetch_add(1, Ordering::Relaxed);
        self.calls.begin();
    }

    fn end(&self) {
        self.viewers.fetch_sub(1, Ordering::Relaxed);
        self.calls.end();
    }

    /// Whether steps are recorded.
    pub(crate) fn is_on(&self) -> bool {
        #[cfg(test)]
        self.asked.fetch_add(1, Ordering::Relaxed);
        cfg!(not(feature = "unwatched")) && self.viewers.load(Ordering::Relaxed) > 0
    }

    /// How often that was asked.
    #[cfg(test)]
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    pub(crate) fn push(&self, step: WatchedStep) {
        let mut recent = self.lock();
        if recent.steps.len() == self.limit {
            recent.steps.pop_front();
            recent.dropped += 1;
        }
        recent.steps.push_back(step);
    }

    /// The newest of the recorded steps, at most so many.
    pub(crate) fn newest(&self, most: usize) -> Vec<WatchedStep> {
        let recent = self.lock();
        let skipped = recent.steps.len().saturating_sub(most);
        recent.steps.range(skipped..).copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A viewer of steps. While there is one, steps are recorded.
pub struct StepViewer {
    watch: Arc<Watch>,
    /// Steps recorded before the next one to be seen.
    next: u64,
}

impl StepViewer {
    pub(crate) fn new(watch: Arc<Watch>) -> Self {
        watch.begin();
        Self { watch, next: 0 }
    }

    /// Steps that were recorded since the last call, at first all that are kept, and how many this viewer has missed
    /// because it came back too late.
    pub fn take(&mut self) -> (Vec<WatchedStep>, u64) {
        let recent = self.watch.lock();
        let newest = recent.dropped + recent.steps.len() as u64;
        let skipped = self
            .next
            .saturating_sub(recent.dropped)
            .min(newest - recent.dropped);
        let missed = recent.dropped.saturating_sub(self.next);
        let steps = recent.steps.range(skipped as usize..).copied().collect();
        let missed = if self.next == 0 { 0 } else { missed };
        self.next = newest;
        (steps, missed)
    }

    /// Most steps that are kept for a viewer.
    pub fn kept(&self) -> usize {
        self.watch.limit
    }
}

impl Drop for StepViewer {
    fn drop(&mut self) {
        self.watch.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(number: u64) -> WatchedStep {
        WatchedStep {
            record: StepRecord {
                step: number,
                ..StepRecord::default()
            },
            ..WatchedStep::default()
        }
    }

    fn numbers((steps, missed): (Vec<WatchedStep>, u64)) -> (Vec<u64>, u64) {
        (steps.iter().map(|step| step.record.step).collect(), missed)
    }

    #[test]
    fn a_viewer_gets_every_step_once_and_is_told_what_it_missed() {
        let calls = Arc::new(Calls::default());
        let watch = Arc::new(Watch::new(false, Arc::clone(&calls)));
        assert!(!watch.is_on() && !calls.any());
        let mut first = StepViewer::new(Arc::clone(&watch));
        assert!(watch.is_on() && calls.any());
        watch.push(step(1));
        watch.push(step(2));
        assert_eq!(numbers(first.take()), (vec![1, 2], 0));
        assert_eq!(numbers(first.take()), (vec![], 0));
        let most = RECENT as u64;
        (3..most + 6).for_each(|number| watch.push(step(number)));
        let (seen, missed) = numbers(first.take());
        assert_eq!((seen.len(), seen[0], missed), (RECENT, 6, 3));
        let mut second = StepViewer::new(Arc::clone(&watch));
        assert_eq!(numbers(second.take()).0.len(), RECENT);
        drop((first, second));
        assert!(!watch.is_on() && !calls.any());
        assert_eq!(
            watch
                .newest(2)
                .iter()
                .map(|step| step.record.step)
                .collect::<Vec<_>>(),
            [most + 4, most + 5]
        );
    }
}
