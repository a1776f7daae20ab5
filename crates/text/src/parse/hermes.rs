//! Calls as JSON objects between tags: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

use super::ToolParser;
use super::emit::{Emitter, Parts};
use super::object::{ObjectCall, Outcome};
use super::scan::{Expect, Input, Search, expect, search};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// The format of Hermes, Qwen2.5 and Qwen3.
///
/// The closing tag may be missing, before another call or at the end.
#[derive(Debug, Default)]
pub(super) struct Hermes {
    state: State,
    input: Input,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Text,
    Call(Box<ObjectCall>),
    /// After the object of a call, where the closing tag is expected.
    Tail,
}

impl ToolParser for Hermes {
    fn push(&mut self, text: &str, out: &mut Emitter, parts: &mut Parts) {
        self.input.push(text);
        while self.step(out, parts) {}
    }

    fn finish(&mut self, out: &mut Emitter, parts: &mut Parts) {
        match &mut self.state {
            State::Text => out.text(self.input.take_all(), parts),
            State::Call(call) => call.finish(out, parts),
            State::Tail => {}
        }
    }
}

impl Hermes {
    /// Takes one decision, or says that it needs more text.
    fn step(&mut self, out: &mut Emitter, parts: &mut Parts) -> bool {
        match &mut self.state {
            State::Text => match search(self.input.rest(), &[OPEN]) {
                Search::Clear(end) => {
                    out.text(self.input.take(end), parts);
                    return false;
                }
                Search::Found { at, .. } => {
                    out.text(self.input.take(at), parts);
                    let mark = self.input.take(OPEN.len());
                    self.state = State::Call(Box::new(ObjectCall::marked(mark)));
                }
            },
            State::Call(call) => match call.run(&mut self.input, out, parts) {
                Outcome::More => return false,
                Outcome::Call => self.state = State::Tail,
                Outcome::Broken => self.state = State::Text,
            },
            State::Tail => {
                out.separator(self.input.take_space());
                match expect(self.input.rest(), &[CLOSE]) {
                    Expect::Open => return false,
                    Expect::Is(_) => {
                        self.input.take(CLOSE.len());
                        out.drop_separators();
                        self.state = State::Text;
                    }
                    Expect::Not => self.state = State::Text,
                }
            }
        }
        true
    }
}
