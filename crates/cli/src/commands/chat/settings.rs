//! Sampling as the user changes and sees it.

use crate::commands::generate::Settings;
use crate::commands::generate::prompts::lines;
use anyhow::{Result, bail};
use serde_json::{Map, Value, json};

/// What `/set` can change.
const NAMES: [&str; 15] = [
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "stop",
    "stop_token",
    "bad_word",
    "logit_bias",
    "ignore_eos",
];

/// Changes a setting; without a value it goes back to the model's.
pub(super) fn change(settings: &mut Settings, name: &str, value: Option<&str>) -> Result<()> {
    if !NAMES.contains(&name) {
        bail!("/set {name}: unknown; known are {}", NAMES.join(", "));
    }
    let Some(value) = value else {
        clear(settings, name);
        return Ok(());
    };
    // Texts need no quotes, and a number may be one.
    let texts = matches!(name, "stop" | "bad_word") && !value.starts_with(['[', '"']);
    let value = if texts {
        json!(value)
    } else {
        serde_json::from_str(value).unwrap_or_else(|_| json!(value))
    };
    lines::set(settings, name, &value).map_err(|error| error.context(format!("/set {name}")))
}

fn clear(settings: &mut Settings, name: &str) {
    match name {
        "max_tokens" => settings.max_tokens = None,
        "temperature" => settings.temperature = None,
        "top_p" => settings.top_p = None,
        "top_k" => settings.top_k = None,
        "min_p" => settings.min_p = None,
        "seed" => settings.seed = None,
        "repetition_penalty" => settings.repetition_penalty = None,
        "presence_penalty" => settings.presence_penalty = None,
        "frequency_penalty" => settings.frequency_penalty = None,
        "min_tokens" => settings.min_tokens = None,
        "stop" => settings.stop = None,
        "stop_token" => settings.stop_token = None,
        "bad_word" => settings.bad_word = None,
        "logit_bias" => settings.logit_bias = None,
        _ => settings.ignore_eos = None,
    }
}

/// What is set, by the names of our server's fields.
pub(super) fn fields(settings: &Settings) -> Map<String, Value> {
    let bias: Option<Map<String, Value>> = settings.logit_bias.as_ref().map(|list| {
        let pairs = list.iter();
        pairs
            .map(|(token, bias)| (token.to_string(), json!(bias)))
            .collect()
    });
    let all = [
        ("max_tokens", json!(settings.max_tokens)),
        ("temperature", json!(settings.temperature)),
        ("top_p", json!(settings.top_p)),
        ("top_k", json!(settings.top_k)),
        ("min_p", json!(settings.min_p)),
        ("seed", json!(settings.seed)),
        ("repetition_penalty", json!(settings.repetition_penalty)),
        ("presence_penalty", json!(settings.presence_penalty)),
        ("frequency_penalty", json!(settings.frequency_penalty)),
        ("min_tokens", json!(settings.min_tokens)),
        ("stop", json!(settings.stop)),
        ("stop_token_ids", json!(settings.stop_token)),
        ("bad_words", json!(settings.bad_word)),
        ("logit_bias", json!(bias)),
        ("ignore_eos", json!(settings.ignore_eos.filter(|ignore| *ignore))),
    ];
    all.into_iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// The same for people.
pub(super) fn list(settings: &Settings) -> String {
    let set: Vec<String> = fields(settings)
        .iter()
        .map(|(name, value)| format!("{name} = {value}"))
        .collect();
    if set.is_empty() {
        return format!("nothing is set; there are {}", NAMES.join(", "));
    }
    set.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_sent_and_can_be_taken_back() {
        let mut settings = Settings::default();
        for (name, value) in [
            ("temperature", "0.5"),
            ("max_tokens", "9"),
            ("stop", "The end"),
            ("bad_word", r#"["a", "b"]"#),
            ("stop_token", "7"),
            ("logit_bias", r#"{"3": -1}"#),
            ("ignore_eos", "true"),
        ] {
            change(&mut settings, name, Some(value)).unwrap();
        }
        let sent = Value::Object(fields(&settings));
        assert_eq!(
            sent,
            json!({
                "max_tokens": 9, "temperature": 0.5, "stop": ["The end"], "stop_token_ids": [7],
                "bad_words": ["a", "b"], "logit_bias": { "3": -1.0 }, "ignore_eos": true,
            })
        );
        for name in NAMES {
            change(&mut settings, name, None).unwrap();
        }
        assert_eq!(settings, Settings::default());
        assert!(list(&settings).contains("nothing is set"));
    }

    #[test]
    fn bad_values_are_refused_with_name_and_bound() {
        let mut settings = Settings::default();
        for (name, value, part) in [
            ("temperature", "-1", "at least 0"),
            ("temperature", "hot", "not a number"),
            ("top_p", "2", "at most 1"),
            ("n", "2", "known are"),
            ("chat", "true", "known are"),
        ] {
            let error = format!("{:#}", change(&mut settings, name, Some(value)).unwrap_err());
            assert!(error.contains(part) && error.contains(name), "{error}");
        }
        assert_eq!(settings, Settings::default());
    }
}
