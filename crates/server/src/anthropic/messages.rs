//! Messages as Anthropic's clients send them, and as chat templates expect them.

use super::content::{Place, blocks, kind, text};
use crate::error::ApiError;
use serde_json::{Map, Value, json};

/// The conversation: what the system says first, then the messages.
pub(super) fn conversation(
    system: Option<Value>,
    messages: Vec<Map<String, Value>>,
) -> Result<Vec<Value>, ApiError> {
    if messages.is_empty() {
        let message = "`messages` is empty; there must be at least one message";
        return Err(ApiError::field("messages", message));
    }
    if messages.last().and_then(|last| last.get("role")) == Some(&"assistant".into()) {
        let message = "`messages` ends with a message of the assistant; to continue one is not supported, so the last must be the user's";
        return Err(ApiError::field("messages", message));
    }
    let mut conversation = Vec::with_capacity(messages.len() + 1);
    let system = text("system", system.unwrap_or_default())?;
    if !system.is_empty() {
        conversation.push(json!({ "role": "system", "content": system }));
    }
    for (index, message) in messages.into_iter().enumerate() {
        add(index, message, &mut conversation)?;
    }
    Ok(conversation)
}

fn add(index: usize, mut message: Map<String, Value>, conversation: &mut Vec<Value>) -> Result<(), ApiError> {
    let param = format!("messages[{index}].content");
    let content = message.remove("content").unwrap_or_default();
    match message.get("role").and_then(Value::as_str) {
        Some("user") => from_user(&param, content, conversation)?,
        Some("assistant") => conversation.push(from_assistant(&param, content)?),
        Some("system") => {
            let content = text(&param, content)?;
            conversation.push(json!({ "role": "system", "content": content }));
        }
        other => {
            let role = crate::body::shorten(other.unwrap_or("missing or not a string"));
            let param = format!("messages[{index}].role");
            return Err(ApiError::bound(&param, &role, "user, assistant or system"));
        }
    }
    Ok(())
}

/// Results of tools are messages of their own, in the order of the blocks.
fn from_user(param: &str, content: Value, conversation: &mut Vec<Value>) -> Result<(), ApiError> {
    let blocks = blocks(param, content)?;
    let mut texts = Vec::new();
    let said = |texts: &mut Vec<String>, conversation: &mut Vec<Value>| {
        if !texts.is_empty() {
            conversation.push(json!({ "role": "user", "content": texts.join("\n") }));
            texts.clear();
        }
    };
    let empty = blocks.is_empty();
    for (index, mut block) in blocks.into_iter().enumerate() {
        let place = Place { param, index };
        match kind(&block) {
            "text" => texts.push(place.text(&block, "text")?.to_owned()),
            "tool_result" => {
                said(&mut texts, conversation);
                let content = block.remove("content").unwrap_or_default();
                let content = text(&format!("{param}[{index}].content"), content)?;
                let id = place.text(&block, "tool_use_id")?;
                conversation.push(json!({ "role": "tool", "tool_call_id": id, "content": content }));
            }
            other => {
                let bound = "text or tool_result: the model reads nothing else";
                return Err(place.refuse(other, bound));
            }
        }
    }
    if empty {
        texts.push(String::new());
    }
    said(&mut texts, conversation);
    Ok(())
}

fn from_assistant(param: &str, content: Value) -> Result<Value, ApiError> {
    let (mut texts, mut thoughts, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for (index, block) in blocks(param, content)?.iter().enumerate() {
        let place = Place { param, index };
        match kind(block) {
            "text" => texts.push(place.text(block, "text")?.to_owned()),
            "thinking" => thoughts.push(place.text(block, "thinking")?.to_owned()),
            // Only its author can read it.
            "redacted_thinking" => {}
            "tool_use" => {
                let (id, name) = (place.text(block, "id")?, place.text(block, "name")?);
                let input = place.object(block, "input")?;
                let function = json!({ "name": name, "arguments": input });
                calls.push(json!({ "id": id, "type": "function", "function": function }));
            }
            other => {
                let bound = "text, thinking or tool_use";
                return Err(place.refuse(other, bound));
            }
        }
    }
    let mut message = json!({ "role": "assistant", "content": texts.join("\n") });
    if !thoughts.is_empty() {
        message["reasoning_content"] = thoughts.join("\n").into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(system: Value, messages: Value) -> Result<Vec<Value>, ApiError> {
        conversation(Some(system), serde_json::from_value(messages).unwrap())
    }

    #[test]
    fn tool_use_becomes_calls_and_results_become_messages() {
        let messages = read(
            json!([{ "type": "text", "text": "be" }, { "type": "text", "text": "kind" }]),
            json!([
                { "role": "user", "content": "hot?" },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "ask", "signature": "" },
                    { "type": "redacted_thinking", "data": "x" },
                    { "type": "text", "text": "let me see" },
                    { "type": "tool_use", "id": "t1", "name": "weather", "input": { "city": "Rome" } },
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "t1", "content": [{ "type": "text", "text": "30" }] },
                    { "type": "tool_result", "tool_use_id": "t2" },
                    { "type": "text", "text": "well?" },
                ] },
            ]),
        );
        let call = json!({ "id": "t1", "type": "function", "function":
            { "name": "weather", "arguments": { "city": "Rome" } } });
        assert_eq!(
            messages.unwrap(),
            [
                json!({ "role": "system", "content": "be\nkind" }),
                json!({ "role": "user", "content": "hot?" }),
                json!({ "role": "assistant", "content": "let me see", "reasoning_content": "ask",
                    "tool_calls": [call] }),
                json!({ "role": "tool", "tool_call_id": "t1", "content": "30" }),
                json!({ "role": "tool", "tool_call_id": "t2", "content": "" }),
                json!({ "role": "user", "content": "well?" }),
            ]
        );
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let image = json!({ "type": "image", "source": {} });
        for (messages, param) in [
            (json!([]), "messages"),
            (json!([{ "role": "assistant", "content": "x" }]), "messages"),
            (json!([{ "role": "robot", "content": "x" }]), "messages[0].role"),
            (json!([{ "content": "x" }]), "messages[0].role"),
            (json!([{ "role": "user" }]), "messages[0].content"),
            (
                json!([{ "role": "user", "content": [1] }]),
                "messages[0].content[0]",
            ),
            (
                json!([{ "role": "user", "content": [image] }]),
                "messages[0].content[0].type",
            ),
            (
                json!([{ "role": "user", "content": [{ "type": "text" }] }]),
                "messages[0].content[0].text",
            ),
            (
                json!([{ "role": "assistant", "content":
                    [{ "type": "tool_use", "id": "t", "name": "f", "input": 1 }] }, { "role": "user" }]),
                "messages[0].content[0].input",
            ),
            (
                json!([{ "role": "user", "content": [{ "type": "tool_result", "content": "x" }] }]),
                "messages[0].content[0].tool_use_id",
            ),
            (
                json!([{ "role": "user", "content":
                    [{ "type": "tool_result", "tool_use_id": "t", "content": [image] }] }]),
                "messages[0].content[0].content[0].type",
            ),
        ] {
            let error = read(Value::Null, messages).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{error}");
        }
        let error = read(json!(5), json!([{ "role": "user", "content": "x" }])).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("system"));
    }
}
