//! Numbers and tables for people.

pub(crate) use paceline_bench::format::{Facts, grouped, preview};

use std::time::Duration;

/// Bytes with a unit that keeps the number short: `20.1 MB`.
pub(crate) fn bytes(count: u64) -> String {
    scaled(count as f64, 1000.0, &["B", "kB", "MB", "GB", "TB"])
}

/// The same in the units of memory plans: `19.1 MiB`.
pub(crate) fn memory(count: u64) -> String {
    scaled(count as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

/// A count with a unit that keeps the number short: `4.21 B`.
pub(crate) fn count(count: u64) -> String {
    scaled(count as f64, 1000.0, &["", "k", "M", "B", "T"])
}

fn scaled(mut value: f64, base: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= base;
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

/// A text in lines of at most `width` columns that end between words. Of a line with columns, which are two spaces apart,
/// the last one goes on below itself.
pub(crate) fn wrapped(text: &str, width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let words = line.trim_start();
        let mut row = " ".repeat(line.len() - words.len());
        let indent = " ".repeat(hanging(line, width));
        let mut begun = false;
        for word in words.split(' ') {
            if begun && row.chars().count() + 1 + word.chars().count() > width {
                lines.push(std::mem::replace(&mut row, indent.clone()).trim_end().to_owned());
                begun = false;
            }
            // A gap at which a line ends is gone.
            if begun || !word.is_empty() {
                row = row + if begun { " " } else { "" } + word;
                begun = true;
            }
        }
        lines.push(row);
    }
    lines.join("\n")
}

/// Where a line goes on that is wider than `width`.
fn hanging(line: &str, width: usize) -> usize {
    let start = line.len() - line.trim_start().len();
    let column = line.rfind("  ").map_or(0, |gap| line[..gap + 2].chars().count());
    match column {
        column if column <= start => start,
        column if column <= width / 2 => column,
        // Too little room is left beside what comes before.
        _ => start + 4,
    }
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
        assert_eq!(memory(20_067_008), "19.1 MiB");
        assert_eq!(count(9_100_000), "9.10 M");
        assert_eq!(count(79_670_000_000), "79.7 B");
        let facts = [fact(0, "9 tokens"), fact(2, "5 tok/s"), fact(1, "the end")];
        assert_eq!(status(&facts, None), "[9 tokens, 5 tok/s, the end]");
        assert_eq!(status(&facts, Some(29)), "[9 tokens, 5 tok/s, the end]");
        assert_eq!(status(&facts, Some(28)), "[9 tokens, the end]");
        assert_eq!(status(&facts, Some(3)), "[9 tokens]");
        assert_eq!(wrapped("one two three\nfour", 9), "one two\nthree\nfour");
        assert_eq!(wrapped("longerthanthat a", 9), "longerthanthat\na");
        assert_eq!(wrapped("  one two  three", 30), "  one two  three");
        assert_eq!(wrapped("/set  one two three", 14), "/set  one two\n      three");
        assert_eq!(
            wrapped("  a long name  one two", 16),
            "  a long name\n      one two"
        );
        assert_eq!(wrapped("    one two\n\nthree", 9), "    one\n    two\n\nthree");
        assert_eq!(ending("model.gguf", 10), "model.gguf");
        assert_eq!(ending("a-model.gguf", 10), "…odel.gguf");
        let since = |seconds| ago(Duration::from_secs(seconds));
        assert_eq!(since(59), "just now");
        assert_eq!(since(61), "1 minute ago");
        assert_eq!(since(7300), "2 hours ago");
        assert_eq!(since(86_400 * 400), "1 year ago");
    }
}
