//! Numbers and tables for people.

pub(crate) use paceline_bench::format::{Facts, grouped, preview};

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
    }
}
