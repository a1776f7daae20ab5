//! The options of a request, in one table: flags, fields of JSON, chat's `/set`, the engine's checks and the bounds in
//! documents follow from it. An option that is added here is known everywhere.

mod defaults;
mod table;
mod value;

pub use defaults::{DefaultSource, SamplingDefaults};
pub use table::OPTIONS;
pub use value::OptionValue;

use crate::{Request, RequestError};
use paceline_types::{SamplingParams, TokenId};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// One option.
#[derive(Debug)]
pub struct RequestOption {
    /// In JSON and in chat; as a flag with dashes.
    pub name: &'static str,
    /// Where a list is given one element at a time, as a flag.
    pub single: Option<&'static str>,
    /// Other names in JSON.
    pub aliases: &'static [&'static str],
    /// What it does, in one line.
    pub help: &'static str,
    /// What its values are, and where they go.
    pub kind: OptionKind,
}

/// The values of an option, and where in a request they go.
#[derive(Clone, Copy, Debug)]
pub enum OptionKind {
    /// A number.
    Number {
        /// Within these bounds.
        bound: NumberBound,
        /// Reads it.
        get: fn(&SamplingParams) -> f32,
        /// Writes it.
        set: fn(&mut SamplingParams, f32),
    },
    /// A whole number.
    Integer {
        /// The smallest.
        low: i128,
        /// The largest.
        high: i128,
        /// Reads it, where it can be out of bounds in a request.
        get: fn(&Request) -> Option<i128>,
        /// Writes it.
        set: fn(&mut Request, i128),
    },
    /// True or false.
    Flag {
        /// Writes it.
        set: fn(&mut SamplingParams, bool),
    },
    /// A list of token ids.
    Tokens {
        /// Writes it.
        set: fn(&mut SamplingParams, Vec<TokenId>),
    },
    /// Numbers by token id.
    Biases {
        /// Writes it.
        set: fn(&mut SamplingParams, Vec<(TokenId, f32)>),
    },
    /// A list of texts, or one. The engine knows tokens alone: its caller turns them into what it needs.
    Texts,
}

/// The bounds of a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NumberBound {
    /// The smallest.
    pub low: f32,
    /// It must be above the smallest.
    pub above: bool,
    /// The largest; any finite number if this is infinite.
    pub high: f32,
}

impl NumberBound {
    fn holds(self, value: f32) -> bool {
        let low = if self.above {
            value > self.low
        } else {
            value >= self.low
        };
        low && value <= self.high && value.is_finite()
    }

    fn describe(self) -> String {
        match (self.above, self.high.is_finite()) {
            (false, false) => format!("a number of at least {}", self.low),
            (true, false) => format!("a number above {}", self.low),
            (false, true) => format!("within {}..={}", self.low, self.high),
            (true, true) => format!("above {} and at most {}", self.low, self.high),
        }
    }
}

impl RequestOption {
    /// The option of this name, by any of its names.
    pub fn named(name: &str) -> Option<&'static Self> {
        let known = |option: &&Self| {
            option.name == name || option.single == Some(name) || option.aliases.contains(&name)
        };
        OPTIONS.iter().find(known)
    }

    /// What values must be, in words.
    pub fn bound(&self) -> String {
        match self.kind {
            OptionKind::Number { bound, .. } => bound.describe(),
            OptionKind::Integer { low, high, .. } if high >= i128::from(u64::MAX) => {
                format!("a whole number of at least {low}")
            }
            OptionKind::Integer { low: 0, high, .. } => format!("a whole number of at most {high}"),
            OptionKind::Integer { low, high, .. } => format!("within {low}..={high}"),
            OptionKind::Flag { .. } => "true or false".to_owned(),
            OptionKind::Tokens { .. } => "a list of token ids".to_owned(),
            OptionKind::Biases { .. } => "an object of numbers by token id".to_owned(),
            OptionKind::Texts => "a string or a list of strings".to_owned(),
        }
    }

    /// A value outside the bounds.
    fn refuse(&self, value: impl Into<String>) -> RequestError {
        RequestError::Parameter {
            field: self.name,
            value: value.into(),
            bound: self.bound(),
        }
    }

    /// Checks a request that may have been filled in by hand.
    pub(crate) fn check(&self, request: &Request) -> Result<(), RequestError> {
        match self.kind {
            OptionKind::Number { bound, get, .. } => {
                let value = get(&request.sampling);
                if !bound.holds(value) {
                    return Err(self.refuse(value.to_string()));
                }
            }
            OptionKind::Integer { low, high, get, .. } => {
                if let Some(value) = get(request).filter(|value| !(low..=high).contains(value)) {
                    return Err(self.refuse(value.to_string()));
                }
            }
            OptionKind::Flag { .. }
            | OptionKind::Tokens { .. }
            | OptionKind::Biases { .. }
            | OptionKind::Texts => {}
        }
        Ok(())
    }
}

