//! A conversation from its first line to its last.

use super::answer::{AnswerFigures, Question};
use super::command::{self, Command, Line};
use super::conversation::{Conversation, Role};
use super::input::{Input, Typed};
use super::screen::{Screen, say};
use super::{Speaker, settings};
use crate::commands::generate::Settings;
use crate::format::{self, fact};
use crate::interrupt::Interrupt;
use crate::terminal::{self, Silence};
use anyhow::{Result, bail};
use std::fmt::Write;

/// The prompt, and that of a line which goes on.
const PROMPT: &str = "> ";
const MORE: &str = "… ";

/// Everything that lasts from one line to the next.
pub(super) struct Session {
    speaker: Speaker,
    conversation: Conversation,
    settings: Settings,
    interrupt: Interrupt,
    screen: Screen,
    multiline: bool,
    /// Of the next answer, where the user gave none.
    seed: u64,
    /// Answers so far.
    answers: u64,
    figures: AnswerFigures,
    /// Messages that the last answer did without.
    left_out: usize,
}

/// What a line came to.
enum Next {
    GoOn,
    Leave,
}

impl Session {
    pub(super) fn new(
        speaker: Speaker,
        conversation: Conversation,
        settings: Settings,
        interrupt: Interrupt,
        screen: Screen,
    ) -> Self {
        Self {
            speaker,
            conversation,
            settings,
            interrupt,
            screen,
            multiline: false,
            seed: crate::seed::random(),
            answers: 0,
            figures: AnswerFigures::default(),
            left_out: 0,
        }
    }

