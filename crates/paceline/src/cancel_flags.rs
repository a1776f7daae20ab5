//! What a caller wants of continuations that run: flags between two threads.

use std::sync::atomic::{AtomicU8, Ordering};

const STOP: u8 = 1;
const CANCEL: u8 = 2;

/// How a continuation is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CancelFlag {
    /// Its text is complete.
    Stop,
    /// The client has cancelled it.
    Cancel,
}

/// One flag per continuation. A flag only ever grows.
#[derive(Debug)]
pub(crate) struct CancelFlags(Box<[AtomicU8]>);

impl CancelFlags {
    pub(crate) fn new(choices: usize) -> Self {
        Self((0..choices).map(|_| AtomicU8::new(0)).collect())
    }

    /// A choice that does not exist is ignored.
    pub(crate) fn stop(&self, choice: usize) {
        if let Some(flag) = self.0.get(choice) {
            flag.fetch_max(STOP, Ordering::AcqRel);
        }
    }

    pub(crate) fn cancel_all(&self) {
        for flag in &self.0 {
            flag.fetch_max(CANCEL, Ordering::AcqRel);
        }
    }

    pub(crate) fn of(&self, choice: usize) -> Option<CancelFlag> {
        match self.0.get(choice)?.load(Ordering::Acquire) {
            STOP => Some(CancelFlag::Stop),
            CANCEL => Some(CancelFlag::Cancel),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_concerns_its_choice_and_cancelling_concerns_all() {
        let cancel_flags = CancelFlags::new(2);
        cancel_flags.stop(1);
        cancel_flags.stop(7);
        assert_eq!(
            (cancel_flags.of(0), cancel_flags.of(1)),
            (None, Some(CancelFlag::Stop))
        );
        cancel_flags.cancel_all();
        cancel_flags.stop(0);
        assert_eq!(
            (cancel_flags.of(0), cancel_flags.of(1)),
            (Some(CancelFlag::Cancel), Some(CancelFlag::Cancel))
        );
    }
}
