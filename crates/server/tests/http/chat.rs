//! `/v1/chat/completions`.

use crate::support::{MODEL, TestServer};
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";

/// A conversation that goes on in the same way every time.
fn talk(more: Value) -> Value {
    let messages = json!([{ "role": "user", "content": "Tell me about a fox." }]);
    let mut body = json!({ "model": MODEL, "messages": messages, "max_tokens": 24, "seed": 7 });
    let fields = body.as_object_mut().unwrap();
    let Value::Object(more) = more else {
        panic!("{more} is no object");
    };
    fields.extend(more);
    body
}

fn content(reply: &Value) -> &str {
    reply["choices"][0]["message"]["content"].as_str().unwrap()
}

#[tokio::test]
async fn a_conversation_is_continued_and_counted() {
    let server = TestServer::start().await;
    let reply = server.ok(PATH, &talk(json!({}))).await;
    assert_eq!(reply["object"], "chat.completion");
    let choice = &reply["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert!(!content(&reply).is_empty());
    assert!(choice["logprobs"].is_null());
    let usage = &reply["usage"];
    let (prompt, text) = (
        usage["prompt_tokens"].as_u64(),
        usage["completion_tokens"].as_u64(),
    );
    assert!(prompt.unwrap() > 5 && text.unwrap() > 0);
    assert_eq!(
        usage["total_tokens"].as_u64(),
        Some(prompt.unwrap() + text.unwrap())
    );
    let parts = json!([{ "role": "user", "content": [{ "type": "text", "text": "Tell me about a fox." }] }]);
    let same = server.ok(PATH, &talk(json!({ "messages": parts }))).await;
    assert_eq!(content(&reply), content(&same));
}

#[tokio::test]
async fn a_stream_is_the_same_answer() {
    let server = TestServer::start().await;
    for more in [
        json!({}),
        json!({ "n": 3, "logprobs": true, "top_logprobs": 2 }),
        json!({ "stop": ["the", "."], "max_completion_tokens": 100, "max_tokens": null }),
    ] {
        let whole = server.ok(PATH, &talk(more.clone())).await;
        let mut body = talk(more);
        body["stream"] = true.into();
        body["stream_options"] = json!({ "include_usage": true });
        let chunks = server.chunks(PATH, &body).await;
        assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
        assert_eq!(chunks[0]["object"], "chat.completion.chunk");
        let last = chunks.last().unwrap();
        for count in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            assert_eq!(last["usage"][count], whole["usage"][count]);
        }
        assert_eq!(last["choices"], json!([]));
        assert!(chunks[0]["usage"].is_null());
        for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
            let parts = chunks
                .iter()
                .flat_map(|chunk| chunk["choices"].as_array().unwrap());
            let parts: Vec<_> = parts.filter(|part| part["index"] == index).collect();
            let text = |part: &Value| part["delta"]["content"].as_str().unwrap_or_default().to_owned();
            let joined: String = parts.iter().map(|part| text(part)).collect();
            assert_eq!(joined, choice["message"]["content"].as_str().unwrap());
            let finish = &parts.last().unwrap()["finish_reason"];
            assert_eq!(finish, &choice["finish_reason"]);
            let empty = Vec::new();
            let entries = |part: &Value| part["logprobs"]["content"].as_array().unwrap_or(&empty).clone();
            let joined: Vec<_> = parts.iter().flat_map(|part| entries(part)).collect();
            assert_eq!(joined, entries(choice));
        }
    }
}

#[tokio::test]
async fn a_stream_without_usage_has_no_such_field() {
    let server = TestServer::start().await;
    let chunks = server.chunks(PATH, &talk(json!({ "stream": true }))).await;
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
}

#[tokio::test]
async fn log_probabilities_have_bytes_and_alternatives() {
    let server = TestServer::start().await;
    let body =
        talk(json!({ "logprobs": true, "top_logprobs": 3, "temperature": 0, "return_token_ids": true }));
    let reply = server.ok(PATH, &body).await;
    let entries = reply["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let ids = reply["choices"][0]["token_ids"].as_array().unwrap();
    assert_eq!(entries.len(), ids.len());
    for entry in entries {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        // Greedy: the token is the likeliest.
        assert_eq!(top[0]["logprob"], entry["logprob"]);
        assert_eq!(top[0]["bytes"], entry["bytes"]);
    }
    let prompt = reply["prompt_token_ids"].as_array().unwrap();
    assert_eq!(reply["usage"]["prompt_tokens"], prompt.len());
}

#[tokio::test]
async fn tools_are_accepted_and_what_cannot_be_had_is_refused() {
    let server = TestServer::start().await;
    let tools =
        json!([{ "type": "function", "function": { "name": "look", "parameters": { "type": "object" } } }]);
    for choice in [json!("auto"), json!("none"), json!(null)] {
        server
            .ok(PATH, &talk(json!({ "tools": tools, "tool_choice": choice })))
            .await;
    }
    let named = json!({ "type": "function", "function": { "name": "leap" } });
    for (more, param) in [
        (json!({ "tool_choice": "required" }), "tool_choice"),
        (json!({ "tools": tools, "tool_choice": named }), "tool_choice"),
        (json!({ "tools": tools, "tool_choice": "perhaps" }), "tool_choice"),
        (json!({ "tools": [{}] }), "tools[0]"),
        (json!({ "tools": "hammer" }), "tools"),
        (
            json!({ "tools": [{ "type": "function", "function": { "name": "f", "parameters": [] } }] }),
            "tools[0].function.parameters",
        ),
        (
            json!({ "tools": [{ "type": "function", "function": { "name": "f", "description": 1 } }] }),
            "tools[0].function.description",
        ),
        (json!({ "documents": [["a"]] }), "documents[0]"),
        (json!({ "functions": [] }), "functions"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": null }), "messages"),
        (json!({ "messages": ["hello"] }), "messages[0]"),
        (
            json!({ "messages": [{ "role": "user", "content": 5 }] }),
            "messages[0].content",
        ),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }),
            "messages[0].content[0].type",
        ),
        (json!({ "top_logprobs": 2 }), "top_logprobs"),
        (json!({ "logprobs": true, "top_logprobs": 21 }), "top_logprobs"),
        (json!({ "logprobs": 1 }), "logprobs"),
        (json!({ "max_completion_tokens": 0 }), "max_completion_tokens"),
        (
            json!({ "response_format": { "type": "json" } }),
            "response_format.type",
        ),
        (
            json!({ "messages": [{ "role": "user", "content": "fox ".repeat(3000) }] }),
            "messages",
        ),
    ] {
        let (status, reply) = server.post(PATH, &talk(more.clone())).await;
        assert_eq!(
            (status, &reply["error"]["param"]),
            (400, &param.into()),
            "{more} gave {reply}"
        );
    }
}

#[tokio::test]
async fn an_answer_may_fill_the_context() {
    let server = TestServer::start().await;
    let body = talk(json!({ "max_tokens": null, "ignore_eos": true }));
    let reply = server.ok(PATH, &body).await;
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    assert_eq!(reply["usage"]["total_tokens"], 512);
    let body = talk(json!({ "max_tokens": u64::MAX, "ignore_eos": true }));
    let reply = server.ok(PATH, &body).await;
    assert_eq!(reply["usage"]["total_tokens"], 512);
}

#[tokio::test]
async fn a_deadline_ends_an_answer() {
    let server = TestServer::start().await;
    let body = talk(json!({ "max_tokens": 400, "ignore_eos": true, "deadline_ms": 1 }));
    let reply = server.ok(PATH, &body).await;
    assert_eq!(reply["choices"][0]["finish_reason"], "deadline");
}