    /// Reads and answers until the user leaves. On a terminal, what goes wrong is told and the
    /// conversation goes on; a script ends with its first failure.
    pub(super) fn run(mut self, mut input: Input) -> Result<()> {
        if self.screen.interactive {
            for line in self.speaker.introduction() {
                self.screen.note(line);
            }
            self.screen.note("/help lists the commands, Ctrl-D leaves.");
        }
        loop {
            let line = match self.read(&mut input)? {
                Typed::Line(line) => line,
                Typed::Void => {
                    self.screen.note("Ctrl-D leaves.");
                    continue;
                }
                Typed::End => return Ok(()),
            };
            match self.take(&line) {
                Ok(Next::GoOn) => {}
                Ok(Next::Leave) => return Ok(()),
                Err(error) if self.screen.interactive && !crate::is_broken_pipe(&error) => {
                    crate::ui::error(&error);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// A message or a command, however many lines it has.
    fn read(&self, input: &mut Input) -> Result<Typed> {
        let mut text = String::new();
        let mut prompt = PROMPT;
        loop {
            let line = match input.next(prompt)? {
                Typed::Line(line) => line,
                // What was typed before the end of a pipe counts.
                Typed::End if !text.is_empty() && !self.screen.interactive => break,
                other => return Ok(other),
            };
            prompt = MORE;
            if let Some(start) = line.strip_suffix('\\') {
                text.push_str(start);
                text.push('\n');
                continue;
            }
            // A command is one line, or there would be no way to leave.
            let first = text.is_empty();
            let command = first && line.starts_with('/') && !line.starts_with("//");
            let last = !self.multiline || command || line.is_empty();
            text.push_str(&line);
            if last {
                break;
            }
            text.push('\n');
        }
        let text = text.trim_end().to_owned();
        if !text.is_empty() {
            input.remember(&text);
        }
        Ok(Typed::Line(text))
    }

    fn take(&mut self, line: &str) -> Result<Next> {
        match command::parse(line)? {
            // Where a text is continued, nothing more than "go on" is something to say.
            Line::Message(text) if text.trim().is_empty() && !self.goes_on() => Ok(Next::GoOn),
            Line::Message(text) => {
                self.conversation.push(Role::User, text);
                self.answer()?;
                Ok(Next::GoOn)
            }
            Line::Command(command) => self.obey(command),
        }
    }

    fn goes_on(&self) -> bool {
        self.speaker.continues() && !self.conversation.messages.is_empty()
    }

    /// Answers the newest message. If that fails, the message is taken back.
    fn answer(&mut self) -> Result<()> {
        self.interrupt.reset();
        self.seed = self.seed.wrapping_add(1) & 0xffff_ffff;
        let question = Question {
            conversation: &self.conversation,
            settings: &self.settings,
            seed: self.seed,
        };
        let silence = Silence::begin();
        let mut answering = self.screen.answer();
        let answered = self
            .speaker
            .answer(&question, &self.interrupt, &mut |part| answering.show(&part));
        let ended = if answered.is_ok() || answering.has_begun() {
            answering.end()
        } else {
            Ok(())
        };
        drop(silence);
        let answer = match answered.and_then(|answer| ended.map(|()| answer)) {
            Ok(answer) => answer,
            Err(error) => {
                self.conversation.undo();
                return Err(error);
            }
        };
        self.conversation.push(Role::Assistant, answer.text);
        self.answers += 1;
        self.figures.add(&answer.figures);
        if answer.left_out > self.left_out {
            self.screen.note(format_args!(
                "[the context is full: the first {} messages are left out]",
                answer.left_out
            ));
        }
        self.left_out = answer.left_out;
        if self.screen.stats {
            let end = match answer.end.as_str() {
                "stop" => None,
                "cancelled" => Some("stopped by you".to_owned()),
                "length" => Some("stopped at the token limit".to_owned()),
                other => Some(format!("ended by {other}")),
            };
            let mut facts = answer.figures.facts();
            facts.extend(end.map(|end| fact(0, end)));
            let line = format::status(&facts, terminal::status_width());
            self.screen.note(line);
        }
        Ok(())
    }

    fn obey(&mut self, command: Command) -> Result<Next> {
        match command {
            Command::Exit => return Ok(Next::Leave),
            Command::Help => say(command::HELP)?,
            Command::Clear => {
                self.conversation.messages.clear();
                self.left_out = 0;
                self.screen.note("[the conversation is forgotten]");
            }
            Command::System(None) => {
                let system = self.conversation.system.as_deref();
                say(system.unwrap_or("the model is told nothing first"))?;
            }
            Command::System(Some(text)) => {
                self.conversation.system = Some(text).filter(|text| !text.is_empty());
            }
            Command::Retry => self.retry()?,
            Command::Undo if self.conversation.undo() => self.screen.note("[taken back]"),
            Command::Undo => bail!("/undo: there is nothing to take back"),
            Command::Show => say(self.transcript().trim_end())?,
            Command::Save(path) => {
                self.conversation.save(&path, self.speaker.name())?;
                self.screen.note(format_args!("[saved to {}]", path.display()));
            }
            Command::Load(path) => {
                self.conversation = Conversation::load(&path)?;
                self.left_out = 0;
                let count = self.conversation.messages.len();
                self.screen
                    .note(format_args!("[{count} messages from {}]", path.display()));
            }
            Command::Set(None) => say(settings::list(&self.settings))?,
            Command::Set(Some((name, value))) => {
                settings::change(&mut self.settings, &name, value.as_deref())?;
            }
            Command::Stats(Some(on)) => self.screen.stats = on,
            Command::Stats(None) => {
                let line = format::status(&self.figures.facts(), None);
                let answers = if self.answers == 1 { "answer" } else { "answers" };
                say(format_args!(
                    "{} {answers}: {}",
                    self.answers,
                    line.trim_matches(['[', ']'])
                ))?;
            }
            Command::Model => say(self.speaker.introduction().join("\n"))?,
            Command::Multiline => {
                self.multiline = !self.multiline;
                self.screen.note(if self.multiline {
                    "[messages end with an empty line]"
                } else {
                    "[messages are one line]"
                });
            }
        }
        Ok(Next::GoOn)
    }

    /// Another answer to the newest message. If it fails, the first one is back.
    fn retry(&mut self) -> Result<()> {
        let before = self.conversation.clone();
        self.conversation.take_answer();
        if !self.conversation.is_open() {
            bail!("/retry: there is nothing to answer");
        }
        // The same seed would only say the same.
        if let Some(seed) = self.settings.options.integer("seed") {
            let next = (seed as u64).wrapping_add(1).to_string();
            settings::change(&mut self.settings, "seed", Some(&next))?;
        }
        let answered = self.answer();
        if answered.is_err() {
            self.conversation = before;
        }
        answered
    }

    /// What has been said; where a text is continued, that text.
    fn transcript(&self) -> String {
        if self.goes_on() {
            return self.conversation.to_text(0);
        }
        let mut text = String::new();
        if let Some(system) = &self.conversation.system {
            let _ = writeln!(text, "system: {system}");
        }
        for message in &self.conversation.messages {
            let role = match message.role {
                Role::User => "you",
                Role::Assistant => "model",
            };
            let _ = writeln!(text, "{role}: {}", message.content.trim());
        }
        if text.is_empty() {
            text.push_str("nothing has been said");
        }
        text
    }
}
