//! Sampling as the user changes and sees it.

use crate::commands::generate::Settings;
use crate::commands::generate::prompts::lines;
use crate::flags::NOT_IN_CHAT;
use anyhow::{Context, Result};
use paceline::{OPTIONS, OptionKind, RequestOption};
use serde_json::{Map, Value, json};

/// What `/set` can change.
fn options() -> impl Iterator<Item = &'static RequestOption> {
    OPTIONS
        .iter()
        .filter(|option| !NOT_IN_CHAT.contains(&option.name))
}

fn names() -> String {
    options().map(|option| option.name).collect::<Vec<_>>().join(", ")
}

/// Changes a setting; without a value it goes back to the model's.
pub(super) fn change(settings: &mut Settings, name: &str, value: Option<&str>) -> Result<()> {
    let option = RequestOption::named(name).filter(|option| !NOT_IN_CHAT.contains(&option.name));
    let option = option.with_context(|| format!("/set {name}: unknown; known are {}", names()))?;
    let Some(value) = value else {
        settings.options.clear(option);
        return Ok(());
    };
    // Texts need no quotes, and a number may be one.
    let text = matches!(option.kind, OptionKind::Texts) && !value.starts_with(['[', '"']);
    let value = if text {
        json!(value)
    } else {
        serde_json::from_str(value).unwrap_or_else(|_| json!(value))
    };
    lines::set_option(&mut settings.options, option, &value).with_context(|| format!("/set {name}"))
}

/// What is set, by the names of our server's fields.
pub(super) fn fields(settings: &Settings) -> Map<String, Value> {
    settings.options.to_json()
}

/// The same for people.
pub(super) fn list(settings: &Settings) -> String {
    let set: Vec<String> = fields(settings)
        .iter()
        .map(|(name, value)| format!("{name} = {value}"))
        .collect();
    if set.is_empty() {
        return format!("nothing is set; there are {}", names());
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
        for option in options() {
            change(&mut settings, option.name, None).unwrap();
        }
        assert_eq!(settings, Settings::default());
        assert!(list(&settings).contains("nothing is set"));
    }

    #[test]
    fn bad_values_are_refused_with_name_and_bound() {
        let mut settings = Settings::default();
        for (name, value, part) in [
            ("temperature", "-1", "at least 0"),
            ("temperature", "hot", "a number of at least 0"),
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
