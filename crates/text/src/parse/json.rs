//! JSON that arrives character by character.

/// Deepest nesting. Common parsers refuse 128 levels, and clients are to accept what is let through here.
const MAX_DEPTH: usize = 100;

/// What one more character means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It belongs to the value, which goes on.
    More,
    /// It belongs to the value and ends it.
    Done,
    /// The value, a number, ended before it.
    Before,
    /// The text is no JSON.
    Invalid,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Value,
    ItemOrEnd,
    KeyOrEnd,
    Key,
    Colon,
    CommaOrEnd,
    Text { key: bool, inner: Text },
    Number(Number),
    Literal(&'static str),
}

#[derive(Clone, Copy, Debug)]
enum Text {
    Plain,
    Escape,
    Hex {
        left: u8,
        code: u16,
    },
    /// After the first half of a character outside the basic plane: the escape of the second half must follow.
    Backslash,
    U,
    LowHex {
        left: u8,
        code: u16,
    },
}

#[derive(Clone, Copy, Debug)]
enum Number {
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    E,
    Sign,
    Exponent,
}

/// Checks one JSON value as it arrives.
///
/// It is strict but for control characters inside strings: models forget to escape them, and there is only one
/// thing they can mean.
#[derive(Debug)]
pub(super) struct JsonScanner {
    state: State,
    /// The containers that are open; true for an object.
    open: Vec<bool>,
}

impl JsonScanner {
    pub(super) fn new() -> Self {
        Self {
            state: State::Value,
            open: Vec::new(),
        }
    }

    /// Takes the next character and appends it, in valid JSON, to `out` if it belongs to the value. After
    /// anything but [`Step::More`], the scanner is used up.
    pub(super) fn push(&mut self, c: char, out: &mut String) -> Step {
        if let State::Text { key, inner } = self.state {
            return self.text(c, key, inner, out);
        }
        if let State::Number(number) = self.state {
            if let Some(next) = number.next(c) {
                self.state = State::Number(next);
                out.push(c);
                return Step::More;
            }
            if !number.may_end() {
                return Step::Invalid;
            }
            if self.open.is_empty() {
                return Step::Before;
            }
            self.state = State::CommaOrEnd;
        }
        let step = self.structure(c);
        if matches!(step, Step::More | Step::Done) {
            out.push(c);
        }
        step
    }

    fn structure(&mut self, c: char) -> Step {
        if let State::Literal(rest) = self.state {
            let mut rest = rest.chars();
            if rest.next() != Some(c) {
                return Step::Invalid;
            }
            self.state = State::Literal(rest.as_str());
            return if rest.as_str().is_empty() {
                self.ended()
            } else {
                Step::More
            };
        }
        if matches!(c, ' ' | '\t' | '\n' | '\r') {
            return Step::More;
        }
        let text = |key| State::Text {
            key,
            inner: Text::Plain,
        };
        self.state = match (self.state, c) {
            (State::ItemOrEnd, ']') | (State::KeyOrEnd, '}') => return self.close(),
            (State::KeyOrEnd | State::Key, '"') => text(true),
            (State::Colon, ':') => State::Value,
            (State::CommaOrEnd, ',') => match self.open.last() {
                Some(true) => State::Key,
                _ => State::Value,
            },
            (State::CommaOrEnd, '}') if self.open.last() == Some(&true) => return self.close(),
            (State::CommaOrEnd, ']') if self.open.last() == Some(&false) => return self.close(),
            (State::Value | State::ItemOrEnd, '"') => text(false),
            (State::Value | State::ItemOrEnd, '{' | '[') if self.open.len() < MAX_DEPTH => {
                self.open.push(c == '{');
                if c == '{' {
                    State::KeyOrEnd
                } else {
                    State::ItemOrEnd
                }
            }
            (State::Value | State::ItemOrEnd, 't') => State::Literal("rue"),
            (State::Value | State::ItemOrEnd, 'f') => State::Literal("alse"),
            (State::Value | State::ItemOrEnd, 'n') => State::Literal("ull"),
            (State::Value | State::ItemOrEnd, '-') => State::Number(Number::Minus),
            (State::Value | State::ItemOrEnd, '0') => State::Number(Number::Zero),
            (State::Value | State::ItemOrEnd, '1'..='9') => State::Number(Number::Digits),
            _ => return Step::Invalid,
        };
        Step::More
    }

    fn close(&mut self) -> Step {
        self.open.pop();
        self.ended()
    }

    /// A value ended.
    fn ended(&mut self) -> Step {
        self.state = State::CommaOrEnd;
        if self.open.is_empty() {
            Step::Done
        } else {
            Step::More
        }
    }

