//! `tokenizer_config.json`: the parts that matter for text.

use serde_json::Value;

use crate::error::{Result, TextError};

/// What the configuration file of a tokenizer says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenizerConfig {
    /// The token that begins a text.
    pub bos_token: Option<String>,
    /// The token that ends a text.
    pub eos_token: Option<String>,
    /// The chat templates; one without a name is called "default".
    pub chat_templates: Vec<NamedTemplate>,
}

/// A chat template and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTemplate {
    /// "default", "tool_use", ...
    pub name: String,
    /// Jinja source.
    pub source: String,
}

impl TokenizerConfig {
    /// Reads the file.
    pub fn from_json_bytes(bytes: &[u8]) -> Result<Self> {
        let file: Value =
            serde_json::from_slice(bytes).map_err(|error| TextError::InvalidConfig(error.to_string()))?;
        if !file.is_object() {
            return Err(TextError::InvalidConfig("not a JSON object".to_owned()));
        }
        Ok(Self {
            bos_token: special_token(&file, "bos_token")?,
            eos_token: special_token(&file, "eos_token")?,
            chat_templates: chat_templates(&file["chat_template"])?,
        })
    }

    /// Puts the text of a separate `chat_template.jinja` in place of the default template.
    #[must_use]
    pub fn with_chat_template(mut self, source: &str) -> Self {
        self.chat_templates.retain(|template| template.name != "default");
        self.chat_templates.push(NamedTemplate {
            name: "default".to_owned(),
            source: source.to_owned(),
        });
        self
    }
}

/// A special token is its text, or an object with the text as "content".
fn special_token(file: &Value, key: &str) -> Result<Option<String>> {
    match &file[key] {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        other => match other["content"].as_str() {
            Some(text) => Ok(Some(text.to_owned())),
            None => Err(TextError::InvalidConfig(format!("{key} is {other}"))),
        },
    }
}

fn chat_templates(value: &Value) -> Result<Vec<NamedTemplate>> {
    let named = |entry: &Value| match (entry["name"].as_str(), entry["template"].as_str()) {
        (Some(name), Some(source)) => Ok(NamedTemplate {
            name: name.to_owned(),
            source: source.to_owned(),
        }),
        _ => Err(TextError::InvalidConfig(
            "a chat template lacks its name or text".to_owned(),
        )),
    };
    match value {
        Value::Null => Ok(Vec::new()),
        Value::String(source) => Ok(vec![NamedTemplate {
            name: "default".to_owned(),
            source: source.clone(),
        }]),
        Value::Array(entries) => entries.iter().map(named).collect(),
        _ => Err(TextError::InvalidConfig(
            "chat_template is neither text nor a list".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_may_be_text_or_objects() {
        let config = br#"{"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>"}"#;
        let config = TokenizerConfig::from_json_bytes(config).unwrap();
        assert_eq!(config.bos_token.as_deref(), Some("<s>"));
        assert_eq!(config.eos_token.as_deref(), Some("</s>"));
        assert!(config.chat_templates.is_empty());
    }

    #[test]
    fn a_separate_template_replaces_the_default_only() {
        let config = br#"{"chat_template": [{"name": "default", "template": "a"},
            {"name": "tool_use", "template": "b"}]}"#;
        let config = TokenizerConfig::from_json_bytes(config)
            .unwrap()
            .with_chat_template("c");
        let sources: Vec<_> = config.chat_templates.iter().map(|t| t.source.as_str()).collect();
        assert_eq!(sources, ["b", "c"]);
    }

    #[test]
    fn malformed_configurations_are_errors() {
        for bad in [
            "",
            "[]",
            r#"{"bos_token": 3}"#,
            r#"{"chat_template": 1}"#,
            r#"{"chat_template": [{}]}"#,
        ] {
            let error = TokenizerConfig::from_json_bytes(bad.as_bytes());
            assert!(matches!(error, Err(TextError::InvalidConfig(_))), "{bad}");
        }
    }
}
