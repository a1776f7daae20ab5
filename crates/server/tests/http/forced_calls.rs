//! Tool calls that a request insists on.

use crate::support::TestServer;
use paceline_text::ToolFormat;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

const FORMATS: [ToolFormat; 3] = [ToolFormat::Hermes, ToolFormat::Qwen3Coder, ToolFormat::Llama3Json];

fn weather() -> Value {
    json!({
        "type": "object",
        "properties": { "city": { "enum": ["Rome", "Paris"] }, "days": { "type": "integer", "minimum": 1, "maximum": 9 } },
        "required": ["city", "days"],
        "additionalProperties": false,
    })
}

fn clock() -> Value {
    json!({ "type": "object", "properties": {}, "additionalProperties": false })
}

fn tools() -> Value {
    json!([
        { "type": "function", "function": { "name": "weather", "description": "The weather", "parameters": weather() } },
        { "type": "function", "function": { "name": "clock" } },
    ])
}

fn chat(more: &Value) -> Value {
    let mut body = json!({
        "messages": [{ "role": "user", "content": "What is the weather?" }],
        "max_tokens": 200, "temperature": 1, "tools": tools(),
    });
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    body
}

/// Checks that a call is one of the tools' and has the arguments that it describes.
fn check_call(name: &str, arguments: &Value) {
    let schema = match name {
        "weather" => weather(),
        "clock" => clock(),
        other => panic!("there is no tool {other}"),
    };
    let validator = jsonschema::validator_for(&schema).unwrap();
    assert!(validator.is_valid(arguments), "{name}: {arguments}");
}

fn check_chat_calls(calls: &[Value]) {
    assert!(!calls.is_empty());
    for call in calls {
        let arguments = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        check_call(call["function"]["name"].as_str().unwrap(), &arguments);
    }
}

/// The calls of a stream, put together.
fn calls_of(chunks: &[Value]) -> Vec<Value> {
    let mut calls: Vec<Value> = Vec::new();
    for chunk in chunks {
        for part in chunk["choices"][0]["delta"]["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let index = usize::try_from(part["index"].as_u64().unwrap()).unwrap();
            if index == calls.len() {
                calls.push(json!({ "function": { "name": part["function"]["name"], "arguments": "" } }));
            }
            let so_far = calls[index]["function"]["arguments"].as_str().unwrap().to_owned();
            let more = part["function"]["arguments"].as_str().unwrap_or_default();
            calls[index]["function"]["arguments"] = (so_far + more).into();
        }
    }
    calls
}

#[tokio::test]
async fn chat_calls_what_it_must_in_every_format() {
    for format in FORMATS {
        let server = TestServer::serving(|model| model.tool_format = Some(format)).await;
        let allowed = json!({ "type": "allowed_tools", "allowed_tools": { "mode": "required",
            "tools": [{ "type": "function", "function": { "name": "clock" } }] } });
        for (choice, only) in [
            (json!("required"), None),
            (
                json!({ "type": "function", "function": { "name": "weather" } }),
                Some("weather"),
            ),
            (
                json!({ "type": "function", "function": { "name": "clock" } }),
                Some("clock"),
            ),
            (allowed, Some("clock")),
        ] {
            for seed in 0..2 {
                let more = json!({ "tool_choice": choice, "seed": seed, "parallel_tool_calls": false });
                let reply = server.ok(CHAT, &chat(&more)).await;
                let choice = &reply["choices"][0];
                let calls = choice["message"]["tool_calls"].as_array().unwrap();
                assert_eq!(
                    (&choice["finish_reason"], calls.len()),
                    (&"tool_calls".into(), 1),
                    "{format:?}: {reply}"
                );
                assert!(choice["message"]["content"].is_null(), "{choice}");
                check_chat_calls(calls);
                let name = calls[0]["function"]["name"].as_str().unwrap();
                assert!(only.is_none_or(|only| only == name), "{name}");
                let mut body = chat(&more);
                body["stream"] = true.into();
                let chunks = server.chunks(CHAT, &body).await;
                let streamed = calls_of(&chunks);
                assert_eq!(streamed.len(), 1);
                assert_eq!(streamed[0]["function"], calls[0]["function"]);
                assert_eq!(
                    chunks.last().unwrap()["choices"][0]["finish_reason"],
                    "tool_calls"
                );
            }
        }
    }
}

#[tokio::test]
async fn several_calls_are_all_whole() {
    let server = TestServer::start().await;
    let mut most = 0;
    for seed in 0..8 {
        let more = json!({ "tool_choice": "required", "seed": seed, "max_tokens": 400 });
        let reply = server.ok(CHAT, &chat(&more)).await;
        let choice = &reply["choices"][0];
        let mut calls = choice["message"]["tool_calls"].as_array().unwrap().clone();
        if choice["finish_reason"] == "length" {
            // The last one may be cut.
            calls.pop();
        }
        check_chat_calls(&calls);
        most = most.max(calls.len());
    }
    assert!(most > 1, "there were never two calls");
}

