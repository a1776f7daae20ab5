//! A run as a page: one file, which needs nothing from elsewhere.

use super::report::Report;
use super::table;
use serde_json::json;
use std::fs::File;
use std::io::{self, Write};

/// The page; what was measured goes where the mark is.
const PAGE: &str = include_str!("report.html");
const MARK: &str = "\"__REPORT__\"";

/// Writes the page, with an earlier run and its name beside this one.
pub(super) fn write(mut file: File, report: &Report, other: Option<(&Report, String)>) -> io::Result<()> {
    file.write_all(page(report, other).as_bytes())?;
    file.flush()
}

fn page(report: &Report, other: Option<(&Report, String)>) -> String {
    let rows = other
        .as_ref()
        .map(|(other, _)| table::compared(&report.figures, &other.figures));
    let data = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "run": report,
        "other": other.map(|(other, name)| json!({ "name": name, "run": other })),
        "compared": rows,
    });
    // Inside a script nothing but its own end is markup: what the server said must not spell it.
    let data = data.to_string().replace('<', "\\u003c");
    PAGE.replacen(MARK, &data, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_one_place_for_the_data_and_asks_nobody_for_anything() {
        assert_eq!(PAGE.matches(MARK).count(), 1);
        for word in ["http://", "https://", " src=", "@import", "url("] {
            let rest = PAGE.replace("http://www.w3.org/2000/svg", "");
            assert!(!rest.contains(word), "{word}");
        }
    }
}
