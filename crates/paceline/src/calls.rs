//! Whether somebody wants something of the engine's thread: one number for all of them, so that it is one question per step.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Messages that the engine has not taken in yet, and viewers of its steps.
#[derive(Debug, Default)]
pub(crate) struct Calls(AtomicUsize);

impl Calls {
    /// Something is wanted, from now until [`end`](Self::end).
    pub(crate) fn begin(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    /// It has been seen to. A message may be received before its sender has counted it: then the number is a huge one for
    /// a moment, which makes the engine look once for nothing.
    pub(crate) fn end(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Whether there is something to see to.
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_comes_before_its_beginning_leaves_no_call() {
        let calls = Calls::default();
        assert!(!calls.any());
        calls.begin();
        calls.begin();
        calls.end();
        assert!(calls.any());
        calls.end();
        calls.end();
        calls.begin();
        assert!(!calls.any());
    }
}
