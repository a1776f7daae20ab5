//! Calls as tags: `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`.

use serde_json::Value;

use super::ToolParser;
use super::emit::{Emitter, Parts};
use super::json::{escaped, quoted};
use super::scan::{Expect, Input, Search, expect, search};
use super::schema::{Kinds, Schemas};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const FUNCTION_CLOSE: &str = "</function>";
const PARAMETER: &str = "<parameter=";
/// What ends a value. Models forget the first of them; the others count at the beginning of a line, where text that
/// is part of a value is least likely to have them.
const VALUE_END: &[&str] = &["</parameter>", "\n<parameter=", "\n</function>"];

/// Longest name of a tool or parameter, in bytes.
const MAX_NAME: usize = 256;

/// The format of Qwen3-Coder and Qwen3.5.
///
/// The outer tags may be missing, as these models forget them; without the opening one, the name has to be that of
/// a tool on offer. A newline at each end of a value belongs to the tags. Strings are passed on as they arrive,
/// values of other types when they are complete.
#[derive(Debug)]
pub(super) struct Qwen3Coder {
    schemas: Schemas,
    state: State,
    input: Input,
    /// What has to be given back if this is no call.
    raw: String,
    /// The name or key that is being read.
    word: String,
    /// The name of the tool that is being called.
    tool: String,
    /// The call has a parameter already.
    more: bool,
}

#[derive(Debug)]
enum State {
    Text,
    /// After the opening tag.
    Opened,
    Name {
        bare: bool,
    },
    /// In a function, between parameters.
    Body,
    Key,
    Value(ValueWriter),
    /// After a function.
    Tail,
}

/// How the end of a name was found.
enum Word {
    Open,
    Whole,
    Broken,
}

impl ToolParser for Qwen3Coder {
    fn push(&mut self, text: &str, out: &mut Emitter, parts: &mut Parts) {
        self.input.push(text);
        while self.step(out, parts) {}
    }

    fn finish(&mut self, out: &mut Emitter, parts: &mut Parts) {
        let held = self.input.take_all();
        match &mut self.state {
            State::Text => out.text(held, parts),
            State::Opened | State::Name { .. } => {
                out.text(&self.raw, parts);
                out.text(&self.word, parts);
                out.text(held, parts);
            }
            State::Body | State::Key => out.end(false, parts),
            State::Value(value) => {
                value.cut_off(held, out, parts);
                out.end(false, parts);
            }
            State::Tail => {}
        }
    }
}

impl Qwen3Coder {
    pub(super) fn new(tools: &[Value]) -> Self {
        Self {
            schemas: Schemas::new(tools),
            state: State::Text,
            input: Input::default(),
            raw: String::new(),
            word: String::new(),
            tool: String::new(),
            more: false,
        }
    }

    /// Takes one decision, or says that it needs more text.
    fn step(&mut self, out: &mut Emitter, parts: &mut Parts) -> bool {
        match &mut self.state {
            State::Text => self.text(out, parts),
            State::Opened => self.opened(out, parts),
            State::Name { bare } => {
                let bare = *bare;
                self.name(bare, out, parts)
            }
            State::Body => self.body(out, parts),
            State::Key => self.key(out, parts),
            State::Value(_) => self.value(out, parts),
            State::Tail => self.tail(out),
        }
    }

    fn text(&mut self, out: &mut Emitter, parts: &mut Parts) -> bool {
        let tags = [OPEN, FUNCTION];
        match search(self.input.rest(), &tags) {
            Search::Clear(end) => {
                out.text(self.input.take(end), parts);
                false
            }
            Search::Found { at, which } => {
                out.text(self.input.take(at), parts);
                self.raw.clear();
                self.raw.push_str(self.input.take(tags[which].len()));
                self.state = if which == 0 {
                    State::Opened
                } else {
                    State::Name { bare: true }
                };
                true
            }
        }
    }

    fn opened(&mut self, out: &mut Emitter, parts: &mut Parts) -> bool {
        self.raw.push_str(self.input.take_space());
        match expect(self.input.rest(), &[FUNCTION]) {
            Expect::Open => return false,
            Expect::Is(_) => {
                self.raw.push_str(self.input.take(FUNCTION.len()));
                self.state = State::Name { bare: false };
            }
            Expect::Not => {
                out.text(&self.raw, parts);
                self.state = State::Text;
            }
        }
        true
    }

    fn name(&mut self, bare: bool, out: &mut Emitter, parts: &mut Parts) -> bool {
        match self.word() {
            Word::Open => return false,
            Word::Whole if !bare || self.schemas.may_have(&self.word) => {
                self.tool = std::mem::take(&mut self.word);
                self.more = false;
                out.start(&self.tool, parts);
                out.arguments("{", parts);
                self.input.take(1);
                self.state = State::Body;
            }
            Word::Whole | Word::Broken => {
                out.text(&self.raw, parts);
                out.text(&std::mem::take(&mut self.word), parts);
                self.state = State::Text;
            }
        }
        true
    }

    fn body(&mut self, out: &mut Emitter, parts: &mut Parts) -> bool {
        self.input.take_space();
        let tags = [PARAMETER, FUNCTION_CLOSE, CLOSE];
        match expect(self.input.rest(), &tags) {
            Expect::Open => return false,
            Expect::Is(0) => {
                self.input.take(PARAMETER.len());
                self.state = State::Key;
            }
            Expect::Is(which) => {
                self.input.take(tags[which].len());
                out.arguments("}", parts);
                out.end(true, parts);
                self.state = if which == 1 { State::Tail } else { State::Text };
            }
            Expect::Not => {
                out.end(false, parts);
                self.state = State::Text;
            }
        }
        true
    }

