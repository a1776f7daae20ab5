//! The Jinja environment templates expect: the one Python gives them.

use std::fmt;

use jiff::Zoned;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, escape_formatter};

use super::json::{self, Style};
use super::{amplifying, budget, metered};

/// The reason a template gave to `raise_exception`.
#[derive(Debug)]
pub(super) struct Raised(pub(super) String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// An environment without templates.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_unknown_method_callback(amplifying::method);
    // Error texts that quote the template would not fit a one-line message.
    environment.set_debug(false);
    environment.set_formatter(|out, state, value| {
        budget::deep(state, value)?;
        match python_float(value) {
            Some(text) => out.write_str(&text).map_err(Error::from),
            None => escape_formatter(out, state, value),
        }
    });
    metered::register(&mut environment);
    amplifying::register(&mut environment);
    environment.add_filter("string", |state: &mut State<'_, '_>, value: &Value| {
        budget::deep(state, value)?;
        Ok::<_, Error>(python_float(value).unwrap_or_else(|| value.to_string()))
    });
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_sequence);
    environment
}

/// How templates are written.
pub(super) fn syntax() -> SyntaxConfig {
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build();
    syntax.unwrap_or_default()
}

/// Rewrites the tags around the assistant's words, which only matter in training, as a condition that holds.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end);
        let name = tag[2..].trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        match name {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// How Python prints a number that is not an integer.
fn python_float(value: &Value) -> Option<String> {
    let fractional = value.kind() == ValueKind::Number && !value.is_integer();
    let number = fractional.then(|| f64::try_from(value.clone()).ok()).flatten()?;
    number.is_finite().then(|| json::float(number))
}

fn raise_exception(state: &mut State<'_, '_>, message: &Value) -> Result<Value, Error> {
    budget::deep(state, message)?;
    let raised = Raised(message.to_string());
    Err(Error::new(ErrorKind::InvalidOperation, "raised by the template").with_source(raised))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, &Zoned::now())
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
}

/// In Python strings can be iterated over and `None` cannot.
fn is_iterable(value: &Value) -> bool {
    value.kind() == ValueKind::String || (!value.is_none() && value.try_iter().is_ok())
}

/// In Python whatever has a length and items is a sequence, so strings and mappings are.
fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Undefined | ValueKind::Seq | ValueKind::String | ValueKind::Map
    )
}

#[expect(clippy::needless_pass_by_value, reason = "the signature filters must have")]
fn to_json(
    state: &mut State<'_, '_>,
    value: &Value,
    ensure_ascii: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let ensure_ascii = ensure_ascii.or(options.get("ensure_ascii")?).unwrap_or(false);
    let indent = options.get::<Option<usize>>("indent")?;
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let (item, key) = match separators.as_deref() {
        None => (if indent.is_some() { "," } else { ", " }, ": "),
        Some([item, key]) => (item.as_str(), key.as_str()),
        Some(other) => {
            let reason = format!("tojson takes two separators, not {}", other.len());
            return Err(Error::new(ErrorKind::InvalidOperation, reason));
        }
    };
    let style = Style {
        ensure_ascii,
        indent,
        item,
        key,
        sort_keys,
    };
    let text = json::write(value, &style, budget::left(state))?;
    budget::spend(state, text.len() as u64)?;
    Ok(text)
}
