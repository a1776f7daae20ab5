//! Rust sources as tokens: enough of the language to tell code from comments, strings and tests.

use std::ops::RangeInclusive;

/// A word or a single mark of the code.
#[derive(Clone, Copy, Debug)]
struct Token {
    start: usize,
    end: usize,
    line: usize,
}

/// A source file and its tokens.
pub(crate) struct RustFile {
    /// From the root.
    pub(crate) path: String,
    /// As it is on disk.
    pub(crate) text: String,
    /// The text with comments and literals blanked out, byte for byte.
    code: String,
    tokens: Vec<Token>,
    /// Lines of items that exist only in tests.
    tests: Vec<RangeInclusive<usize>>,
}

impl RustFile {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let code = blank_literals(text);
        let tokens = tokenize(&code);
        let mut file = Self {
            path: path.to_owned(),
            text: text.to_owned(),
            code,
            tokens,
            tests: Vec::new(),
        };
        file.tests = file.find_tests();
        file
    }

    /// How many tokens there are.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// A token's text; empty past the end.
    pub(crate) fn word(&self, index: usize) -> &str {
        self.tokens
            .get(index)
            .map_or("", |token| &self.code[token.start..token.end])
    }

    /// The line of a token, counted from 1.
    pub(crate) fn line(&self, index: usize) -> usize {
        self.tokens[index].line
    }

    /// Where a token starts in the text.
    pub(crate) fn offset(&self, index: usize) -> usize {
        self.tokens[index].start
    }

    /// Whether the tokens from `index` on are these.
    pub(crate) fn reads(&self, index: usize, words: &[&str]) -> bool {
        words
            .iter()
            .enumerate()
            .all(|(i, word)| self.word(index + i) == *word)
    }

    /// The bracket that closes the one at `open`, or the last token if none does.
    pub(crate) fn closing(&self, open: usize) -> usize {
        let mut depth = 0_usize;
        for index in open..self.len() {
            match self.word(index) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                return index;
            }
        }
        self.len().saturating_sub(1)
    }

    /// The body of an item from the token `index` on: its opening brace, or nothing where a `;` comes first.
    pub(crate) fn body(&self, mut index: usize) -> Option<usize> {
        while index < self.len() {
            match self.word(index) {
                "{" => return Some(index),
                ";" => return None,
                "(" | "[" => index = self.closing(index),
                _ => {}
            }
            index += 1;
        }
        None
    }

    /// The words of every attribute, with the index of its `#`.
    pub(crate) fn attributes(&self) -> impl Iterator<Item = (usize, Vec<&str>)> {
        (0..self.len()).filter_map(|index| {
            let open = match (self.word(index), self.word(index + 1), self.word(index + 2)) {
                ("#", "[", _) => index + 1,
                ("#", "!", "[") => index + 2,
                _ => return None,
            };
            let words = (open + 1..self.closing(open)).map(|at| self.word(at)).collect();
            Some((index, words))
        })
    }

    /// Whether the file is test code as a whole.
    pub(crate) fn is_test_file(&self) -> bool {
        is_test_path(&self.path)
    }

    /// Whether a line is test code.
    pub(crate) fn is_test(&self, line: usize) -> bool {
        self.is_test_file() || self.tests.iter().any(|lines| lines.contains(&line))
    }

    fn find_tests(&self) -> Vec<RangeInclusive<usize>> {
        let mut tests = Vec::new();
        for (index, words) in self.attributes() {
            let only_in_tests = words == ["test"]
                || (words.first() == Some(&"cfg") && words.contains(&"test") && !words.contains(&"not"));
            if !only_in_tests {
                continue;
            }
            if self.word(index + 1) == "!" {
                return vec![1..=usize::MAX];
            }
            if let Some(open) = self.body(index + 1) {
                tests.push(self.line(index)..=self.line(self.closing(open)));
            }
        }
        tests
    }
}

/// Whether a path is that of test code.
pub(crate) fn is_test_path(path: &str) -> bool {
    let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
    name == "tests.rs"
        || folders
            .split('/')
            .any(|folder| folder == "tests" || folder == "benches")
}

fn tokenize(code: &str) -> Vec<Token> {
    let bytes = code.as_bytes();
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let start = at;
        at = if is_word(bytes[at]) {
            word_end(bytes, at)
        } else {
            at + 1
        };
        if bytes[start] == b'\n' {
            line += 1;
        } else if !bytes[start].is_ascii_whitespace() {
            let end = at;
            tokens.push(Token { start, end, line });
        }
    }
    tokens
}

/// Blanks comments, strings and characters, and keeps every line break.
fn blank_literals(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        if let Some(end) = literal_end(bytes, at) {
            for byte in &mut code[at..end] {
                if *byte != b'\n' {
                    *byte = b' ';
                }
            }
            at = end;
        } else if is_word(bytes[at]) {
            at = word_end(bytes, at);
        } else {
            at += 1;
        }
    }
    String::from_utf8(code).expect("literals start and end between characters")
}

