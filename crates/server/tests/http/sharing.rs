//! What keys share and what they do not: the prefix cache, the queue, the time and memory to prepare requests.

use crate::support::{TestServer, engine_config};
use paceline::EngineConfig;
use paceline_server::{PrefixCacheScope, ServerConfig};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// A prompt of several blocks.
const STORY: &str = "Once upon a time there was a little fox who lived in a forest and could not sleep at night because \
    the owl sang and the river talked and the moon was so bright that all the animals of the forest danced until morning.";

fn two_keys() -> ServerConfig {
    ServerConfig {
        api_keys: vec!["alpha".to_owned(), "beta".to_owned()],
        ..ServerConfig::default()
    }
}

async fn post(server: &TestServer, key: &str, path: &str, body: &Value) -> (u16, Value) {
    let request = server.client.post(format!("{}{path}", server.base));
    let response = request.bearer_auth(key).json(body).send().await.unwrap();
    let status = response.status().as_u16();
    (status, response.json().await.unwrap())
}

/// Tokens that a request finds cached, and its text.
async fn cached(server: &TestServer, key: &str, cache_salt: Option<&str>) -> (u64, String) {
    let body = json!({ "prompt": STORY, "max_tokens": 8, "temperature": 0, "cache_salt": cache_salt });
    let (status, reply) = post(server, key, "/v1/completions", &body).await;
    assert_eq!(status, 200, "{reply}");
    let details = &reply["usage"]["prompt_tokens_details"]["cached_tokens"];
    let text = reply["choices"][0]["text"].as_str().unwrap();
    (details.as_u64().unwrap_or(0), text.to_owned())
}

#[tokio::test]
async fn no_key_finds_out_what_another_has_sent() {
    let server = TestServer::with(two_keys(), engine_config()).await;
    let (first, text) = cached(&server, "alpha", None).await;
    let (again, same) = cached(&server, "alpha", None).await;
    assert!(first == 0 && again >= 16, "{first}, then {again} of its own");
    assert_eq!(same, text);
    let (others, same) = cached(&server, "beta", None).await;
    assert_eq!((others, same), (0, text.clone()), "of another key");
    // A salt of the request separates within a key, and is no way into another one.
    for key in ["alpha", "beta"] {
        assert_eq!(cached(&server, key, Some("a")).await, (0, text.clone()));
        assert_eq!(cached(&server, key, Some("a")).await, (again, text.clone()));
        assert_eq!(cached(&server, key, Some("b")).await, (0, text.clone()));
    }
    let (status, reply) = post(
        &server,
        "alpha",
        "/v1/completions",
        &json!({ "prompt": "x", "cache_salt": "" }),
    )
    .await;
    assert_eq!((status, &reply["error"]["param"]), (400, &"cache_salt".into()));
}

#[tokio::test]
async fn keys_share_cached_prompts_where_that_was_asked_for() {
    let config = ServerConfig {
        prefix_cache_scope: PrefixCacheScope::All,
        ..two_keys()
    };
    let server = TestServer::with(config, engine_config()).await;
    let (first, text) = cached(&server, "alpha", None).await;
    let (others, same) = cached(&server, "beta", None).await;
    assert!(first == 0 && others >= 16, "{first}, then {others}");
    assert_eq!(same, text);
    assert_eq!(cached(&server, "beta", Some("a")).await.0, 0);
    assert_eq!(cached(&server, "alpha", Some("a")).await.0, others);
}

#[tokio::test]
async fn every_interface_takes_a_cache_salt() {
    let server = TestServer::start().await;
    let message = json!([{ "role": "user", "content": STORY }]);
    for (path, mut body, usage) in [
        (
            "/v1/chat/completions",
            json!({ "messages": message, "max_tokens": 2 }),
            "/usage/prompt_tokens_details/cached_tokens",
        ),
        (
            "/v1/responses",
            json!({ "input": STORY, "max_output_tokens": 2 }),
            "/usage/input_tokens_details/cached_tokens",
        ),
        (
            "/v1/messages",
            json!({ "messages": message, "max_tokens": 2 }),
            "/usage/cache_read_input_tokens",
        ),
    ] {
        let mut found = Vec::new();
        for salt in [path, path, "another"] {
            body["cache_salt"] = format!("{salt} of {path}").into();
            let reply = server.ok(path, &body).await;
            let cached = reply.pointer(usage).unwrap_or_else(|| panic!("{reply}"));
            found.push(cached.as_u64().unwrap());
        }
        assert!(
            found[0] == 0 && found[1] >= 16 && found[2] == 0,
            "{path}: {found:?}"
        );
    }
}

