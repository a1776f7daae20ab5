//! What replies say of what they took.

use crate::support::TestServer;
use serde_json::{Value, json};

/// A long text, so that whole blocks of it can be cached.
fn long(seed: usize) -> String {
    format!("Number {seed}. ").repeat(20)
}

#[tokio::test]
async fn the_second_of_two_equal_prompts_is_read_from_the_cache() {
    let server = TestServer::start().await;
    let talk = |seed: usize| json!([{ "role": "user", "content": long(seed) }]);
    for (path, body, field) in [
        (
            "/v1/completions",
            json!({ "prompt": long(1), "max_tokens": 2 }),
            "/usage/prompt_tokens_details/cached_tokens",
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": talk(2), "max_tokens": 2 }),
            "/usage/prompt_tokens_details/cached_tokens",
        ),
        (
            "/v1/responses",
            json!({ "input": long(3), "max_output_tokens": 2 }),
            "/usage/input_tokens_details/cached_tokens",
        ),
        (
            "/v1/messages",
            json!({ "messages": talk(4), "max_tokens": 2 }),
            "/usage/cache_read_input_tokens",
        ),
        (
            "/v1/embeddings",
            json!({ "input": long(5), "pooling": "last" }),
            "/usage/prompt_tokens_details/cached_tokens",
        ),
    ] {
        let first = server.ok(path, &body).await;
        let second = server.ok(path, &body).await;
        let cached = |reply: &Value| reply.pointer(field).and_then(Value::as_u64).unwrap();
        assert_eq!(cached(&first), 0, "{path}: {first}");
        assert!(cached(&second) >= 16, "{path}: {second}");
        let inputs = |reply: &Value| {
            let usage = &reply["usage"];
            let read = usage["cache_read_input_tokens"].as_u64().unwrap_or(0);
            let input = usage["prompt_tokens"].as_u64().or(usage["input_tokens"].as_u64());
            read + input.unwrap()
        };
        assert_eq!(inputs(&first), inputs(&second), "{path}");
    }
}

#[tokio::test]
async fn a_stream_tells_at_its_end_what_came_from_the_cache() {
    let server = TestServer::start().await;
    let body = json!({ "prompt": long(6), "max_tokens": 2, "stream": true,
        "stream_options": { "include_usage": true } });
    for least in [0, 16] {
        let chunks = server.chunks("/v1/completions", &body).await;
        let details = &chunks.last().unwrap()["usage"]["prompt_tokens_details"];
        let cached = details["cached_tokens"].as_u64().unwrap();
        assert!(cached >= least && (least > 0 || cached == 0), "{cached}");
    }
}

#[tokio::test]
async fn a_choice_that_met_its_stop_string_is_over_in_the_engine_too() {
    let server = TestServer::start().await;
    let body =
        json!({ "prompt": "Once upon a time", "max_tokens": 300, "n": 4, "seed": 3, "ignore_eos": true });
    let free = server.ok("/v1/completions", &body).await;
    let text = |reply: &Value, choice: usize| reply["choices"][choice]["text"].as_str().unwrap().to_owned();
    // A piece of the first text that the others do not have, so that they go on.
    let first = text(&free, 0);
    let others: Vec<String> = (1..4).map(|choice| text(&free, choice)).collect();
    let stop = (30..first.len())
        .filter_map(|at| first.get(at..at + 12))
        .find(|piece| others.iter().all(|other| !other.contains(piece)))
        .expect("texts differ");
    let before = server.idle().await;
    let mut stopped = body.clone();
    stopped["stop"] = json!(stop);
    let reply = server.ok("/v1/completions", &stopped).await;
    let after = server.idle().await;
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    assert_eq!(reply["choices"][0]["stop_reason"], stop);
    for choice in 1..4 {
        assert_eq!(text(&reply, choice), others[choice - 1]);
    }
    // All choices count, the one that was stopped among them, and the engine made no more of it than was in flight.
    let usage = &reply["usage"];
    assert!(usage["speculation"]["steps"].as_u64().unwrap() > 0, "{usage}");
    let counted = usage["completion_tokens"].as_u64().unwrap();
    let made = after.tokens - before.tokens;
    assert!((900..1200).contains(&counted), "{counted}");
    assert!(
        counted <= made && made < counted + 100,
        "{made} made, {counted} counted"
    );
    // Alone it is told what it took, too.
    let mut alone = stopped;
    alone["n"] = 1.into();
    let reply = server.ok("/v1/completions", &alone).await;
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    assert!(
        reply["usage"]["speculation"]["steps"].as_u64().unwrap() > 0,
        "{reply}"
    );
}