/// Options as far as they are set; what is not is left to other options, such as the model's.
///
/// ```
/// use paceline::{Options, Request, RequestOption};
/// use serde_json::json;
///
/// let mut asked = Options::default();
/// asked.set(RequestOption::named("temperature").ok_or("unknown")?, &json!(0.5))?;
/// let model = Options::from_generation_config(&json!({ "temperature": 0.7, "top_p": 0.9 }))?;
/// let mut request = Request::default();
/// asked.or(&model).apply(&mut request);
/// assert_eq!((request.sampling.temperature, request.sampling.top_p), (0.5, 0.9));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options(BTreeMap<&'static str, OptionValue>);

impl Options {
    /// Sets an option to a value of JSON within its bounds; null sets nothing.
    pub fn set(&mut self, option: &'static RequestOption, value: &Value) -> Result<(), RequestError> {
        if !value.is_null() {
            let value = option.read(value)?;
            self.0.insert(option.name, value);
        }
        Ok(())
    }

    /// What a model asks for in its `generation_config.json`; no sampling is a temperature of 0.
    pub fn from_generation_config(config: &Value) -> Result<Self, RequestError> {
        let mut options = Self::default();
        let of_models = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"];
        for option in of_models.into_iter().filter_map(RequestOption::named) {
            options.set(option, &config[option.name])?;
        }
        if config["do_sample"] == false {
            options.0.insert("temperature", OptionValue::Number(0.0));
        }
        Ok(options)
    }

    /// Leaves an option to others again.
    pub fn clear(&mut self, option: &RequestOption) {
        self.0.remove(option.name);
    }

    /// These, and where they are silent the others.
    #[must_use]
    pub fn or(mut self, others: &Self) -> Self {
        for (name, value) in &others.0 {
            self.0.entry(name).or_insert_with(|| value.clone());
        }
        self
    }

    /// The value of an option.
    pub fn get(&self, name: &str) -> Option<&OptionValue> {
        self.0.get(name)
    }

    /// An option that is a whole number.
    pub fn integer(&self, name: &str) -> Option<i128> {
        match self.get(name)? {
            OptionValue::Integer(value) => Some(*value),
            _ => None,
        }
    }

    /// An option that is a list of texts.
    pub fn texts(&self, name: &str) -> &[String] {
        match self.get(name) {
            Some(OptionValue::Texts(texts)) => texts,
            _ => &[],
        }
    }

    /// Writes what is set into a request. Texts are not the engine's and stay here.
    pub fn apply(&self, request: &mut Request) {
        for option in OPTIONS {
            if let Some(value) = self.0.get(option.name) {
                option.write(value, request);
            }
        }
    }

