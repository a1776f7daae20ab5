//! Reasoning between `<think>` and `</think>` at the beginning of a text.

use super::Parts;
use super::scan::{Expect, Search, expect, search};

pub(super) const OPEN: &str = "<think>";
pub(super) const CLOSE: &str = "</think>";

/// Splits the reasoning from what follows it.
///
/// A block is reasoning only where the text begins with it: further down, an answer may speak about the tags.
/// Newlines next to the tags belong to them, as chat templates write them.
#[derive(Debug)]
pub(super) struct ReasoningParser {
    state: State,
    /// Text that is not decided yet.
    held: String,
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
            held: String::new(),
        }
    }

    /// Takes the next piece; reasoning goes to `parts`, what is not reasoning is returned.
    pub(super) fn push(&mut self, text: &str, parts: &mut Parts) -> String {
        self.held.push_str(text);
        while self.state != State::After {
            if !self.step(parts) {
                return String::new();
            }
        }
        std::mem::take(&mut self.held)
    }

    /// Ends the text. Reasoning that was not closed stays reasoning: the model had not begun to answer.
    pub(super) fn finish(&mut self, parts: &mut Parts) -> String {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Before | State::After => return held,
            State::Opened | State::Inside => parts.reasoning(held.trim_end_matches('\n')),
            State::Leading | State::Closed => {}
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
        let start = self.held.trim_start();
        let opened = self.state == State::Opened;
        self.state = match expect(start, &[OPEN]) {
            Expect::Open => return false,
            Expect::Is(_) => {
                self.held = start[OPEN.len()..].to_owned();
                State::Leading
            }
            Expect::Not if opened => State::Leading,
            Expect::Not => State::After,
        };
        true
    }

    fn skip_newlines(&mut self, next: State) -> bool {
        let rest = self.held.trim_start_matches('\n').len();
        self.held.drain(..self.held.len() - rest);
        if rest == 0 {
            return false;
        }
        self.state = next;
        true
    }

    fn inside(&mut self, parts: &mut Parts) -> bool {
        let found = search(&self.held, &[CLOSE]);
        let (Search::Found { at: end, .. } | Search::Clear(end)) = found;
        // Newlines before the tag belong to it, so they wait until it is known whether it comes.
        let text = self.held[..end].trim_end_matches('\n');
        parts.reasoning(text);
        let emitted = text.len();
        if let Search::Found { at, .. } = found {
            self.held.drain(..at + CLOSE.len());
            self.state = State::Closed;
            return true;
        }
        self.held.drain(..emitted);
        false
    }
}
