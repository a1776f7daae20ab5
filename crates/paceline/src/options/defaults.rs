//! What a request gets where it says nothing, and where that comes from.
//!
//! A model that asks for a way of sampling gets it. One that does not is sampled as people expect of a model they
//! talk to, or, over HTTP, as programs expect of an interface like OpenAI's.

use super::{OptionValue, Options, RequestOption};
use crate::RequestError;
use paceline_weights::gguf::{GgufMetadata, Value as GgufValue};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt;

/// The options that say how tokens are chosen. A model that has none of them has no opinion on it.
const CHOICE: [&str; 4] = ["temperature", "top_k", "top_p", "min_p"];

/// The keys under `general.sampling.` in GGUF that mean the same as an option here.
const GGUF: [(&str, &str); 5] = [
    ("temp", "temperature"),
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("min_p", "min_p"),
    ("penalty_repeat", "repetition_penalty"),
];

/// Where a default comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultSource {
    /// What was given when the program was started.
    Flags,
    /// `generation_config.json`, or `general.sampling.*` in GGUF.
    Model,
    /// What suits most models that people talk to.
    Paceline,
    /// OpenAI's interface.
    OpenAi,
}

impl DefaultSource {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flags => "flags",
            Self::Model => "model",
            Self::Paceline => "paceline",
            Self::OpenAi => "OpenAI",
        }
    }

    /// What it says of sampling by itself.
    fn options(self) -> Options {
        let number = OptionValue::Number;
        let options: &[_] = match self {
            Self::Paceline => &[
                ("temperature", number(0.8)),
                ("top_k", OptionValue::Integer(40)),
                ("top_p", number(0.95)),
                ("min_p", number(0.05)),
            ],
            Self::OpenAi => &[("temperature", number(1.0)), ("top_p", number(1.0))],
            Self::Flags | Self::Model => &[],
        };
        Options(options.iter().cloned().collect())
    }
}

/// The options that requests have where they say nothing, each with its source.
///
/// ```
/// use paceline::{Options, SamplingDefaults};
///
/// let silent = Options::default();
/// let people = SamplingDefaults::for_people(&silent);
/// assert_eq!(people.to_string(), "temperature 0.8, top_p 0.95, top_k 40, min_p 0.05 (paceline)");
/// let programs = SamplingDefaults::for_programs(&silent);
/// assert_eq!(programs.to_string(), "temperature 1, top_p 1 (OpenAI)");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingDefaults {
    options: Options,
    sources: BTreeMap<&'static str, DefaultSource>,
}

impl SamplingDefaults {
    /// For people at a terminal or in the page: what the model asks for, or else Paceline's.
    pub fn for_people(model: &Options) -> Self {
        Self::of(model, DefaultSource::Paceline)
    }

    /// For programs over HTTP: what the model asks for, or else OpenAI's.
    pub fn for_programs(model: &Options) -> Self {
        Self::of(model, DefaultSource::OpenAi)
    }

    fn of(model: &Options, otherwise: DefaultSource) -> Self {
        let of_model = Self::default().over(model, DefaultSource::Model);
        if CHOICE.iter().any(|name| model.get(name).is_some()) {
            return of_model;
        }
        Self::default()
            .over(&otherwise.options(), otherwise)
            .over(model, DefaultSource::Model)
    }

    /// The same, but what was given when the program was started comes first.
    #[must_use]
    pub fn with_flags(self, flags: &Options) -> Self {
        self.over(flags, DefaultSource::Flags)
    }

    fn over(mut self, first: &Options, source: DefaultSource) -> Self {
        self.sources.extend(first.0.keys().map(|name| (*name, source)));
        self.options = first.clone().or(&self.options);
        self
    }

    /// The options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Where an option's default comes from; nowhere, if it has none.
    pub fn source(&self, name: &str) -> Option<DefaultSource> {
        self.sources.get(name).copied()
    }

    /// As JSON, by name: `{"temperature": {"value": 0.8, "source": "paceline"}}`.
    pub fn to_json(&self) -> Map<String, Value> {
        let options = self.options.to_json().into_iter();
        let entry = |(name, value): (String, Value)| {
            let source = self.source(&name).map(DefaultSource::name);
            (name, json!({ "value": value, "source": source }))
        };
        options.map(entry).collect()
    }
}

