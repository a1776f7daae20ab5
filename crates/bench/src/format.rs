//! Tables and numbers for people.

use std::fmt;
use std::io::{self, Write};

/// A number with its thousands set apart: `20,080,312`.
pub fn grouped(number: u64) -> String {
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
pub fn preview(text: &str, most: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= most {
        return line;
    }
    line.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// Named values, one per line, the values in one column. A name that is empty continues the one above.
#[derive(Default)]
pub struct Facts(Vec<(String, String)>);

impl Facts {
    /// Adds a line.
    pub fn add(&mut self, name: &str, value: impl Into<String>) {
        self.0.push((name.to_owned(), value.into()));
    }

    /// Adds lines under one name.
    pub fn add_all(&mut self, name: &str, values: impl IntoIterator<Item = String>) {
        let mut name = name;
        for value in values {
            self.add(name, value);
            name = "";
        }
    }

    /// Writes the lines and flushes.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        write!(out, "{self}")?;
        out.flush()
    }
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.0.iter().map(|(name, _)| name.chars().count()).max();
        let width = width.unwrap_or(0);
        for (name, value) in &self.0 {
            writeln!(f, "{name:width$}  {value}")?;
        }
        Ok(())
    }
}

/// A column of a table: its name, and what it shows of an item.
pub type Column<'a, T> = (&'a str, fn(&T) -> String);

/// Rows of numbers under names, aligned to the right.
pub struct Table(Vec<Vec<String>>);

impl Table {
    /// A table with these columns and rows.
    pub fn new<const N: usize>(columns: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> Self {
        let rows = rows.into_iter().map(Vec::from);
        let columns = columns.map(str::to_owned).to_vec();
        Self([columns].into_iter().chain(rows).collect())
    }

    /// A table with a row per item.
    pub fn of<T, const N: usize>(items: &[T], columns: [Column<'_, T>; N]) -> Self {
        let rows = items.iter().map(|item| columns.map(|(_, cell)| cell(item)));
        Self::new(columns.map(|(name, _)| name), rows)
    }

    /// Writes header and rows and flushes.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
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
