//! vLLM's `--speculative-config`: its usual keys in the engine's terms.

use super::numbers::{self, NGRAM_LONGEST};
use paceline::SpeculationMethod;
use serde_json::{Map, Value};
use std::str::FromStr;

/// What the object says. What it leaves out is left to the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpeculativeConfig {
    pub(super) method: Option<SpeculationMethod>,
    pub(super) draft_tokens: Option<usize>,
    pub(super) ngram_min: Option<usize>,
    pub(super) ngram_max: Option<usize>,
    pub(super) model: Option<String>,
    /// What could not be taken as it was written.
    pub(super) warnings: Vec<String>,
}

impl FromStr for SpeculativeConfig {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fields: Map<String, Value> = match serde_json::from_str(text) {
            Ok(Value::Object(fields)) => fields,
            Ok(other) => {
                return Err(format!(
                    "{other} is not a JSON object such as {{\"method\": \"mtp\"}}"
                ));
            }
            Err(error) => return Err(format!("not valid JSON: {error}")),
        };
        let mut config = Self::default();
        let mut unknown = Vec::new();
        // vLLM writes null for what is not set.
        for (key, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            let known = config
                .set(key, value)
                .map_err(|why| format!("key `{key}`: {why}"))?;
            if !known {
                unknown.push(format!("`{key}`"));
            }
        }
        if !unknown.is_empty() {
            let list = unknown.join(", ");
            config
                .warnings
                .push(format!("{list} means nothing here and is ignored"));
        }
        config.settle()
    }
}