/// The options in the order of their table, those of one source together.
impl fmt::Display for SamplingDefaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = self.options.to_json();
        let sources = [
            DefaultSource::Flags,
            DefaultSource::Model,
            DefaultSource::Paceline,
            DefaultSource::OpenAi,
        ];
        let of = |source| {
            let here = options
                .iter()
                .filter(move |(name, _)| self.source(name) == Some(source));
            let list: Vec<String> = here
                .map(|(name, value)| format!("{name} {}", plain(value)))
                .collect();
            (!list.is_empty()).then(|| format!("{} ({})", list.join(", "), source.name()))
        };
        let parts: Vec<String> = sources.into_iter().filter_map(of).collect();
        f.write_str(&parts.join("; "))
    }
}

/// A value without the decimals of a whole number.
fn plain(value: &Value) -> String {
    match value.as_f64() {
        Some(number) => number.to_string(),
        None => value.to_string(),
    }
}

impl Options {
    /// What a model asks for in `general.sampling.*` of its GGUF file.
    pub fn from_gguf(metadata: &GgufMetadata) -> Result<Self, RequestError> {
        let mut options = Self::default();
        for (key, name) in GGUF {
            let option = RequestOption::named(name);
            let value = metadata.value(&format!("general.sampling.{key}"));
            let (Some(option), Some(value)) = (option, value) else {
                continue;
            };
            // A negative temperature or top-k is a way to write 0 there.
            let value = match value {
                GgufValue::F32(number) => json!(f64::from(number).max(0.0)),
                GgufValue::F64(number) => json!(number.max(0.0)),
                other => match other.as_integer() {
                    Some(number) if number < 0 => json!(0),
                    Some(number) => json!(u64::try_from(number).unwrap_or(u64::MAX)),
                    None => json!(other.describe()),
                },
            };
            options.set(option, &value)?;
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(config: &Value) -> Options {
        Options::from_generation_config(config).unwrap()
    }

    #[test]
    fn a_model_that_chooses_is_taken_at_its_word_and_one_that_does_not_gets_the_rest() {
        let chooses = model(&json!({ "top_k": 64, "top_p": 0.95 }));
        let expected = json!({
            "top_p": { "value": 0.95, "source": "model" },
            "top_k": { "value": 64, "source": "model" },
        });
        for defaults in [
            SamplingDefaults::for_people(&chooses),
            SamplingDefaults::for_programs(&chooses),
        ] {
            assert_eq!(Value::Object(defaults.to_json()), expected);
        }
        // A penalty says nothing of how tokens are chosen.
        let penalty = model(&json!({ "repetition_penalty": 1.1, "eos_token_id": 2 }));
        assert_eq!(
            SamplingDefaults::for_people(&penalty).to_string(),
            "repetition_penalty 1.1 (model); temperature 0.8, top_p 0.95, top_k 40, min_p 0.05 (paceline)"
        );
        assert_eq!(
            SamplingDefaults::for_programs(&penalty).to_string(),
            "repetition_penalty 1.1 (model); temperature 1, top_p 1 (OpenAI)"
        );
    }

    #[test]
    fn flags_come_before_everything_and_leave_the_rest_alone() {
        let mut flags = Options::default();
        flags
            .set(RequestOption::named("top_p").unwrap(), &json!(0.5))
            .unwrap();
        let greedy = model(&json!({ "do_sample": false, "top_p": 0.9 }));
        let defaults = SamplingDefaults::for_programs(&greedy).with_flags(&flags);
        assert_eq!(defaults.to_string(), "top_p 0.5 (flags); temperature 0 (model)");
        assert_eq!(defaults.source("top_p"), Some(DefaultSource::Flags));
        assert_eq!(defaults.source("min_p"), None);
        let mut request = crate::Request::default();
        defaults.options().apply(&mut request);
        assert_eq!((request.sampling.temperature, request.sampling.top_p), (0.0, 0.5));
    }
}
