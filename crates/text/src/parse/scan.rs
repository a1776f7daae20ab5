//! Tags in text that arrives in pieces.

/// Text that arrived and is not decided yet.
#[derive(Debug, Default)]
pub(super) struct Input {
    text: String,
    /// How much of it is decided. It is removed when more arrives, so that a piece with many calls is not moved
    /// once for each of them.
    decided: usize,
}

impl Input {
    pub(super) fn push(&mut self, text: &str) {
        self.text.drain(..self.decided);
        self.decided = 0;
        self.text.push_str(text);
    }

    /// What is not decided.
    pub(super) fn rest(&self) -> &str {
        &self.text[self.decided..]
    }

    /// Takes the next `bytes` of what is not decided.
    pub(super) fn take(&mut self, bytes: usize) -> &str {
        let start = self.decided;
        self.decided += bytes;
        &self.text[start..self.decided]
    }

    pub(super) fn take_all(&mut self) -> &str {
        self.take(self.rest().len())
    }

    /// Takes leading white space.
    pub(super) fn take_space(&mut self) -> &str {
        let rest = self.rest();
        self.take(rest.len() - rest.trim_start().len())
    }

    /// Takes leading newlines.
    pub(super) fn take_newlines(&mut self) -> &str {
        let rest = self.rest();
        self.take(rest.len() - rest.trim_start_matches('\n').len())
    }
}

/// What is known about the first tag in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Search {
    /// Tag number `which` begins at `at`.
    Found { at: usize, which: usize },
    /// No tag begins before this position; from here on, the text may be the beginning of one.
    Clear(usize),
}

/// Looks for the first of several tags. No tag may be the beginning of another.
pub(super) fn search(text: &str, tags: &[&str]) -> Search {
    for (at, _) in text.char_indices() {
        match expect(&text[at..], tags) {
            Expect::Is(which) => return Search::Found { at, which },
            Expect::Open => return Search::Clear(at),
            Expect::Not => {}
        }
    }
    Search::Clear(text.len())
}

/// What is known about a tag that has to stand at the beginning of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expect {
    /// It is the tag of this number.
    Is(usize),
    /// It may become one.
    Open,
    /// It is none.
    Not,
}

/// Compares the beginning of a text with several tags. No tag may be the beginning of another.
pub(super) fn expect(text: &str, tags: &[&str]) -> Expect {
    let mut open = false;
    for (which, tag) in tags.iter().enumerate() {
        if text.starts_with(tag) {
            return Expect::Is(which);
        }
        open |= tag.starts_with(text);
    }
    if open { Expect::Open } else { Expect::Not }
}
