//! Parts of texts as a grammar in the library's dialect of Lark.

use crate::closed::closed;
use crate::spec::{Call, GrammarSpec, Lead, Part};
use crate::tokenizer::TokenizerInfo;
use llguidance::regex_to_lark;
use paceline_types::TokenId;
use serde_json::Value;
use std::fmt::Write;

/// A grammar under construction.
pub(crate) struct Writer<'a> {
    info: &'a TokenizerInfo,
    /// Rules but the first.
    rules: String,
    count: usize,
    /// Special tokens that the grammar names.
    pub(crate) special: Vec<TokenId>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(info: &'a TokenizerInfo) -> Self {
        Self {
            info,
            rules: String::new(),
            count: 0,
            special: Vec::new(),
        }
    }

    /// The grammar of `spec`, behind what may come first.
    pub(crate) fn write(&mut self, spec: &GrammarSpec, lead: &Lead) -> String {
        let body = self.body(spec);
        let start = match lead {
            Lead::None => body,
            Lead::Until(end) => {
                let (before, newlines) = (self.until(end), self.rule("/\\n{1,4}/"));
                format!("{before} {newlines}? {body}")
            }
            Lead::Block(begin, end) => {
                let (begin, inside) = (self.literal(begin), self.until(end));
                let newlines = self.rule("/\\n{1,4}/");
                let block = self.rule(&format!("{begin} {inside} {newlines}?"));
                format!("{block}? {body}")
            }
        };
        format!("start: {start}\n{}", self.rules)
    }

    fn body(&mut self, spec: &GrammarSpec) -> String {
        match spec {
            GrammarSpec::JsonSchema(schema) => self.json(schema),
            GrammarSpec::JsonObject => self.json(&serde_json::json!({"type": "object"})),
            GrammarSpec::Regex(regex) => self.rule(&format!("/{}/", regex_to_lark(regex, "dw"))),
            GrammarSpec::Lark(grammar) => self.rule(&format!("%lark {{\n{grammar}\n}}")),
            GrammarSpec::Choice(texts) => self.one_of(texts),
            GrammarSpec::Either(specs) => {
                let bodies: Vec<_> = specs.iter().map(|spec| self.body(spec)).collect();
                let bodies: Vec<_> = bodies.iter().map(|body| self.rule(body)).collect();
                self.rule(&bodies.join(" | "))
            }
            GrammarSpec::Calls { calls, separator } => {
                let first = self.one_call(calls);
                self.and_more(&first, calls, separator.as_deref())
            }
            GrammarSpec::TextOrCalls {
                calls,
                separator,
                trigger,
            } => {
                let (text, first) = match trigger {
                    // Where the trigger ends, a text that could go on is over: the library takes the shortest match of
                    // what has a suffix before anything else.
                    Some(trigger) => {
                        let begun: Vec<_> = calls.iter().map(|call| call.behind(trigger)).collect();
                        let (before, call) = (self.until(trigger), self.one_call(&begun));
                        (self.rule("/(?s:.+)/"), format!("{before} {call}"))
                    }
                    None => (self.rule(r"/[^{\s](?s:.*)/"), self.one_call(calls)),
                };
                let calls = self.and_more(&first, calls, separator.as_deref());
                self.rule(&format!("{text}? | {calls}"))
            }
        }
    }

    fn one_call(&mut self, calls: &[Call]) -> String {
        let calls: Vec<_> = calls.iter().map(|call| self.call(call)).collect();
        self.rule(&calls.join(" | "))
    }

    /// A call, and more of them if something stands between them.
    fn and_more(&mut self, first: &str, calls: &[Call], separator: Option<&str>) -> String {
        let Some(separator) = separator else {
            return first.to_owned();
        };
        let (separator, call) = (self.literal(separator), self.one_call(calls));
        format!("{first} ({separator} {call})*")
    }

    fn call(&mut self, call: &Call) -> String {
        let parts = self.parts(&call.0);
        self.rule(&parts)
    }

    fn parts(&mut self, parts: &[Part]) -> String {
        let written: Vec<_> = parts.iter().map(|part| self.part(part)).collect();
        written.join(" ")
    }

    fn part(&mut self, part: &Part) -> String {
        match part {
            Part::Literal(text) => self.literal(text),
            Part::Json(schema) => self.json(schema),
            Part::Until(text) => self.until(text),
            Part::OneOf(texts) => self.one_of(texts),
            Part::Optional(parts) => {
                let parts = self.parts(parts);
                let rule = self.rule(&parts);
                format!("{rule}?")
            }
        }
    }

    fn json(&mut self, schema: &Value) -> String {
        self.rule(&format!("%json {}", prepared(self.info, schema)))
    }

    fn one_of(&mut self, texts: &[String]) -> String {
        let texts: Vec<_> = texts.iter().map(|text| quoted(text)).collect();
        // A terminal: one expression over all texts, where a rule would follow each of them by itself.
        self.named("TEXT", &texts.join(" | "))
    }

    /// A text, with the special tokens that it names.
    fn literal(&mut self, text: &str) -> String {
        let mut written = Vec::new();
        let mut rest = text;
        while let Some((before, name, token, behind)) = self.first_special(rest) {
            if !before.is_empty() {
                written.push(quoted(before));
            }
            written.push(name.to_owned());
            self.special.push(token);
            rest = behind;
        }
        if !rest.is_empty() || written.is_empty() {
            written.push(quoted(rest));
        }
        written.join(" ")
    }

    /// The first special token named in a text, and what is before and behind it.
    fn first_special<'t>(&self, text: &'t str) -> Option<(&'t str, &'t str, TokenId, &'t str)> {
        let tokenizer = self.info.tokenizer();
        for (start, _) in text.match_indices('<') {
            let Some(length) = text[start..].find('>') else {
                break;
            };
            let name = &text[start..=start + length];
            let token = tokenizer.token_to_id(name);
            // The dialect writes special tokens as they are, so a name must be one word.
            let word = !name[1..].contains('<') && !name.contains(char::is_whitespace);
            if let Some(token) = token.filter(|token| word && tokenizer.is_special(*token)) {
                return Some((&text[..start], name, token, &text[start + name.len()..]));
            }
        }
        None
    }

    /// Any text up to and with `end`.
    fn until(&mut self, end: &str) -> String {
        let literal = self.literal(end);
        if self.first_special(end).is_some() {
            let text = self.rule("/(?s:.*)/");
            return format!("{text} {literal}");
        }
        self.count += 1;
        let name = format!("until_{}", self.count);
        let _ = writeln!(self.rules, "{name}[suffix={literal}]: /(?s:.*)/");
        name
    }

    fn rule(&mut self, body: &str) -> String {
        self.named("rule", body)
    }

    fn named(&mut self, kind: &str, body: &str) -> String {
        self.count += 1;
        let name = format!("{kind}_{}", self.count);
        let _ = writeln!(self.rules, "{name}: {body}");
        name
    }
}

/// A string of the dialect: JSON's, without the characters that only JSON takes as they are.
fn quoted(text: &str) -> String {
    let json = Value::from(text).to_string();
    json.replace('\u{7f}', "\\u007f")
}

/// A schema as the compiler gets it: with its objects closed, and with values that stand a space apart, or a line with
/// its indentation. A model that is at a loss invents members or writes spaces without end. A schema that says how it
/// wants either has its way.
pub(crate) fn prepared(info: &TokenizerInfo, schema: &Value) -> Value {
    let mut schema = closed(schema, info.limits().values);
    if let Some(members) = schema.as_object_mut() {
        let options = members
            .entry("x-guidance")
            .or_insert_with(|| serde_json::json!({}));
        if let Some(options) = options.as_object_mut()
            && !options.contains_key("whitespace_flexible")
        {
            options
                .entry("whitespace_pattern")
                .or_insert_with(|| r" |\r?\n[ \t]{0,32}".into());
        }
    }
    schema
}
