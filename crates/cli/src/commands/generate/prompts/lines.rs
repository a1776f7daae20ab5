//! One line of a prompts file.

use super::Content;
use crate::commands::generate::Settings;
use crate::flags::numbers;
use anyhow::{Context, Result, anyhow, bail};
use paceline::{RequestSpeculation, SpeculationMethod};
use paceline_types::TokenId;
use serde_json::{Map, Value};

const KEYS: &str = "prompt, prompt_ids, max_tokens, temperature, top_p, top_k, min_p, seed, n, \
                    repetition_penalty, presence_penalty, frequency_penalty, logit_bias, bad_word, min_tokens, stop, \
                    stop_token, ignore_eos, logprobs, prompt_logprobs, chat, echo, priority, deadline_ms, \
                    speculation";

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
pub(crate) fn set(settings: &mut Settings, key: &str, value: &Value) -> Result<()> {
    match key {
        "max_tokens" => settings.max_tokens = Some(checked(count(value)?, numbers::at_least_one)?),
        "temperature" => settings.temperature = Some(checked(number(value)?, numbers::temperature)?),
        "top_p" => settings.top_p = Some(checked(number(value)?, numbers::top_p)?),
        "top_k" => settings.top_k = Some(integer(value)?.try_into()?),
        "min_p" => settings.min_p = Some(checked(number(value)?, numbers::min_p)?),
        "seed" => settings.seed = Some(integer(value)?),
        "n" => settings.n = Some(checked(count(value)?, numbers::choices)?),
        "repetition_penalty" => {
            settings.repetition_penalty = Some(checked(number(value)?, numbers::repetition_penalty)?);
        }
        "presence_penalty" => settings.presence_penalty = Some(checked(number(value)?, numbers::penalty)?),
        "frequency_penalty" => settings.frequency_penalty = Some(checked(number(value)?, numbers::penalty)?),
        "logit_bias" => settings.logit_bias = Some(biases(value)?),
        "bad_word" => settings.bad_word = Some(strings(value)?),
        "min_tokens" => settings.min_tokens = Some(count(value)?),
        "stop" => settings.stop = Some(strings(value)?),
        "stop_token" if value.is_array() => settings.stop_token = Some(token_ids(value)?),
        "stop_token" => settings.stop_token = Some(vec![token_id(value)?]),
        "ignore_eos" => settings.ignore_eos = Some(flag(value)?),
        "logprobs" => settings.logprobs = Some(checked(count(value)?, numbers::logprobs)?),
        "prompt_logprobs" => settings.prompt_logprobs = Some(checked(count(value)?, numbers::logprobs)?),
        "chat" => settings.chat = Some(flag(value)?),
        "echo" => settings.echo = Some(flag(value)?),
        "priority" => settings.priority = Some(signed(value)?),
        "deadline_ms" => settings.deadline_ms = Some(checked(integer(value)?, numbers::deadline_ms)?),
        "speculation" => settings.speculation = Some(speculation(value)?),
        _ => bail!("unknown; known are {KEYS}"),
    }
    Ok(())
}

fn checked<T>(value: T, check: fn(T) -> Result<T, String>) -> Result<T> {
    check(value).map_err(|why| anyhow!(why))
}

fn string(value: &Value) -> Result<String> {
    let text = value
        .as_str()
        .with_context(|| format!("{value} is not a string"))?;
    Ok(text.to_owned())
}

fn strings(value: &Value) -> Result<Vec<String>> {
    match value {
        Value::Array(list) => list.iter().map(string).collect(),
        one => Ok(vec![string(one)?]),
    }
}

fn flag(value: &Value) -> Result<bool> {
    value
        .as_bool()
        .with_context(|| format!("{value} is not true or false"))
}

fn integer(value: &Value) -> Result<u64> {
    value
        .as_u64()
        .with_context(|| format!("{value} is not a whole number of at least 0"))
}

fn count(value: &Value) -> Result<usize> {
    Ok(integer(value)?.try_into()?)
}

fn number(value: &Value) -> Result<f32> {
    let number = value
        .as_f64()
        .with_context(|| format!("{value} is not a number"))?;
    Ok(number as f32)
}

fn signed(value: &Value) -> Result<i32> {
    let number = value.as_i64().and_then(|number| i32::try_from(number).ok());
    number.with_context(|| format!("{value} is not a whole number"))
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

/// An object of biases by token id.
fn biases(value: &Value) -> Result<Vec<(TokenId, f32)>> {
    let object = value
        .as_object()
        .with_context(|| format!("{value} is not an object such as {{\"42\": -1.5}}"))?;
    let entry = |(id, bias): (&String, &Value)| {
        let id = id.parse().with_context(|| format!("`{id}` is not a token id"))?;
        Ok((id, checked(number(bias)?, numbers::bias)?))
    };
    object.iter().map(entry).collect()
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
                let number = count(value).and_then(|number| checked(number, numbers::draft_tokens));
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
        let expected = Settings {
            max_tokens: Some(3),
            temperature: Some(0.0),
            top_p: Some(0.5),
            top_k: Some(4),
            min_p: Some(0.1),
            seed: Some(5),
            stop: Some(vec!["a".to_owned(), "b".to_owned()]),
            ignore_eos: Some(true),
            logprobs: Some(2),
            chat: Some(true),
            n: Some(2),
            repetition_penalty: Some(1.1),
            presence_penalty: Some(-0.5),
            frequency_penalty: Some(0.5),
            logit_bias: Some(vec![(7, -1.5)]),
            bad_word: Some(vec!["c".to_owned()]),
            min_tokens: Some(1),
            stop_token: Some(vec![8, 9]),
            prompt_logprobs: Some(0),
            echo: Some(true),
            priority: Some(-3),
            deadline_ms: Some(250),
            speculation: Some(RequestSpeculation {
                method: SpeculationMethod::Ngram,
                max_tokens: Some(3),
            }),
        };
        assert_eq!(settings, expected);
        let line = r#"{"prompt_ids": [1, 2], "stop": "end", "stop_token": 4, "speculation": "off"}"#;
        let (content, settings) = parse(line).unwrap();
        assert_eq!(content, Content::Ids(vec![1, 2]));
        assert_eq!(settings.stop, Some(vec!["end".to_owned()]));
        assert_eq!(settings.stop_token, Some(vec![4]));
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
            (r#"{"prompt": "x", "logit_bias": {"x": 1}}"#, "`logit_bias`: `x`"),
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
