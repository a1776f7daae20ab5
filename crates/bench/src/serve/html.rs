//! A run as a page: one file, which needs nothing from elsewhere.

use super::report::{Earlier, Report};
use super::table;
use serde_json::json;
use std::io::{self, Write};

/// The page; what was measured goes where the mark is.
const PAGE: &str = include_str!("report.html");
const MARK: &str = "\"__REPORT__\"";

/// Writes the page, with an earlier run and its name beside this one.
pub(super) fn write(out: &mut dyn Write, report: &Report, other: Option<&Earlier>) -> io::Result<()> {
    out.write_all(page(report, other).as_bytes())?;
    out.flush()
}

fn page(report: &Report, other: Option<&Earlier>) -> String {
    let rows = other.map(|other| table::compared(&report.figures, &other.report.figures));
    let data = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "run": report,
        "other": other.map(|other| json!({ "name": other.file_name(), "run": other.report })),
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
