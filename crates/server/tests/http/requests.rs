//! What requests may ask for, and what they are told: the same in every interface.

use crate::support::{MODEL, TestServer};
use serde_json::{Value, json};

/// Every interface that generates, with a request whose prompt is this text.
fn interfaces(text: &str) -> [(&'static str, Value); 4] {
    let messages = json!([{ "role": "user", "content": text }]);
    [
        ("/v1/completions", json!({ "prompt": text, "max_tokens": 2 })),
        (
            "/v1/chat/completions",
            json!({ "messages": messages, "max_tokens": 2 }),
        ),
        ("/v1/responses", json!({ "input": text, "max_output_tokens": 2 })),
        (
            "/v1/messages",
            json!({ "model": MODEL, "messages": messages, "max_tokens": 2 }),
        ),
    ]
}

fn message(reply: &Value) -> &str {
    reply["error"]["message"].as_str().unwrap_or_default()
}

/// The comparison by which evaluation harnesses decide whether a text is the one that a greedy search would give.
#[tokio::test]
async fn a_greedy_token_has_the_same_number_in_both_lists_of_log_probabilities() {
    let server = TestServer::start().await;
    let body = json!({ "prompt": "Once upon a time", "max_tokens": 24, "temperature": 0, "logprobs": 1 });
    let reply = server.ok("/v1/completions", &body).await;
    let logprobs = &reply["choices"][0]["logprobs"];
    let chosen = logprobs["token_logprobs"].as_array().unwrap();
    assert_eq!(chosen.len(), 24);
    for (chosen, top) in chosen.iter().zip(logprobs["top_logprobs"].as_array().unwrap()) {
        let top = top
            .as_object()
            .unwrap()
            .values()
            .map(|value| value.as_f64().unwrap());
        let best = top.fold(f64::NEG_INFINITY, f64::max);
        assert_eq!(chosen.as_f64(), Some(best), "{logprobs}");
    }
}

#[tokio::test]
async fn a_prompt_that_is_too_long_is_told_so_in_the_words_that_clients_look_for() {
    let server = TestServer::start().await;
    for (path, body) in interfaces(&"word ".repeat(700)) {
        let (status, reply) = server.post(path, &body).await;
        assert_eq!(status, 400, "{path} gave {reply}");
        let words = "This model's maximum context length is 512 tokens. However, ";
        assert!(message(&reply).contains(words), "{path} gave {reply}");
    }
    let body = json!({ "prompt": vec![5; 512] });
    let (_, reply) = server.post("/v1/completions", &body).await;
    assert_eq!(
        message(&reply),
        "This model's maximum context length is 512 tokens. However, `prompt` has 512 tokens, and one must be left \
         to generate."
    );
}

#[tokio::test]
async fn requests_may_step_back_and_not_push_in_unless_their_key_may() {
    let server = TestServer::configured(|config| {
        config.api_keys = vec!["plain".to_owned(), "urgent".to_owned(), "batch".to_owned()];
        config.key_min_priority = [("urgent".to_owned(), -5), ("batch".to_owned(), 7)].into();
    })
    .await;
    let ask = async |key: &str, path: &str, mut body: Value, priority: i32| {
        body["priority"] = priority.into();
        let request = server
            .client
            .post(format!("{}{path}", server.base))
            .bearer_auth(key);
        let response = request.json(&body).send().await.unwrap();
        let status = response.status().as_u16();
        (status, response.json::<Value>().await.unwrap())
    };
    let embedding = ("/v1/embeddings", json!({ "input": "x" }));
    for (path, body) in interfaces("x").into_iter().chain([embedding]) {
        for (key, priority, least) in [
            ("plain", -1, Some("at least 0")),
            ("plain", i32::MIN, Some("at least 0")),
            ("plain", 0, None),
            ("plain", i32::MAX, None),
            ("urgent", -5, None),
            ("urgent", -6, Some("at least -5")),
            ("batch", 6, Some("at least 7")),
            ("batch", 0, None),
        ] {
            let (status, reply) = ask(key, path, body.clone(), priority).await;
            match least {
                None => assert_eq!(status, 200, "{path} {key} {priority} gave {reply}"),
                Some(least) => {
                    assert_eq!(status, 400, "{path} {key} {priority} gave {reply}");
                    let told = message(&reply);
                    assert!(told.contains("`priority`") && told.contains(least), "{reply}");
                }
            }
        }
    }
}
