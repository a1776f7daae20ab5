//! Fields that come in more than one form.

use paceline::{RequestSpeculation, SpeculationMethod};
use paceline_types::TokenId;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Most stop strings; each costs a look at every character.
const MAX_STOPS: usize = 64;

/// Longest stop string in bytes.
const MAX_STOP_BYTES: usize = 4096;

/// Most prompts of one request.
const MAX_PROMPTS: usize = 1024;

/// Most texts that one request turns into vectors.
const MAX_INPUTS: usize = 2048;

/// A number of the sampling. It is read as what JSON has and narrowed here, so that one too large for it becomes infinite
/// and is refused with its bound, however the JSON reader was built.
pub(crate) fn float<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f32>, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.map(|number| number as f32))
}

/// A text or a list of texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stops(pub(crate) Vec<String>);

impl<'de> Deserialize<'de> for Stops {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let stops = match Value::deserialize(deserializer)? {
            Value::Null => Vec::new(),
            Value::String(stop) => vec![stop],
            Value::Array(entries) => entries
                .into_iter()
                .map(|entry| match entry {
                    Value::String(stop) => Ok(stop),
                    other => Err(D::Error::custom(format!("{other} is not a string"))),
                })
                .collect::<Result<_, _>>()?,
            other => {
                return Err(D::Error::custom(format!(
                    "{other} is neither a string nor a list of strings"
                )));
            }
        };
        if stops.len() > MAX_STOPS {
            let count = stops.len();
            return Err(D::Error::custom(format!(
                "there are {count} stop strings; there must be at most {MAX_STOPS}"
            )));
        }
        if let Some(stop) = stops
            .iter()
            .find(|stop| !(1..=MAX_STOP_BYTES).contains(&stop.len()))
        {
            let length = stop.len();
            return Err(D::Error::custom(format!(
                "a stop string is {length} bytes long; it must be 1 to {MAX_STOP_BYTES} bytes long"
            )));
        }
        Ok(Self(stops))
    }
}

/// A prompt as text or as tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<TokenId>),
}

/// One prompt or several: a text, a list of texts, token ids, or a list of lists of token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prompts(pub(crate) Vec<Prompt>);

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let prompts = prompts(Value::deserialize(deserializer)?, (MAX_PROMPTS, "prompts"));
        prompts.map(Self).map_err(D::Error::custom)
    }
}

/// One text or several, in the same forms; there may be more of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inputs(pub(crate) Vec<Prompt>);

impl<'de> Deserialize<'de> for Inputs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let inputs = prompts(Value::deserialize(deserializer)?, (MAX_INPUTS, "inputs"));
        inputs.map(Self).map_err(D::Error::custom)
    }
}

/// At most `most` prompts; errors call the field `name`.
fn prompts(value: Value, (most, name): (usize, &str)) -> Result<Vec<Prompt>, String> {
    let entries = match value {
        Value::String(text) => return Ok(vec![Prompt::Text(text)]),
        Value::Array(entries) => entries,
        _ => return Err("it must be a string, token ids, or a list of either".to_owned()),
    };
    if entries.first().is_some_and(Value::is_number) {
        return Ok(vec![Prompt::Tokens(token_ids(&entries)?)]);
    }
    if entries.is_empty() || entries.len() > most {
        let count = entries.len();
        return Err(format!("there are {count} {name}; there must be 1 to {most}"));
    }
    let prompt = |entry| match entry {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(ids) => Ok(Prompt::Tokens(token_ids(&ids)?)),
        other => Err(format!("{other} is neither a string nor a list of token ids")),
    };
    entries.into_iter().map(prompt).collect()
}

fn token_ids(values: &[Value]) -> Result<Vec<TokenId>, String> {
    let id = |value: &Value| {
        let id = value.as_u64().and_then(|id| TokenId::try_from(id).ok());
        id.ok_or_else(|| format!("{value} is not a token id"))
    };
    values.iter().map(id).collect()
}

/// Any whole number; negative ones are as good as others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed(pub(crate) u64);

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let number = value.as_u64();
        let number = number.or_else(|| value.as_i64().map(i64::cast_unsigned));
        number
            .map(Self)
            .ok_or_else(|| D::Error::custom(format!("{value} is not a whole number of 64 bits")))
    }
}

/// Biases by token id, which JSON writes as text.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LogitBias(pub(crate) Vec<(TokenId, f32)>);

