//! Requests of every kind, and replies that are complete.

use serde_json::{Value, json};

/// The endpoints that generate.
pub(crate) const GENERATING: [&str; 4] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
];

/// A body for an endpoint that runs for `tokens` tokens.
pub(crate) fn body(path: &str, tokens: u64, stream: bool) -> Value {
    let mut body = json!({ "stream": stream, "ignore_eos": true });
    let messages = json!([{ "role": "user", "content": "Tell me about a fox." }]);
    let fields = match path {
        "/v1/chat/completions" => json!({ "messages": messages, "max_completion_tokens": tokens }),
        "/v1/completions" => json!({ "prompt": "Once upon a time", "max_tokens": tokens }),
        "/v1/responses" => json!({ "input": "Tell me about a fox.", "max_output_tokens": tokens }),
        _ => json!({ "messages": messages, "max_tokens": tokens, "model": "storyteller" }),
    };
    extend(&mut body, fields);
    body
}

/// The request with this number: endpoint and body, all kinds in turn.
pub(crate) fn request(number: usize) -> (&'static str, Value) {
    let path = GENERATING[number % 4];
    let mut body = body(path, 8 + (number as u64 * 7) % 40, !number.is_multiple_of(3));
    body["seed"] = json!(number);
    let more = match (number / 4) % 10 {
        0 => json!({ "temperature": 0 }),
        1 => json!({ "temperature": 1.3, "top_p": 0.8 }),
        2 if number % 4 < 2 => json!({ "n": 2, "presence_penalty": 0.5 }),
        3 => json!({ "stop": ["the"], "stop_sequences": ["the"] }),
        4 => json!({ "speculation": "off", "top_k": 20 }),
        5 if path == "/v1/completions" => json!({ "logprobs": 3, "echo": true }),
        5 if path == "/v1/chat/completions" => json!({ "logprobs": true, "top_logprobs": 3 }),
        6 if path == "/v1/completions" => {
            json!({ "prompt": [[443, 441, 261, 393], [443, 441]], "repetition_penalty": 1.2 })
        }
        7 => structured(path),
        8 => forced(path),
        _ => json!({ "ignore_eos": false, "priority": number % 3 }),
    };
    extend(&mut body, more);
    (path, body)
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": { "city": { "enum": ["Rome", "Oslo"] }, "name": { "type": "string" } },
        "required": ["city", "name"],
        "additionalProperties": false,
    })
}

/// Asks for JSON, in the words of the endpoint.
fn structured(path: &str) -> Value {
    let schema = schema();
    match path {
        "/v1/responses" => {
            json!({ "text": { "format": { "type": "json_schema", "name": "x", "schema": schema } } })
        }
        "/v1/messages" => {
            json!({ "output_config": { "format": { "type": "json_schema", "schema": schema } } })
        }
        _ => {
            json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "x", "schema": schema } } })
        }
    }
}

/// Asks for the call of a tool, or for one of several texts where there are no tools.
fn forced(path: &str) -> Value {
    let parameters = schema();
    let function = json!({ "name": "weather", "parameters": parameters });
    match path {
        "/v1/chat/completions" => {
            json!({ "tools": [{ "type": "function", "function": function }], "tool_choice": "required" })
        }
        "/v1/responses" => {
            let tool = json!({ "type": "function", "name": "weather", "parameters": parameters });
            json!({ "tools": [tool], "tool_choice": "required" })
        }
        "/v1/messages" => {
            let tool = json!({ "name": "weather", "input_schema": parameters });
            json!({ "tools": [tool], "tool_choice": { "type": "any" } })
        }
        _ => json!({ "guided_choice": ["yes", "no", "perhaps"] }),
    }
}

fn extend(body: &mut Value, more: Value) {
    if let (Value::Object(body), Value::Object(more)) = (body, more) {
        body.extend(more);
    }
}

/// Whether a reply with status 200 is all there: JSON with an end, or a stream with its last event.
pub(crate) fn complete(path: &str, reply: &str) -> bool {
    let Some((head, text)) = reply.split_once("\r\n\r\n") else {
        return false;
    };
    if !head.contains("text/event-stream") {
        return serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object());
    }
    // The stream comes in chunks; the last one is empty.
    let last = |part: &str| text.contains(part) && text.ends_with("0\r\n\r\n");
    match path {
        "/v1/chat/completions" | "/v1/completions" => last("data: [DONE]"),
        "/v1/responses" => ["completed", "incomplete", "failed"]
            .iter()
            .any(|end| last(&format!("event: response.{end}\n"))),
        _ => last("event: message_stop\n") || last("event: error\n"),
    }
}