    fn text(&mut self, c: char, key: bool, inner: Text, out: &mut String) -> Step {
        let next = match (inner, c) {
            (Text::Plain, '"') => {
                out.push(c);
                if key {
                    self.state = State::Colon;
                    return Step::More;
                }
                return self.ended();
            }
            (Text::Plain, '\\') => Text::Escape,
            (Text::Plain, '\0'..='\x1f') => {
                out.push_str(escaped(c.encode_utf8(&mut [0; 4])).as_str());
                return Step::More;
            }
            (Text::Plain, _) | (Text::Escape, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => Text::Plain,
            (Text::Escape, 'u') => Text::Hex { left: 4, code: 0 },
            (Text::Backslash, '\\') => Text::U,
            (Text::U, 'u') => Text::LowHex { left: 4, code: 0 },
            (Text::Hex { left, code }, _) => match (left, hex(code, c)) {
                (_, None) | (1, Some(0xdc00..=0xdfff)) => return Step::Invalid,
                (1, Some(0xd800..=0xdbff)) => Text::Backslash,
                (1, Some(_)) => Text::Plain,
                (_, Some(code)) => Text::Hex { left: left - 1, code },
            },
            (Text::LowHex { left, code }, _) => match (left, hex(code, c)) {
                (1, Some(0xdc00..=0xdfff)) => Text::Plain,
                (1, _) | (_, None) => return Step::Invalid,
                (_, Some(code)) => Text::LowHex { left: left - 1, code },
            },
            _ => return Step::Invalid,
        };
        self.state = State::Text { key, inner: next };
        out.push(c);
        Step::More
    }
}

impl Number {
    fn next(self, c: char) -> Option<Self> {
        match (self, c) {
            (Self::Minus, '0') => Some(Self::Zero),
            (Self::Minus, '1'..='9') | (Self::Digits, '0'..='9') => Some(Self::Digits),
            (Self::Zero | Self::Digits, '.') => Some(Self::Point),
            (Self::Point | Self::Fraction, '0'..='9') => Some(Self::Fraction),
            (Self::Zero | Self::Digits | Self::Fraction, 'e' | 'E') => Some(Self::E),
            (Self::E, '+' | '-') => Some(Self::Sign),
            (Self::E | Self::Sign | Self::Exponent, '0'..='9') => Some(Self::Exponent),
            _ => None,
        }
    }

    fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Digits | Self::Fraction | Self::Exponent)
    }
}

fn hex(code: u16, c: char) -> Option<u16> {
    Some((code << 4) | c.to_digit(16)? as u16)
}

/// `text` as JSON, if it is exactly one value: unescaped control characters in its strings become escaped.
pub(super) fn whole_value(text: &str) -> Option<String> {
    let mut scanner = JsonScanner::new();
    let mut out = String::with_capacity(text.len());
    let mut chars = text.trim().chars();
    while let Some(c) = chars.next() {
        match scanner.push(c, &mut out) {
            Step::More => {}
            Step::Done => return chars.as_str().is_empty().then_some(out),
            Step::Before | Step::Invalid => return None,
        }
    }
    // Only the end of the text ends a number.
    matches!(scanner.state, State::Number(number) if scanner.open.is_empty() && number.may_end())
        .then_some(out)
}

/// `text` as it stands between the quotes of a JSON string. What it gives for parts, joined, is what it gives for
/// the whole.
pub(super) fn escaped(text: &str) -> String {
    let mut quoted = quoted(text);
    quoted.pop();
    quoted.remove(0);
    quoted
}

/// `text` as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_end_before_what_follows_them() {
        let mut scanner = JsonScanner::new();
        let mut out = String::new();
        assert_eq!(scanner.push('1', &mut out), Step::More);
        assert_eq!(scanner.push(',', &mut out), Step::Before);
        assert_eq!(out, "1");
    }

    #[test]
    fn control_characters_in_strings_are_escaped() {
        assert_eq!(
            whole_value("{\"a\n\":\"\u{1}\"}").as_deref(),
            Some(r#"{"a\n":"\u0001"}"#)
        );
    }

    #[test]
    fn halves_of_characters_are_refused() {
        assert!(whole_value(r#""\ud83d\ude00 \u00e9""#).is_some());
        for text in [r#""\ud83d""#, r#""\ude00""#, r#""\ud83d\u0041""#, r#""\ud83dx""#] {
            assert_eq!(whole_value(text), None, "{text}");
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(whole_value(&nested(MAX_DEPTH)).is_some());
        assert!(whole_value(&nested(MAX_DEPTH + 1)).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn exactly_json_is_accepted(text in r#"([\[\]{},:"\\ eEu+.-]|[019]|true|null|"a"|\\u00e9|é){0,10}"#) {
            let ours = whole_value(&text);
            let theirs = serde_json::from_str::<serde_json::Value>(&text);
            // It also refuses numbers that are too large for it, which are JSON.
            if !theirs.as_ref().is_err_and(|error| error.to_string().contains("out of range")) {
                prop_assert_eq!(ours.is_some(), theirs.is_ok(), "{}", text);
            }
            if let Some(ours) = ours {
                prop_assert_eq!(ours, text.trim());
            }
        }
    }
}
