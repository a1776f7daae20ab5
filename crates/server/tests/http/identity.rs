//! What a request gets does not depend on what else is asked.

use crate::support::TestServer;
use serde_json::{Value, json};

/// Requests of many kinds.
fn requests() -> Vec<Value> {
    let prompts = [
        "Once upon a time",
        "The fox",
        "In a small house by the sea",
        "Tom had a red ball.",
    ];
    let mut requests = Vec::new();
    for (number, prompt) in prompts.iter().cycle().take(24).enumerate() {
        let mut body =
            json!({ "prompt": prompt, "max_tokens": 20 + number, "seed": number, "return_token_ids": true });
        let more = match number % 6 {
            0 => json!({ "temperature": 0 }),
            1 => json!({ "temperature": 1.2, "top_p": 0.9 }),
            2 => json!({ "n": 2, "presence_penalty": 0.5 }),
            3 => json!({ "stop": ["the"], "logprobs": 3 }),
            4 => json!({ "speculation": "off", "top_k": 20 }),
            _ => json!({ "logit_bias": { "50": 2.0 }, "min_tokens": 10, "echo": true, "logprobs": 1 }),
        };
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        requests.push(body);
    }
    requests
}

#[tokio::test]
async fn requests_at_the_same_time_get_what_they_get_alone() {
    let server = TestServer::start().await;
    let mut alone = Vec::new();
    for body in requests() {
        alone.push(server.ok("/v1/completions", &body).await["choices"].clone());
    }
    let mut tasks = Vec::new();
    for body in requests() {
        let request = server
            .client
            .post(format!("{}/v1/completions", server.base))
            .json(&body);
        tasks.push(tokio::spawn(async move {
            request.send().await.unwrap().json::<Value>().await.unwrap()
        }));
    }
    // Some who come and go meanwhile.
    for _ in 0..6 {
        let body = json!({ "prompt": "The", "max_tokens": 300, "ignore_eos": true, "stream": true });
        drop(server.send("/v1/completions", &body).await);
    }
    for (task, alone) in tasks.into_iter().zip(alone) {
        assert_eq!(task.await.unwrap()["choices"], alone);
    }
    server.idle().await;
}
