//! Bounds on grammars that come from untrusted clients.

use crate::error::GrammarError;
use crate::tokenizer::clipped;
use llguidance::api::ParserLimits;
use serde_json::{Map, Value};
use std::collections::HashSet;

/// How large grammars may be and how much work they may make. The defaults leave room for large real schemas: a
/// compilation takes tens of milliseconds at most, a mask a few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrammarLimits {
    /// Bytes of a grammar as text.
    pub bytes: usize,
    /// The same for one with rules of its own: how long these take to compile grows with the square of it.
    pub rule_bytes: usize,
    /// Values within values in a schema.
    pub depth: usize,
    /// Values in a schema, of all kinds.
    pub values: usize,
    /// Symbols of the grammar a schema stands for.
    pub symbols: usize,
    /// Work for its regular expressions; some fifty thousand take a millisecond.
    pub regex_work: u64,
    /// Work for the regular expressions of one mask; some fourteen thousand take a millisecond.
    pub mask_work: u64,
    /// Work for all masks of a text, in microseconds of a usual machine: what a text may begin with.
    pub text_work: u64,
    /// The same for every token that the text grows by; real grammars take a tenth of it. One that goes on taking more is
    /// not followed any further: it would hold a slot for minutes.
    pub token_work: u64,
    /// Properties of one object that may be left out. Each is something that can come next, at every place before it.
    pub optional: usize,
}

impl Default for GrammarLimits {
    fn default() -> Self {
        Self {
            bytes: 512 << 10,
            rule_bytes: 64 << 10,
            depth: 64,
            values: 20_000,
            symbols: 200_000,
            regex_work: 1_000_000,
            mask_work: 200_000,
            text_work: 500_000,
            token_work: 1_000,
            optional: 300,
        }
    }
}

impl GrammarLimits {
    pub(crate) fn parser(&self) -> ParserLimits {
        ParserLimits {
            initial_lexer_fuel: self.regex_work,
            step_lexer_fuel: self.mask_work,
            max_grammar_size: self.symbols,
            max_lexer_states: 100_000,
            // Four for each property that may be left out, and room for what is around them.
            max_items_in_row: 4 * self.optional + 300,
            verbose_errors: false,
            ..ParserLimits::default()
        }
    }

    /// The most work for a text of this many tokens, in microseconds of a usual machine.
    pub(crate) fn work(&self, tokens: usize) -> u64 {
        self.text_work
            .saturating_add(self.token_work.saturating_mul(tokens as u64))
    }

    /// Checks a grammar that is text.
    pub(crate) fn check_text(&self, place: &str, text: &str) -> Result<(), GrammarError> {
        check(place.to_owned(), "the number of bytes", text.len(), self.bytes)
    }

    /// Checks a grammar that is rules.
    pub(crate) fn check_rules(&self, place: &str, text: &str) -> Result<(), GrammarError> {
        check(
            place.to_owned(),
            "the number of bytes",
            text.len(),
            self.rule_bytes,
        )
    }

    /// Checks a schema before anything walks it.
    pub(crate) fn check_schema(&self, schema: &Value) -> Result<(), GrammarError> {
        let mut size = Size::default();
        // A stack of its own: the depth is what is in question.
        let mut open = vec![(schema, String::new(), 0)];
        while let Some((value, place, depth)) = open.pop() {
            size.values += 1;
            check(place.clone(), "the nesting", depth, self.depth)?;
            check(place.clone(), "the number of values", size.values, self.values)?;
            match value {
                Value::String(text) => size.bytes += text.len(),
                Value::Array(items) => {
                    for (index, item) in items.iter().enumerate() {
                        open.push((item, format!("{place}/{index}"), depth + 1));
                    }
                }
                Value::Object(members) => {
                    let what = "the number of optional properties";
                    check(place.clone(), what, optional(members), self.optional)?;
                    for (name, member) in members {
                        size.bytes += name.len();
                        let name = name.replace('~', "~0").replace('/', "~1");
                        open.push((member, format!("{place}/{name}"), depth + 1));
                    }
                }
                _ => size.bytes += 8,
            }
            check(place, "the number of bytes", size.bytes, self.bytes)?;
        }
        Ok(())
    }
}

/// How many properties a schema declares and does not require.
fn optional(schema: &Map<String, Value>) -> usize {
    let declared = schema.get("properties").and_then(Value::as_object);
    let required = schema.get("required").and_then(Value::as_array);
    let required: HashSet<_> = required.into_iter().flatten().filter_map(Value::as_str).collect();
    let names = declared.into_iter().flat_map(Map::keys);
    names.filter(|name| !required.contains(name.as_str())).count()
}

#[derive(Default)]
struct Size {
    values: usize,
    bytes: usize,
}

fn check(place: String, what: &'static str, value: usize, bound: usize) -> Result<(), GrammarError> {
    if value <= bound {
        return Ok(());
    }
    let place = match place.strip_prefix('/') {
        Some(path) => format!("schema at /{}", clipped(path)),
        None if place.is_empty() => "schema".to_owned(),
        None => place,
    };
    Err(GrammarError::TooLarge {
        place,
        what,
        value,
        bound,
    })
}
