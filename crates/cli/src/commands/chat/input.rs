//! Lines of the user: edited on a terminal, else as they are piped in.

use crate::env;
use anyhow::{Context, Result};
use rustyline::config::Configurer;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{DefaultEditor, Editor};
use std::io::{self, BufRead};
use std::path::PathBuf;

/// Lines that are remembered.
const REMEMBERED: usize = 1000;

/// Where lines come from.
pub(super) enum Input {
    Terminal(Box<Terminal>),
    Pipe,
    /// One message, which is the end.
    Given(Option<String>),
}

/// What was typed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Typed {
    /// One line, without its end.
    Line(String),
    /// Ctrl-C: what was typed so far is void.
    Void,
    /// Ctrl-D, or the end of what is piped in.
    End,
}

/// A terminal with an editor, and the lines of earlier sessions.
pub(super) struct Terminal {
    editor: Editor<(), FileHistory>,
    /// Where lines are kept.
    file: Option<PathBuf>,
}

impl Input {
    /// The terminal, or stdin as it is.
    pub(super) fn open(interactive: bool, remember: bool) -> Result<Self> {
        if !interactive {
            return Ok(Self::Pipe);
        }
        let mut editor = DefaultEditor::new().context("the terminal cannot be used")?;
        editor.set_max_history_size(REMEMBERED)?;
        editor.set_auto_add_history(false);
        let file = env::state_folder()
            .filter(|_| remember)
            .map(|folder| folder.join("chat_history"));
        if let Some(file) = &file {
            // The first time there is none; a damaged one is not worth a failure.
            if let Err(error) = editor.load_history(file) {
                tracing::debug!(?file, %error, "no history");
            }
        }
        Ok(Self::Terminal(Box::new(Terminal { editor, file })))
    }

    /// The next line.
    pub(super) fn next(&mut self, prompt: &str) -> Result<Typed> {
        match self {
            Self::Terminal(terminal) => terminal.next(prompt),
            Self::Given(message) => Ok(message.take().map_or(Typed::End, Typed::Line)),
            Self::Pipe => {
                let mut line = String::new();
                if io::stdin().lock().read_line(&mut line).context("stdin")? == 0 {
                    return Ok(Typed::End);
                }
                Ok(Typed::Line(line.trim_end_matches(['\n', '\r']).to_owned()))
            }
        }
    }

    /// Remembers a message or command.
    pub(super) fn remember(&mut self, text: &str) {
        if let Self::Terminal(terminal) = self {
            terminal.remember(text);
        }
    }
}

impl Terminal {
    fn next(&mut self, prompt: &str) -> Result<Typed> {
        match self.editor.readline(prompt) {
            Ok(line) => Ok(Typed::Line(line)),
            Err(ReadlineError::Interrupted) => Ok(Typed::Void),
            Err(ReadlineError::Eof) => Ok(Typed::End),
            Err(error) => Err(error).context("the terminal cannot be read"),
        }
    }

    /// Written at once: a session may end in many ways.
    fn remember(&mut self, text: &str) {
        let added = self.editor.add_history_entry(text).unwrap_or(false);
        let Some(file) = self.file.as_ref().filter(|_| added) else {
            return;
        };
        let folder = file.parent().map_or(Ok(()), std::fs::create_dir_all);
        let written = folder.map_err(ReadlineError::from);
        if let Err(error) = written.and_then(|()| self.editor.append_history(file)) {
            tracing::debug!(?file, %error, "the history cannot be written");
        }
    }
}
