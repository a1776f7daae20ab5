//! `/v1/messages` and `/v1/messages/count_tokens`, in Anthropic's shapes.

use crate::support::{MODEL, PATIENCE, TestServer, leave_streams, named_events, try_odd_values, with};
use serde_json::{Value, json};
use std::time::Duration;

const PATH: &str = "/v1/messages";

/// A request with more or other fields.
fn request(more: Value) -> Value {
    let body = json!({ "model": MODEL, "max_tokens": 24, "temperature": 0,
        "messages": [{ "role": "user", "content": "Tell me a story." }] });
    with(body, more)
}

async fn stream(server: &TestServer, more: Value) -> Vec<Value> {
    let mut body = request(more);
    body["stream"] = true.into();
    let response = server.send(PATH, &body).await;
    assert_eq!(response.status(), 200);
    let text = tokio::time::timeout(PATIENCE, response.text()).await;
    named_events(&text.unwrap().unwrap())
}

fn tools() -> Value {
    json!([{ "name": "weather", "description": "How warm it is.", "input_schema":
        { "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] } }])
}

#[tokio::test]
async fn an_answer_has_anthropics_shape() {
    let server = TestServer::start().await;
    let reply = server.ok(PATH, &request(json!({}))).await;
    assert!(reply["id"].as_str().unwrap().starts_with("msg_"));
    for (field, value) in [
        ("type", "message"),
        ("role", "assistant"),
        ("model", MODEL),
        ("stop_reason", "max_tokens"),
    ] {
        assert_eq!(reply[field], value, "{reply}");
    }
    assert!(reply.as_object().unwrap().contains_key("stop_sequence"));
    assert_eq!(reply["content"][0]["type"], "text");
    assert!(!reply["content"][0]["text"].as_str().unwrap().is_empty());
    let usage = &reply["usage"];
    assert_eq!(usage["output_tokens"], 24);
    assert!(usage["speculation"]["steps"].as_u64().unwrap() > 0, "{reply}");
    let count = request(json!({ "max_tokens": null }));
    let count = server.ok("/v1/messages/count_tokens", &count).await;
    assert_eq!(count, json!({ "input_tokens": usage["input_tokens"] }));
}

#[tokio::test]
async fn a_stream_is_the_whole_answer_in_events() {
    let server = TestServer::start().await;
    let whole = server.ok(PATH, &request(json!({}))).await;
    let events = stream(&server, json!({})).await;
    let kinds: Vec<_> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds[..3], ["message_start", "ping", "content_block_start"]);
    let tail = ["content_block_stop", "message_delta", "message_stop"];
    assert_eq!(kinds[kinds.len() - 3..], tail);
    let message = &events[0]["message"];
    assert_eq!(message["content"], json!([]));
    assert_eq!(message["stop_reason"], Value::Null);
    assert_eq!(message["usage"]["input_tokens"], whole["usage"]["input_tokens"]);
    let deltas = events
        .iter()
        .filter(|event| event["type"] == "content_block_delta");
    let text: String = deltas
        .map(|event| event["delta"]["text"].as_str().unwrap())
        .collect();
    assert_eq!(text, whole["content"][0]["text"]);
    let end = &events[events.len() - 2];
    let ending = json!({ "stop_reason": "max_tokens", "stop_sequence": null });
    assert_eq!(end["delta"], ending);
    assert_eq!(end["usage"]["output_tokens"], 24);
}

#[tokio::test]
async fn a_stop_sequence_ends_the_answer_and_is_named() {
    let server = TestServer::start().await;
    let whole = server.ok(PATH, &request(json!({ "max_tokens": 60 }))).await;
    let whole = whole["content"][0]["text"].as_str().unwrap();
    let stop: String = whole.chars().skip(20).take(5).collect();
    let more = json!({ "max_tokens": 60, "stop_sequences": [stop, "never this"] });
    let reply = server.ok(PATH, &request(more.clone())).await;
    assert_eq!(reply["stop_reason"], "stop_sequence");
    assert_eq!(reply["stop_sequence"], stop);
    let before = whole.split(&stop).next().unwrap();
    assert_eq!(reply["content"][0]["text"], before);
    let events = stream(&server, more).await;
    let ending = json!({ "stop_reason": "stop_sequence", "stop_sequence": stop });
    assert_eq!(events[events.len() - 2]["delta"], ending);
}

#[tokio::test]
async fn conversations_with_tools_are_continued() {
    let server = TestServer::start().await;
    let messages = json!([
        { "role": "user", "content": [{ "type": "text", "text": "How warm is it?", "cache_control":
            { "type": "ephemeral" } }] },
        { "role": "assistant", "content": [
            { "type": "thinking", "thinking": "I must ask.", "signature": "s" },
            { "type": "tool_use", "id": "toolu_1", "name": "weather", "input": { "city": "Rome" } },
        ] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "toolu_1", "content": "30 degrees", "is_error": false },
        ] },
    ]);
    let more = json!({ "messages": messages, "tools": tools(), "system": [{ "type": "text", "text": "Be kind." }],
        "tool_choice": { "type": "auto", "disable_parallel_tool_use": true }, "metadata": { "user_id": "u" },
        "thinking": { "type": "enabled", "budget_tokens": 1024 }, "top_k": 5, "top_p": 0.9 });
    let reply = server.ok(PATH, &request(more)).await;
    assert_eq!(reply["role"], "assistant");
    let short = json!({ "messages": messages.as_array().unwrap()[..1] });
    let short = server.ok("/v1/messages/count_tokens", &request(short)).await;
    let long = &reply["usage"]["input_tokens"];
    assert!(short["input_tokens"].as_u64() < long.as_u64(), "{reply}");
}

#[tokio::test]
async fn bad_values_are_refused_in_anthropics_shape() {
    let server = TestServer::start().await;
    let image = json!([{ "role": "user", "content": [{ "type": "image", "source": {} }] }]);
    for (more, part) in [
        (json!({ "max_tokens": null }), "`max_tokens` is missing"),
        (json!({ "max_tokens": 0 }), "at least 1"),
        (json!({ "messages": null }), "`messages` is missing"),
        (
            json!({ "messages": image }),
            "`messages[0].content[0].type` is image",
        ),
        (json!({ "temperature": -1 }), "`temperature`"),
        (json!({ "top_k": -2 }), "`top_k`"),
        (json!({ "stop_sequences": [1] }), "`stop_sequences`"),
        (json!({ "system": 1 }), "`system`"),
        (json!({ "output_config": [] }), "`output_config`"),
        (
            json!({ "tool_choice": { "type": "auto", "disable_parallel_tool_use": 1 } }),
            "`tool_choice.disable_parallel_tool_use` is 1",
        ),
        (
            json!({ "output_config": { "effort": 1 } }),
            "`output_config.effort` is 1",
        ),
        (json!({ "thinking": { "type": "deep" } }), "`thinking.type`"),
        (
            json!({ "tools": [{ "type": "web_search_20250305" }] }),
            "`tools[0].type`",
        ),
        (
            json!({ "tools": [], "tool_choice": { "type": "any" } }),
            "no tools",
        ),
        (
            json!({ "tools": tools(), "tool_choice": { "type": "tool", "name": "x" } }),
            "`x`",
        ),
        (
            json!({ "output_config": { "format": { "type": "json_schema", "schema": { "type": "thing" } } } }),
            "thing",
        ),
        (json!({ "speculation": "magic" }), "magic"),
        (json!({ "deadline_ms": 0 }), "`deadline_ms`"),
        (json!({ "priority": 1u64 << 40 }), "`priority`"),
        (
            json!({ "messages": [{ "role": "user", "content": "word ".repeat(2000) }] }),
            "`messages`",
        ),
    ] {
        let (status, reply) = server.post(PATH, &request(more.clone())).await;
        assert_eq!(status, 400, "{more} gave {reply}");
        assert_eq!(reply["type"], "error", "{more} gave {reply}");
        assert_eq!(reply["error"]["type"], "invalid_request_error");
        let message = reply["error"]["message"].as_str().unwrap();
        assert!(message.contains(part), "{more} gave {reply}");
    }
    let (status, reply) = server.post(PATH, &request(json!({ "model": "claude" }))).await;
    assert_eq!(
        (status, &reply["error"]["type"]),
        (404, &"not_found_error".into())
    );
    let (status, reply) = server.raw(PATH, "{").await;
    assert_eq!((status, &reply["type"]), (400, &"error".into()));
}

#[tokio::test]
async fn every_error_below_the_path_has_the_shape_and_others_do_not() {
    let server = TestServer::configured(|config| {
        config.api_keys = vec!["secret".to_owned()];
        config.max_body_bytes = 10_000;
    })
    .await;
    let send = |path: &str, key: &str, body: String| {
        let request = server.client.post(format!("{}{path}", server.base)).body(body);
        let request = request.header("x-api-key", key);
        async move {
            let reply = request.header("anthropic-version", "2023-06-01").send().await;
            let reply = reply.unwrap();
            let id = reply.headers().get("request-id").cloned();
            let status = reply.status().as_u16();
            (status, id, reply.json::<Value>().await.unwrap())
        }
    };
    let good = request(json!({})).to_string();
    let (status, id, reply) = send(PATH, "secret", good.clone()).await;
    assert_eq!((status, id.is_some()), (200, true), "{reply}");
    let (status, id, reply) = send(PATH, "wrong", good.clone()).await;
    assert_eq!(
        (status, &reply["error"]["type"]),
        (401, &"authentication_error".into())
    );
    assert_eq!(reply["request_id"], id.unwrap().to_str().unwrap());
    let (status, _, reply) = send("/v1/messages/batches", "secret", good.clone()).await;
    assert_eq!(
        (status, &reply["error"]["type"]),
        (404, &"not_found_error".into())
    );
    let (status, _, reply) = send(PATH, "secret", "x".repeat(20_000)).await;
    assert_eq!(
        (status, &reply["error"]["type"]),
        (413, &"request_too_large".into())
    );
    let (status, _, reply) = send("/v1/messagesx", "wrong", good).await;
    assert_eq!((status, reply.get("type")), (401, None));
}

#[tokio::test]
async fn clients_that_go_stop_their_tokens() {
    let body = request(json!({ "stream": true, "max_tokens": 400, "ignore_eos": true }));
    leave_streams(PATH, &body).await;
}

#[tokio::test]
async fn a_server_that_goes_down_ends_streams_with_an_error() {
    let mut server = TestServer::configured(|config| config.drain_timeout = Duration::ZERO).await;
    let body = request(json!({ "stream": true, "max_tokens": 480, "ignore_eos": true }));
    let response = server.send(PATH, &body).await;
    while server.engine.stats().running < 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.drain();
    let events = named_events(&response.text().await.unwrap());
    let last = events.last().unwrap();
    assert_eq!(
        (&last["type"], &last["error"]["type"]),
        (&"error".into(), &"overloaded_error".into())
    );
    assert!(server.ended().await.is_ok());
}

#[tokio::test]
async fn a_server_that_goes_down_is_unavailable_to_newcomers() {
    let mut server = TestServer::start().await;
    let body = request(json!({ "stream": true, "max_tokens": 480, "ignore_eos": true }));
    let running = server.send(PATH, &body).await;
    server.drain();
    while server.get("/ready").await.0 != 503 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let (status, reply) = server.post(PATH, &request(json!({}))).await;
    assert_eq!(
        (status, &reply["error"]["type"]),
        (503, &"overloaded_error".into())
    );
    let events = named_events(&running.text().await.unwrap());
    assert_eq!(events.last().unwrap()["type"], "message_stop");
    assert!(server.ended().await.is_ok());
}

#[tokio::test]
async fn odd_values_are_answered_or_refused_and_never_our_fault() {
    let body = request(json!({ "max_tokens": 1 }));
    let fields = [
        "model",
        "max_tokens",
        "messages",
        "system",
        "stop_sequences",
        "temperature",
        "top_p",
        "top_k",
        "tools",
        "tool_choice",
        "metadata",
        "thinking",
        "output_config",
        "seed",
        "ignore_eos",
        "priority",
        "deadline_ms",
        "speculation",
    ];
    try_odd_values(PATH, &body, &fields).await;
}
