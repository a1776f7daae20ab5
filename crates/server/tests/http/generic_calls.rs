//! Tools of a model that was made for no format of calls: they are described in the conversation, and a grammar keeps
//! calls in the form that is described.

use crate::support::{TestServer, engine_config};
use paceline::EngineConfig;
use paceline_server::ServerConfig;
use paceline_text::{ChatTemplate, ToolFormat};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn parameters() -> Value {
    json!({
        "type": "object",
        "properties": { "city": { "enum": ["Rome", "Oslo"] }, "days": { "type": "integer", "minimum": 1, "maximum": 9 } },
        "required": ["city", "days"],
    })
}

async fn server(template: Option<&str>) -> TestServer {
    let engine = EngineConfig {
        max_model_len: Some(2048),
        ..engine_config()
    };
    let template = template.map(|source| ChatTemplate::new(source, None, None).unwrap());
    TestServer::launch(ServerConfig::default(), engine, |model| {
        model.tool_format = Some(ToolFormat::Generic);
        model.reasoning_format = None;
        if let Some(template) = template {
            model.template = Some(template);
        }
    })
    .await
}

fn chat(more: Value) -> Value {
    let mut body = json!({
        "messages": [{ "role": "user", "content": "What is the weather?" }],
        "tools": [{ "type": "function", "function":
            { "name": "weather", "description": "Tells the weather.", "parameters": parameters() } }],
        "max_tokens": 100, "temperature": 1, "seed": 1,
    });
    let Value::Object(more) = more else { unreachable!() };
    body.as_object_mut().unwrap().extend(more);
    body
}

fn check(name: &Value, arguments: &Value) {
    assert_eq!(name, "weather");
    let validator = jsonschema::validator_for(&parameters()).unwrap();
    assert!(validator.is_valid(arguments), "{arguments}");
}

fn parsed(text: &Value) -> Value {
    serde_json::from_str(text.as_str().unwrap()).unwrap()
}

#[tokio::test]
async fn calls_are_made_in_every_interface() {
    let server = server(None).await;
    for seed in 0..3 {
        for choice in [
            json!("required"),
            json!({ "type": "function", "function": { "name": "weather" } }),
        ] {
            let reply = server
                .ok(CHAT, &chat(json!({ "tool_choice": choice, "seed": seed })))
                .await;
            let message = &reply["choices"][0]["message"];
            assert_eq!(reply["choices"][0]["finish_reason"], "tool_calls", "{reply}");
            assert!(message["content"].is_null(), "{message}");
            assert_eq!(message["tool_calls"].as_array().unwrap().len(), 1);
            let function = &message["tool_calls"][0]["function"];
            check(&function["name"], &parsed(&function["arguments"]));
        }
        let tool = json!({ "type": "function", "name": "weather", "parameters": parameters() });
        let body = json!({ "input": "What is the weather?", "tools": [tool], "tool_choice": "required",
            "max_output_tokens": 100, "seed": seed });
        let reply = server.ok("/v1/responses", &body).await;
        let call = &reply["output"][0];
        assert_eq!(
            (&call["type"], reply["output"].as_array().unwrap().len()),
            (&"function_call".into(), 1),
            "{reply}"
        );
        check(&call["name"], &parsed(&call["arguments"]));
        let body = json!({ "model": "storyteller", "max_tokens": 100, "seed": seed,
            "messages": [{ "role": "user", "content": "What is the weather?" }], "tool_choice": { "type": "any" },
            "tools": [{ "name": "weather", "input_schema": parameters() }] });
        let reply = server.ok("/v1/messages", &body).await;
        assert_eq!(reply["stop_reason"], "tool_use", "{reply}");
        check(&reply["content"][0]["name"], &reply["content"][0]["input"]);
    }
}

#[tokio::test]
async fn it_is_up_to_the_model_whether_it_calls() {
    let server = server(None).await;
    for seed in 0..3 {
        let reply = server.ok(CHAT, &chat(json!({ "seed": seed }))).await;
        let choice = &reply["choices"][0];
        match choice["message"]["tool_calls"].as_array() {
            Some(calls) => {
                for call in calls {
                    check(&call["function"]["name"], &parsed(&call["function"]["arguments"]));
                }
            }
            None => assert!(
                !choice["message"]["content"].as_str().unwrap().is_empty(),
                "{reply}"
            ),
        }
        let mut body = chat(json!({ "seed": seed }));
        body["stream"] = true.into();
        let chunks = server.chunks(CHAT, &body).await;
        let streamed: String = chunks
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
            .collect();
        assert_eq!(
            streamed,
            choice["message"]["content"].as_str().unwrap_or_default()
        );
    }
}

/// The text that a conversation becomes, by way of its tokens.
async fn rendered(server: &TestServer, body: &Value) -> String {
    let body = json!({ "messages": body["messages"], "tools": body["tools"] });
    let reply = server.ok("/tokenize", &body).await;
    let reply = server
        .ok("/detokenize", &json!({ "tokens": reply["tokens"] }))
        .await;
    reply["prompt"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn tools_and_what_was_said_with_them_are_in_the_prompt() {
    let call = json!({ "id": "1", "type": "function", "function":
        { "name": "weather", "arguments": "{\"city\": \"Rome\", \"days\": 1}" } });
    let messages = json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": "What is the weather?" },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "1", "content": "Rain." },
    ]);
    let body = chat(json!({ "messages": messages }));
    // One template takes any role, another refuses all but two, and those out of turn.
    let picky = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
        {{ raise_exception('roles must alternate') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    for (template, begin) in [
        (None, "Be brief.\nYou can call tools"),
        (Some(picky), "[user]You can call tools"),
    ] {
        let server = server(template).await;
        let mut body = body.clone();
        if template.is_some() {
            body["messages"].as_array_mut().unwrap().remove(0);
        }
        let text = rendered(&server, &body).await;
        assert!(text.contains(begin), "{text}");
        for part in [
            "\"name\":\"weather\",\"description\":\"Tells the weather.\"",
            "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\", \"days\": 1}}\n</tool_call>",
            "<tool_response>\nRain.\n</tool_response>",
        ] {
            // Arguments were read and written again.
            let text = text.replace("\":\"Rome\",\"days\":1", "\": \"Rome\", \"days\": 1");
            assert!(text.contains(part), "no {part} in {text}");
        }
        body["tool_choice"] = "required".into();
        let reply = server.ok(CHAT, &body).await;
        assert_eq!(reply["choices"][0]["finish_reason"], "tool_calls", "{reply}");
    }
}

#[tokio::test]
async fn a_strict_tool_has_a_grammar_although_no_call_is_forced() {
    let server = TestServer::start().await;
    let strict = |strict: bool, parameters: Value| {
        chat(
            json!({ "max_tokens": 8, "tools": [{ "type": "function", "function":
            { "name": "f", "strict": strict, "parameters": parameters } }] }),
        )
    };
    let impossible = json!({ "type": "object", "properties": { "a": false }, "required": ["a"] });
    server.ok(CHAT, &strict(false, impossible.clone())).await;
    let (status, reply) = server.post(CHAT, &strict(true, impossible)).await;
    assert_eq!(
        (status, &reply["error"]["param"]),
        (400, &"tools".into()),
        "{reply}"
    );
    server.ok(CHAT, &strict(true, parameters())).await;
}
