//! Numbers and tables for people.

use std::io::{self, Write};

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

/// A number with its thousands set apart: `20,080,312`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The start of a text on one line, cut to `most` characters.
pub(crate) fn preview(text: &str, most: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= most {
        return line;
    }
    line.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// Named values, one per line, the values in one column. A name that is empty continues the one above.
#[derive(Default)]
pub(crate) struct Facts(Vec<(String, String)>);

impl Facts {
    /// Adds a line.
    pub(crate) fn add(&mut self, name: &str, value: impl Into<String>) {
        self.0.push((name.to_owned(), value.into()));
    }

    /// Adds lines under one name.
    pub(crate) fn add_all(&mut self, name: &str, values: impl IntoIterator<Item = String>) {
        let mut name = name;
        for value in values {
            self.add(name, value);
            name = "";
        }
    }

    /// Prints them.
    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let width = self.0.iter().map(|(name, _)| name.chars().count()).max();
        let width = width.unwrap_or(0);
        for (name, value) in &self.0 {
            writeln!(out, "{name:width$}  {value}")?;
        }
        out.flush()
    }
}

/// Rows of numbers under names, aligned to the right.
pub(crate) struct Table(Vec<Vec<String>>);

impl Table {
    /// A table with these columns.
    pub(crate) fn new(columns: &[&str]) -> Self {
        Self(vec![columns.iter().map(|name| (*name).to_owned()).collect()])
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.0.push(cells);
    }

    /// Prints it.
    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let columns = self.0[0].len();
        let width = |column: usize| self.0.iter().map(|row| row[column].chars().count()).max();
        let widths: Vec<_> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        for row in &self.0 {
            let cells = row.iter().zip(&widths);
            let cells: Vec<_> = cells.map(|(cell, width)| format!("{cell:>width$}")).collect();
            writeln!(out, "{}", cells.join("  "))?;
        }
        out.flush()
    }
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

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(grouped(7), "7");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(51_511_296), "51,511,296");
    }

    #[test]
    fn previews_are_one_short_line() {
        assert_eq!(preview("a\n b  c", 10), "a b c");
        assert_eq!(preview("Once upon a time", 8), "Once up…");
    }
}
