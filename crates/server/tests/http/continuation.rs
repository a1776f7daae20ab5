//! A request that moves to another server gets what it would have got without moving: whatever it asks for, wherever it
//! is cut, streamed or not.

use crate::identity::{extend, format, join, strip_names, tools};
use crate::support::{TestServer, engine_config, frames, with};
use paceline::EngineConfig;
use paceline_server::ServerConfig;
use serde_json::{Value, json};
use std::time::Duration;

/// Every way to choose tokens, and what counts along with a text: endpoint and body.
fn requests() -> Vec<(&'static str, Value)> {
    let completion = |more| {
        let body = json!({ "prompt": "Once upon a time, Tim and Lily", "max_tokens": 24, "seed": 11 });
        ("/v1/completions", with(body, more))
    };
    let chat = |more| {
        let said = json!([{ "role": "user", "content": "Tell me of a fox." }]);
        let body = json!({ "messages": said, "max_tokens": 24, "seed": 12 });
        ("/v1/chat/completions", with(body, more))
    };
    vec![
        completion(json!({ "temperature": 0 })),
        completion(json!({ "temperature": 1.3, "top_p": 0.9, "top_k": 50, "min_p": 0.01 })),
        completion(json!({ "repetition_penalty": 1.5, "temperature": 0 })),
        completion(json!({ "presence_penalty": 1.2, "temperature": 0.6 })),
        completion(json!({ "frequency_penalty": 0.9, "temperature": 0.6, "prompt": [443, 441, 261, 393] })),
        completion(json!({ "min_tokens": 20, "stop": ["e", " a"], "logit_bias": { "2": 4 } })),
        completion(json!({ "stop": ["the sun was", "ed to play", "very happy", ". She"], "temperature": 0 })),
        completion(json!({ "stop": ["ly", "d ", "s w"], "include_stop_str_in_output": true })),
        completion(json!({ "logprobs": 3, "echo": true, "bad_words": ["little", "was"] })),
        completion(json!({ "logit_bias": { "50": 3.0 }, "ignore_eos": true, "stop_token_ids": [261] })),
        completion(json!({ "structured_outputs": { "regex": "[A-Z][a-z ]{5,60}\\." } })),
        completion(json!({ "guided_choice": ["the red fox ran", "the red house", "blue"] })),
        completion(json!({ "allowed_token_ids": [97, 98, 261, 393, 441], "logprobs": 1 })),
        completion(json!({ "skip_special_tokens": false, "speculation": "off" })),
        chat(json!({ "temperature": 0, "logprobs": true, "top_logprobs": 2 })),
        chat(json!({ "frequency_penalty": 0.7, "stop": "and" })),
        chat(json!({ "response_format": format(), "max_tokens": 60 })),
        chat(json!({ "response_format": { "type": "json_object" }, "max_tokens": 40 })),
        chat(json!({ "tools": tools(), "tool_choice": "required", "max_tokens": 60 })),
        chat(
            json!({ "tools": tools(), "tool_choice": "required", "parallel_tool_calls": false,
            "temperature": 0, "max_tokens": 60 }),
        ),
    ]
}

/// What a stream says when its chunks are joined, without names and what is told of moving.
fn whole(chunks: &[Value]) -> Value {
    let mut whole = json!({ "usage": {} });
    for chunk in chunks {
        for choice in chunk["choices"].as_array().into_iter().flatten() {
            join(&mut whole, choice);
        }
        if let Some(usage) = chunk["usage"].as_object() {
            for name in ["prompt_tokens", "completion_tokens", "total_tokens"] {
                whole["usage"][name] = usage[name].clone();
            }
        }
    }
    whole.as_object_mut().unwrap().remove("continuation");
    join_calls(&mut whole["delta"]["tool_calls"]);
    strip_names(&mut whole);
    whole
}

/// Pieces of calls become calls: how they are cut depends on the time.
fn join_calls(pieces: &mut Value) {
    let mut calls: Vec<Value> = Vec::new();
    for piece in pieces.as_array().into_iter().flatten() {
        match calls.get_mut(piece["index"].as_u64().unwrap() as usize) {
            Some(call) => join(call, &json!({ "function": piece["function"] })),
            None => calls.push(piece.clone()),
        }
    }
    *pieces = json!(calls);
}

/// The tokens of some chunks.
fn tokens(chunks: &[Value]) -> Vec<Value> {
    let lists = chunks.iter().map(|chunk| &chunk["choices"][0]["token_ids"]);
    let ids = lists.flat_map(|list| list.as_array().cloned().unwrap_or_default());
    ids.collect()
}

/// The body of a request as a stream that says what can be said.
fn stream(body: &Value) -> Value {
    let more = json!({
        "stream": true, "stream_options": { "include_usage": true },
        "return_token_ids": true, "return_continuation": true,
    });
    with(body.clone(), more)
}

