//! The fields of a request. Its body is taken apart once; each part of an interface takes the fields that it knows, and
//! what is left is unknown.

mod kinds;
mod speculation;

pub(crate) use kinds::{Inputs, Prompt, Prompts};

use crate::body::{Body, shorten};
use crate::error::{ApiError, ErrorKind};
use paceline::{OPTIONS, Options, RequestOption};
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Fields that clients send as a matter of course and that change nothing here.
const WITHOUT_EFFECT: [&str; 8] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prediction",
];

/// Most unknown fields that a warning names.
const NAMED: usize = 8;

/// Longest name of a field in a warning, in characters.
const NAME_LENGTH: usize = 40;

/// The fields of a body, or of an object in it, that have not been taken yet.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    /// The field whose fields these are, with a dot; empty for those of the body.
    place: String,
    left: BTreeMap<String, &'a RawValue>,
    /// Unknown fields of objects that were taken.
    unknown: Unknown,
}

/// The whole names of fields within others that are unknown.
#[derive(Debug, Default)]
pub(crate) struct Unknown(BTreeSet<String>);

/// A type that a field can have.
pub(crate) trait Field: Sized {
    /// Reads the field at this place in the request, and notes what is unknown in it.
    fn read(place: &str, json: &RawValue, unknown: &mut Unknown) -> Result<Self, ApiError>;
}

impl Unknown {
    /// Notes the members of an object at this place, if it is one, but those with these names.
    pub(crate) fn note_but(&mut self, place: &str, object: Option<&Map<String, Value>>, known: &[&str]) {
        let names = object.into_iter().flat_map(Map::keys).map(String::as_str);
        self.note(place, names.filter(|name| !known.contains(name)));
    }

    /// A client can send more of them than are of use to it.
    fn note<'a>(&mut self, place: &str, names: impl Iterator<Item = &'a str>) {
        let room = NAMED + 1 - self.0.len().min(NAMED + 1);
        self.0
            .extend(names.take(room).map(|name| format!("{place}.{name}")));
    }
}

impl<'a> Fields<'a> {
    /// The fields of a body, which must be one JSON object.
    pub(crate) fn of(body: &'a Body) -> Result<Self, ApiError> {
        let invalid = |reason: &str| {
            let message = format!("the body is not valid: {reason}");
            ApiError::new(ErrorKind::Invalid, message)
        };
        if body.bytes().trim_ascii_start().first() != Some(&b'{') {
            return Err(invalid("it must be a JSON object"));
        }
        let Once(left) = serde_json::from_slice(body.bytes()).map_err(|error| {
            let reason = shorten(&error.to_string());
            invalid(reason.split(" at line ").next().unwrap_or_default())
        })?;
        Ok(Self {
            place: String::new(),
            left,
            unknown: Unknown::default(),
        })
    }

    /// The fields of an object at this place.
    pub(crate) fn inside(place: &str, json: &'a RawValue) -> Result<Self, ApiError> {
        let left = serde_json::from_str(json.get());
        let Once(left) = left.map_err(|_| ApiError::bound(place, &shorten(json.get()), "an object"))?;
        Ok(Self {
            place: format!("{place}."),
            left,
            unknown: Unknown::default(),
        })
    }

    /// Notes what has not been taken of an object within another.
    pub(crate) fn leave(self, unknown: &mut Unknown) {
        let place = self.place.trim_end_matches('.');
        unknown.note(place, self.left.keys().map(String::as_str));
        unknown.0.extend(self.unknown.0);
    }

    /// Unknown fields of objects that were taken, for those that are read as values.
    pub(crate) fn unknown(&mut self) -> &mut Unknown {
        &mut self.unknown
    }

    /// The whole name of a field.
    pub(crate) fn place(&self, name: &str) -> String {
        format!("{}{name}", self.place)
    }

