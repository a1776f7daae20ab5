//! `/v1/completions`.

use crate::support::{MODEL, TestServer};
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";

/// A story that is the same every time.
fn story(more: Value) -> Value {
    let mut body = json!({ "model": MODEL, "prompt": "Once upon a time", "max_tokens": 24, "seed": 7 });
    let fields = body.as_object_mut().unwrap();
    let Value::Object(more) = more else {
        panic!("{more} is no object");
    };
    fields.extend(more);
    body
}

fn text(reply: &Value) -> &str {
    reply["choices"][0]["text"].as_str().unwrap()
}

#[tokio::test]
async fn a_prompt_is_continued_and_counted() {
    let server = TestServer::start().await;
    let reply = server.ok(PATH, &story(json!({}))).await;
    assert_eq!(reply["object"], "text_completion");
    assert_eq!(reply["model"], MODEL);
    assert!(!text(&reply).is_empty());
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    let usage = &reply["usage"];
    assert_eq!(usage["completion_tokens"], 24);
    let sum = usage["prompt_tokens"].as_u64().unwrap() + 24;
    assert_eq!(usage["total_tokens"].as_u64(), Some(sum));
    let again = server.ok(PATH, &story(json!({}))).await;
    assert_eq!(text(&reply), text(&again));
}

#[tokio::test]
async fn log_probabilities_can_name_tokens_by_their_ids() {
    let server = TestServer::start().await;
    let asked = json!({ "temperature": 0, "logprobs": 2, "return_token_ids": true });
    let texts = server.ok(PATH, &story(asked.clone())).await;
    let mut asked = story(asked);
    asked["return_tokens_as_token_ids"] = true.into();
    let reply = server.ok(PATH, &asked).await;
    let choice = &reply["choices"][0];
    let ids = choice["token_ids"].as_array().unwrap();
    assert_eq!(ids.len(), 24);
    for (at, id) in ids.iter().enumerate() {
        let name = format!("token_id:{id}");
        assert_eq!(choice["logprobs"]["tokens"][at], name);
        let chosen = &choice["logprobs"]["token_logprobs"][at];
        assert_eq!(choice["logprobs"]["top_logprobs"][at][name.as_str()], *chosen);
        for list in ["token_logprobs", "text_offset"] {
            assert_eq!(
                choice["logprobs"][list][at],
                texts["choices"][0]["logprobs"][list][at]
            );
        }
    }
}

#[tokio::test]
async fn a_stream_is_the_same_text() {
    let server = TestServer::start().await;
    for more in [
        json!({}),
        json!({ "n": 2, "logprobs": 2, "echo": true }),
        json!({ "stop": ["the", "."], "max_tokens": 200 }),
        json!({ "temperature": 0, "return_token_ids": true }),
    ] {
        let whole = server.ok(PATH, &story(more.clone())).await;
        let mut body = story(more);
        body["stream"] = true.into();
        body["stream_options"] = json!({ "include_usage": true });
        let chunks = server.chunks(PATH, &body).await;
        let last = chunks.last().unwrap();
        for count in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            assert_eq!(last["usage"][count], whole["usage"][count]);
        }
        for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
            let parts = chunks
                .iter()
                .flat_map(|chunk| chunk["choices"].as_array().unwrap());
            let parts: Vec<_> = parts.filter(|part| part["index"] == index).collect();
            let joined: String = parts.iter().map(|part| part["text"].as_str().unwrap()).collect();
            assert_eq!(joined, choice["text"].as_str().unwrap());
            assert_eq!(parts.last().unwrap()["finish_reason"], choice["finish_reason"]);
            for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                let empty = Vec::new();
                let entries = |part: &Value| part["logprobs"][list].as_array().unwrap_or(&empty).clone();
                let joined: Vec<_> = parts.iter().flat_map(|part| entries(part)).collect();
                assert_eq!(joined, entries(choice), "{list}");
            }
        }
    }
}