    fn key(&mut self, out: &mut Emitter, parts: &mut Parts) -> bool {
        match self.word() {
            Word::Open => return false,
            Word::Whole => {
                self.input.take(1);
                let key = std::mem::take(&mut self.word);
                let separator = if self.more { ", " } else { "" };
                out.arguments(&format!("{separator}{}: ", quoted(&key)), parts);
                self.more = true;
                self.state = State::Value(ValueWriter::new(self.schemas.kinds(&self.tool, &key)));
            }
            Word::Broken => {
                out.end(false, parts);
                out.text(PARAMETER, parts);
                out.text(&std::mem::take(&mut self.word), parts);
                self.state = State::Text;
            }
        }
        true
    }

    /// Reads a name up to the bracket that ends it, or to where it turns out to be none.
    fn word(&mut self) -> Word {
        let rest = self.input.rest();
        let end = rest.find(|c: char| matches!(c, '<' | '>') || c.is_control());
        let word = &rest[..end.unwrap_or(rest.len())];
        let room = MAX_NAME - self.word.len();
        if word.len() > room {
            let fitting = (0..=room).rev().find(|&at| word.is_char_boundary(at));
            self.word.push_str(self.input.take(fitting.unwrap_or(0)));
            return Word::Broken;
        }
        let closed = end.map(|end| rest[end..].starts_with('>'));
        let length = word.len();
        self.word.push_str(self.input.take(length));
        match closed {
            None => Word::Open,
            Some(true) if !self.word.trim().is_empty() => Word::Whole,
            Some(_) => Word::Broken,
        }
    }

    fn value(&mut self, out: &mut Emitter, parts: &mut Parts) -> bool {
        let State::Value(value) = &mut self.state else {
            return false;
        };
        match search(self.input.rest(), VALUE_END) {
            Search::Clear(end) => {
                value.push(self.input.take(end), out, parts);
                false
            }
            Search::Found { at, which } => {
                value.push(self.input.take(at), out, parts);
                if which == 0 {
                    self.input.take(VALUE_END[0].len());
                } else {
                    // The newline of the tag takes the part of the one that would end the value.
                    value.keep_newline(out, parts);
                    self.input.take(1);
                }
                value.end(out, parts);
                self.state = State::Body;
                true
            }
        }
    }

    fn tail(&mut self, out: &mut Emitter) -> bool {
        out.separator(self.input.take_space());
        match expect(self.input.rest(), &[CLOSE]) {
            Expect::Open => return false,
            Expect::Is(_) => {
                self.input.take(CLOSE.len());
                out.drop_separators();
            }
            Expect::Not => {}
        }
        self.state = State::Text;
        true
    }
}

/// Turns the text of one value into JSON.
#[derive(Debug)]
struct ValueWriter {
    kinds: Kinds,
    /// Nothing has come yet, so that a newline belongs to the tag before the value.
    first: bool,
    /// A newline that belongs to the tag after the value, if that follows.
    newline: bool,
    /// Text that is not written yet, because its type is not known.
    text: String,
    /// It is a string, and its opening quote is written.
    quoted: bool,
}

impl ValueWriter {
    fn new(kinds: Kinds) -> Self {
        Self {
            kinds,
            first: true,
            newline: false,
            text: String::new(),
            quoted: false,
        }
    }

    fn push(&mut self, text: &str, out: &mut Emitter, parts: &mut Parts) {
        if text.is_empty() {
            return;
        }
        let text = if self.first {
            text.strip_prefix('\n').unwrap_or(text)
        } else {
            text
        };
        self.first = false;
        if text.is_empty() {
            return;
        }
        self.keep_newline(out, parts);
        let body = text.strip_suffix('\n');
        self.newline = body.is_some();
        self.write(body.unwrap_or(text), out, parts);
    }

    /// The newline that was held back is part of the value.
    fn keep_newline(&mut self, out: &mut Emitter, parts: &mut Parts) {
        if std::mem::take(&mut self.newline) {
            self.write("\n", out, parts);
        }
    }

    fn write(&mut self, text: &str, out: &mut Emitter, parts: &mut Parts) {
        if self.quoted {
            out.arguments(&escaped(text), parts);
            return;
        }
        self.text.push_str(text);
        let is_text = match self.kinds {
            Kinds::TEXT => true,
            Kinds::TEXT_OR_NULL => !"null".starts_with(&self.text),
            _ => false,
        };
        if is_text {
            self.quote(out, parts);
        }
    }

    fn quote(&mut self, out: &mut Emitter, parts: &mut Parts) {
        self.quoted = true;
        out.arguments(&format!("\"{}", escaped(&self.text)), parts);
        self.text.clear();
    }

    fn end(&mut self, out: &mut Emitter, parts: &mut Parts) {
        if self.quoted {
            out.arguments("\"", parts);
        } else {
            out.arguments(&self.kinds.json(&self.text), parts);
        }
    }

    /// The text ended in the midst of the value, with `held` as the last of it. It becomes a string without an end,
    /// whatever its type: a number that may have had more digits is nothing to act on.
    fn cut_off(&mut self, held: &str, out: &mut Emitter, parts: &mut Parts) {
        self.push(held, out, parts);
        self.keep_newline(out, parts);
        if !self.quoted {
            self.quote(out, parts);
        }
    }
}
