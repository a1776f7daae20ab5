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

/// This moment as RFC 3339 writes it.
pub(crate) fn rfc3339_now() -> String {
    rfc3339(unix_time())
}

/// Seconds since 1970 as RFC 3339 writes them.
pub(crate) fn rfc3339(seconds: u64) -> String {
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let leaps = |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let mut year = 1970;
    while days >= 365 + u64::from(leaps(year)) {
        days -= 365 + u64::from(leaps(year));
        year += 1;
    }
    let mut month = 1;
    for length in [
        31,
        28 + u64::from(leaps(year)),
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
    ] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!(
        "{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z",
        days + 1
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_771_545_600, "2026-02-20T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds), text);
        }
    }

    #[test]
    fn no_two_are_the_same() {
        assert_ne!(random(), random());
        assert!(identifier("x-").starts_with("x-"));
    }
}
