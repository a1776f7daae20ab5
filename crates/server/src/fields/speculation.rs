//! How a request wants to be drafted for: a method, or an object with `method` and `max_tokens`.

use super::{Field, Fields, Unknown};
use crate::body::shorten;
use crate::error::ApiError;
use paceline::{RequestSpeculation, SpeculationMethod};
use serde_json::Value;
use serde_json::value::RawValue;

impl Field for RequestSpeculation {
    fn read(place: &str, json: &RawValue, unknown: &mut Unknown) -> Result<Self, ApiError> {
        match Value::read(place, json, unknown)? {
            name @ Value::String(_) => Ok(Self {
                method: method(place, &name)?,
                max_tokens: None,
            }),
            Value::Object(_) => {
                let mut fields = Fields::inside(place, json)?;
                let speculation = Self {
                    max_tokens: fields.take("max_tokens")?,
                    method: method(place, &fields.take("method")?.unwrap_or_default())?,
                };
                fields.leave(unknown);
                Ok(speculation)
            }
            other => {
                let bound = "a method or an object with `method` and `max_tokens`";
                Err(ApiError::bound(place, &shorten(&other.to_string()), bound))
            }
        }
    }
}

fn method(place: &str, value: &Value) -> Result<SpeculationMethod, ApiError> {
    if value.is_null() {
        return Ok(SpeculationMethod::Auto);
    }
    let named = |name: &str| SpeculationMethod::ALL.iter().find(|(_, known)| *known == name);
    if let Some((method, _)) = value.as_str().and_then(named) {
        return Ok(*method);
    }
    let names = SpeculationMethod::ALL.map(|(_, name)| name).join(", ");
    let bound = format!("one of the methods {names}");
    Err(ApiError::bound(place, &shorten(&value.to_string()), &bound))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn speculation_is_a_name_or_an_object() {
        let read = |json: Value| {
            let raw = serde_json::value::to_raw_value(&json).unwrap();
            RequestSpeculation::read("speculation", &raw, &mut Unknown::default())
        };
        assert_eq!(read(json!("off")).unwrap().method, SpeculationMethod::Off);
        let both = read(json!({"method": "mtp", "max_tokens": 3})).unwrap();
        assert_eq!((both.method, both.max_tokens), (SpeculationMethod::Mtp, Some(3)));
        for json in [
            json!("magic"),
            json!(3),
            json!({"method": 1}),
            json!({"max_tokens": -1}),
        ] {
            assert!(read(json).is_err());
        }
    }
}