/// Goes on behind these chunks, on a server that drafts in its own way.
async fn go_on(server: &TestServer, path: &str, body: &Value, chunks: &[Value], seed: &Value) -> Vec<Value> {
    let ids = tokens(chunks);
    let mut body = stream(body);
    extend(
        &mut body,
        json!({ "continuation": { "seed": seed, "token_ids": ids }, "seed": null }),
    );
    if ids.len().is_multiple_of(3) {
        extend(&mut body, json!({ "speculation": "off" }));
    }
    let mut rest = server.chunks(path, &body).await;
    let told = &rest[0]["choices"][0]["continuation"];
    assert_eq!(told["seed"], *seed);
    let known: Vec<Value> = told["token_ids"].as_array().unwrap().clone();
    assert!(known.starts_with(&ids), "{known:?} after {ids:?}");
    // The role of a message is told once.
    rest.retain(|chunk| chunks.is_empty() || chunk["choices"][0]["delta"]["role"].is_null());
    rest
}

async fn servers() -> (TestServer, TestServer) {
    let first = TestServer::start().await;
    let other = EngineConfig {
        threads: 2,
        max_num_batched_tokens: 64,
        ..engine_config()
    };
    (first, TestServer::with(ServerConfig::default(), other).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wherever_a_stream_is_cut_the_rest_of_it_is_the_same_elsewhere() {
    let (first, second) = servers().await;
    let (requests, mut cuts) = (requests(), 0);
    for (path, body) in &requests {
        let chunks = first.chunks(path, &stream(body)).await;
        let seed = chunks[0]["choices"][0]["continuation"]["seed"].clone();
        let undisturbed = whole(&chunks);
        let ended = |chunk: &Value| !chunk["choices"][0]["finish_reason"].is_null();
        let last = chunks.iter().position(ended).unwrap();
        for cut in (0..last).step_by(1 + last / 16) {
            let begun = &chunks[..cut];
            if tokens(begun).len() >= body["max_tokens"].as_u64().unwrap() as usize {
                continue;
            }
            let rest = go_on(&second, path, body, begun, &seed).await;
            let moved = whole(&[begun, rest.as_slice()].concat());
            assert_eq!(moved, undisturbed, "{path} {body}, cut behind chunk {cut}");
            cuts += 1;
        }
    }
    // How many chunks there are depends on the time; each request is cut before the first.
    assert!(cuts > requests.len(), "{cuts} cuts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_any_number_of_tokens_a_whole_reply_has_the_rest() {
    let (first, second) = servers().await;
    for (path, body) in requests() {
        let chat = path != "/v1/completions";
        let logprobs = if chat { json!(true) } else { json!(2) };
        let echo = if chat { Value::Null } else { json!(false) };
        let more = json!({ "return_token_ids": true, "logprobs": logprobs, "echo": echo });
        let body = with(body, more);
        let reply = first.ok(path, &body).await;
        let undisturbed = &reply["choices"][0];
        let ids = undisturbed["token_ids"].as_array().unwrap();
        for given_out in (1..ids.len()).step_by(1 + ids.len() / 10) {
            let continuation = json!({ "seed": body["seed"], "token_ids": ids[..given_out] });
            let asked = with(body.clone(), json!({ "continuation": continuation }));
            let moved = second.ok(path, &asked).await;
            let rest = &moved["choices"][0];
            assert_eq!(rest["token_ids"], json!(ids[given_out..]), "{asked}");
            let text = |choice: &Value| {
                let content = choice["message"]["content"].as_str();
                content.or(choice["text"].as_str()).unwrap_or_default().to_owned()
            };
            assert!(text(undisturbed).ends_with(&text(rest)), "{undisturbed}: {rest}");
            for list in [
                "tokens",
                "token_logprobs",
                "top_logprobs",
                "text_offset",
                "content",
            ] {
                let all = undisturbed["logprobs"][list].as_array();
                let behind = all.map_or(Value::Null, |all| json!(all[given_out..]));
                assert_eq!(rest["logprobs"][list], behind, "{list} of {asked}");
            }
            for name in ["finish_reason", "stop_reason"] {
                assert_eq!(rest[name], undisturbed[name], "{asked}");
            }
            for count in ["prompt_tokens", "completion_tokens", "total_tokens"] {
                assert_eq!(moved["usage"][count], reply["usage"][count], "{asked}");
            }
        }
    }
}

/// What there is of a stream when the server goes down after its first bytes.
async fn interrupted(mut server: TestServer, bodies: &[(&'static str, Value)]) -> Vec<Vec<Value>> {
    let mut streams = Vec::new();
    for (path, body) in bodies {
        streams.push(server.send(path, body).await);
    }
    let mut texts = Vec::new();
    for stream in &mut streams {
        let mut text = Vec::new();
        // The role of a message and some of its text.
        while frames(&String::from_utf8_lossy(&text)).len() < 3 {
            text.extend(stream.chunk().await.unwrap().unwrap());
        }
        texts.push(text);
    }
    server.drain();
    let mut replies = Vec::new();
    for (stream, mut text) in streams.into_iter().zip(texts) {
        text.extend(stream.bytes().await.unwrap());
        let mut frames = frames(std::str::from_utf8(&text).unwrap());
        assert_eq!(frames.pop().as_deref(), Some("[DONE]"));
        let parsed = frames.iter().map(|frame| serde_json::from_str(frame).unwrap());
        replies.push(parsed.collect());
    }
    assert!(server.ended().await.is_ok());
    replies
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_goes_down_lets_requests_go_on_elsewhere_at_once() {
    // Far longer than the test waits: what can move is not waited for.
    let first = TestServer::configured(|config| config.drain_timeout = Duration::from_hours(1)).await;
    let second = TestServer::start().await;
    let long = json!({ "max_tokens": 400, "ignore_eos": true, "seed": null });
    let bodies = [
        ("/v1/completions", json!({ "prompt": "Once" })),
        (
            "/v1/completions",
            json!({ "prompt": "The fox", "stop": ["zzz", "qu"], "temperature": 0.8 }),
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "user", "content": "Hi" }] }),
        ),
        (
            "/v1/completions",
            json!({ "prompt": "Tom", "structured_outputs": { "regex": "[a-z ]{300,600}" } }),
        ),
    ];
    let bodies = bodies.map(|(path, body)| (path, with(stream(&body), long.clone())));
    let replies = interrupted(first, &bodies).await;
    for ((path, body), chunks) in bodies.iter().zip(replies) {
        let [begun @ .., end, usage] = chunks.as_slice() else {
            panic!("{chunks:?}");
        };
        let end = &end["choices"][0];
        assert_eq!(end["finish_reason"], "moved", "{end}");
        assert_eq!(end["continuation"]["token_ids"], json!(tokens(begun)));
        assert_eq!(usage["usage"]["completion_tokens"], tokens(begun).len());
        let seed = &end["continuation"]["seed"];
        let rest = go_on(&second, path, body, begun, seed).await;
        let moved = whole(&[begun, rest.as_slice()].concat());
        let undisturbed = second
            .chunks(path, &with(body.clone(), json!({ "seed": seed })))
            .await;
        assert_eq!(moved, whole(&undisturbed), "{path} {body}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_reply_moves_with_what_it_has() {
    let mut first = TestServer::configured(|config| config.drain_timeout = Duration::from_hours(1)).await;
    let second = TestServer::start().await;
    let body = json!({
        "prompt": "Once", "max_tokens": 450, "ignore_eos": true, "return_token_ids": true,
        "return_continuation": true,
    });
    let request = first
        .client
        .post(format!("{}/v1/completions", first.base))
        .json(&body);
    let reply = tokio::spawn(async move { request.send().await.unwrap().json::<Value>().await.unwrap() });
    while first.engine.stats().tokens == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    first.drain();
    let begun = reply.await.unwrap()["choices"][0].clone();
    assert_eq!(begun["finish_reason"], "moved");
    assert_eq!(begun["continuation"]["token_ids"], begun["token_ids"]);
    let continuation = json!({ "continuation": begun["continuation"] });
    let rest = second
        .ok("/v1/completions", &with(body.clone(), continuation))
        .await;
    let seed = json!({ "seed": begun["continuation"]["seed"] });
    let undisturbed = second.ok("/v1/completions", &with(body, seed)).await;
    let text = |reply: &Value| reply["text"].as_str().unwrap().to_owned();
    let (rest, undisturbed) = (&rest["choices"][0], &undisturbed["choices"][0]);
    assert_eq!(text(&begun) + &text(rest), text(undisturbed));
    assert_eq!(rest["continuation"]["token_ids"], undisturbed["token_ids"]);
}

#[tokio::test]
async fn what_cannot_go_on_is_refused() {
    let server = TestServer::start().await;
    let body = json!({ "prompt": "Once", "max_tokens": 4 });
    for (more, param) in [
        (
            json!({ "return_continuation": true, "n": 2 }),
            "return_continuation",
        ),
        (
            json!({ "continuation": { "seed": 1, "token_ids": [] }, "prompt": ["a", "b"] }),
            "continuation",
        ),
        (
            json!({ "continuation": { "token_ids": [1] } }),
            "continuation.seed",
        ),
        (json!({ "continuation": { "seed": 1 } }), "continuation.token_ids"),
        (
            json!({ "continuation": { "seed": 1, "token_ids": [5, 5, 5, 5] } }),
            "continuation.token_ids",
        ),
        (
            json!({ "continuation": { "seed": 1, "token_ids": [1_000_000] } }),
            "continuation.token_ids",
        ),
        (
            json!({ "continuation": { "seed": -1, "token_ids": [5] } }),
            "continuation.seed",
        ),
    ] {
        let (status, reply) = server.post("/v1/completions", &with(body.clone(), more)).await;
        assert_eq!(
            (status, &reply["error"]["param"]),
            (400, &json!(param)),
            "{reply}"
        );
    }
}