#[tokio::test]
async fn prompts_may_be_tokens_and_many() {
    let server = TestServer::start().await;
    let texts = server
        .ok(PATH, &story(json!({ "prompt": ["The fox", "The sea"], "n": 2 })))
        .await;
    let choices = texts["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 4);
    let tokens = server
        .ok(
            PATH,
            &story(json!({ "prompt": ["The fox", "The sea"], "return_token_ids": true })),
        )
        .await;
    let ids = |index: usize| tokens["choices"][index]["prompt_token_ids"].clone();
    let same = server
        .ok(PATH, &story(json!({ "prompt": [ids(0), ids(1)] })))
        .await;
    assert_eq!(same["choices"][0]["text"], choices[0]["text"]);
    assert_eq!(same["choices"][1]["text"], choices[2]["text"]);
    let one = server.ok(PATH, &story(json!({ "prompt": ids(1) }))).await;
    assert_eq!(one["choices"][0]["text"], choices[2]["text"]);
}

#[tokio::test]
async fn a_text_can_be_scored_without_continuing_it() {
    let server = TestServer::start().await;
    let reply = server
        .ok(
            PATH,
            &story(json!({ "echo": true, "max_tokens": 0, "logprobs": 1 })),
        )
        .await;
    assert_eq!(text(&reply), "Once upon a time");
    let logprobs = &reply["choices"][0]["logprobs"]["token_logprobs"];
    let count = reply["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    assert_eq!(logprobs.as_array().unwrap().len(), count);
    assert!(logprobs[0].is_null() && logprobs[1].as_f64().unwrap() < 0.0);
    assert_eq!(reply["usage"]["completion_tokens"], 0);
}

#[tokio::test]
async fn a_stop_string_ends_the_text_before_it_and_never_shows() {
    let server = TestServer::start().await;
    let whole = server
        .ok(PATH, &story(json!({ "max_tokens": 60, "temperature": 0 })))
        .await;
    let whole = text(&whole).to_owned();
    let stop: String = whole.chars().skip(20).take(5).collect();
    let before = whole.split(&stop).next().unwrap();
    let body = json!({ "max_tokens": 60, "temperature": 0, "stop": stop, "logprobs": 0 });
    let reply = server.ok(PATH, &story(body.clone())).await;
    assert_eq!(text(&reply), before);
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    assert_eq!(reply["choices"][0]["stop_reason"], stop);
    let mut with_stop = body;
    with_stop["include_stop_str_in_output"] = true.into();
    let reply = server.ok(PATH, &story(with_stop)).await;
    assert_eq!(text(&reply), format!("{before}{stop}"));
    assert_eq!(server.idle().await.running, 0);
}

#[tokio::test]
async fn bad_values_are_refused_by_name_bound_and_value() {
    let server = TestServer::start().await;
    for (more, param, part) in [
        (json!({ "temperature": -1 }), "temperature", "at least 0"),
        (json!({ "temperature": "hot" }), "temperature", "hot"),
        (json!({ "temperature": 1e60 }), "temperature", "inf"),
        (json!({ "top_p": 1.5 }), "top_p", "1.5"),
        (json!({ "top_k": -2 }), "top_k", "-2"),
        (json!({ "top_k": 1u64 << 40 }), "top_k", "1099511627776"),
        (json!({ "min_p": 2 }), "min_p", "2"),
        (json!({ "n": 0 }), "n", "0"),
        (json!({ "n": 9 }), "n", "within 1..=8"),
        (json!({ "n": -1 }), "n", "-1"),
        (json!({ "best_of": 3 }), "best_of", "3"),
        (json!({ "max_tokens": 0 }), "max_tokens", "at least 1"),
        (json!({ "max_tokens": 1.5 }), "max_tokens", "1.5"),
        (json!({ "min_tokens": 25 }), "min_tokens", "24"),
        (json!({ "logprobs": 21 }), "logprobs", "at most 20"),
        (json!({ "presence_penalty": 3 }), "presence_penalty", "-2..=2"),
        (json!({ "frequency_penalty": -3 }), "frequency_penalty", "-2..=2"),
        (
            json!({ "repetition_penalty": 0 }),
            "repetition_penalty",
            "above 0",
        ),
        (json!({ "logit_bias": { "99999": 1 } }), "logit_bias", "99999"),
        (json!({ "logit_bias": { "x": 1 } }), "logit_bias", "x"),
        (json!({ "stop": 5 }), "stop", "5"),
        (json!({ "stop": [""] }), "stop", "0 bytes"),
        (json!({ "stop_token_ids": [99999] }), "stop_token_ids", "99999"),
        (json!({ "prompt": [] }), "prompt", "0 prompts"),
        (json!({ "prompt": "" }), "prompt", "no tokens"),
        (json!({ "prompt": [1, 99999] }), "prompt", "99999"),
        (json!({ "prompt": vec![5; 600] }), "prompt", "600 tokens"),
        (json!({ "prompt": null }), "prompt", "missing"),
        (json!({ "suffix": "end" }), "suffix", "not supported"),
        (json!({ "speculation": "magic" }), "speculation", "magic"),
        (
            json!({ "speculation": { "max_tokens": 99 } }),
            "speculation.max_tokens",
            "99",
        ),
        (json!({ "deadline_ms": 0 }), "deadline_ms", "0"),
        (json!({ "priority": 1u64 << 40 }), "priority", "1099511627776"),
        (json!({ "stream": "yes" }), "stream", "yes"),
        (json!({ "stream_options": {} }), "stream_options", "stream"),
        (
            json!({ "response_format": { "type": "xml" } }),
            "response_format.type",
            "xml",
        ),
        (json!({ "use_beam_search": true }), "use_beam_search", "beam"),
    ] {
        let (status, reply) = server.post(PATH, &story(more.clone())).await;
        let error = &reply["error"];
        assert_eq!(status, 400, "{more} gave {reply}");
        assert_eq!(error["param"], param, "{more} gave {reply}");
        assert!(
            error["message"].as_str().unwrap().contains(part),
            "{more} gave {reply}"
        );
        assert_eq!(error["type"], "invalid_request_error");
    }
    let (status, reply) = server.post(PATH, &story(json!({ "model": "gpt-9" }))).await;
    assert_eq!(
        (status, &reply["error"]["code"]),
        (404, &"model_not_found".into())
    );
    let (_, reply) = server.post(PATH, &story(json!({ "prompt": vec![5; 600] }))).await;
    assert_eq!(reply["error"]["code"], "context_length_exceeded");
    assert_eq!(server.get("/health").await.0, 200);
}

#[tokio::test]
async fn unknown_fields_are_ignored_and_null_is_nothing() {
    let server = TestServer::start().await;
    let plain = server.ok(PATH, &story(json!({}))).await;
    let odd = json!({ "user": "me", "frobnicate": [1, { "x": 2 }], "top_p": null, "stop": null, "logit_bias": null,
        "stream": null, "n": null, "logprobs": null, "speculation": null });
    let reply = server.ok(PATH, &story(odd)).await;
    assert_eq!(text(&plain), text(&reply));
}
