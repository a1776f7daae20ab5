//! Ollama's interface: its shapes, its names, and the same texts as everywhere.

use crate::support::{PATIENCE, TestServer, with};
use serde_json::{Value, json};

fn talk(more: Value) -> Value {
    let base = json!({ "model": "storyteller", "messages": [{ "role": "user", "content": "Tell me about a fox." }],
        "options": { "num_predict": 24, "temperature": 0 } });
    with(base, more)
}

/// The lines of a stream.
async fn lines(server: &TestServer, path: &str, body: &Value) -> Vec<Value> {
    let response = server.send(path, body).await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    let text = tokio::time::timeout(PATIENCE, response.text())
        .await
        .unwrap()
        .unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test]
async fn a_conversation_is_what_the_other_interface_makes_of_it() {
    let server = TestServer::start().await;
    let usual = json!({ "messages": talk(json!({}))["messages"], "max_tokens": 24, "temperature": 0 });
    let usual = server.ok("/v1/chat/completions", &usual).await;
    let text = usual["choices"][0]["message"]["content"].as_str().unwrap();
    let whole = server.ok("/api/chat", &talk(json!({ "stream": false }))).await;
    assert_eq!(whole["message"], json!({ "role": "assistant", "content": text }));
    assert_eq!(
        (&whole["done"], &whole["done_reason"]),
        (&json!(true), &json!("length"))
    );
    assert_eq!(
        (&whole["eval_count"], &whole["prompt_eval_count"]),
        (&json!(24), &usual["usage"]["prompt_tokens"])
    );
    let times =
        ["total_duration", "prompt_eval_duration", "eval_duration"].map(|name| whole[name].as_u64().unwrap());
    assert_eq!(times[0], times[1] + times[2]);
    // A stream unless told otherwise.
    let lines = lines(
        &server,
        "/api/chat",
        &talk(json!({ "model": "storyteller:latest" })),
    )
    .await;
    let (last, pieces) = lines.split_last().unwrap();
    let streamed: String = pieces
        .iter()
        .map(|line| line["message"]["content"].as_str().unwrap())
        .collect();
    assert_eq!(streamed, text);
    assert!(
        pieces.len() > 3
            && pieces
                .iter()
                .all(|line| line["done"] == false && line.get("eval_count").is_none())
    );
    assert_eq!(
        (&last["done"], &last["eval_count"], &last["model"]),
        (&json!(true), &json!(24), &json!("storyteller:latest"))
    );
    assert_eq!(last["message"]["content"], "");
}

#[tokio::test]
async fn a_prompt_is_answered_or_continued_and_can_be_gone_on_with() {
    let server = TestServer::start().await;
    let ask = |more: Value| {
        let base = json!({ "model": "storyteller", "prompt": "Once upon a time", "stream": false,
            "options": { "num_predict": 12, "temperature": 0, "num_ctx": 4096, "repeat_last_n": 8 } });
        with(base, more)
    };
    let plain = json!({ "prompt": "Once upon a time", "max_tokens": 24, "temperature": 0 });
    let plain = server.ok("/v1/completions", &plain).await;
    let text = plain["choices"][0]["text"].as_str().unwrap();
    let first = server.ok("/api/generate", &ask(json!({ "raw": true }))).await;
    let said = first["response"].as_str().unwrap();
    assert!(text.starts_with(said) && !said.is_empty(), "{said} {text}");
    // The tokens so far, and nothing more: what follows is what would have followed.
    let second = ask(json!({ "raw": true, "context": first["context"], "prompt": " " }));
    let told = server.ok("/api/generate", &second).await;
    assert_eq!(
        told["prompt_eval_count"].as_u64().unwrap() as usize,
        first["context"].as_array().unwrap().len() + 1
    );
    // With the template it is the answer to a message.
    let answered = server
        .ok("/api/generate", &ask(json!({ "system": "Be kind." })))
        .await;
    let messages = json!([{ "role": "system", "content": "Be kind." }, { "role": "user", "content": "Once upon a time" }]);
    let chat = json!({ "messages": messages, "max_tokens": 12, "temperature": 0 });
    let chat = server.ok("/v1/chat/completions", &chat).await;
    assert_eq!(answered["response"], chat["choices"][0]["message"]["content"]);
    let lines = lines(
        &server,
        "/api/generate",
        &ask(json!({ "raw": true, "stream": true })),
    )
    .await;
    let streamed: String = lines
        .iter()
        .map(|line| line["response"].as_str().unwrap())
        .collect();
    assert_eq!(
        (streamed.as_str(), &lines.last().unwrap()["context"]),
        (said, &first["context"])
    );
}

