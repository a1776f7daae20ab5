//! What the user sees: answers on stdout, everything else on stderr.

use super::answer::Part;
use super::wrap::Wrap;
use crate::env;
use crate::terminal;
use crate::ui::{self, Ui};
use anyhow::{Context, Result};
use std::fmt::Display;
use std::io::{self, Write};

/// The terminal, or two pipes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Screen {
    /// Both ends are a terminal.
    pub(super) interactive: bool,
    /// Figures after each answer.
    pub(super) stats: bool,
    colours: bool,
    ui: Ui,
}

impl Screen {
    pub(super) fn new(interactive: bool, ui: Ui) -> Self {
        Self {
            interactive,
            stats: true,
            colours: env::colours(),
            ui,
        }
    }

    /// A line about the conversation, unless quiet.
    pub(super) fn note(self, line: impl Display) {
        let text = terminal::fitted_status(&line.to_string());
        let dim = self.colours && terminal::status_width().is_some();
        self.ui.verbatim(ui::dimmed(&text, dim));
    }

    /// Shows an answer as it comes.
    pub(super) fn answer(self) -> Answering {
        Answering {
            // Reasoning is for people; a pipe gets answers.
            reasoning: self.interactive,
            dim: self.colours && self.interactive,
            // A terminal that knows no colours may know no way back either.
            wrap: self.colours.then(Wrap::default),
            state: State::Nothing,
            ends_line: false,
        }
    }
}

/// Prints what a command was asked to show; on a terminal its lines end between words.
pub(super) fn say(text: impl Display) -> Result<()> {
    print(&(terminal::fitted(&text.to_string()) + "\n"))
}

/// An answer on its way to stdout.
pub(super) struct Answering {
    reasoning: bool,
    dim: bool,
    wrap: Option<Wrap>,
    state: State,
    /// What is out ends with a newline.
    ends_line: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Nothing,
    Reasoning,
    Text,
}

impl Answering {
    /// Shows a part.
    pub(super) fn show(&mut self, part: &Part) -> Result<()> {
        let text = self.take(part);
        if text.is_empty() {
            return Ok(());
        }
        print(&text)
    }

    /// What a part adds to the screen.
    fn take(&mut self, part: &Part) -> String {
        let (next, text) = match part {
            Part::Reasoning(_) if !self.reasoning => return String::new(),
            Part::Reasoning(text) => (State::Reasoning, text.as_str()),
            Part::Text(text) => (State::Text, text.as_str()),
        };
        // Models leave empty lines around their reasoning, and some start with a space.
        let text = if next == self.state {
            text
        } else {
            text.trim_start()
        };
        if text.is_empty() {
            return String::new();
        }
        let gap = match (self.state, next) {
            (State::Reasoning, State::Text) if self.ends_line => "\n",
            (State::Reasoning, State::Text) => "\n\n",
            _ => "",
        };
        self.state = next;
        self.ends_line = text.ends_with('\n');
        let text = match (&mut self.wrap, terminal::width()) {
            (Some(wrap), Some(width)) => {
                let gap = wrap.push(gap, width);
                (gap, wrap.push(text, width))
            }
            _ => (gap.to_owned(), text.to_owned()),
        };
        let (gap, text) = text;
        let dim = next == State::Reasoning && self.dim;
        gap + &ui::dimmed(&text, dim)
    }

    /// Whether anything is out.
    pub(super) fn has_begun(&self) -> bool {
        self.state != State::Nothing
    }

    /// Ends the line.
    pub(super) fn end(self) -> Result<()> {
        if self.ends_line { Ok(()) } else { print("\n") }
    }
}

fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.context("cannot write to stdout")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(reasoning: bool, dim: bool, parts: &[Part]) -> String {
        let mut answering = Answering {
            reasoning,
            dim,
            wrap: None,
            state: State::Nothing,
            ends_line: false,
        };
        parts.iter().map(|part| answering.take(part)).collect()
    }

    fn parts() -> [Part; 5] {
        [
            Part::Reasoning("\nHm".to_owned()),
            Part::Reasoning(" hm.\n".to_owned()),
            Part::Text("\n\n".to_owned()),
            Part::Text("Yes".to_owned()),
            Part::Text("\n no".to_owned()),
        ]
    }

    #[test]
    fn reasoning_is_dim_and_apart_and_not_for_pipes() {
        assert_eq!(
            shown(true, true, &parts()),
            "\x1b[2mHm\x1b[0m\x1b[2m hm.\n\x1b[0m\nYes\n no"
        );
        assert_eq!(shown(true, false, &parts()), "Hm hm.\n\nYes\n no");
        assert_eq!(shown(false, false, &parts()), "Yes\n no");
    }
}
