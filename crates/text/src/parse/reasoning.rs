//! Reasoning between `<think>` and `</think>` at the beginning of a text.

use super::emit::Parts;
use super::scan::{Expect, Input, Search, expect, search};

pub(super) const OPEN: &str = "<think>";
pub(super) const CLOSE: &str = "</think>";

/// Splits the reasoning from what follows it.
///
/// A block is reasoning only where the text begins with it: further down, an answer may speak about the tags.
/// Newlines next to the tags belong to them, as chat templates write them.
#[derive(Debug)]
pub(super) struct ReasoningParser {
    state: State,
    input: Input,
    /// White space whose meaning depends on what follows it.
    space: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// At the beginning of the text, which may open the block.
    Before,
    /// In a block that was opened outside the text; the text may open it again.
    Opened,
    /// After the opening tag, before anything but newlines.
    Leading,
    Inside,
    /// After the closing tag, before anything but newlines.
    Closed,
    After,
}

impl ReasoningParser {
    pub(super) fn new(inside: bool) -> Self {
        Self {
            state: if inside { State::Opened } else { State::Before },
            input: Input::default(),
            space: String::new(),
        }
    }

    /// Takes the next piece; reasoning goes to `parts`, what is not reasoning is returned.
    pub(super) fn push(&mut self, text: &str, parts: &mut Parts) -> String {
        self.input.push(text);
        while self.state != State::After {
            if !self.step(parts) {
                return String::new();
            }
        }
        std::mem::take(&mut self.space) + self.input.take_all()
    }

    /// Ends the text. Reasoning that was not closed stays reasoning: the model had not begun to answer.
    pub(super) fn finish(&mut self, parts: &mut Parts) -> String {
        let space = std::mem::take(&mut self.space);
        let held = self.input.take_all();
        match self.state {
            State::Before | State::After => return space + held,
            State::Opened | State::Inside if !held.is_empty() => parts.reasoning(&(space + held)),
            State::Opened | State::Leading | State::Inside | State::Closed => {}
        }
        String::new()
    }

    /// Takes one decision, or says that it needs more text.
    fn step(&mut self, parts: &mut Parts) -> bool {
        match self.state {
            State::Before | State::Opened => self.open(),
            State::Leading => self.skip_newlines(State::Inside),
            State::Inside => self.inside(parts),
            State::Closed => self.skip_newlines(State::After),
            State::After => false,
        }
    }

    fn open(&mut self) -> bool {
        self.space.push_str(self.input.take_space());
        self.state = match expect(self.input.rest(), &[OPEN]) {
            Expect::Open => return false,
            Expect::Is(_) => {
                self.input.take(OPEN.len());
                self.space.clear();
                State::Leading
            }
            Expect::Not if self.state == State::Opened => {
                let newlines = self.space.len() - self.space.trim_start_matches('\n').len();
                self.space.drain(..newlines);
                State::Inside
            }
            Expect::Not => State::After,
        };
        true
    }

    fn skip_newlines(&mut self, next: State) -> bool {
        self.input.take_newlines();
        if self.input.rest().is_empty() {
            return false;
        }
        self.state = next;
        true
    }

    fn inside(&mut self, parts: &mut Parts) -> bool {
        let found = search(self.input.rest(), &[CLOSE]);
        let (Search::Found { at: end, .. } | Search::Clear(end)) = found;
        let text = self.input.take(end);
        let kept = text.trim_end_matches('\n').len();
        if kept > 0 {
            parts.reasoning(&self.space);
            parts.reasoning(&text[..kept]);
            self.space.clear();
        }
        // Newlines before the tag belong to it, so they wait until it is known whether it comes.
        self.space.push_str(&text[kept..]);
        if let Search::Clear(_) = found {
            // Text that may be the tag keeps them waiting; anything else would have been in `text`.
            return false;
        }
        self.input.take(CLOSE.len());
        self.space.clear();
        self.state = State::Closed;
        true
    }
}
