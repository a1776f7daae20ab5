//! What fields can be.

use super::{Field, Unknown};
use crate::body::shorten;
use crate::error::ApiError;
use paceline_types::TokenId;
use serde::de::{DeserializeOwned, Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Most prompts of one request.
const MAX_PROMPTS: usize = 1024;

/// Most texts that one request turns into vectors.
const MAX_INPUTS: usize = 2048;

/// A value that is right or wrong as a whole.
fn plain<T: DeserializeOwned>(place: &str, json: &RawValue, kind: &str) -> Result<T, ApiError> {
    serde_json::from_str(json.get()).map_err(|_| ApiError::bound(place, &shorten(json.get()), kind))
}

macro_rules! plain {
    ($($type:ty: $kind:expr;)*) => {$(
        impl Field for $type {
            fn read(place: &str, json: &RawValue, _: &mut Unknown) -> Result<Self, ApiError> {
                plain(place, json, $kind)
            }
        }
    )*};
}

plain! {
    bool: "true or false";
    u32: "a whole number of at least 0";
    u64: "a whole number of at least 0";
    usize: "a whole number of at least 0";
    i32: "a whole number";
    String: "a string";
}

/// The reader's own words for what is wrong inside a value, without its counting of lines and columns.
fn inside<T: DeserializeOwned>(place: &str, json: &RawValue) -> Result<T, ApiError> {
    serde_json::from_str(json.get()).map_err(|error| {
        let reason = shorten(&error.to_string());
        let reason = reason.split(" at line ").next().unwrap_or_default();
        ApiError::field(place, format!("`{place}`: {reason}"))
    })
}

impl Field for Value {
    fn read(place: &str, json: &RawValue, _: &mut Unknown) -> Result<Self, ApiError> {
        inside(place, json)
    }
}

impl Field for Map<String, Value> {
    fn read(place: &str, json: &RawValue, _: &mut Unknown) -> Result<Self, ApiError> {
        if !json.get().starts_with('{') {
            return Err(ApiError::bound(place, &shorten(json.get()), "an object"));
        }
        inside(place, json)
    }
}

impl<T: Field> Field for Vec<T> {
    fn read(place: &str, json: &RawValue, unknown: &mut Unknown) -> Result<Self, ApiError> {
        let list: Vec<&RawValue> = serde_json::from_str(json.get())
            .map_err(|_| ApiError::bound(place, &shorten(json.get()), "a list"))?;
        let entries = list.iter().enumerate();
        entries
            .map(|(index, entry)| T::read(&format!("{place}[{index}]"), entry, unknown))
            .collect()
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

/// One text or several, in the same forms; there may be more of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inputs(pub(crate) Vec<Prompt>);

impl Field for Prompts {
    fn read(place: &str, json: &RawValue, _: &mut Unknown) -> Result<Self, ApiError> {
        prompts(place, json, (MAX_PROMPTS, "prompts")).map(Self)
    }
}

impl Field for Inputs {
    fn read(place: &str, json: &RawValue, _: &mut Unknown) -> Result<Self, ApiError> {
        prompts(place, json, (MAX_INPUTS, "inputs")).map(Self)
    }
}

/// At most `most` prompts, which errors call by this name.
fn prompts(place: &str, json: &RawValue, (most, name): (usize, &str)) -> Result<Vec<Prompt>, ApiError> {
    let refuse = |reason: String| ApiError::field(place, format!("`{place}`: {reason}"));
    let read: Forms = serde_json::from_str(json.get()).map_err(|error| {
        let reason = shorten(&error.to_string());
        refuse(reason.split(" at line ").next().unwrap_or_default().to_owned())
    })?;
    let prompts = match read {
        Forms::One(prompt) => return Ok(vec![prompt]),
        Forms::Many(prompts) => prompts,
    };
    if prompts.is_empty() || prompts.len() > most {
        let count = prompts.len();
        return Err(refuse(format!(
            "there are {count} {name}; there must be 1 to {most}"
        )));
    }
    Ok(prompts)
}

/// The forms of prompts. They are read without a tree of JSON in between, which would take many times the room of
/// the tokens.
enum Forms {
    One(Prompt),
    Many(Vec<Prompt>),
}

/// An entry of a list of prompts.
enum Entry {
    Token(TokenId),
    Prompt(Prompt),
}

impl<'de> Deserialize<'de> for Forms {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Forms;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string, token ids, or a list of either")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Forms, E> {
                Ok(Forms::One(Prompt::Text(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Forms, A::Error> {
                let (mut ids, mut prompts) = (Vec::new(), Vec::new());
                while let Some(entry) = list.next_element()? {
                    match entry {
                        Entry::Token(id) if prompts.is_empty() => ids.push(id),
                        Entry::Prompt(prompt) if ids.is_empty() => prompts.push(prompt),
                        Entry::Token(id) => {
                            let reason = format!("{id} is neither a string nor a list of token ids");
                            return Err(A::Error::custom(reason));
                        }
                        Entry::Prompt(_) => {
                            return Err(A::Error::custom("what follows token ids is not a token id"));
                        }
                    }
                }
                Ok(if ids.is_empty() {
                    Forms::Many(prompts)
                } else {
                    Forms::One(Prompt::Tokens(ids))
                })
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Entry;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string, a token id or a list of token ids")
            }

            fn visit_u64<E: Error>(self, id: u64) -> Result<Entry, E> {
                let token = TokenId::try_from(id);
                token
                    .map(Entry::Token)
                    .map_err(|_| E::custom(format!("{id} is not a token id")))
            }

            fn visit_i64<E: Error>(self, id: i64) -> Result<Entry, E> {
                Err(E::custom(format!("{id} is not a token id")))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Entry, E> {
                Ok(Entry::Prompt(Prompt::Text(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Entry, A::Error> {
                let mut ids = Vec::new();
                while let Some(entry) = list.next_element()? {
                    match entry {
                        Entry::Token(id) => ids.push(id),
                        Entry::Prompt(_) => {
                            return Err(A::Error::custom("a list in a list is not of token ids"));
                        }
                    }
                }
                Ok(Entry::Prompt(Prompt::Tokens(ids)))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(json: &Value) -> Result<Vec<Prompt>, ApiError> {
        let raw = serde_json::value::to_raw_value(json).unwrap();
        Prompts::read("prompt", &raw, &mut Unknown::default()).map(|prompts| prompts.0)
    }

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
            (json!([[]]), vec![Prompt::Tokens(Vec::new())]),
        ] {
            assert_eq!(read(&json).unwrap(), prompts);
        }
        for json in [
            json!(1),
            json!({}),
            json!([]),
            json!([1, "a"]),
            json!(["a", 1]),
            json!([-1]),
            json!([1u64 << 40]),
            json!([1.5]),
            json!([true]),
            json!([[[1]]]),
            json!([["a"]]),
        ] {
            let error = read(&json).unwrap_err();
            assert!(!error.message.contains("line 1"), "{json}: {error}");
        }
    }
}
