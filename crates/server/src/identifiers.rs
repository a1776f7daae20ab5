//! Names and numbers that must differ from all others.

use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

/// 64 random bits. The standard library seeds its hash maps from the system's randomness; nothing secret is made
/// of these.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0)
}

/// An identifier such as `chatcmpl-…`.
pub(crate) fn identifier(prefix: &str) -> String {
    format!("{prefix}{:016x}{:016x}", random(), random())
}

/// Seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_are_the_same() {
        assert_ne!(random(), random());
        assert!(identifier("x-").starts_with("x-"));
    }
}
