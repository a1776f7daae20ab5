//! The input of a response: items as OpenAI's clients send them, messages as chat templates expect them.

use crate::body::shorten;
use crate::error::ApiError;
use serde_json::{Map, Value, json};

/// The conversation: instructions first, then the input.
pub(super) fn conversation(instructions: Option<&str>, input: Value) -> Result<Vec<Value>, ApiError> {
    let mut conversation = Vec::new();
    if let Some(text) = instructions.filter(|text| !text.is_empty()) {
        conversation.push(json!({ "role": "system", "content": text }));
    }
    match input {
        Value::String(text) => conversation.push(json!({ "role": "user", "content": text })),
        Value::Array(items) if items.is_empty() => {
            let message = "`input` is empty; there must be at least one item";
            return Err(ApiError::field("input", message));
        }
        Value::Array(items) => {
            for (index, item) in items.into_iter().enumerate() {
                add(&format!("input[{index}]"), item, &mut conversation)?;
            }
        }
        Value::Null => return Err(ApiError::field("input", "`input` is missing")),
        _ => {
            let message = "`input` must be a string or a list of items";
            return Err(ApiError::field("input", message));
        }
    }
    Ok(conversation)
}

fn add(param: &str, item: Value, conversation: &mut Vec<Value>) -> Result<(), ApiError> {
    let Value::Object(mut item) = item else {
        let message = format!("`{param}` is not an object");
        return Err(ApiError::field(param, message));
    };
    let kind = item.get("type").and_then(Value::as_str).unwrap_or("message");
    match kind {
        "message" => conversation.push(message(param, &mut item)?),
        "function_call" => {
            let call = call(param, &item)?;
            add_call(call, conversation);
        }
        "function_call_output" => {
            let output = item.remove("output").unwrap_or_default();
            let content = content(&format!("{param}.output"), output)?;
            let id = text(param, &item, "call_id")?;
            conversation.push(json!({ "role": "tool", "tool_call_id": id, "content": content }));
        }
        // What the model thought before is not shown to it again.
        "reasoning" => {}
        "item_reference" => {
            let param = format!("{param}.type");
            let message = format!("`{param}` is item_reference, but responses are not stored: give the item");
            return Err(ApiError::field(param, message));
        }
        other => {
            let bound = "message, function_call, function_call_output or reasoning";
            return Err(ApiError::bound(&format!("{param}.type"), &shorten(other), bound));
        }
    }
    Ok(())
}

fn message(param: &str, item: &mut Map<String, Value>) -> Result<Value, ApiError> {
    let role = match item.get("role").and_then(Value::as_str) {
        Some("user") => "user",
        Some("assistant") => "assistant",
        // What OpenAI calls developer is what models know as system.
        Some("system" | "developer") => "system",
        other => {
            let role = shorten(other.unwrap_or("missing or not a string"));
            let bound = "user, assistant, system or developer";
            return Err(ApiError::bound(&format!("{param}.role"), &role, bound));
        }
    };
    let parts = item.remove("content").unwrap_or_default();
    let content = content(&format!("{param}.content"), parts)?;
    Ok(json!({ "role": role, "content": content }))
}

fn call(param: &str, item: &Map<String, Value>) -> Result<Value, ApiError> {
    let id = text(param, item, "call_id")?;
    let name = text(param, item, "name")?;
    let arguments = text(param, item, "arguments")?;
    let function = json!({ "name": name, "arguments": arguments });
    Ok(json!({ "id": id, "type": "function", "function": function }))
}

/// A call belongs to the assistant's message before it; calls next to each other are made at a time.
fn add_call(call: Value, conversation: &mut Vec<Value>) {
    if conversation.last().is_none_or(|last| last["role"] != "assistant") {
        conversation.push(json!({ "role": "assistant", "content": "" }));
    }
    let Some(Value::Object(message)) = conversation.last_mut() else {
        return;
    };
    let calls = message.entry("tool_calls").or_insert_with(|| json!([]));
    if let Value::Array(calls) = calls {
        calls.push(call);
    }
}

