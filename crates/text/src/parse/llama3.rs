//! Calls as JSON objects that are the whole output: `{"name": ..., "parameters": {...}}`.

use super::ToolParser;
use super::emit::{Emitter, Parts};
use super::object::{ObjectCall, Outcome};
use super::scan::{Expect, Input, expect};

const TAG: &str = "<|python_tag|>";

/// The format of Llama 3.
///
/// Objects are calls only at the beginning, possibly after `<|python_tag|>`, and after other calls, separated by
/// semicolons or white space. From the first text that is none on, everything is content.
#[derive(Debug, Default)]
pub(super) struct Llama3 {
    state: State,
    input: Input,
}

#[derive(Debug, Default)]
enum State {
    /// Where a call may begin.
    #[default]
    Between,
    /// After the tag; this has to be given back if no call follows.
    Tagged(String),
    Call(Box<ObjectCall>),
    Text,
}

impl ToolParser for Llama3 {
    fn push(&mut self, text: &str, out: &mut Emitter, parts: &mut Parts) {
        self.input.push(text);
        while self.step(out, parts) {}
    }

    fn finish(&mut self, out: &mut Emitter, parts: &mut Parts) {
        match &mut self.state {
            State::Tagged(raw) => out.text(raw, parts),
            State::Call(call) => call.finish(out, parts),
            State::Between | State::Text => {}
        }
        out.text(self.input.take_all(), parts);
    }
}

impl Llama3 {
    /// Takes one decision, or says that it needs more text.
    fn step(&mut self, out: &mut Emitter, parts: &mut Parts) -> bool {
        match &mut self.state {
            State::Between => {
                out.separator(self.input.take_space());
                let tags: &[&str] = if out.calls() > 0 {
                    &["{", TAG, ";"]
                } else {
                    &["{", TAG]
                };
                match expect(self.input.rest(), tags) {
                    Expect::Open => return false,
                    Expect::Is(0) => self.state = State::Call(Box::new(ObjectCall::unmarked(""))),
                    Expect::Is(1) => self.state = State::Tagged(self.input.take(TAG.len()).to_owned()),
                    Expect::Is(_) => out.separator(self.input.take(1)),
                    Expect::Not => self.state = State::Text,
                }
            }
            State::Tagged(raw) => {
                raw.push_str(self.input.take_space());
                match expect(self.input.rest(), &["{"]) {
                    Expect::Open => return false,
                    Expect::Is(_) => self.state = State::Call(Box::new(ObjectCall::unmarked(raw))),
                    Expect::Not => {
                        out.text(raw, parts);
                        self.state = State::Text;
                    }
                }
            }
            State::Call(call) => match call.run(&mut self.input, out, parts) {
                Outcome::More => return false,
                Outcome::Call => self.state = State::Between,
                Outcome::Broken => self.state = State::Text,
            },
            State::Text => {
                out.text(self.input.take_all(), parts);
                return false;
            }
        }
        true
    }
}