/// The end of the comment or literal at `at`, if there is one.
fn literal_end(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = &bytes[at..];
    if rest.starts_with(b"//") {
        let len = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
        return Some(at + len);
    }
    if rest.starts_with(b"/*") {
        return Some(block_comment_end(bytes, at));
    }
    if rest[0] == b'"' {
        return Some(quoted_end(bytes, at, b'"'));
    }
    if rest[0] == b'\'' {
        return is_character(rest).then(|| quoted_end(bytes, at, b'\''));
    }
    if !is_word(rest[0]) {
        return None;
    }
    let after = word_end(bytes, at);
    let prefix = &bytes[at..after];
    match prefix {
        b"b" if bytes.get(after) == Some(&b'\'') => Some(quoted_end(bytes, after, b'\'')),
        b"b" | b"c" if bytes.get(after) == Some(&b'"') => Some(quoted_end(bytes, after, b'"')),
        b"r" | b"br" | b"cr" => raw_string_end(bytes, after),
        _ => None,
    }
}

/// Whether a quotation mark opens a character, and not a lifetime.
fn is_character(rest: &[u8]) -> bool {
    match rest.get(1) {
        Some(b'\\') => true,
        Some(first) => {
            let len = match first {
                0xF0.. => 4,
                0xE0.. => 3,
                0xC0.. => 2,
                _ => 1,
            };
            rest.get(1 + len) == Some(&b'\'')
        }
        None => false,
    }
}

fn quoted_end(bytes: &[u8], open: usize, mark: u8) -> usize {
    let mut at = open + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == mark => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of the raw string whose hashes start at `at`; nothing if these are not followed by a string.
fn raw_string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let hashes = bytes[at..].iter().take_while(|byte| **byte == b'#').count();
    if bytes.get(at + hashes) != Some(&b'"') {
        return None;
    }
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let start = at + hashes + 1;
    let found = bytes[start..]
        .windows(close.len())
        .position(|window| window == close);
    Some(found.map_or(bytes.len(), |len| start + len + close.len()))
}

fn block_comment_end(bytes: &[u8], open: usize) -> usize {
    let (mut at, mut depth) = (open, 0_usize);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            (at, depth) = (at + 2, depth + 1);
        } else if bytes[at..].starts_with(b"*/") {
            (at, depth) = (at + 2, depth - 1);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

fn word_end(bytes: &[u8], start: usize) -> usize {
    let len = bytes[start..].iter().take_while(|byte| is_word(**byte)).count();
    start + len
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let file = RustFile::new("a.rs", text);
        (0..file.len()).map(|index| file.word(index).to_owned()).collect()
    }

    #[test]
    fn comments_are_no_code() {
        assert_eq!(words("a // b\n/* c /* d */ e */ f"), ["a", "f"]);
        assert_eq!(words("/// b\na"), ["a"]);
    }

    #[test]
    fn strings_are_no_code() {
        assert_eq!(words(r#"a("b \" c", b"d", c"e")"#), ["a", "(", ",", ",", ")"]);
        assert_eq!(
            words("a r\"b\\\" c r#\"d\"e\"# f br##\"\"#\"## g"),
            ["a", "c", "f", "g"]
        );
    }

    #[test]
    fn characters_are_no_code_and_lifetimes_are() {
        assert_eq!(words(r"'a' b'b' '\'' '\n' '{' '·' x"), ["x"]);
        assert_eq!(words("&'a str"), ["&", "'", "a", "str"]);
        assert_eq!(words("r#type"), ["r", "#", "type"]);
    }

    #[test]
    fn what_is_not_closed_ends_with_the_file() {
        for text in ["\"a", "r#\"a\"", "/* a", "'\\", "b'", "fn f() {", "#["] {
            RustFile::new("a.rs", text);
        }
    }

    #[test]
    fn lines_are_counted_through_literals() {
        let file = RustFile::new("a.rs", "a \"\n\n\" b\nc");
        let lines: Vec<usize> = (0..file.len()).map(|index| file.line(index)).collect();
        assert_eq!(lines, [1, 3, 4]);
    }

    #[test]
    fn test_items_are_told_from_the_rest() {
        let text =
            "fn a() {}\n#[cfg(test)]\nmod tests {\n}\n#[test]\nfn b() {\n}\n#[cfg(not(test))]\nfn c() {}\n";
        let file = RustFile::new("src/a.rs", text);
        let tests: Vec<usize> = (1..=9).filter(|line| file.is_test(*line)).collect();
        assert_eq!(tests, [2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn test_files_are_test_code_throughout() {
        assert!(is_test_path("crates/a/tests/b.rs"));
        assert!(is_test_path("crates/a/src/b/tests.rs"));
        assert!(!is_test_path("crates/testkit/src/lib.rs"));
        assert!(RustFile::new("src/a.rs", "#![cfg(test)]\nfn a() {}").is_test(2));
    }
}