#[tokio::test]
async fn the_other_interfaces_call_what_they_must() {
    let server = TestServer::start().await;
    let functions = json!([
        { "type": "function", "name": "weather", "parameters": weather() },
        { "type": "function", "name": "clock" },
    ]);
    for (choice, only) in [
        (json!("required"), None),
        (json!({ "type": "function", "name": "weather" }), Some("weather")),
        (
            json!({ "type": "allowed_tools", "mode": "required", "tools": [{ "type": "function", "name": "clock" }] }),
            Some("clock"),
        ),
    ] {
        let body = json!({ "input": "Hello", "tools": functions, "tool_choice": choice, "parallel_tool_calls": false,
            "max_output_tokens": 200, "seed": 1 });
        let reply = server.ok("/v1/responses", &body).await;
        assert_eq!(reply["status"], "completed", "{reply}");
        let [call] = reply["output"].as_array().unwrap().as_slice() else {
            panic!("{reply}");
        };
        assert_eq!(call["type"], "function_call");
        let arguments = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        let name = call["name"].as_str().unwrap();
        check_call(name, &arguments);
        assert!(only.is_none_or(|only| only == name), "{name}");
    }
    let described = json!([
        { "name": "weather", "input_schema": weather() },
        { "name": "clock", "input_schema": clock() },
    ]);
    for (choice, only) in [
        (json!({ "type": "any", "disable_parallel_tool_use": true }), None),
        (json!({ "type": "tool", "name": "weather" }), Some("weather")),
    ] {
        for stream in [false, true] {
            let body = json!({ "messages": [{ "role": "user", "content": "Hello" }], "tools": described,
                "tool_choice": choice, "max_tokens": 200, "seed": 1, "stream": stream });
            if stream {
                let frames = server.stream("/v1/messages", &body).await;
                let stops = frames
                    .iter()
                    .filter(|frame| frame.contains("\"tool_use\""))
                    .count();
                assert_eq!(stops, 2, "a block begins and the message ends: {frames:?}");
                continue;
            }
            let reply = server.ok("/v1/messages", &body).await;
            assert_eq!(reply["stop_reason"], "tool_use", "{reply}");
            let [call] = reply["content"].as_array().unwrap().as_slice() else {
                panic!("{reply}");
            };
            let name = call["name"].as_str().unwrap();
            check_call(name, &call["input"]);
            assert!(only.is_none_or(|only| only == name), "{name}");
        }
    }
}

#[tokio::test]
async fn a_form_of_the_answer_leaves_room_for_calls() {
    let server = TestServer::start().await;
    let schema = json!({ "type": "object", "properties": { "yes": { "type": "boolean" } }, "required": ["yes"],
        "additionalProperties": false });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "answer", "schema": schema } });
    let start = server
        .ok(
            "/tokenize",
            &json!({ "prompt": "<", "add_special_tokens": false }),
        )
        .await["tokens"][0]
        .to_string();
    for (bias, calls) in [(-100, false), (100, true)] {
        let more = json!({ "response_format": format, "seed": 1, "parallel_tool_calls": false,
            "logit_bias": { start.as_str(): bias } });
        let reply = server.ok(CHAT, &chat(&more)).await;
        let (choice, message) = (&reply["choices"][0], &reply["choices"][0]["message"]);
        if calls {
            assert_eq!(choice["finish_reason"], "tool_calls", "{reply}");
            check_chat_calls(message["tool_calls"].as_array().unwrap());
        } else {
            assert_eq!(choice["finish_reason"], "stop", "{reply}");
            let answer: Value = serde_json::from_str(message["content"].as_str().unwrap()).unwrap();
            assert!(answer["yes"].is_boolean());
        }
    }
    // A request that insists on a call gets one, and one that insists on both is told.
    let more = json!({ "response_format": format, "tool_choice": "required", "parallel_tool_calls": false });
    let reply = server.ok(CHAT, &chat(&more)).await;
    assert_eq!(reply["choices"][0]["finish_reason"], "tool_calls");
    let more = json!({ "guided_regex": "a", "tool_choice": "required" });
    let (status, reply) = server.post(CHAT, &chat(&more)).await;
    let message = reply["error"]["message"].as_str().unwrap();
    assert_eq!(status, 400);
    assert!(
        message.contains("`guided_regex`") && message.contains("`tool_choice`"),
        "{message}"
    );
}

#[tokio::test]
async fn calls_that_cannot_be_forced_are_refused() {
    let mute = TestServer::serving(|model| model.tool_format = None).await;
    let (status, reply) = mute
        .post(CHAT, &chat(&json!({ "tool_choice": "required" })))
        .await;
    assert_eq!(
        (status, &reply["error"]["param"]),
        (400, &"tool_choice".into()),
        "{reply}"
    );
    let server = TestServer::start().await;
    let bad = json!([{ "type": "function", "function": { "name": "f", "parameters": { "type": "thing" } } }]);
    let odd = json!([{ "type": "function", "function": { "name": "f", "parameters": 5 } }]);
    let allowed = |name: &str, mode: &str| {
        json!({ "type": "allowed_tools", "allowed_tools": { "mode": mode,
        "tools": [{ "type": "function", "function": { "name": name } }] } })
    };
    for (more, param, part) in [
        (
            json!({ "tools": [], "tool_choice": "required" }),
            "tool_choice",
            "no tools",
        ),
        (
            json!({ "tools": bad, "tool_choice": "required" }),
            "tool_choice",
            "thing",
        ),
        (
            json!({ "tools": odd, "tool_choice": "required" }),
            "tools[0].function.parameters",
            "object",
        ),
        (
            json!({ "tool_choice": { "type": "function", "function": { "name": "x" } } }),
            "tool_choice",
            "`x`",
        ),
        (
            json!({ "tool_choice": { "type": "function" } }),
            "tool_choice.function.name",
            "missing",
        ),
        (
            json!({ "tool_choice": allowed("x", "auto") }),
            "tool_choice.allowed_tools.tools[0]",
            "`x`",
        ),
        (
            json!({ "tool_choice": allowed("clock", "all") }),
            "tool_choice.allowed_tools.mode",
            "all",
        ),
    ] {
        let (status, reply) = server.post(CHAT, &chat(&more)).await;
        assert_eq!(
            (status, &reply["error"]["param"]),
            (400, &param.into()),
            "{more}: {reply}"
        );
        let message = reply["error"]["message"].as_str().unwrap();
        assert!(message.contains(part), "{message}");
    }
}
