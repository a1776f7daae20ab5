//! `/v1/responses`, in OpenAI's shapes.

use crate::support::{MODEL, PATIENCE, TestServer, leave_streams, named_events, try_odd_values, with};
use serde_json::{Value, json};
use std::time::Duration;

const PATH: &str = "/v1/responses";

/// A request with more or other fields.
fn request(more: Value) -> Value {
    let body =
        json!({ "model": MODEL, "input": "Tell me a story.", "max_output_tokens": 24, "temperature": 0 });
    with(body, more)
}

/// The data of the events of a stream, whose numbers must count.
fn events(text: &str) -> Vec<Value> {
    let events = named_events(text);
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    events
}

async fn stream(server: &TestServer, more: Value) -> Vec<Value> {
    let mut body = request(more);
    body["stream"] = true.into();
    let response = server.send(PATH, &body).await;
    assert_eq!(response.status(), 200);
    let text = tokio::time::timeout(PATIENCE, response.text()).await;
    events(&text.unwrap().unwrap())
}

fn tools() -> Value {
    json!([{ "type": "function", "name": "weather", "description": "How warm it is.", "strict": true, "parameters":
        { "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] } }])
}

#[tokio::test]
async fn a_response_says_what_was_asked_and_what_came() {
    let server = TestServer::start().await;
    let more = json!({ "instructions": "Be kind.", "metadata": { "a": "b" }, "tools": tools(), "store": true,
        "temperature": 0.7, "user": "me", "parallel_tool_calls": false, "truncation": "auto" });
    let reply = server.ok(PATH, &request(more)).await;
    assert!(reply["id"].as_str().unwrap().starts_with("resp_"));
    for (field, value) in [
        ("object", json!("response")),
        ("status", json!("incomplete")),
        ("incomplete_details", json!({ "reason": "max_output_tokens" })),
        ("error", Value::Null),
        ("instructions", json!("Be kind.")),
        ("metadata", json!({ "a": "b" })),
        ("max_output_tokens", json!(24)),
        ("model", json!(MODEL)),
        ("parallel_tool_calls", json!(false)),
        ("previous_response_id", Value::Null),
        ("store", json!(false)),
        ("temperature", json!(0.7)),
        ("text", json!({ "format": { "type": "text" } })),
        ("tool_choice", json!("auto")),
        ("tools", tools()),
        ("truncation", json!("auto")),
        ("user", json!("me")),
    ] {
        assert_eq!(reply[field], value, "{field} of {reply}");
    }
    let item = &reply["output"][0];
    assert_eq!(
        (&item["type"], &item["role"]),
        (&"message".into(), &"assistant".into())
    );
    assert_eq!(item["content"][0]["type"], "output_text");
    let usage = &reply["usage"];
    assert_eq!(usage["output_tokens"], 24);
    let total = usage["input_tokens"].as_u64().unwrap() + 24;
    assert_eq!(usage["total_tokens"], total);
    assert!(usage["speculation"]["steps"].as_u64().unwrap() > 0, "{usage}");
}

#[tokio::test]
async fn a_stream_is_the_whole_response_in_events() {
    let server = TestServer::start().await;
    let whole = server.ok(PATH, &request(json!({}))).await;
    let events = stream(&server, json!({})).await;
    let kinds: Vec<_> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    let head = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
    ];
    assert_eq!(kinds[..3], head);
    assert_eq!(kinds[3], "response.content_part.added");
    let tail = [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ];
    assert_eq!(kinds[kinds.len() - 4..], tail);
    assert_eq!(events[0]["response"]["status"], "in_progress");
    assert_eq!(events[0]["response"]["output"], json!([]));
    let deltas = events
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta");
    let text: String = deltas.map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(text, whole["output"][0]["content"][0]["text"]);
    let last = &events[events.len() - 1]["response"];
    assert_eq!(last["output"][0]["content"], whole["output"][0]["content"]);
    assert_eq!(last["id"], events[0]["response"]["id"]);
    assert_eq!(last["usage"]["total_tokens"], whole["usage"]["total_tokens"]);
}

#[tokio::test]
async fn conversations_with_tools_are_continued() {
    let server = TestServer::start().await;
    let input = json!([
        { "role": "developer", "content": "Be kind." },
        { "role": "user", "content": [{ "type": "input_text", "text": "How warm is it?" }] },
        { "type": "reasoning", "id": "rs_1", "summary": [] },
        { "type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather",
            "arguments": "{\"city\": \"Rome\"}", "status": "completed" },
        { "type": "function_call_output", "call_id": "c1", "output": "30 degrees" },
    ]);
    let reply = server
        .ok(PATH, &request(json!({ "input": input, "tools": tools() })))
        .await;
    assert_eq!(reply["output"][0]["type"], "message");
}

#[tokio::test]
async fn a_long_conversation_loses_its_beginning_if_it_may() {
    let server = TestServer::start().await;
    let long = "word ".repeat(200);
    let input: Vec<_> = (0..6)
        .map(|_| json!({ "role": "user", "content": long }))
        .chain([json!({ "role": "user", "content": "And then?" })])
        .collect();
    let (status, reply) = server.post(PATH, &request(json!({ "input": input }))).await;
    assert_eq!(
        (status, &reply["error"]["param"]),
        (400, &"input".into()),
        "{reply}"
    );
    assert_eq!(reply["error"]["code"], "context_length_exceeded");
    let reply = server
        .ok(PATH, &request(json!({ "input": input, "truncation": "auto" })))
        .await;
    let tokens = reply["usage"]["input_tokens"].as_u64().unwrap();
    assert!((10..512).contains(&tokens), "{tokens}");
}

#[tokio::test]
async fn bad_values_are_refused_by_name() {
    let server = TestServer::start().await;
    for (more, param, part) in [
        (json!({ "input": null }), "input", "missing"),
        (json!({ "input": [] }), "input", "empty"),
        (
            json!({ "input": [{ "role": "user", "content": [{ "type": "input_image" }] }] }),
            "input[0].content[0].type",
            "input_image",
        ),
        (
            json!({ "max_output_tokens": 0 }),
            "max_output_tokens",
            "at least 1",
        ),
        (json!({ "temperature": -1 }), "temperature", "at least 0"),
        (json!({ "top_p": "x" }), "top_p", "x"),
        (
            json!({ "previous_response_id": "resp_1" }),
            "previous_response_id",
            "not stored",
        ),
        (json!({ "conversation": "conv_1" }), "conversation", "not stored"),
        (json!({ "background": true }), "background", "not stored"),
        (json!({ "truncation": "some" }), "truncation", "some"),
        (json!({ "top_logprobs": 2 }), "top_logprobs", "not supported"),
        (
            json!({ "tools": [{ "type": "web_search" }] }),
            "tools[0].type",
            "web_search",
        ),
        (
            json!({ "tools": [], "tool_choice": "required" }),
            "tool_choice",
            "no tools",
        ),
        (
            json!({ "text": { "format": { "type": "json_schema", "name": "x" } } }),
            "text.format.schema",
            "missing",
        ),
        (
            json!({ "text": { "format": { "type": "json_schema", "name": "x", "schema": { "type": "thing" } } } }),
            "text.format",
            "thing",
        ),
        (
            json!({ "text": { "format": { "type": "xml" } } }),
            "text.format.type",
            "xml",
        ),
        (json!({ "metadata": 1 }), "metadata", "1"),
        (json!({ "speculation": "magic" }), "speculation", "magic"),
        (json!({ "deadline_ms": 0 }), "deadline_ms", "0"),
        (json!({ "priority": 1u64 << 40 }), "priority", "1099511627776"),
    ] {
        let (status, reply) = server.post(PATH, &request(more.clone())).await;
        let error = &reply["error"];
        assert_eq!(
            (status, &error["param"]),
            (400, &param.into()),
            "{more} gave {reply}"
        );
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(part), "{more} gave {reply}");
    }
    let (status, reply) = server.post(PATH, &request(json!({ "model": "gpt-9" }))).await;
    assert_eq!(
        (status, &reply["error"]["code"]),
        (404, &"model_not_found".into())
    );
}

#[tokio::test]
async fn clients_that_go_stop_their_tokens() {
    let body = request(json!({ "stream": true, "max_output_tokens": 400, "ignore_eos": true }));
    leave_streams(PATH, &body).await;
}

#[tokio::test]
async fn a_server_that_goes_down_ends_streams_as_failed() {
    let mut server = TestServer::configured(|config| config.drain_timeout = Duration::ZERO).await;
    let body = request(json!({ "stream": true, "max_output_tokens": 480, "ignore_eos": true }));
    let response = server.send(PATH, &body).await;
    while server.engine.stats().running < 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.drain();
    let events = events(&response.text().await.unwrap());
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.failed");
    let message = last["response"]["error"]["message"].as_str().unwrap();
    assert!(message.contains("going down"), "{message}");
    assert!(server.ended().await.is_ok());
}

#[tokio::test]
async fn odd_values_are_answered_or_refused_and_never_our_fault() {
    let body = request(json!({ "max_output_tokens": 1 }));
    let fields = [
        "model",
        "max_output_tokens",
        "input",
        "instructions",
        "temperature",
        "top_p",
        "top_k",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "text",
        "reasoning",
        "metadata",
        "truncation",
        "max_tool_calls",
        "user",
        "include",
        "previous_response_id",
        "conversation",
        "prompt",
        "background",
        "top_logprobs",
        "store",
        "seed",
        "priority",
        "deadline_ms",
        "speculation",
        "chat_template_kwargs",
    ];
    try_odd_values(PATH, &body, &fields).await;
}