#[tokio::test]
async fn schemas_tools_and_limits_hold() {
    let server = TestServer::start().await;
    let schema = json!({ "type": "object", "properties": { "colour": { "enum": ["red", "blue"] } }, "required": ["colour"] });
    let body =
        talk(json!({ "format": schema, "stream": false, "options": { "num_predict": 40, "seed": -1 } }));
    let reply = server.ok("/api/chat", &body).await;
    let content: Value = serde_json::from_str(reply["message"]["content"].as_str().unwrap()).unwrap();
    assert!(["red", "blue"].contains(&content["colour"].as_str().unwrap()));
    let body =
        talk(json!({ "stream": false, "options": { "num_predict": -1, "stop": ["."], "temperature": 0 } }));
    let reply = server.ok("/api/chat", &body).await;
    assert_eq!(reply["done_reason"], "stop");
    assert!(!reply["message"]["content"].as_str().unwrap().contains('.'));
    // A call that the model has made, and what came of it, are part of the conversation.
    let body = talk(json!({ "stream": false, "messages": [
        { "role": "user", "content": "Throw!" },
        { "role": "assistant", "content": "", "tool_calls": [{ "function": { "name": "throw", "arguments": { "ball": "red" } } }] },
        { "role": "tool", "tool_name": "throw", "content": "thrown" },
    ], "tools": [{ "type": "function", "function": { "name": "throw", "parameters": { "type": "object" } } }] }));
    assert_eq!(server.ok("/api/chat", &body).await["done"], true);
}

#[tokio::test]
async fn the_model_is_told_in_all_the_places_where_clients_look() {
    let server = TestServer::start().await;
    let (_, tags) = server.get("/api/tags").await;
    let names: Vec<_> = tags["models"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| model["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["storyteller", "org/alias"]);
    assert_eq!(tags["models"][0]["modified_at"], "1970-01-01T00:00:01Z");
    let details = &tags["models"][0]["details"];
    assert_eq!(details["format"], "safetensors");
    assert_eq!(details["family"], "qwen3_5");
    assert_eq!(details["parameter_size"], "9.10M");
    assert_eq!(details["quantization_level"], "BF16");
    assert_eq!(tags["models"][0]["size"], server.engine.memory().weights);
    let (_, ps) = server.get("/api/ps").await;
    assert_eq!(
        (
            ps["models"].as_array().unwrap().len(),
            &ps["models"][0]["context_length"]
        ),
        (1, &json!(512))
    );
    let show = server
        .ok("/api/show", &json!({ "model": "storyteller:latest" }))
        .await;
    assert!(show["capabilities"].as_array().unwrap().contains(&json!("tools")));
    assert!(show["template"].as_str().unwrap().contains("messages"));
    let info = &show["model_info"];
    assert_eq!(info["general.architecture"], show["details"]["family"], "{info}");
    let family = show["details"]["family"].as_str().unwrap();
    for (name, value) in [("context_length", 512), ("embedding_length", 256)] {
        assert_eq!(info[format!("{family}.{name}")], value, "{info}");
    }
    assert_eq!(
        server.get("/api/version").await.1,
        json!({ "version": env!("CARGO_PKG_VERSION") })
    );
    let loaded = server
        .ok("/api/generate", &json!({ "model": "storyteller" }))
        .await;
    assert_eq!(
        (&loaded["done_reason"], &loaded["response"]),
        (&json!("load"), &json!(""))
    );
}

#[tokio::test]
async fn errors_have_the_shape_that_clients_read() {
    let server = TestServer::start().await;
    for (path, body, status, part) in [
        ("/api/chat", talk(json!({ "model": "nobody" })), 404, "nobody"),
        (
            "/api/chat",
            talk(json!({ "options": { "temperature": -1 } })),
            400,
            "temperature",
        ),
        (
            "/api/chat",
            talk(json!({ "messages": [{ "role": "user", "content": "", "images": ["x"] }] })),
            400,
            "images",
        ),
        (
            "/api/generate",
            json!({ "model": "storyteller", "prompt": "x", "suffix": "y" }),
            400,
            "suffix",
        ),
        ("/api/show", json!({ "model": "nobody" }), 404, "nobody"),
        ("/api/nothing", json!({}), 404, "/api/nothing"),
    ] {
        let (found, reply) = server.post(path, &body).await;
        let message = reply["error"].as_str().unwrap_or_else(|| panic!("{reply}"));
        assert!(
            found == status && message.contains(part),
            "{path} gave {found} {message}"
        );
    }
    let closed = TestServer::configured(|config| config.api_keys = vec!["secret".to_owned()]).await;
    let (status, reply) = closed.get("/api/tags").await;
    assert_eq!((status, reply["error"].is_string()), (401, true));
}

#[tokio::test]
async fn vectors_are_those_of_the_other_interface_and_what_is_too_long_is_cut() {
    let server = TestServer::start().await;
    let usual = server
        .ok("/v1/embeddings", &json!({ "input": ["A fox", "A dog"] }))
        .await;
    let ours = server
        .ok(
            "/api/embed",
            &json!({ "model": "storyteller", "input": ["A fox", "A dog"] }),
        )
        .await;
    for place in 0..2 {
        assert_eq!(ours["embeddings"][place], usual["data"][place]["embedding"]);
    }
    assert_eq!(ours["prompt_eval_count"], usual["usage"]["prompt_tokens"]);
    let long = "The fox ran and ran. ".repeat(4000);
    let cut = server.ok("/api/embed", &json!({ "input": long })).await;
    let tokens = cut["prompt_eval_count"].as_u64().unwrap();
    assert!((256..=512).contains(&tokens), "{tokens}");
    let (status, _) = server
        .post("/api/embed", &json!({ "input": long, "truncate": false }))
        .await;
    assert_eq!(status, 400);
}
