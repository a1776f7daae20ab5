//! What is asked: lines of a file or random words, and the request that is made of them.

use super::RequestConfig;
use super::synthetic::{Scale, Stream, Synthetic};
use crate::error::BenchError;
use paceline_client::Endpoint;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Where prompts come from.
pub(super) enum Prompts<'a> {
    /// A file, over and over.
    File(&'a PromptFile),
    /// Random words.
    Synthetic {
        words: Synthetic,
        scale: Scale,
        /// Tokens, about.
        input: usize,
        /// Tokens that are the same in all, about.
        prefix: usize,
    },
}

/// Prompts of a file: plain text with one per line, or JSON lines.
#[derive(Clone, Debug)]
pub struct PromptFile {
    name: String,
    lines: Vec<Line>,
}

/// A line of a file.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    content: Content,
    max_tokens: Option<u64>,
    /// File and line, for messages.
    place: String,
}

#[derive(Clone, Debug, PartialEq)]
enum Content {
    Text(String),
    Messages(Vec<Value>),
}

impl Prompts<'_> {
    /// How many there are, if they are of a file.
    pub(super) fn lines(&self) -> Option<usize> {
        match self {
            Self::File(file) => Some(file.lines.len()),
            Self::Synthetic { .. } => None,
        }
    }

    /// Checks that they can be asked that way.
    pub(super) fn check(&self, endpoint: Endpoint) -> Result<(), BenchError> {
        let Self::File(PromptFile { lines, .. }) = self else {
            return Ok(());
        };
        let messages = |line: &&Line| matches!(line.content, Content::Messages(_));
        match lines.iter().find(messages) {
            Some(line) if endpoint == Endpoint::Completions => {
                Err(BenchError::input(&line.place, &"messages need the endpoint chat"))
            }
            _ => Ok(()),
        }
    }

    /// The body of a request.
    pub(super) fn body(&self, index: usize, template: &Template) -> Value {
        let mut body = self.plain_body(index, template);
        if template.repeatable && body.get("seed").is_none() {
            body["seed"] = json!(index);
        }
        body
    }

    fn plain_body(&self, index: usize, template: &Template) -> Value {
        match self {
            Self::File(PromptFile { lines, .. }) => {
                let line = &lines[index % lines.len()];
                match &line.content {
                    Content::Text(text) => template.text(text, line.max_tokens),
                    Content::Messages(messages) => template.body(&json!(messages), line.max_tokens),
                }
            }
            Self::Synthetic {
                words,
                scale,
                input,
                prefix,
            } => {
                let shared = scale.more_words(*prefix);
                let own = scale.words(*input).saturating_sub(shared).max(1);
                let mut text = words.text(Stream::Prefix, shared);
                if !text.is_empty() {
                    text.push(' ');
                }
                text.push_str(&words.text(Stream::Prompt(index), own));
                template.text(&text, None)
            }
        }
    }
}

/// What all requests have in common.
pub(super) struct Template {
    pub(super) endpoint: Endpoint,
    /// Every request has a seed of its own, so that it can be asked again.
    pub(super) repeatable: bool,
    fields: Map<String, Value>,
    extra: Map<String, Value>,
}

impl Template {
    pub(super) fn new(config: &RequestConfig, model: &str, repeatable: bool) -> Self {
        let mut fields = Map::new();
        fields.insert("model".to_owned(), json!(model));
        fields.insert("max_tokens".to_owned(), json!(config.output_len));
        fields.insert("temperature".to_owned(), json!(config.temperature));
        fields.insert("stream".to_owned(), json!(true));
        fields.insert("stream_options".to_owned(), json!({ "include_usage": true }));
        if config.ignore_eos {
            fields.insert("ignore_eos".to_owned(), json!(true));
        }
        if config.token_ids {
            fields.insert("return_token_ids".to_owned(), json!(true));
        }
        Self {
            endpoint: config.endpoint,
            repeatable,
            fields,
            extra: config.extra_body.clone(),
        }
    }

    /// A request with a text: the user's message, or what is to be continued.
    pub(super) fn text(&self, text: &str, max_tokens: Option<u64>) -> Value {
        match self.endpoint {
            Endpoint::Chat => self.body(&json!([{ "role": "user", "content": text }]), max_tokens),
            Endpoint::Completions => self.body(&json!(text), max_tokens),
        }
    }