fn text<'a>(param: &str, item: &'a Map<String, Value>, name: &str) -> Result<&'a str, ApiError> {
    item.get(name).and_then(Value::as_str).ok_or_else(|| {
        let param = format!("{param}.{name}");
        let message = format!("`{param}` is missing or not a string");
        ApiError::field(param, message)
    })
}

/// The text of a content: a string, or parts that are text.
fn content(param: &str, content: Value) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        _ => {
            let message = format!("`{param}` must be a string or a list of parts");
            return Err(ApiError::field(param, message));
        }
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        let param = format!("{param}[{index}]");
        let Value::Object(part) = part else {
            let message = format!("`{param}` is not an object");
            return Err(ApiError::field(param, message));
        };
        let field = match part.get("type").and_then(Value::as_str) {
            Some("input_text" | "output_text" | "text" | "summary_text") => "text",
            Some("refusal") => "refusal",
            other => {
                let kind = shorten(other.unwrap_or("missing or not a string"));
                let bound = "input_text or output_text: the model reads nothing else";
                return Err(ApiError::bound(&format!("{param}.type"), &kind, bound));
            }
        };
        texts.push(text(&param, &part, field)?.to_owned());
    }
    Ok(texts.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_become_messages() {
        let input = json!([
            { "role": "developer", "content": "short" },
            { "type": "message", "role": "user", "content":
                [{ "type": "input_text", "text": "a" }, { "type": "input_text", "text": "b" }] },
            { "type": "reasoning", "id": "rs_1", "summary": [] },
            { "type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
                "content": [{ "type": "output_text", "text": "let me see", "annotations": [] }] },
            { "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}" },
            { "type": "function_call", "call_id": "c2", "name": "g", "arguments": "{\"x\": 1}" },
            { "type": "function_call_output", "call_id": "c1", "output": "one" },
            { "type": "function_call_output", "call_id": "c2", "output": [{ "type": "input_text", "text": "two" }] },
            { "type": "function_call", "call_id": "c3", "name": "f", "arguments": "{}" },
        ]);
        let call = |id: &str, name: &str, arguments: &str| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
        assert_eq!(
            conversation(Some("be kind"), input).unwrap(),
            [
                json!({ "role": "system", "content": "be kind" }),
                json!({ "role": "system", "content": "short" }),
                json!({ "role": "user", "content": "a\nb" }),
                json!({ "role": "assistant", "content": "let me see",
                    "tool_calls": [call("c1", "f", "{}"), call("c2", "g", "{\"x\": 1}")] }),
                json!({ "role": "tool", "tool_call_id": "c1", "content": "one" }),
                json!({ "role": "tool", "tool_call_id": "c2", "content": "two" }),
                json!({ "role": "assistant", "content": "", "tool_calls": [call("c3", "f", "{}")] }),
            ]
        );
        let text = conversation(None, json!("hello")).unwrap();
        assert_eq!(text, [json!({ "role": "user", "content": "hello" })]);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let image = json!({ "type": "input_image", "image_url": "x" });
        for (input, param) in [
            (Value::Null, "input"),
            (json!(1), "input"),
            (json!([]), "input"),
            (json!(["x"]), "input[0]"),
            (json!([{ "role": "robot", "content": "x" }]), "input[0].role"),
            (json!([{ "role": "user" }]), "input[0].content"),
            (
                json!([{ "role": "user", "content": [image] }]),
                "input[0].content[0].type",
            ),
            (
                json!([{ "role": "user", "content": [{ "type": "input_text" }] }]),
                "input[0].content[0].text",
            ),
            (
                json!([{ "type": "function_call", "name": "f" }]),
                "input[0].call_id",
            ),
            (
                json!([{ "type": "function_call_output", "call_id": "c" }]),
                "input[0].output",
            ),
            (
                json!([{ "type": "item_reference", "id": "msg_1" }]),
                "input[0].type",
            ),
            (json!([{ "type": "web_search_call" }]), "input[0].type"),
        ] {
            let error = conversation(None, input).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{error}");
        }
    }
}
