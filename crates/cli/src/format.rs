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

/// One of several facts in a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fact {
    text: String,
    /// What the line can do without first has the highest number.
    rank: u8,
}

/// A fact that the line can do without the sooner, the higher its rank.
pub(crate) fn fact(rank: u8, text: impl Into<String>) -> Fact {
    let text = text.into();
    Fact { text, rank }
}

/// Facts in brackets, in their order; on a terminal of `width` columns, as many as fit in a line.
pub(crate) fn status(facts: &[Fact], width: Option<usize>) -> String {
    let ranks = facts.iter().map(|fact| fact.rank);
    let mut most = ranks.max().unwrap_or(0);
    loop {
        let kept: Vec<&str> = facts
            .iter()
            .filter(|fact| fact.rank <= most)
            .map(|fact| fact.text.as_str())
            .collect();
        let line = format!("[{}]", kept.join(", "));
        // The last column stays free: some terminals go on below it.
        let fits = width.is_none_or(|width| line.chars().count() < width);
        if fits || most == 0 {
            return line;
        }
        most -= 1;
    }
}

/// A text in lines of at most `width` columns that end between words.
pub(crate) fn wrapped(text: &str, width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        lines.push(String::new());
        for word in line.split(' ') {
            let last = lines.last().map_or(0, |line| line.chars().count());
            if last > 0 && last + 1 + word.chars().count() > width {
                lines.push(word.to_owned());
            } else if let Some(line) = lines.last_mut() {
                *line = if last > 0 {
                    format!("{line} {word}")
                } else {
                    word.to_owned()
                };
            }
        }
    }
    lines.join("\n")
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
        let facts = [fact(0, "9 tokens"), fact(2, "5 tok/s"), fact(1, "the end")];
        assert_eq!(status(&facts, None), "[9 tokens, 5 tok/s, the end]");
        assert_eq!(status(&facts, Some(29)), "[9 tokens, 5 tok/s, the end]");
        assert_eq!(status(&facts, Some(28)), "[9 tokens, the end]");
        assert_eq!(status(&facts, Some(3)), "[9 tokens]");
        assert_eq!(wrapped("one two three\nfour", 9), "one two\nthree\nfour");
        assert_eq!(wrapped("longerthanthat a", 9), "longerthanthat\na");
        assert_eq!(ending("model.gguf", 10), "model.gguf");
        assert_eq!(ending("a-model.gguf", 10), "…odel.gguf");
        let since = |seconds| ago(Duration::from_secs(seconds));
        assert_eq!(since(59), "just now");
        assert_eq!(since(61), "1 minute ago");
        assert_eq!(since(7300), "2 hours ago");
        assert_eq!(since(86_400 * 400), "1 year ago");
    }
}
