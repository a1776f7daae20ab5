//! Sampling parameters a model asks for in `generation_config.json`.

use crate::flags::numbers;
use anyhow::{Result, anyhow};
use serde_json::Value;

/// What to sample with where the user says nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GenerationDefaults {
    /// 0 for models that ask for no sampling.
    pub(crate) temperature: f32,
    /// 1 keeps all.
    pub(crate) top_p: f32,
    /// 0 keeps all.
    pub(crate) top_k: u32,
    /// 0 keeps all.
    pub(crate) min_p: f32,
    /// 1 changes nothing.
    pub(crate) repetition_penalty: f32,
}

impl Default for GenerationDefaults {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
        }
    }
}

impl GenerationDefaults {
    /// Reads the file's contents; fields that are absent or null keep their neutral value.
    pub(crate) fn from_json(config: &Value) -> Result<Self> {
        let neutral = Self::default();
        let number = |field: &str, default: f32, check: fn(f32) -> Result<f32, String>| {
            let value = match &config[field] {
                Value::Null => return Ok(default),
                value => value.as_f64().map(|number| number as f32),
            };
            value
                .ok_or_else(|| format!("{} is not a number", config[field]))
                .and_then(check)
                .map_err(|why| anyhow!("field `{field}`: {why}"))
        };
        let greedy = config["do_sample"] == Value::Bool(false);
        let temperature = number("temperature", neutral.temperature, numbers::temperature)?;
        let top_k = match &config["top_k"] {
            Value::Null => 0,
            // -1 is how some tools write "all".
            value if value.as_i64() == Some(-1) => 0,
            value => value
                .as_u64()
                .and_then(|count| u32::try_from(count).ok())
                .ok_or_else(|| anyhow!("field `top_k`: {value} is not a count"))?,
        };
        Ok(Self {
            temperature: if greedy { 0.0 } else { temperature },
            top_p: number("top_p", neutral.top_p, numbers::top_p)?,
            top_k,
            min_p: number("min_p", neutral.min_p, numbers::min_p)?,
            repetition_penalty: number(
                "repetition_penalty",
                neutral.repetition_penalty,
                numbers::repetition_penalty,
            )?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn absent_fields_are_neutral() {
        assert_eq!(
            GenerationDefaults::from_json(&json!({ "top_p": null })).unwrap(),
            GenerationDefaults::default()
        );
    }

    #[test]
    fn no_sampling_is_greedy_whatever_the_temperature() {
        let config = json!({ "do_sample": false, "temperature": 0.6 });
        let defaults = GenerationDefaults::from_json(&config).unwrap();
        assert!(defaults.temperature.abs() < f32::EPSILON);
    }

    #[test]
    fn fields_are_read_and_bad_ones_named() {
        let config =
            json!({ "do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1 });
        let defaults = GenerationDefaults::from_json(&config).unwrap();
        assert_eq!((defaults.temperature, defaults.top_k), (0.6, 20));
        assert_eq!((defaults.top_p, defaults.min_p), (0.95, 0.1));
        for (config, field) in [
            (json!({ "temperature": "hot" }), "temperature"),
            (json!({ "top_p": 7 }), "top_p"),
            (json!({ "top_k": -2 }), "top_k"),
        ] {
            let error = GenerationDefaults::from_json(&config).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