#[tokio::test]
async fn a_batch_counts_as_what_it_is() {
    let config = ServerConfig {
        max_requests_per_key: Some(4),
        max_concurrent_requests: Some(6),
        ..two_keys()
    };
    let server = TestServer::with(config, engine_config()).await;
    let batch = |prompts: usize, n: usize, tokens: usize| json!({ "prompt": vec!["Once"; prompts], "n": n, "max_tokens": tokens, "ignore_eos": true, "stream": true });
    // More than there could ever be: no use in coming back.
    for (prompts, n, param) in [
        (5, 1, "prompt"),
        (1, 5, "n"),
        (3, 2, "prompt"),
        (1024, 1, "prompt"),
    ] {
        let (status, reply) = post(&server, "alpha", "/v1/completions", &batch(prompts, n, 1)).await;
        assert_eq!(
            (status, &reply["error"]["param"]),
            (400, &param.into()),
            "{reply}"
        );
        let message = reply["error"]["message"].as_str().unwrap();
        assert!(message.contains("at most 4"), "{message}");
    }
    // All that a key may have, in one request.
    let request = server.client.post(format!("{}/v1/completions", server.base));
    let running = request
        .bearer_auth("alpha")
        .json(&batch(2, 2, 400))
        .send()
        .await
        .unwrap();
    assert_eq!(running.status(), 200);
    let one = json!({ "prompt": "Once", "max_tokens": 1 });
    let (status, reply) = post(&server, "alpha", "/v1/completions", &one).await;
    assert_eq!(
        (status, &reply["error"]["code"]),
        (429, &"rate_limit_exceeded".into())
    );
    // The other key has two left of what all may have.
    let two = json!({ "prompt": ["Once", "Twice"], "max_tokens": 1 });
    let three = json!({ "prompt": ["Once", "Twice", "Thrice"], "max_tokens": 1 });
    assert_eq!(post(&server, "beta", "/v1/completions", &three).await.0, 429);
    assert_eq!(post(&server, "beta", "/v1/completions", &two).await.0, 200);
    drop(running);
}

#[tokio::test]
async fn what_the_engine_could_never_take_is_refused_for_good() {
    let engine = EngineConfig {
        max_num_seqs: 1,
        max_waiting: 2,
        ..engine_config()
    };
    let server = TestServer::with(ServerConfig::default(), engine).await;
    let (status, reply) = server
        .post(
            "/v1/completions",
            &json!({ "prompt": ["a", "b", "c", "d"], "max_tokens": 1 }),
        )
        .await;
    assert_eq!(
        (status, &reply["error"]["param"]),
        (400, &"prompt".into()),
        "{reply}"
    );
    let reply = server
        .ok(
            "/v1/completions",
            &json!({ "prompt": ["a", "b", "c"], "max_tokens": 1 }),
        )
        .await;
    assert_eq!(reply["choices"].as_array().unwrap().len(), 3);
    // Vectors come a few at a time, however many were asked for.
    let inputs: Vec<String> = (0..20).map(|number| format!("text {number}")).collect();
    let reply = server.ok("/v1/embeddings", &json!({ "input": inputs })).await;
    assert_eq!(reply["data"].as_array().unwrap().len(), 20);
}

#[tokio::test]
async fn one_keys_batch_does_not_hold_up_anothers_first_request() {
    let engine = EngineConfig {
        max_num_seqs: 2,
        ..engine_config()
    };
    let server = TestServer::with(two_keys(), engine).await;
    let many =
        json!({ "prompt": vec!["Once upon"; 300], "max_tokens": 60, "ignore_eos": true, "stream": true });
    let request = server.client.post(format!("{}/v1/completions", server.base));
    let mut running = request.bearer_auth("alpha").json(&many).send().await.unwrap();
    assert_eq!(running.status(), 200);
    assert!(running.chunk().await.unwrap().is_some());
    let one = json!({ "prompt": "Once", "max_tokens": 1 });
    let (status, reply) = post(&server, "beta", "/v1/completions", &one).await;
    assert_eq!(status, 200, "{reply}");
    // Of the batch, all but the first few still wait.
    let stats = server.engine.stats();
    assert!(stats.finished < 150, "{} ended before it", stats.finished);
    drop(running);
}

