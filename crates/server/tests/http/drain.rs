//! Going down: what runs may finish, nothing new is taken, and streams end properly.

use crate::support::{TestServer, frames};
use serde_json::{Value, json};
use std::time::Duration;

fn long(stream: bool) -> Value {
    json!({ "prompt": "Once", "max_tokens": 480, "ignore_eos": true, "stream": stream })
}

async fn wait_until_draining(server: &TestServer) {
    for _ in 0..500 {
        if server.get("/ready").await.0 == 503 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("it does not drain");
}

#[tokio::test]
async fn what_runs_may_finish_and_nothing_new_is_taken() {
    let mut server = TestServer::start().await;
    let running = server.send("/v1/completions", &long(true)).await;
    server.drain();
    wait_until_draining(&server).await;
    let refused = server.send("/v1/completions", &long(false)).await;
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key("retry-after"));
    assert_eq!(server.get("/health").await.0, 200);
    let frames = frames(&running.text().await.unwrap());
    assert_eq!(frames.last().map(String::as_str), Some("[DONE]"));
    assert!(frames[frames.len() - 2].contains("\"length\""));
    assert!(server.ended().await.is_ok());
}

#[tokio::test]
async fn what_does_not_finish_in_time_ends_properly() {
    let mut server = TestServer::configured(|config| config.drain_timeout = Duration::ZERO).await;
    let completion = server.send("/v1/completions", &long(true)).await;
    let chat =
        json!({ "messages": [{ "role": "user", "content": "Hi" }], "ignore_eos": true, "stream": true });
    let chat = server.send("/v1/chat/completions", &chat).await;
    let request = server
        .client
        .post(format!("{}/v1/completions", server.base))
        .json(&long(false));
    let whole = tokio::spawn(async move { request.send().await.unwrap().status() });
    while server.engine.stats().running < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.drain();
    for stream in [completion, chat] {
        let frames = frames(&stream.text().await.unwrap());
        let [.., last_choice, error, done] = frames.as_slice() else {
            panic!("{frames:?}");
        };
        assert!(last_choice.contains("\"abort\""), "{last_choice}");
        assert!(error.contains("going down"), "{error}");
        assert_eq!(done, "[DONE]");
    }
    assert_eq!(whole.await.unwrap(), 503);
    assert!(server.ended().await.is_ok());
}

#[tokio::test]
async fn an_idle_server_ends_at_once_although_connections_are_open() {
    // Far longer than the test waits for the end.
    let mut server = TestServer::configured(|config| config.drain_timeout = Duration::from_hours(1)).await;
    assert_eq!(server.get("/health").await.0, 200);
    server.drain();
    assert!(server.ended().await.is_ok());
}
