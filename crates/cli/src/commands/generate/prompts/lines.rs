//! One line of a prompts file.

use super::Content;
use crate::commands::generate::Settings;
use crate::flags::numbers;
use anyhow::{Context, Result, anyhow, bail};
use paceline::{OPTIONS, Options, RequestError, RequestOption, RequestSpeculation, SpeculationMethod};
use paceline_types::TokenId;
use serde_json::{Map, Value};

/// What a line can have besides the options of requests.
const KEYS: &str = "prompt, prompt_ids, chat, echo, speculation";

/// Reads a line. Errors name the field.
pub(super) fn parse(line: &str) -> Result<(Content, Settings)> {
    let fields: Map<String, Value> = match serde_json::from_str(line) {
        Ok(Value::Object(fields)) => fields,
        Ok(other) => bail!("{other} is not a JSON object such as {{\"prompt\": \"...\"}}"),
        Err(error) => return Err(anyhow!("not valid JSON: {error}")),
    };
    let mut settings = Settings::default();
    let (mut text, mut ids) = (None, None);
    for (key, value) in &fields {
        let field = || format!("field `{key}`");
        match key.as_str() {
            "prompt" => text = Some(string(value).with_context(field)?),
            "prompt_ids" => ids = Some(token_ids(value).with_context(field)?),
            _ => set(&mut settings, key, value).with_context(field)?,
        }
    }
    let content = match (text, ids) {
        (Some(text), None) => Content::Text(text),
        (None, Some(ids)) => Content::Ids(ids),
        (Some(_), Some(_)) => bail!("fields `prompt` and `prompt_ids` exclude each other"),
        (None, None) => bail!("field `prompt` or `prompt_ids` is missing"),
    };
    if matches!(content, Content::Ids(_)) && settings.chat == Some(true) {
        bail!("field `chat`: token ids take no chat template; give `prompt`");
    }
    Ok((content, settings))
}

/// Sets what a field of that name sets.
fn set(settings: &mut Settings, key: &str, value: &Value) -> Result<()> {
    match key {
        "chat" => settings.chat = Some(flag(value)?),
        "echo" => settings.echo = Some(flag(value)?),
        "speculation" => settings.speculation = Some(speculation(value)?),
        _ => {
            let option = RequestOption::named(key).with_context(|| {
                let names: Vec<_> = OPTIONS.iter().map(|option| option.name).collect();
                format!("unknown; known are {KEYS}, {}", names.join(", "))
            })?;
            set_option(&mut settings.options, option, value)?;
        }
    }
    Ok(())
}

/// Sets an option; an error says what is wrong with the value, for messages that name the option themselves.
pub(crate) fn set_option(options: &mut Options, option: &'static RequestOption, value: &Value) -> Result<()> {
    options.set(option, value).map_err(|error| match error {
        RequestError::Parameter { value, bound, .. } => anyhow!("it is {value}; it must be {bound}"),
        other => anyhow!(other),
    })
}

fn string(value: &Value) -> Result<String> {
    let text = value
        .as_str()
        .with_context(|| format!("{value} is not a string"))?;
    Ok(text.to_owned())
}

fn flag(value: &Value) -> Result<bool> {
    value
        .as_bool()
        .with_context(|| format!("{value} is not true or false"))
}

fn count(value: &Value) -> Result<usize> {
    let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
    count.with_context(|| format!("{value} is not a whole number of at least 0"))
}

fn token_id(value: &Value) -> Result<TokenId> {
    let id = value.as_u64().and_then(|id| TokenId::try_from(id).ok());
    id.with_context(|| format!("{value} is not a token id"))
}

fn token_ids(value: &Value) -> Result<Vec<TokenId>> {
    let list = value
        .as_array()
        .with_context(|| format!("{value} is not a list of token ids"))?;
    list.iter().map(token_id).collect()
}

/// A method by name, or an object with a method and a number of drafts.
fn speculation(value: &Value) -> Result<RequestSpeculation> {
    let fields = match value {
        Value::String(name) => {
            return Ok(RequestSpeculation {
                method: method(name)?,
                max_tokens: None,
            });
        }
        Value::Object(fields) => fields,
        other => {
            bail!("{other} is neither a method such as \"off\" nor an object such as {{\"max_tokens\": 3}}")
        }
    };
    let mut asked = RequestSpeculation::default();
    for (key, value) in fields {
        let field = || format!("`{key}`");
        match key.as_str() {
            "method" => asked.method = string(value).and_then(|name| method(&name)).with_context(field)?,
            "max_tokens" => {
                let number =
                    count(value).and_then(|number| numbers::draft_tokens(number).map_err(|why| anyhow!(why)));
                asked.max_tokens = Some(number.with_context(field)?);
            }
            _ => bail!("{} is unknown; known are method, max_tokens", field()),
        }
    }
    Ok(asked)
}

