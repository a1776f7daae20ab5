//! Tags in text that arrives in pieces.

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
        let rest = &text[at..];
        for (which, tag) in tags.iter().enumerate() {
            if rest.starts_with(tag) {
                return Search::Found { at, which };
            }
            if tag.starts_with(rest) {
                return Search::Clear(at);
            }
        }
    }
    Search::Clear(text.len())
}

/// What is known about a tag that has to stand at the beginning of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expect {
    /// It is tag number so much.
    Is(usize),
    /// It may become one.
    Open,
    /// It is none.
    Not,
}

/// Compares the beginning of a text with several tags.
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
