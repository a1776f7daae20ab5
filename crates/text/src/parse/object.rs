//! A call as a JSON object: `{"name": ..., "arguments": {...}}`.

use super::emit::{Emitter, Parts};
use super::json::{JsonScanner, Step, whole_value};
use super::scan::Input;

/// What became of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It goes on.
    More,
    /// It was a call, which is written; the input goes on after it.
    Call,
    /// It is no call, or a call that went wrong; what was no part of a call is written as content, and the input
    /// goes on where it went wrong.
    Broken,
}

/// Reads one call.
///
/// The call starts as soon as its name and the beginning of an object of arguments are known, and ends with that
/// object. Arguments that come before the name, or as JSON text in a JSON string, are given at once when they are
/// complete.
#[derive(Debug)]
pub(super) struct ObjectCall {
    state: State,
    /// The object is all that marks a call: it has arguments, and no keys that calls do not have.
    unmarked: bool,
    /// What has to be given back if this is no call, and after a call, the rest of the object.
    raw: String,
    scanner: JsonScanner,
    /// The key or value that is being read, unless it is passed on.
    text: String,
    role: Role,
    name: Option<String>,
    arguments: Option<String>,
    progress: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    KeyOrEnd,
    Key,
    Colon,
    ValueStart,
    Value,
    CommaOrEnd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Name,
    Arguments,
    Other,
}

