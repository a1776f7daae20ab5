//! JSON text exactly as Python's `json.dumps` writes it, which is what models saw in training.

use std::fmt::Write as _;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Deepest nesting: deeper than any parsed request can be.
const MAX_DEPTH: usize = 200;

/// Widest indentation of one level.
const MAX_INDENT: usize = 16;

/// The options of `json.dumps`.
pub(super) struct Style<'a> {
    pub(super) ensure_ascii: bool,
    pub(super) indent: Option<usize>,
    /// Between items.
    pub(super) item: &'a str,
    /// Between a key and its value.
    pub(super) key: &'a str,
    pub(super) sort_keys: bool,
}

/// Writes a template value as JSON, in at most about `limit` bytes.
pub(super) fn write(value: &Value, style: &Style<'_>, limit: u64) -> Result<String, Error> {
    let mut writer = Writer {
        out: String::new(),
        style,
        limit,
    };
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct Writer<'a> {
    out: String,
    style: &'a Style<'a>,
    limit: u64,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(refused(format!("tojson: more than {MAX_DEPTH} levels")));
        }
        if self.out.len() as u64 > self.limit {
            return Err(refused("tojson: the text is too long".to_owned()));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.out.push_str(&value.to_string()),
            ValueKind::Number => self.out.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Map => self.object(value, depth)?,
            other => return Err(refused(format!("tojson: {other} is not JSON"))),
        }
        Ok(())
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in value.try_iter()? {
            self.separate(empty, depth + 1);
            self.value(&item, depth + 1)?;
            empty = false;
        }
        self.close(']', empty, depth);
        Ok(())
    }

    fn object(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.style.sort_keys {
            keys.sort_by_key(ToString::to_string);
        }
        self.out.push('{');
        for (index, key) in keys.iter().enumerate() {
            self.separate(index == 0, depth + 1);
            match key.kind() {
                ValueKind::None => self.out.push_str("\"null\""),
                ValueKind::Bool => self.string(if key.is_true() { "true" } else { "false" }),
                _ => self.string(&key.to_string()),
            }
            self.out.push_str(self.style.key);
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        self.close('}', keys.is_empty(), depth);
        Ok(())
    }

    fn separate(&mut self, first: bool, depth: usize) {
        if !first {
            self.out.push_str(self.style.item);
        }
        self.line(depth);
    }

    fn close(&mut self, bracket: char, empty: bool, depth: usize) {
        if !empty {
            self.line(depth);
        }
        self.out.push(bracket);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = self.style.indent {
            self.out.push('\n');
            self.out
                .extend(std::iter::repeat_n(' ', indent.min(MAX_INDENT) * depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.style.ensure_ascii && !c.is_ascii()) => self.escape(c),
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, c: char) {
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(self.out, "\\u{unit:04x}");
        }
    }
}

fn refused(reason: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

/// The shortest digits that give the number back, with an exponent where Python uses one.
pub(super) fn float(number: f64) -> String {
    if !number.is_finite() {
        let name = if number.is_nan() { "NaN" } else { "Infinity" };
        return format!("{}{name}", if number < 0.0 { "-" } else { "" });
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = number.to_string();
        let point = if plain.contains('.') { "" } else { ".0" };
        format!("{plain}{point}")
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.abs())
    }
}

#[cfg(test)]
mod tests {
    use minijinja::value::Serde;

    use super::*;

    fn dumps(value: &serde_json::Value, indent: Option<usize>, ensure_ascii: bool) -> String {
        let item = if indent.is_some() { "," } else { ", " };
        let style = Style {
            ensure_ascii,
            indent,
            item,
            key: ": ",
            sort_keys: false,
        };
        write(&Value::from(Serde(value)), &style, 1000).unwrap()
    }

    #[test]
    fn keys_keep_their_order_and_text_its_characters() {
        let value = serde_json::json!({ "z": "é<&>'\u{7f}", "a": [1, true, null, {}], "m": "\"\\\n\u{1}" });
        let expected = "{\"z\": \"é<&>'\u{7f}\", \"a\": [1, true, null, {}], \"m\": \"\\\"\\\\\\n\\u0001\"}";
        assert_eq!(dumps(&value, None, false), expected);
    }

    #[test]
    fn indentation_puts_items_on_lines_and_keeps_empty_lists_closed() {
        let value = serde_json::json!({ "a": [1, 2], "b": [] });
        assert_eq!(
            dumps(&value, Some(2), false),
            "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": []\n}"
        );
    }

    #[test]
    fn ascii_output_uses_surrogate_pairs() {
        assert_eq!(
            dumps(&serde_json::json!("é😀"), None, true),
            "\"\\u00e9\\ud83d\\ude00\""
        );
    }

    #[test]
    fn numbers_are_written_as_python_writes_them() {
        let cases = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.000_01, "1e-05"),
            (-2.5, "-2.5"),
            (-0.0, "-0.0"),
        ];
        for (number, expected) in cases {
            assert_eq!(dumps(&serde_json::json!(number), None, false), expected);
        }
        assert_eq!(
            dumps(&serde_json::json!(u64::MAX), None, false),
            "18446744073709551615"
        );
    }
}