    /// Takes a field; null is as good as none.
    pub(crate) fn take<T: Field>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        match self.left.remove(name) {
            Some(json) if json.get() != "null" => {
                let place = self.place(name);
                T::read(&place, json, &mut self.unknown).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Takes a field that, if it is an object, has members of these names.
    pub(crate) fn take_known(&mut self, name: &str, known: &[&str]) -> Result<Option<Value>, ApiError> {
        let value = self.take::<Value>(name)?;
        let (place, object) = (self.place(name), value.as_ref().and_then(Value::as_object));
        self.unknown.note_but(&place, object, known);
        Ok(value)
    }

    /// Takes a field that must be there.
    pub(crate) fn require<T: Field>(&mut self, name: &str) -> Result<T, ApiError> {
        self.take(name)?.ok_or_else(|| {
            let place = self.place(name);
            let message = format!("`{place}` is missing");
            ApiError::field(place, message)
        })
    }

    /// Whether a field is there and not null.
    pub(crate) fn gives(&self, name: &str) -> bool {
        self.left.get(name).is_some_and(|json| json.get() != "null")
    }

    /// Takes an object whose members are fields too; none of them if it is not there.
    pub(crate) fn nested(&mut self, name: &str) -> Result<Self, ApiError> {
        let place = self.place(name);
        match self.left.remove(name) {
            Some(json) if json.get() != "null" => Self::inside(&place, json),
            _ => Ok(Self {
                place: format!("{place}."),
                left: BTreeMap::new(),
                unknown: Unknown::default(),
            }),
        }
    }

    /// Gives fields the names that they have in the table of options, where both are not there.
    pub(crate) fn rename(&mut self, names: &[(&str, &str)]) {
        for (from, to) in names {
            if let Some(json) = self.left.remove(*from) {
                self.left.entry((*to).to_owned()).or_insert(json);
            }
        }
    }

    /// Takes fields that change nothing here.
    pub(crate) fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.left.remove(*name);
        }
    }

    /// Takes a field if it is a number below zero, which stands for no number at all.
    pub(crate) fn take_negative(&mut self, name: &str) -> bool {
        let negative = self
            .left
            .get(name)
            .is_some_and(|json| json.get().starts_with('-'));
        negative && self.left.remove(name).is_some()
    }

    /// Takes a field if it is zero, which may stand for something else than a count.
    pub(crate) fn take_zero(&mut self, name: &str) -> bool {
        let zero = self.left.get(name).is_some_and(|json| json.get() == "0");
        zero && self.left.remove(name).is_some()
    }

    /// Whether a switch is on.
    pub(crate) fn flag(&mut self, name: &str) -> Result<bool, ApiError> {
        Ok(self.take(name)?.unwrap_or(false))
    }

    /// Takes the options of the table but those with these names, which the interface uses for something else.
    pub(crate) fn options(&mut self, but: &[&str]) -> Result<Options, ApiError> {
        let mut options = Options::default();
        for option in OPTIONS {
            for name in [&option.name].into_iter().chain(option.aliases) {
                if !but.contains(name) {
                    self.take_option(option, name, &mut options)?;
                }
            }
        }
        Ok(options)
    }

    /// Takes an option from the field of this name.
    pub(crate) fn take_option(
        &mut self,
        option: &'static RequestOption,
        name: &str,
        options: &mut Options,
    ) -> Result<(), ApiError> {
        let Some(value) = self.take::<Value>(name)? else {
            return Ok(());
        };
        let names = [(option.name, name)];
        options
            .set(option, &value)
            .map_err(|error| ApiError::refused(error, &names))
    }

    /// Refuses a field that exists elsewhere and not here, unless it asks for nothing.
    pub(crate) fn refuse(&mut self, name: &str, reason: &str) -> Result<(), ApiError> {
        let asks = match self.take::<Value>(name)?.unwrap_or_default() {
            Value::Null => false,
            Value::Bool(flag) => flag,
            Value::String(text) => !text.is_empty(),
            Value::Array(_) | Value::Object(_) | Value::Number(_) => true,
        };
        if !asks {
            return Ok(());
        }
        let place = self.place(name);
        let message = format!("`{place}` is not supported: {reason}");
        Err(ApiError::field(place, message))
    }

    /// What is left when everything has been taken: the names of unknown fields, for a warning. With
    /// `strict` they are refused.
    pub(crate) fn finish(mut self, strict: bool) -> Result<Option<String>, ApiError> {
        for name in WITHOUT_EFFECT {
            self.left.remove(name);
        }
        let unknown: Vec<_> = self.left.keys().chain(&self.unknown.0).collect();
        let Some(first) = unknown.first() else {
            return Ok(None);
        };
        if strict {
            let message = format!("`{first}` is not a field of this endpoint");
            return Err(ApiError::field(*first, message));
        }
        let names = unknown.iter().take(NAMED).map(|name| short_name(name));
        let mut names = names.collect::<Vec<_>>().join(", ");
        if unknown.len() > NAMED {
            names.push_str(", ...");
        }
        Ok(Some(names))
    }
}