impl Role {
    /// Whether a value may begin so. What cannot be a call is not held back until the value ends.
    fn may_begin(self, c: char) -> bool {
        match self {
            Self::Name => c == '"',
            Self::Arguments => matches!(c, '{' | '"' | 'n'),
            Self::Other => true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Nothing is written.
    Head,
    /// The arguments are being written.
    Streaming,
    /// The call is written.
    Called,
}

impl ObjectCall {
    /// An object that comes after `mark`, the text that says that it is a call.
    pub(super) fn marked(mark: &str) -> Self {
        Self {
            state: State::Open,
            unmarked: false,
            raw: mark.to_owned(),
            scanner: JsonScanner::new(),
            text: String::new(),
            role: Role::Other,
            name: None,
            arguments: None,
            progress: Progress::Head,
        }
    }

    /// An object with nothing around it; `before` is to be given back with it.
    pub(super) fn unmarked(before: &str) -> Self {
        Self {
            unmarked: true,
            ..Self::marked(before)
        }
    }

    /// Reads on.
    pub(super) fn run(&mut self, input: &mut Input, out: &mut Emitter, parts: &mut Parts) -> Outcome {
        let mut taken = 0;
        let mut end = None;
        for c in input.rest().chars() {
            let before = self.progress;
            let step = self.take(c, out, parts);
            if step == Step::Invalid {
                end = Some(self.broken(out, parts));
                break;
            }
            taken += c.len_utf8();
            if step == Step::Done {
                end = Some(Outcome::Call);
                break;
            }
            if self.progress != before {
                self.raw.clear();
            } else if before != Progress::Streaming {
                self.raw.push(c);
            }
        }
        input.take(taken);
        end.unwrap_or(Outcome::More)
    }

    /// Ends the text in the midst of the object.
    pub(super) fn finish(&mut self, out: &mut Emitter, parts: &mut Parts) {
        match self.progress {
            Progress::Head => out.text(&self.raw, parts),
            Progress::Streaming => out.end(false, parts),
            Progress::Called => {}
        }
    }

    fn broken(&mut self, out: &mut Emitter, parts: &mut Parts) -> Outcome {
        match self.progress {
            // Models forget the last brace.
            Progress::Called if self.raw.trim().is_empty() => {
                out.separator(&self.raw);
                return Outcome::Call;
            }
            Progress::Head | Progress::Called => out.text(&self.raw, parts),
            Progress::Streaming => out.end(false, parts),
        }
        Outcome::Broken
    }

    fn take(&mut self, c: char, out: &mut Emitter, parts: &mut Parts) -> Step {
        if self.state == State::Key {
            let step = self.scanner.push(c, &mut self.text);
            return if step == Step::Done { self.key() } else { step };
        }
        if self.state != State::Value && c.is_whitespace() {
            return Step::More;
        }
        if self.state == State::ValueStart {
            if !self.role.may_begin(c) {
                return Step::Invalid;
            }
            self.state = State::Value;
            self.scanner = JsonScanner::new();
            if let (Role::Arguments, '{', Some(name)) = (self.role, c, &self.name) {
                out.start(name, parts);
                self.progress = Progress::Streaming;
            }
        }
        if self.state == State::Value {
            let step = self.value(c, out, parts);
            if step != Step::Before {
                return step;
            }
            if c.is_whitespace() {
                return Step::More;
            }
        }
        self.state = match (self.state, c) {
            (State::Open, '{') | (State::CommaOrEnd, ',') => State::KeyOrEnd,
            (State::KeyOrEnd, '"') => {
                self.text.clear();
                self.scanner = JsonScanner::new();
                let _ = self.scanner.push(c, &mut self.text);
                State::Key
            }
            (State::KeyOrEnd | State::CommaOrEnd, '}') => return self.close(out, parts),
            (State::Colon, ':') => {
                self.text.clear();
                State::ValueStart
            }
            _ => return Step::Invalid,
        };
        Step::More
    }

    fn key(&mut self) -> Step {
        let key: String = serde_json::from_str(&self.text).unwrap_or_default();
        self.role = match key.as_str() {
            "name" if self.name.is_none() => Role::Name,
            "arguments" | "parameters" if self.arguments.is_none() && self.progress == Progress::Head => {
                Role::Arguments
            }
            "name" | "arguments" | "parameters" => return Step::Invalid,
            "type" | "id" => Role::Other,
            _ if self.unmarked => return Step::Invalid,
            _ => Role::Other,
        };
        self.state = State::Colon;
        Step::More
    }

    /// Reads on in a value; [`Step::More`] also when it ends.
    fn value(&mut self, c: char, out: &mut Emitter, parts: &mut Parts) -> Step {
        let before = self.text.len();
        let step = self.scanner.push(c, &mut self.text);
        if self.progress == Progress::Streaming && self.role == Role::Arguments {
            out.arguments(&self.text[before..], parts);
            self.text.clear();
        }
        if matches!(step, Step::More | Step::Invalid) {
            return step;
        }
        self.state = State::CommaOrEnd;
        match self.role {
            Role::Name => {
                let name: Option<String> = serde_json::from_str(&self.text).ok();
                self.name = name.filter(|name| !name.is_empty());
                if self.name.is_none() {
                    return Step::Invalid;
                }
            }
            Role::Arguments if self.progress == Progress::Streaming => {
                out.end(true, parts);
                self.progress = Progress::Called;
            }
            Role::Arguments => {
                self.arguments = object_text(&self.text);
                if self.arguments.is_none() {
                    return Step::Invalid;
                }
            }
            Role::Other => {}
        }
        if let (Progress::Head, Some(name), Some(arguments)) = (self.progress, &self.name, &self.arguments) {
            out.call(name, arguments, parts);
            self.progress = Progress::Called;
        }
        if step == Step::Done { Step::More } else { step }
    }

    fn close(&mut self, out: &mut Emitter, parts: &mut Parts) -> Step {
        match (self.progress, &self.name) {
            (Progress::Called, _) => Step::Done,
            // A tool without parameters is often called without arguments.
            (Progress::Head, Some(name)) if !self.unmarked && self.arguments.is_none() => {
                out.call(name, "{}", parts);
                Step::Done
            }
            _ => Step::Invalid,
        }
    }
}

/// The arguments as the text of a JSON object, whichever way they were given.
fn object_text(value: &str) -> Option<String> {
    if value.starts_with('{') {
        return Some(value.to_owned());
    }
    if value == "null" {
        return Some("{}".to_owned());
    }
    let text: String = serde_json::from_str(value).ok()?;
    if text.trim().is_empty() {
        return Some("{}".to_owned());
    }
    whole_value(&text).filter(|text| text.starts_with('{'))
}
