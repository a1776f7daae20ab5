//! The text format that Prometheus had before `OpenMetrics`.

use std::collections::HashSet;

/// Rewrites `OpenMetrics` text. The formats differ in this: descriptions of counters there leave out the `_total` of
/// the samples' names, and there is a line that marks the end.
pub(super) fn rewrite(text: &str) -> String {
    let counters: HashSet<&str> = text.lines().filter_map(counter).collect();
    let mut classic = String::with_capacity(text.len() + 8 * counters.len());
    for line in text.lines().filter(|line| *line != "# EOF") {
        match described(line).filter(|(_, name, _)| counters.contains(name)) {
            Some((keyword, name, rest)) => {
                for part in ["# ", keyword, " ", name, "_total ", rest] {
                    classic.push_str(part);
                }
            }
            None => classic.push_str(line),
        }
        classic.push('\n');
    }
    classic
}

/// The name of a counter, where a line says that it is one.
fn counter(line: &str) -> Option<&str> {
    let (keyword, name, rest) = described(line)?;
    (keyword == "TYPE" && rest == "counter").then_some(name)
}

/// Keyword, name and the rest of a description.
fn described(line: &str) -> Option<(&str, &str, &str)> {
    let (keyword, rest) = line.strip_prefix("# ")?.split_once(' ')?;
    let (name, rest) = rest.split_once(' ')?;
    Some((keyword, name, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_described_by_their_full_names() {
        let text = "# HELP a:b Things.\n# TYPE a:b counter\na:b_total{x=\"# EOF\"} 3\n\
                    # HELP c Size.\n# TYPE c gauge\nc 1\n# EOF\n";
        let classic = "# HELP a:b_total Things.\n# TYPE a:b_total counter\na:b_total{x=\"# EOF\"} 3\n\
                       # HELP c Size.\n# TYPE c gauge\nc 1\n";
        assert_eq!(rewrite(text), classic);
    }
}