impl<'de> Deserialize<'de> for LogitBias {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let map = serde_json::Map::deserialize(deserializer)?;
        let entry = |(id, bias): (String, Value)| {
            let token = id.parse().map_err(|_| format!("`{id}` is not a token id"))?;
            let bias = bias
                .as_f64()
                .ok_or_else(|| format!("the bias {bias} of token {id} is not a number"))?;
            Ok::<_, String>((token, bias as f32))
        };
        let biases: Result<_, _> = map.into_iter().map(entry).collect();
        biases.map(Self).map_err(D::Error::custom)
    }
}

/// How a request wants to be drafted for: a method, or an object with `method` and `max_tokens`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpeculationField(pub(crate) RequestSpeculation);

impl<'de> Deserialize<'de> for SpeculationField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let method = |value: &Value| match value {
            Value::Null => Ok(SpeculationMethod::Auto),
            Value::String(name) => named_method(name).map_err(D::Error::custom),
            other => Err(D::Error::custom(format!("the method is {other}, not a string"))),
        };
        let (method, max_tokens) = match Value::deserialize(deserializer)? {
            Value::Object(object) => {
                let tokens = object.get("max_tokens").filter(|value| !value.is_null());
                let count = |value: &Value| {
                    let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
                    count.ok_or_else(|| D::Error::custom(format!("max_tokens is {value}, not a count")))
                };
                let tokens = tokens.map(count).transpose()?;
                (method(object.get("method").unwrap_or(&Value::Null))?, tokens)
            }
            name @ (Value::String(_) | Value::Null) => (method(&name)?, None),
            other => {
                return Err(D::Error::custom(format!(
                    "{other} is neither a method nor an object with `method` and `max_tokens`"
                )));
            }
        };
        Ok(Self(RequestSpeculation { method, max_tokens }))
    }
}

fn named_method(name: &str) -> Result<SpeculationMethod, String> {
    let found = SpeculationMethod::ALL.iter().find(|(_, known)| *known == name);
    found.map(|(method, _)| *method).ok_or_else(|| {
        let names: Vec<_> = SpeculationMethod::ALL.iter().map(|(_, name)| *name).collect();
        format!("the method is `{name}`; it must be one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    #[test]
    fn prompts_come_in_four_forms() {
        let text = |text: &str| Prompt::Text(text.to_owned());
        for (json, prompts) in [
            (json!("a"), vec![text("a")]),
            (json!(["a", "b"]), vec![text("a"), text("b")]),
            (json!([1, 2]), vec![Prompt::Tokens(vec![1, 2])]),
            (
                json!([[1], [2]]),
                vec![Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2])],
            ),
            (json!(["a", [2]]), vec![text("a"), Prompt::Tokens(vec![2])]),
        ] {
            assert_eq!(from_value::<Prompts>(json).unwrap().0, prompts);
        }
        for json in [
            json!(1),
            json!({}),
            json!([]),
            json!([1, "a"]),
            json!([-1]),
            json!([true]),
        ] {
            assert!(from_value::<Prompts>(json.clone()).is_err(), "{json}");
        }
    }

    #[test]
    fn stops_are_bounded() {
        assert_eq!(from_value::<Stops>(json!("x")).unwrap().0, ["x"]);
        assert_eq!(from_value::<Stops>(json!(["x", "y"])).unwrap().0, ["x", "y"]);
        for json in [
            json!(1),
            json!([1]),
            json!([""]),
            json!(vec!["x"; 65]),
            json!("x".repeat(5000)),
        ] {
            assert!(from_value::<Stops>(json).is_err());
        }
    }

    #[test]
    fn speculation_is_a_name_or_an_object() {
        let field = |json| from_value::<SpeculationField>(json).map(|field| field.0);
        assert_eq!(field(json!("off")).unwrap().method, SpeculationMethod::Off);
        let both = field(json!({"method": "mtp", "max_tokens": 3})).unwrap();
        assert_eq!((both.method, both.max_tokens), (SpeculationMethod::Mtp, Some(3)));
        for json in [
            json!("magic"),
            json!(3),
            json!({"method": 1}),
            json!({"max_tokens": -1}),
        ] {
            assert!(field(json).is_err());
        }
    }

    #[test]
    fn seeds_may_be_negative_and_biases_name_tokens() {
        assert_eq!(from_value::<Seed>(json!(-1)).unwrap().0, u64::MAX);
        assert!(from_value::<Seed>(json!(1.5)).is_err());
        assert_eq!(from_value::<LogitBias>(json!({"5": -1})).unwrap().0, [(5, -1.0)]);
        for json in [json!({"x": 1}), json!({"5": "1"}), json!({"-5": 1}), json!([])] {
            assert!(from_value::<LogitBias>(json).is_err());
        }
    }
}
