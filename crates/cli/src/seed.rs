//! Seeds where none is given.

use std::hash::{BuildHasher, RandomState};

/// A seed that is another one every time; short enough to be typed again.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0) & 0xffff_ffff
}