#[tokio::test]
async fn a_text_that_cannot_fit_is_refused_before_it_is_tokenised() {
    let server = TestServer::start().await;
    let text = "once upon a time ".repeat(200_000);
    let message = json!([{ "role": "user", "content": text }]);
    for (path, body, param) in [
        ("/v1/completions", json!({ "prompt": text }), "prompt"),
        ("/v1/completions", json!({ "prompt": ["a", text] }), "prompt"),
        ("/v1/chat/completions", json!({ "messages": message }), "messages"),
        ("/v1/embeddings", json!({ "input": text }), "input"),
        ("/v1/responses", json!({ "input": text }), "input"),
        (
            "/v1/responses",
            json!({ "input": text, "truncation": "auto" }),
            "input",
        ),
        ("/tokenize", json!({ "prompt": text }), "prompt"),
        ("/tokenize", json!({ "messages": message }), "messages"),
    ] {
        let (status, reply) = server.post(path, &body).await;
        let message = reply["error"]["message"].as_str().unwrap_or_default();
        assert!(
            message.starts_with("This model's maximum context length is 512 tokens."),
            "{path}: {message}"
        );
        assert_eq!((status, &reply["error"]["param"]), (400, &param.into()), "{path}");
        assert_eq!(reply["error"]["code"], "context_length_exceeded", "{path}");
    }
    // Texts of options have a bound of their own.
    let body = json!({ "prompt": "a", "bad_words": [text] });
    let (status, reply) = server.post("/v1/completions", &body).await;
    assert_eq!((status, &reply["error"]["param"]), (400, &"bad_words".into()));
    let told = reply["error"]["message"].as_str().unwrap_or_default();
    assert!(told.ends_with("it must be of texts of 1 to 4096 bytes"), "{told}");
    for path in ["/v1/messages", "/v1/messages/count_tokens"] {
        let (status, reply) = server
            .post(path, &json!({ "messages": message, "max_tokens": 1 }))
            .await;
        let text = reply["error"]["message"].as_str().unwrap_or_default();
        assert!(
            text.contains("maximum context length is 512 tokens"),
            "{path}: {text}"
        );
        assert_eq!(status, 400);
    }
    // What is left out of a conversation may be of any length.
    let body = json!({
        "input": [{ "role": "user", "content": text }, { "role": "user", "content": "Hi" }],
        "truncation": "auto",
        "max_output_tokens": 1,
    });
    server.ok("/v1/responses", &body).await;
}

/// The head of a request with a body, and the first bytes of that.
async fn begin_body(server: &TestServer, announced: usize, sent: usize) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    let head = format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {announced}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![b' '; sent]).await.unwrap();
    stream.flush().await.unwrap();
    stream
}

#[tokio::test]
async fn bodies_share_a_budget_and_give_it_back() {
    const SIZE: usize = 1 << 20;
    let server = TestServer::configured(|config| {
        config.max_body_bytes = SIZE;
        config.max_pending_body_bytes = SIZE;
    })
    .await;
    let request = |bytes: usize| {
        let mut body = json!({ "prompt": "Once", "max_tokens": 1 }).to_string();
        body.push_str(&" ".repeat(bytes - body.len()));
        server.raw("/v1/completions", body)
    };
    assert_eq!(request(SIZE).await.0, 200);
    // One that never ends takes most of it. Where the next one is faster, that is taken, and it is tried again.
    let (mut held, mut refused) = (None, (200, Value::Null));
    while refused.0 == 200 {
        held = Some(begin_body(&server, SIZE, SIZE - 1000).await);
        refused = request(SIZE).await;
    }
    assert_eq!(refused.0, 503, "{}", refused.1);
    let message = refused.1["error"]["message"].as_str().unwrap();
    assert!(message.contains("1048576 bytes"), "{message}");
    // Small ones pass.
    assert_eq!(request(10_000).await.0, 200);
    drop(held);
    while request(SIZE).await.0 == 503 {}
}
