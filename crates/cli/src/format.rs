//! Numbers and tables for people.

pub(crate) use paceline_bench::format::{Facts, grouped, preview};

use std::time::Duration;

/// Bytes with a unit that keeps the number short: `20.1 MB`.
pub(crate) fn bytes(count: u64) -> String {
    scaled(count as f64, &["B", "kB", "MB", "GB", "TB"])
}

/// A count with a unit that keeps the number short: `4.21 B`.
pub(crate) fn count(count: u64) -> String {
    scaled(count as f64, &["", "k", "M", "B", "T"])
}

fn scaled(mut value: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = match value {
        _ if unit == 0 => 0,
        value if value < 10.0 => 2,
        value if value < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {}", units[unit]).trim_end().to_owned()
}

/// The end of a name, cut to `most` characters.
pub(crate) fn ending(name: &str, most: usize) -> String {
    match name.chars().count().checked_sub(most) {
        None | Some(0) => name.to_owned(),
        Some(more) => ['…'].into_iter().chain(name.chars().skip(more + 1)).collect(),
    }
}

/// How long ago something was, in the largest unit that is not 0.
pub(crate) fn ago(time: Duration) -> String {
    let seconds = time.as_secs();
    let (count, unit) = match seconds {
        0..60 => return "just now".to_owned(),
        60..3600 => (seconds / 60, "minute"),
        3600..86_400 => (seconds / 3600, "hour"),
        86_400..31_536_000 => (seconds / 86_400, "day"),
        _ => (seconds / 31_536_000, "year"),
    };
    format!("{count} {unit}{} ago", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short_and_rounded() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(20_080_312), "20.1 MB");
        assert_eq!(bytes(999_600_000), "1.00 GB");
        assert_eq!(count(9_100_000), "9.10 M");
        assert_eq!(count(79_670_000_000), "79.7 B");
        assert_eq!(ending("model.gguf", 10), "model.gguf");
        assert_eq!(ending("a-model.gguf", 10), "…odel.gguf");
        let since = |seconds| ago(Duration::from_secs(seconds));
        assert_eq!(since(59), "just now");
        assert_eq!(since(61), "1 minute ago");
        assert_eq!(since(7300), "2 hours ago");
        assert_eq!(since(86_400 * 400), "1 year ago");
    }
}