/// An object whose fields are there once each: with two of a name, it would be open which one counts.
struct Once<'a>(BTreeMap<String, &'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Once<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = BTreeMap<String, &'de RawValue>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
                let mut fields = BTreeMap::new();
                while let Some((name, json)) = object.next_entry::<String, &RawValue>()? {
                    if fields.contains_key(&name) {
                        return Err(A::Error::custom(format!("`{name}` is given twice")));
                    }
                    fields.insert(name, json);
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(Reader).map(Self)
    }
}

/// A name that fits into a header: short, and of characters that a header may have.
fn short_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_graphic() { c } else { '?' };
    name.chars().take(NAME_LENGTH).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::StreamOptions;

    fn body(json: &str) -> Body {
        Body::of(json.as_bytes().to_vec())
    }

    #[test]
    fn errors_name_the_place_and_say_what_it_must_be_in_plain_words() {
        for (json, place, told) in [
            (
                r#"{"x": [1, "two"]}"#,
                "x[1]",
                r#"`x[1]` is "two"; it must be a whole number of at least 0"#,
            ),
            (r#"{"x": 5}"#, "x", "`x` is 5; it must be a list"),
            (
                r#"{"x": [1e999]}"#,
                "x[0]",
                "`x[0]` is 1e999; it must be a whole number of at least 0",
            ),
        ] {
            let body = body(json);
            let error = Fields::of(&body).unwrap().take::<Vec<u64>>("x").unwrap_err();
            assert_eq!(
                (error.param.as_deref(), error.message.as_str()),
                (Some(place), told)
            );
        }
    }

    #[test]
    fn what_is_no_object_is_an_error() {
        for json in [
            &b""[..],
            b"{",
            b"[]",
            b"nul",
            b"\xff",
            b"{} x",
            b"{\"x\": [1e}",
            b"{\"x\": 1, \"x\": 2}",
        ] {
            let error = Fields::of(&Body::of(json.to_vec())).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Invalid);
        }
        let nested = [&br#"{"other": "#[..], &vec![b'['; 100_000]].concat();
        assert!(Fields::of(&Body::of(nested)).is_err());
    }

    #[test]
    fn what_is_not_taken_is_told_or_refused() {
        let body = body(r#"{"known": 1, "user": "me", "odd": null, "a b\n": 2}"#);
        let taken = || {
            let mut fields = Fields::of(&body).unwrap();
            assert_eq!(fields.take("known").unwrap(), Some(1u64));
            fields
        };
        assert_eq!(taken().finish(false).unwrap().as_deref(), Some("a?b?, odd"));
        let error = taken().finish(true).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("a b\n"));
    }

    #[test]
    fn what_is_unknown_within_a_field_is_told_with_its_place() {
        let body = body(
            r#"{"stream_options": {"include_usage": true, "x": 1, "y": {}}, "format": {"type": "a", "z": 0}, "w": 2}"#,
        );
        let taken = || {
            let mut fields = Fields::of(&body).unwrap();
            fields.take::<StreamOptions>("stream_options").unwrap();
            fields.take_known("format", &["type"]).unwrap();
            fields
        };
        let names = taken().finish(false).unwrap();
        assert_eq!(
            names.as_deref(),
            Some("w, format.z, stream_options.x, stream_options.y")
        );
        assert_eq!(
            taken().finish(true).unwrap_err().message,
            "`w` is not a field of this endpoint"
        );
        let mut fields = Fields::of(&body).unwrap();
        fields.take::<u64>("w").unwrap();
        fields.take::<Value>("format").unwrap();
        fields.take::<StreamOptions>("stream_options").unwrap();
        let error = fields.finish(true).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("stream_options.x"));
    }

    #[test]
    fn a_quoted_text_is_short() {
        let body = body(&format!(r#"{{"x": "{}"}}"#, "x".repeat(1 << 20)));
        let error = Fields::of(&body).unwrap().take::<u64>("x").unwrap_err();
        assert!(error.message.len() < 2000);
    }
}
