//! Lines that end between words, of a text that comes piece by piece.

use console::measure_text_width;
use std::fmt::Write;

/// Columns of a tab.
const TAB: usize = 8;

/// Where a text has got to on the screen.
///
/// A word that turns out not to fit is taken back from its line and written again on the next one, so that what is known
/// is always shown. Code keeps its lines: what is copied from them has to be what was said.
#[derive(Debug, Default)]
pub(super) struct Wrap {
    column: usize,
    /// The word at the end, as far as it has come.
    word: String,
    /// The first characters of the line that are no spaces.
    start: String,
    /// Within a block of code.
    code: bool,
}

impl Wrap {
    /// What to write for more of the text on a terminal of `width` columns.
    pub(super) fn push(&mut self, text: &str, width: usize) -> String {
        // A character in the last column leaves terminals of different minds about where the cursor is.
        let limit = width.saturating_sub(1).max(1);
        let mut out = String::with_capacity(text.len());
        for character in text.chars() {
            match character {
                '\n' => self.end_line(&mut out),
                _ if character.is_whitespace() => self.space(character, limit, &mut out),
                _ => self.letter(character, limit, &mut out),
            }
        }
        out
    }

    fn end_line(&mut self, out: &mut String) {
        out.push('\n');
        self.column = 0;
        self.word.clear();
        self.start.clear();
    }

    fn space(&mut self, space: char, limit: usize, out: &mut String) {
        self.word.clear();
        let next = match space {
            '\t' => (self.column / TAB + 1) * TAB,
            _ => self.column + 1,
        };
        if next > limit && !self.code {
            // The end of the line is space enough.
            out.push('\n');
            self.column = 0;
        } else {
            out.push(space);
            self.column = next;
        }
    }

    fn letter(&mut self, letter: char, limit: usize, out: &mut String) {
        let columns = measure_text_width(letter.encode_utf8(&mut [0; 4]));
        let wide = columns > 1;
        if wide {
            // Scripts of wide characters break anywhere.
            self.word.clear();
        }
        if self.column + columns > limit && !self.code {
            self.break_line(out);
        }
        out.push(letter);
        self.column += columns;
        if !wide {
            self.word.push(letter);
        }
        if self.start.len() < 3 {
            self.start.push(letter);
            if self.start == "```" || self.start == "~~~" {
                self.code = !self.code;
            }
        }
    }

    /// Goes on in the next line, with the word that has begun if it is not a line by itself.
    fn break_line(&mut self, out: &mut String) {
        let columns = measure_text_width(&self.word);
        if columns == 0 || columns >= self.column {
            out.push('\n');
            self.word.clear();
            self.column = 0;
            return;
        }
        let _ = write!(out, "\x1b[{columns}D\x1b[K\n{}", self.word);
        self.column = columns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines that a terminal shows of pieces, without what was taken back.
    fn shown(pieces: &[&str], width: usize) -> Vec<String> {
        let mut wrap = Wrap::default();
        let written: String = pieces.iter().map(|piece| wrap.push(piece, width)).collect();
        let mut lines = vec![String::new()];
        let mut rest = written.as_str();
        while let Some(next) = rest.chars().next() {
            if let Some(sequence) = rest.strip_prefix("\x1b[") {
                let (count, after) = sequence.split_once('D').unwrap();
                let line = lines.last_mut().unwrap();
                for _ in 0..count.parse().unwrap() {
                    line.pop();
                }
                rest = after.strip_prefix("\x1b[K").unwrap();
                continue;
            }
            match next {
                '\n' => lines.push(String::new()),
                letter => lines.last_mut().unwrap().push(letter),
            }
            rest = &rest[next.len_utf8()..];
        }
        lines.iter().map(|line| line.trim_end().to_owned()).collect()
    }

    #[test]
    fn lines_end_between_words_however_the_text_comes() {
        let text = "One sunny day a little fox ran.\nThe end";
        let expected = ["One sunny", "day a", "little fox", "ran.", "The end"];
        assert_eq!(shown(&[text], 11), expected);
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        assert_eq!(shown(&letters, 11), expected);
        assert_eq!(shown(&[text], 80), ["One sunny day a little fox ran.", "The end"]);
    }

    #[test]
    fn words_longer_than_a_line_and_wide_characters_are_broken() {
        assert_eq!(shown(&["a abcdefghij"], 6), ["a", "abcde", "fghij"]);
        assert_eq!(shown(&["東京都の天気"], 6), ["東京", "都の", "天気"]);
        assert_eq!(shown(&["ab", "cd", " ef"], 1), ["a", "b", "c", "d", "e", "f"]);
    }

    #[test]
    fn code_keeps_its_lines() {
        let text = "Run this now:\n```sh\ncargo build --release\n```\nand go on then";
        assert_eq!(
            shown(&[text], 10),
            [
                "Run this",
                "now:",
                "```sh",
                "cargo build --release",
                "```",
                "and go on",
                "then"
            ]
        );
    }
}