    /// What is set, as JSON.
    pub fn to_json(&self) -> Map<String, Value> {
        let set = OPTIONS
            .iter()
            .filter_map(|option| Some((option.name, self.0.get(option.name)?)));
        set.map(|(name, value)| (name.to_owned(), value.to_json()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(name: &str, value: &Value) -> Result<Options, RequestError> {
        let mut options = Options::default();
        options.set(RequestOption::named(name).unwrap(), value)?;
        Ok(options)
    }

    /// What is refused when it is read would be refused by the engine too, and the other way round.
    #[test]
    fn reading_and_the_engine_have_the_same_bounds() {
        let mut numbers = 0;
        for option in OPTIONS {
            let OptionKind::Number {
                set: write, bound, ..
            } = option.kind
            else {
                continue;
            };
            let values = [
                -1e9,
                bound.low - 0.5,
                bound.low,
                0.0,
                0.5,
                1.0,
                bound.high,
                2.5,
                1e9,
            ];
            for value in values.into_iter().filter(|value| value.is_finite()) {
                let mut request = Request::default();
                write(request.sampling_mut(), value);
                let read = set(option.name, &json!(value)).is_ok();
                assert_eq!(read, option.check(&request).is_ok(), "{} {value}", option.name);
                numbers += 1;
            }
        }
        assert!(numbers >= 50);
    }

    #[test]
    fn names_are_unique_and_every_value_goes_where_it_belongs() {
        let mut names = std::collections::BTreeSet::new();
        let mut options = Options::default();
        for option in OPTIONS {
            let all = [option.name]
                .into_iter()
                .chain(option.single)
                .chain(option.aliases.iter().copied());
            for name in all {
                assert!(names.insert(name), "{name} is there twice");
            }
            let value = match option.kind {
                OptionKind::Number { bound, .. } => json!(bound.low + 0.25),
                OptionKind::Integer { low, .. } => json!(low.max(0) as u64 + 3),
                OptionKind::Flag { .. } => json!(true),
                OptionKind::Tokens { .. } => json!([3]),
                OptionKind::Biases { .. } => json!({ "3": 0.5 }),
                OptionKind::Texts => json!("x"),
            };
            options.set(option, &value).unwrap();
        }
        let (mut given, mut neutral) = (Request::default(), Request::default());
        options.apply(&mut given);
        Options::default().apply(&mut neutral);
        let params = SamplingParams::default();
        assert_eq!(*neutral.sampling, params);
        // Each field of the parameters but the tokens of bad words, which are text here, and what is no option.
        let expected = SamplingParams {
            temperature: 0.25,
            top_p: 0.25,
            top_k: 3,
            min_p: 0.25,
            repetition_penalty: 0.25,
            presence_penalty: -1.75,
            frequency_penalty: -1.75,
            logit_bias: vec![(3, 0.5)],
            bad_words: Vec::new(),
            seed: 3,
            min_tokens: 3,
            max_tokens: 4,
            ignore_eos: true,
            stop_tokens: vec![3],
            logprobs: Some(3),
            prompt_logprobs: Some(3),
            origins: false,
        };
        assert_eq!(*given.sampling, expected);
        assert_eq!((given.n, given.priority), (Some(4), 3));
        assert_eq!(given.deadline, Some(std::time::Duration::from_millis(4)));
        assert_eq!(options.texts("stop"), ["x"]);
    }

    #[test]
    fn what_is_set_first_wins_and_can_be_cleared() {
        let (line, flags) = (set("temperature", &json!(0.5)), set("temperature", &json!(0.25)));
        let mut both = line
            .unwrap()
            .or(&flags.unwrap())
            .or(&set("top_k", &json!(-1)).unwrap());
        assert_eq!(
            Value::Object(both.to_json()),
            json!({ "temperature": 0.5, "top_k": -1 })
        );
        both.clear(RequestOption::named("temperature").unwrap());
        assert_eq!(both, set("top_k", &json!(-1)).unwrap());
    }

    #[test]
    fn a_model_that_asks_for_no_sampling_is_greedy_and_bad_fields_are_named() {
        let config = json!({ "do_sample": false, "temperature": 0.5, "top_k": 20, "top_p": null });
        let options = Options::from_generation_config(&config).unwrap();
        assert_eq!(
            Value::Object(options.to_json()),
            json!({ "temperature": 0.0, "top_k": 20 })
        );
        for (config, field) in [
            (json!({ "temperature": "hot" }), "temperature"),
            (json!({ "top_p": 7 }), "top_p"),
            (json!({ "top_k": -2 }), "top_k"),
        ] {
            let error = Options::from_generation_config(&config).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }

    #[test]
    fn bad_values_are_refused_with_their_bound() {
        for (name, value, told) in [
            (
                "temperature",
                json!(1e60),
                "`temperature` is inf; it must be a number of at least 0",
            ),
            (
                "stop",
                json!([""]),
                "`stop` is a text of 0 bytes; it must be of texts of 1 to 4096 bytes",
            ),
            (
                "stop",
                json!(vec!["x"; 65]),
                "`stop` is 65 texts; it must be at most 64 texts",
            ),
            (
                "logit_bias",
                json!({ "x": 1 }),
                "`logit_bias` is {\"x\": 1}; it must be an object of numbers by token id",
            ),
            (
                "seed",
                json!(0.5),
                "`seed` is 0.5; it must be a whole number of at least -9223372036854775808",
            ),
            (
                "deadline_ms",
                json!(u64::MAX),
                "`deadline_ms` is 18446744073709551615; it must be within 1..=604800000",
            ),
        ] {
            assert_eq!(set(name, &value).unwrap_err().to_string(), told);
        }
    }
}