fn method(name: &str) -> Result<SpeculationMethod> {
    let known = SpeculationMethod::ALL.iter().find(|(_, known)| *known == name);
    known.map(|(method, _)| *method).with_context(|| {
        let names = SpeculationMethod::ALL.map(|(_, name)| name);
        format!("{name} is no method; methods are {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_field_is_understood() {
        let line = r#"{"prompt": "x", "max_tokens": 3, "temperature": 0, "top_p": 0.5, "top_k": 4, "min_p": 0.1,
            "seed": 5, "stop": ["a", "b"], "ignore_eos": true, "logprobs": 2, "chat": true, "n": 2,
            "repetition_penalty": 1.1, "presence_penalty": -0.5, "frequency_penalty": 0.5,
            "logit_bias": {"7": -1.5}, "bad_word": "c", "min_tokens": 1, "stop_token": [8, 9],
            "prompt_logprobs": 0, "echo": true, "priority": -3, "deadline_ms": 250,
            "speculation": {"method": "ngram", "max_tokens": 3}}"#;
        let (content, settings) = parse(line).unwrap();
        assert_eq!(content, Content::Text("x".to_owned()));
        let set = json!({
            "max_tokens": 3, "temperature": 0.0, "top_p": 0.5, "top_k": 4, "min_p": 0.1, "seed": 5,
            "stop": ["a", "b"], "ignore_eos": true, "logprobs": 2, "n": 2, "repetition_penalty": 1.1,
            "presence_penalty": -0.5, "frequency_penalty": 0.5, "logit_bias": { "7": -1.5 }, "bad_words": ["c"],
            "min_tokens": 1, "stop_token_ids": [8, 9], "prompt_logprobs": 0, "priority": -3, "deadline_ms": 250,
        });
        assert_eq!(Value::Object(settings.options.to_json()), set);
        assert_eq!((settings.chat, settings.echo), (Some(true), Some(true)));
        let asked = RequestSpeculation {
            method: SpeculationMethod::Ngram,
            max_tokens: Some(3),
        };
        assert_eq!(settings.speculation, Some(asked));
        let line = r#"{"prompt_ids": [1, 2], "stop": "end", "stop_token": 4, "speculation": "off"}"#;
        let (content, settings) = parse(line).unwrap();
        assert_eq!(content, Content::Ids(vec![1, 2]));
        let set = json!({ "stop": ["end"], "stop_token_ids": [4] });
        assert_eq!(Value::Object(settings.options.to_json()), set);
        let off = settings.speculation.map(|asked| (asked.method, asked.max_tokens));
        assert_eq!(off, Some((SpeculationMethod::Off, None)));
    }

    #[test]
    fn a_bad_field_is_named() {
        for (line, field) in [
            (r#"{"prompt": 1}"#, "`prompt`"),
            (r#"{"prompt": "x", "max_tokens": 0}"#, "`max_tokens`"),
            (r#"{"prompt": "x", "temperature": -1}"#, "`temperature`"),
            (r#"{"prompt": "x", "top_k": 1e10}"#, "`top_k`"),
            (r#"{"prompt": "x", "n": 0}"#, "`n`"),
            (
                r#"{"prompt": "x", "logit_bias": {"x": 1}}"#,
                "`logit_bias`: it is {\"x\": 1}",
            ),
            (r#"{"prompt": "x", "logit_bias": [1]}"#, "`logit_bias`"),
            (r#"{"prompt": "x", "presence_penalty": 3}"#, "`presence_penalty`"),
            (r#"{"prompt": "x", "priority": 0.5}"#, "`priority`"),
            (r#"{"prompt": "x", "deadline_ms": 0}"#, "`deadline_ms`"),
            (r#"{"prompt": "x", "speculation": 3}"#, "`speculation`: 3"),
            (
                r#"{"prompt": "x", "speculation": "medusa"}"#,
                "`speculation`: medusa",
            ),
            (
                r#"{"prompt": "x", "speculation": {"max_tokens": 16}}"#,
                "`speculation`: `max_tokens`: 16",
            ),
            (
                r#"{"prompt": "x", "speculation": {"tokens": 1}}"#,
                "`tokens` is unknown",
            ),
            (r#"{"prompt": "x", "tempreature": 1}"#, "`tempreature`: unknown"),
            (r#"{"prompt_ids": [1, -1]}"#, "`prompt_ids`: -1"),
            (r#"{"prompt": "x", "prompt_ids": [1]}"#, "exclude"),
            (r#"{"prompt_ids": [1], "chat": true}"#, "`chat`"),
            ("{}", "missing"),
            ("[]", "not a JSON object"),
            ("{", "not valid JSON"),
        ] {
            let error = format!("{:#}", parse(line).unwrap_err());
            assert!(error.contains(field), "{line}: {error}");
        }
    }
}
