//! What a caller wants of continuations that run: flags between two threads.

use std::sync::atomic::{AtomicU8, Ordering};

const STOP: u8 = 1;
const CANCEL: u8 = 2;

/// How a continuation is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Its text is complete.
    Stop,
    /// Nobody wants it any more.
    Cancel,
}

/// One flag per continuation. A flag only ever grows.
#[derive(Debug)]
pub(crate) struct Wishes(Box<[AtomicU8]>);

impl Wishes {
    pub(crate) fn new(choices: usize) -> Self {
        Self((0..choices).map(|_| AtomicU8::new(0)).collect())
    }

    /// A choice that does not exist is nobody's.
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

    pub(crate) fn of(&self, choice: usize) -> Option<Wish> {
        match self.0.get(choice)?.load(Ordering::Acquire) {
            STOP => Some(Wish::Stop),
            CANCEL => Some(Wish::Cancel),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_concerns_its_choice_and_cancelling_concerns_all() {
        let wishes = Wishes::new(2);
        wishes.stop(1);
        wishes.stop(7);
        assert_eq!((wishes.of(0), wishes.of(1)), (None, Some(Wish::Stop)));
        wishes.cancel_all();
        wishes.stop(0);
        assert_eq!(
            (wishes.of(0), wishes.of(1)),
            (Some(Wish::Cancel), Some(Wish::Cancel))
        );
    }
}