    /// A request with messages, or with a text to continue.
    fn body(&self, content: &Value, max_tokens: Option<u64>) -> Value {
        let mut body = self.fields.clone();
        let name = match self.endpoint {
            Endpoint::Chat => "messages",
            Endpoint::Completions => "prompt",
        };
        body.insert(name.to_owned(), content.clone());
        if let Some(max_tokens) = max_tokens {
            body.insert("max_tokens".to_owned(), json!(max_tokens));
        }
        for (name, value) in &self.extra {
            if value.is_null() {
                body.remove(name);
            } else {
                body.insert(name.clone(), value.clone());
            }
        }
        Value::Object(body)
    }
}

impl PromptFile {
    /// Reads a file of prompts, by its ending.
    pub fn read(path: &Path) -> Result<Self, BenchError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| BenchError::input(&name, &error))?;
        let plain = path.extension().is_some_and(|extension| extension == "txt");
        let mut lines = Vec::new();
        for (number, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let place = format!("{name}, line {}", number + 1);
            let (content, max_tokens) = if plain {
                (Content::Text(line.to_owned()), None)
            } else {
                parse(line).map_err(|problem| BenchError::input(&place, &problem))?
            };
            lines.push(Line {
                content,
                max_tokens,
                place,
            });
        }
        if lines.is_empty() {
            let problem = r#"no prompts; a line looks like {"prompt": "Once upon a time"}"#;
            return Err(BenchError::input(&name, &problem));
        }
        Ok(Self { name, lines })
    }

    /// The path, as it was given.
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

fn parse(line: &str) -> Result<(Content, Option<u64>), String> {
    let value: Value = serde_json::from_str(line).map_err(|error| format!("not valid JSON: {error}"))?;
    if let Some(text) = value.as_str() {
        return Ok((Content::Text(text.to_owned()), None));
    }
    let max_tokens = match &value["max_tokens"] {
        Value::Null => None,
        given => {
            let count = given.as_u64().filter(|count| *count > 0);
            let wrong = || format!("field `max_tokens`: {given} is not a whole number above 0");
            Some(count.ok_or_else(wrong)?)
        }
    };
    if let Some(messages) = value["messages"].as_array() {
        if messages.is_empty() {
            return Err("field `messages` is empty".to_owned());
        }
        return Ok((Content::Messages(messages.clone()), max_tokens));
    }
    let places = [&value["prompt"], &value["text"], &value["turns"][0]];
    let text = places.iter().find_map(|place| place.as_str());
    let text = text.ok_or("there is no `prompt`, `text`, `messages` or `turns` with text in it")?;
    Ok((Content::Text(text.to_owned()), max_tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(endpoint: Endpoint, extra: &Value) -> Template {
        let fields = json!({ "model": "m", "max_tokens": 5 });
        Template {
            endpoint,
            repeatable: false,
            fields: fields.as_object().unwrap().clone(),
            extra: extra.as_object().unwrap().clone(),
        }
    }

    #[test]
    fn lines_have_their_text_in_one_of_four_fields() {
        for line in [
            r#"{"prompt": "a"}"#,
            r#"{"text": "a"}"#,
            r#"{"turns": ["a", "b"], "category": "x"}"#,
            r#""a""#,
        ] {
            assert_eq!(parse(line).unwrap().0, Content::Text("a".to_owned()), "{line}");
        }
        let (content, most) = parse(r#"{"messages": [{"role": "user"}], "max_tokens": 9}"#).unwrap();
        assert_eq!(
            (content, most),
            (Content::Messages(vec![json!({ "role": "user" })]), Some(9))
        );
    }

    #[test]
    fn lines_without_text_are_refused_with_the_reason() {
        for (line, part) in [
            ("{", "JSON"),
            ("{}", "no `prompt`"),
            (r#"{"prompt": 3}"#, "no `prompt`"),
            (r#"{"messages": []}"#, "empty"),
            (r#"{"prompt": "a", "max_tokens": 0}"#, "`max_tokens`"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn a_text_is_asked_as_the_endpoint_wants_it() {
        let none = json!({});
        let chat = template(Endpoint::Chat, &none).text("a", None);
        assert_eq!(chat["messages"], json!([{ "role": "user", "content": "a" }]));
        assert_eq!((&chat["max_tokens"], chat.get("prompt")), (&json!(5), None));
        let completion = template(Endpoint::Completions, &none).text("a", Some(9));
        assert_eq!(
            (&completion["prompt"], &completion["max_tokens"]),
            (&json!("a"), &json!(9))
        );
    }

    #[test]
    fn further_fields_replace_add_and_take_out() {
        let extra = json!({ "model": "n", "top_p": 0.5, "max_tokens": null });
        let body = template(Endpoint::Completions, &extra).text("a", Some(9));
        assert_eq!(body, json!({ "model": "n", "prompt": "a", "top_p": 0.5 }));
    }
}
