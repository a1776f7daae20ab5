//! Messages as clients send them, and as templates expect them.

use crate::error::ApiError;
use serde_json::{Map, Value};

/// The roles that messages can have.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// Checks messages and gives every one a content that is text.
pub(crate) fn normalise(messages: Vec<Map<String, Value>>) -> Result<Vec<Value>, ApiError> {
    if messages.is_empty() {
        let message = "`messages` is empty; there must be at least one message";
        return Err(ApiError::field("messages", message));
    }
    let messages = messages.into_iter().enumerate();
    let messages = messages.map(|(index, message)| one(index, message));
    messages.collect()
}

fn one(index: usize, mut message: Map<String, Value>) -> Result<Value, ApiError> {
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
    if role.is_empty() {
        let param = format!("messages[{index}].role");
        let text = format!("`{param}` is missing or not a string");
        return Err(ApiError::field(param, text));
    }
    if !ROLES.contains(&role) {
        let param = format!("messages[{index}].role");
        let role = crate::body::shorten(role);
        return Err(ApiError::bound(
            &param,
            &role,
            &format!("one of {}", ROLES.join(", ")),
        ));
    }
    // What OpenAI calls developer is what models know as system.
    if role == "developer" {
        message.insert("role".to_owned(), "system".into());
    }
    let content = message.remove("content").unwrap_or_default();
    let content = text(&format!("messages[{index}].content"), content)?;
    message.insert("content".to_owned(), content.into());
    if let Some(reasoning) = message.remove("reasoning").filter(Value::is_string) {
        message.entry("reasoning_content").or_insert(reasoning);
    }
    if message.get("tool_calls").is_some_and(Value::is_null) {
        message.remove("tool_calls");
    }
    if message.get("tool_calls").is_some_and(|calls| !calls.is_array()) {
        let param = format!("messages[{index}].tool_calls");
        let text = format!("`{param}` is not a list");
        return Err(ApiError::field(param, text));
    }
    Ok(Value::Object(message))
}

/// The text of a content: a string, or parts of type text. Templates write null as a word, so it becomes nothing.
fn text(param: &str, content: Value) -> Result<String, ApiError> {
    let parts = match content {
        Value::Null => return Ok(String::new()),
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        _ => {
            let message = format!("`{param}` must be a string or a list of parts");
            return Err(ApiError::field(param, message));
        }
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        let kind = part.get("type").and_then(Value::as_str).unwrap_or("text");
        let field = if kind == "refusal" { "refusal" } else { "text" };
        if !matches!(kind, "text" | "input_text" | "output_text" | "refusal") {
            let param = format!("{param}[{index}].type");
            let kind = crate::body::shorten(kind);
            let bound = "text: the model reads nothing else";
            return Err(ApiError::bound(&param, &kind, bound));
        }
        match part {
            Value::String(text) => texts.push(text),
            part => {
                let text = part.get(field).and_then(Value::as_str);
                let text = text.ok_or_else(|| {
                    let param = format!("{param}[{index}].{field}");
                    let message = format!("`{param}` is missing or not a string");
                    ApiError::field(param, message)
                })?;
                texts.push(text.to_owned());
            }
        }
    }
    Ok(texts.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(messages: Value) -> Result<Vec<Value>, ApiError> {
        normalise(serde_json::from_value(messages).unwrap())
    }

    #[test]
    fn contents_become_text() {
        let messages = read(json!([
            { "role": "developer", "content": "a" },
            { "role": "user", "content": [{ "type": "text", "text": "b" }, { "type": "text", "text": "c" }] },
            { "role": "assistant", "content": null, "tool_calls": [], "reasoning": "why" },
            { "role": "assistant", "tool_calls": null },
        ]));
        let messages = messages.unwrap();
        assert_eq!(messages[0], json!({ "role": "system", "content": "a" }));
        assert_eq!(messages[1]["content"], "b\nc");
        assert_eq!(messages[2]["content"], "");
        assert_eq!(messages[2]["reasoning_content"], "why");
        assert!(messages[3].get("tool_calls").is_none());
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (messages, param) in [
            (json!([]), "messages"),
            (json!([{ "content": "x" }]), "messages[0].role"),
            (json!([{ "role": 1, "content": "x" }]), "messages[0].role"),
            (json!([{ "role": "robot", "content": "x" }]), "messages[0].role"),
            (json!([{ "role": "user", "content": 1 }]), "messages[0].content"),
            (
                json!([{ "role": "user", "content": [{ "type": "image_url" }] }]),
                "messages[0].content[0].type",
            ),
            (
                json!([{ "role": "user", "content": [{ "type": "text" }] }]),
                "messages[0].content[0].text",
            ),
            (
                json!([{ "role": "user", "tool_calls": {} }]),
                "messages[0].tool_calls",
            ),
        ] {
            let error = read(messages).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{error}");
        }
    }
}