impl SpeculativeConfig {
    /// Takes a key's value; false if the key is not known.
    fn set(&mut self, key: &str, value: &Value) -> Result<bool, String> {
        match key {
            "method" => self.method = Some(method(text(value)?)?),
            "num_speculative_tokens" => {
                self.draft_tokens = Some(numbers::draft_tokens(whole(value)?)?);
            }
            "prompt_lookup_min" => self.ngram_min = Some(self.lookup_length(key, value)?),
            "prompt_lookup_max" => self.ngram_max = Some(self.lookup_length(key, value)?),
            "model" => self.model = Some(text(value)?.to_owned()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// A length of n-grams. vLLM knows no upper bound.
    fn lookup_length(&mut self, key: &str, value: &Value) -> Result<usize, String> {
        let length = numbers::at_least_one(whole(value)?)?;
        if length > NGRAM_LONGEST {
            self.warnings.push(format!(
                "`{key}` is {length}; {NGRAM_LONGEST} is taken, the longest there is"
            ));
        }
        Ok(length.min(NGRAM_LONGEST))
    }

    /// Checks keys against each other.
    fn settle(mut self) -> Result<Self, String> {
        if let (Some(min), Some(max)) = (self.ngram_min, self.ngram_max)
            && min > max
        {
            return Err(format!(
                "key `prompt_lookup_min`: {min} must be at most `prompt_lookup_max`, {max}"
            ));
        }
        // How older versions of vLLM asked for n-grams.
        if self.model.as_deref() == Some("[ngram]") {
            self.model = None;
            self.method = self.method.or(Some(SpeculationMethod::Ngram));
        }
        let needs_no_model = matches!(
            self.method,
            Some(SpeculationMethod::Ngram | SpeculationMethod::Mtp)
        );
        if let Some(model) = self.model.take_if(|_| needs_no_model) {
            let method = self.method.map_or("", SpeculationMethod::name);
            self.warnings.push(format!(
                "`model` is {model}; {method} needs none and it is ignored"
            ));
        }
        Ok(self)
    }
}

fn method(name: &str) -> Result<SpeculationMethod, String> {
    match name {
        "ngram" => Ok(SpeculationMethod::Ngram),
        "eagle3" => Ok(SpeculationMethod::Eagle3),
        "draft_model" => Ok(SpeculationMethod::Draft),
        "mtp" => Ok(SpeculationMethod::Mtp),
        name if name.ends_with("_mtp") => Ok(SpeculationMethod::Mtp),
        "eagle" => Err("eagle is not supported; of the EAGLE heads only EAGLE-3 is, as eagle3".to_owned()),
        other => Err(format!(
            "{other} must be one of ngram, mtp (or a name that ends in _mtp), eagle3, draft_model"
        )),
    }
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("{value} is not a string"))
}

fn whole(value: &Value) -> Result<usize, String> {
    let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
    number.ok_or_else(|| format!("{value} is not a whole number of at least 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> SpeculativeConfig {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn the_usual_keys_are_understood() {
        let config = parse(
            r#"{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 4}"#,
        );
        let expected = SpeculativeConfig {
            method: Some(SpeculationMethod::Ngram),
            draft_tokens: Some(5),
            ngram_min: Some(2),
            ngram_max: Some(4),
            ..SpeculativeConfig::default()
        };
        assert_eq!(config, expected);
        let config = parse(r#"{"model": "org/head", "method": "eagle3", "prompt_lookup_max": null}"#);
        assert_eq!(config.method, Some(SpeculationMethod::Eagle3));
        assert_eq!(
            (config.model.as_deref(), config.ngram_max),
            (Some("org/head"), None)
        );
        assert_eq!(parse("{}"), SpeculativeConfig::default());
    }

    #[test]
    fn every_name_of_an_mtp_head_is_known() {
        for name in ["mtp", "qwen3_next_mtp", "qwen3_5_mtp", "deepseek_mtp", "mimo_mtp"] {
            let config = parse(&format!(r#"{{"method": "{name}"}}"#));
            assert_eq!(config.method, Some(SpeculationMethod::Mtp), "{name}");
        }
    }

    #[test]
    fn a_model_is_a_drafter_unless_the_method_needs_none() {
        let config = parse(r#"{"model": "org/small"}"#);
        assert_eq!((config.method, config.warnings.len()), (None, 0));
        let config = parse(r#"{"method": "mtp", "model": "org/large"}"#);
        assert_eq!(config.model, None);
        assert!(config.warnings[0].contains("org/large"), "{:?}", config.warnings);
        let config = parse(r#"{"model": "[ngram]"}"#);
        assert_eq!(
            (config.method, config.model),
            (Some(SpeculationMethod::Ngram), None)
        );
    }

    #[test]
    fn what_is_not_taken_as_it_is_gives_a_warning() {
        let config = parse(r#"{"draft_tensor_parallel_size": 1, "quantization": "fp8", "method": "mtp"}"#);
        assert_eq!(config.warnings.len(), 1);
        for key in ["`draft_tensor_parallel_size`", "`quantization`"] {
            assert!(config.warnings[0].contains(key), "{:?}", config.warnings);
        }
        let config = parse(r#"{"prompt_lookup_min": 3, "prompt_lookup_max": 20}"#);
        assert_eq!((config.ngram_min, config.ngram_max), (Some(3), Some(8)));
        assert!(config.warnings[0].contains("20"), "{:?}", config.warnings);
    }

    #[test]
    fn mistakes_name_the_key_the_value_and_the_bound() {
        for (text, parts) in [
            ("[1]", &["not a JSON object"][..]),
            ("{", &["not valid JSON"]),
            (r#"{"method": 3}"#, &["`method`", "3", "string"]),
            (r#"{"method": "medusa"}"#, &["`method`", "medusa", "eagle3"]),
            (r#"{"method": "eagle"}"#, &["`method`", "only EAGLE-3"]),
            (
                r#"{"num_speculative_tokens": 16}"#,
                &["`num_speculative_tokens`", "16", "0 to 15"],
            ),
            (
                r#"{"num_speculative_tokens": "3"}"#,
                &["`num_speculative_tokens`", "whole number"],
            ),
            (
                r#"{"num_speculative_tokens": -1}"#,
                &["`num_speculative_tokens`", "-1"],
            ),
            (
                r#"{"prompt_lookup_min": 0}"#,
                &["`prompt_lookup_min`", "0", "at least 1"],
            ),
            (
                r#"{"prompt_lookup_min": 4, "prompt_lookup_max": 3}"#,
                &["`prompt_lookup_min`", "4", "3"],
            ),
            (r#"{"model": ["x"]}"#, &["`model`", "string"]),
        ] {
            let error = text.parse::<SpeculativeConfig>().unwrap_err();
            for part in parts {
                assert!(error.contains(part), "{text}: `{part}` is not in: {error}");
            }
        }
    }
}
