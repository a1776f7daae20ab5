//! Values of options: read from JSON within their bounds, written into requests.

use super::{OptionKind, RequestOption};
use crate::{Request, RequestError};
use paceline_types::TokenId;
use serde_json::{Value, json};

/// Most texts of an option; each costs a look at every character that is generated.
const MAX_TEXTS: usize = 64;

/// Longest of them in bytes.
const MAX_TEXT_BYTES: usize = 4096;

/// Longest part of a value that an error quotes, in characters.
const QUOTED: usize = 200;

/// The value of an option.
#[derive(Clone, Debug, PartialEq)]
pub enum OptionValue {
    /// A number.
    Number(f32),
    /// A whole number.
    Integer(i128),
    /// True or false.
    Flag(bool),
    /// Token ids.
    Tokens(Vec<TokenId>),
    /// Numbers by token id.
    Biases(Vec<(TokenId, f32)>),
    /// Texts.
    Texts(Vec<String>),
}

impl OptionValue {
    /// As JSON.
    pub fn to_json(&self) -> Value {
        match self {
            // By its digits: 0.95, where a wider number would be 0.949999988079071.
            Self::Number(value) => value.to_string().parse::<f64>().map_or(Value::Null, Value::from),
            Self::Integer(value) => {
                u64::try_from(*value).map_or_else(|_| json!(*value as i64), |value| json!(value))
            }
            Self::Flag(value) => json!(value),
            Self::Tokens(tokens) => json!(tokens),
            Self::Biases(biases) => {
                let entries = biases.iter().map(|(id, bias)| (id.to_string(), json!(bias)));
                Value::Object(entries.collect())
            }
            Self::Texts(texts) => json!(texts),
        }
    }
}

impl RequestOption {
    /// The value that JSON gives.
    pub(super) fn read(&self, value: &Value) -> Result<OptionValue, RequestError> {
        let refused = || self.refuse(quoted(value));
        match self.kind {
            OptionKind::Number { bound, .. } => {
                // Narrowed first, so that one too large becomes infinite and is refused.
                let number = value.as_f64().ok_or_else(refused)? as f32;
                if bound.holds(number) {
                    Ok(OptionValue::Number(number))
                } else {
                    Err(self.refuse(number.to_string()))
                }
            }
            OptionKind::Integer { low, high, .. } => {
                let number = value.as_u64().map(i128::from);
                let number = number.or_else(|| value.as_i64().map(i128::from));
                let number = number.filter(|number| (low..=high).contains(number));
                number.map(OptionValue::Integer).ok_or_else(refused)
            }
            OptionKind::Flag { .. } => value.as_bool().map(OptionValue::Flag).ok_or_else(refused),
            OptionKind::Tokens { .. } => {
                let one = std::slice::from_ref(value);
                let list = value.as_array().map_or(one, Vec::as_slice);
                let ids = list
                    .iter()
                    .map(|id| token(id).ok_or_else(|| self.refuse(quoted(id))));
                ids.collect::<Result<_, _>>().map(OptionValue::Tokens)
            }
            OptionKind::Biases { .. } => self.biases(value),
            OptionKind::Texts => self.texts(value),
        }
    }

    /// An object of biases by token id, which JSON writes as text.
    fn biases(&self, value: &Value) -> Result<OptionValue, RequestError> {
        let object = value.as_object().ok_or_else(|| self.refuse(quoted(value)))?;
        let entry = |(id, bias): (&String, &Value)| {
            let token = id.parse().ok();
            let number = bias
                .as_f64()
                .map(|bias| bias as f32)
                .filter(|bias| bias.is_finite());
            token
                .zip(number)
                .ok_or_else(|| self.refuse(format!("{{{id:?}: {}}}", quoted(bias))))
        };
        let biases = object.iter().map(entry).collect::<Result<_, _>>()?;
        Ok(OptionValue::Biases(biases))
    }

    fn texts(&self, value: &Value) -> Result<OptionValue, RequestError> {
        let one = std::slice::from_ref(value);
        let list = value.as_array().map_or(one, Vec::as_slice);
        if list.len() > MAX_TEXTS {
            return Err(self.bounded(
                format!("{} texts", list.len()),
                format!("at most {MAX_TEXTS} texts"),
            ));
        }
        let text = |entry: &Value| {
            let text = entry.as_str().ok_or_else(|| self.refuse(quoted(entry)))?;
            if (1..=MAX_TEXT_BYTES).contains(&text.len()) {
                Ok(text.to_owned())
            } else {
                let value = format!("a text of {} bytes", text.len());
                Err(self.bounded(value, format!("of texts of 1 to {MAX_TEXT_BYTES} bytes")))
            }
        };
        list.iter()
            .map(text)
            .collect::<Result<_, _>>()
            .map(OptionValue::Texts)
    }

    fn bounded(&self, value: String, bound: String) -> RequestError {
        RequestError::Parameter {
            field: self.name,
            value,
            bound,
        }
    }

    /// Writes a value of this option's kind.
    pub(super) fn write(&self, value: &OptionValue, request: &mut Request) {
        match (self.kind, value) {
            (OptionKind::Number { set, .. }, OptionValue::Number(value)) => {
                set(request.sampling_mut(), *value);
            }
            (OptionKind::Integer { set, .. }, OptionValue::Integer(value)) => set(request, *value),
            (OptionKind::Flag { set }, OptionValue::Flag(value)) => set(request.sampling_mut(), *value),
            (OptionKind::Tokens { set }, OptionValue::Tokens(value)) => {
                set(request.sampling_mut(), value.clone());
            }
            (OptionKind::Biases { set }, OptionValue::Biases(value)) => {
                set(request.sampling_mut(), value.clone());
            }
            // Texts are the caller's; and a value was read by its own option.
            _ => {}
        }
    }
}

fn token(value: &Value) -> Option<TokenId> {
    value.as_u64().and_then(|id| TokenId::try_from(id).ok())
}

/// The start of a value.
fn quoted(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
