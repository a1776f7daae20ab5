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

fn sorry(reply: &Value) -> (String, String) {
    let param = reply["error"]["param"].as_str().unwrap_or_default();
    (param.to_owned(), message(reply).to_owned())
}

#[tokio::test]
async fn unknown_fields_are_named_in_a_header_and_refused_where_that_is_asked_for() {
    let loose = TestServer::start().await;
    let strict = TestServer::configured(|config| config.strict_requests = true).await;
    let more = [
        ("/v1/embeddings", json!({ "input": "x" })),
        ("/tokenize", json!({ "prompt": "x" })),
        ("/detokenize", json!({ "tokens": [5] })),
        (
            "/v1/messages/count_tokens",
            json!({ "messages": [{ "role": "user", "content": "x" }] }),
        ),
    ];
    for (path, mut body) in interfaces("x").into_iter().chain(more) {
        for server in [&loose, &strict] {
            let response = server.send(path, &body).await;
            assert_eq!(response.status(), 200, "{path}");
            assert!(!response.headers().contains_key("x-paceline-warning"), "{path}");
        }
        body["frobnicate"] = json!({ "x": [1] });
        body["user"] = "me".into();
        let response = loose.send(path, &body).await;
        assert_eq!(response.status(), 200, "{path}");
        let warning = &response.headers()["x-paceline-warning"];
        assert_eq!(warning, "unknown fields were ignored: frobnicate", "{path}");
        let (status, reply) = strict.post(path, &body).await;
        assert_eq!(status, 400, "{path} gave {reply}");
        assert_eq!(message(&reply), "`frobnicate` is not a field of this endpoint");
    }
}

#[tokio::test]
async fn unknown_fields_within_others_are_named_with_their_place() {
    let loose = TestServer::start().await;
    let strict = TestServer::configured(|config| config.strict_requests = true).await;
    let nested = [
        (
            "response_format",
            json!({ "type": "text", "odd": 1 }),
            "response_format.odd",
        ),
        (
            "speculation",
            json!({ "method": "off", "odd": 1 }),
            "speculation.odd",
        ),
        (
            "text",
            json!({ "format": { "type": "text", "odd": 1 } }),
            "text.format.odd",
        ),
        (
            "thinking",
            json!({ "type": "disabled", "odd": 1 }),
            "thinking.odd",
        ),
    ];
    // Which of them an interface has is not the question here, but each has one.
    for (path, body) in interfaces("x") {
        let mut named = 0;
        for (field, value, place) in &nested {
            let mut body = body.clone();
            body[*field] = value.clone();
            let response = loose.send(path, &body).await;
            assert_eq!(response.status(), 200, "{path} {field}");
            let warning = response.headers()["x-paceline-warning"].to_str().unwrap();
            let (status, reply) = strict.post(path, &body).await;
            assert_eq!(status, 400, "{path} gave {reply}");
            if warning == format!("unknown fields were ignored: {place}") {
                named += 1;
                assert!(message(&reply).starts_with(&format!("`{place}`")), "{reply}");
            } else {
                assert_eq!(warning, format!("unknown fields were ignored: {field}"), "{path}");
            }
        }
        assert!(named > 1, "{path}");
    }
    let body = json!({
        "prompt": "x", "max_tokens": 1, "stream": true, "stream_options": { "include_usage": true, "odd": 1 },
    });
    let response = loose.send("/v1/completions", &body).await;
    let warning = &response.headers()["x-paceline-warning"];
    assert_eq!(warning, "unknown fields were ignored: stream_options.odd");
}

#[tokio::test]
async fn what_cannot_be_read_is_named_in_plain_words_in_every_interface() {
    let server = TestServer::start().await;
    for (path, body) in interfaces("x") {
        for (field, value, told) in [
            (
                "temperature",
                json!("hot"),
                "`temperature` is \"hot\"; it must be a number of at least 0",
            ),
            (
                "top_k",
                json!("x"),
                "`top_k` is \"x\"; it must be within -1..=4294967295",
            ),
            ("min_p", json!(2), "`min_p` is 2; it must be within 0..=1"),
            (
                "stream",
                json!("yes"),
                "`stream` is \"yes\"; it must be true or false",
            ),
            (
                "stop_token_ids",
                json!([-1]),
                "`stop_token_ids` is -1; it must be a list of token ids",
            ),
            ("deadline_ms", json!(u64::MAX), "it must be within 1..=604800000"),
            ("model", json!(5), "`model` is 5; it must be a string"),
        ] {
            let mut body = body.clone();
            body[field] = value;
            let (status, reply) = server.post(path, &body).await;
            assert_eq!(status, 400, "{path} {body} gave {reply}");
            assert!(message(&reply).contains(told), "{path} {body} gave {reply}");
        }
        let (_, reply) = server
            .raw(path, r#"{"max_tokens": 1e999, "max_output_tokens": 1e999}"#)
            .await;
        for word in ["u64", "line 1", "column"] {
            assert!(!message(&reply).contains(word), "{path} gave {reply}");
        }
    }
}

#[tokio::test]
async fn fields_that_other_servers_know_work_or_are_refused_by_name() {
    let server = TestServer::start().await;
    let user = json!([{ "role": "user", "content": "Hello" }]);
    for (path, body, param) in [
        (
            "/v1/completions",
            json!({ "prompt": "x", "prompt_logprobs": 0 }),
            "prompt_logprobs",
        ),
        (
            "/v1/completions",
            json!({ "prompt": "x", "truncate_prompt_tokens": 0 }),
            "truncate_prompt_tokens",
        ),
        (
            "/v1/completions",
            json!({ "prompt": "x", "allowed_token_ids": [1 << 20] }),
            "allowed_token_ids",
        ),
        (
            "/v1/completions",
            json!({ "prompt": "x", "allowed_token_ids": [5], "guided_regex": "a" }),
            "allowed_token_ids",
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": user, "prompt_logprobs": 1 }),
            "prompt_logprobs",
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": user, "echo": true }),
            "echo",
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": user, "continue_final_message": true }),
            "continue_final_message",
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": user, "chat_template": "{% if %}" }),
            "chat_template",
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": user, "chat_template": "x".repeat(70_000) }),
            "chat_template",
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "robot", "content": "x" }] }),
            "messages[0].role",
        ),
    ] {
        let (status, reply) = server.post(path, &body).await;
        let (named, told) = sorry(&reply);
        assert_eq!((status, named.as_str()), (400, param), "{path} gave {reply}");
        assert!(told.contains(param), "{told}");
    }
}

#[tokio::test]
async fn prompts_are_cut_and_tokens_allowed_as_asked() {
    let server = TestServer::start().await;
    let greedy = |more: Value| {
        let mut body = json!({ "max_tokens": 12, "temperature": 0, "return_token_ids": true });
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body
    };
    let cut = greedy(json!({ "prompt": [50, 60, 70, 80], "truncate_prompt_tokens": 2, "echo": true }));
    let cut = server.ok("/v1/completions", &cut).await;
    let short = greedy(json!({ "prompt": [70, 80], "echo": true }));
    let short = server.ok("/v1/completions", &short).await;
    assert_eq!(cut["choices"][0]["text"], short["choices"][0]["text"]);
    assert_eq!(cut["usage"]["prompt_tokens"], 2);
    let allowed = greedy(json!({ "prompt": "Once", "allowed_token_ids": [50, 60, 70] }));
    let reply = server.ok("/v1/completions", &allowed).await;
    let ids = reply["choices"][0]["token_ids"].as_array().unwrap();
    assert_eq!(ids.len(), 12);
    assert!(
        ids.iter().all(|id| [50, 60, 70].contains(&id.as_u64().unwrap())),
        "{reply}"
    );
}

#[tokio::test]
async fn a_request_brings_its_template_or_goes_on_with_its_last_message() {
    let server = TestServer::start().await;
    let count = async |body: Value| server.ok("/tokenize", &body).await;
    let messages = json!([
        { "role": "user", "content": "Tell me about a fox." },
        { "role": "assistant", "content": "Once upon a time" },
    ]);
    let asked =
        json!({ "messages": messages, "max_tokens": 8, "temperature": 0, "continue_final_message": true });
    let reply = server.ok("/v1/chat/completions", &asked).await;
    let prompt = count(json!({ "messages": messages, "continue_final_message": true })).await;
    assert_eq!(reply["usage"]["prompt_tokens"], prompt["count"]);
    let text = server
        .ok("/detokenize", &json!({ "tokens": prompt["tokens"] }))
        .await;
    assert!(
        text["prompt"].as_str().unwrap().ends_with("Once upon a time"),
        "{text}"
    );
    let plain = json!({ "prompt": prompt["tokens"], "max_tokens": 8, "temperature": 0 });
    let plain = server.ok("/v1/completions", &plain).await;
    assert_eq!(
        reply["choices"][0]["message"]["content"],
        plain["choices"][0]["text"]
    );
    let own = json!({ "messages": messages, "chat_template": "{{ messages[0].content }}" });
    let text = server
        .ok(
            "/detokenize",
            &json!({ "tokens": count(own.clone()).await["tokens"] }),
        )
        .await;
    assert_eq!(text["prompt"], "Tell me about a fox.");
    let mut chat = own;
    chat["max_tokens"] = 1.into();
    let reply = server.ok("/v1/chat/completions", &chat).await;
    let words = count(json!({ "prompt": "Tell me about a fox.", "add_special_tokens": false })).await;
    assert_eq!(reply["usage"]["prompt_tokens"], words["count"]);
}

#[tokio::test]
async fn every_chunk_tells_what_was_taken_where_that_is_asked_for() {
    let server = TestServer::start().await;
    let options = json!({ "include_usage": true, "continuous_usage_stats": true });
    for (path, mut body) in interfaces("Once").into_iter().take(2) {
        body["stream"] = true.into();
        body["stream_options"] = options.clone();
        body["max_tokens"] = 9.into();
        body["ignore_eos"] = true.into();
        let chunks = server.chunks(path, &body).await;
        let counts: Vec<u64> = chunks
            .iter()
            .map(|chunk| chunk["usage"]["completion_tokens"].as_u64().unwrap())
            .collect();
        assert!(
            counts.is_sorted() && counts.last() == Some(&9),
            "{path}: {counts:?}"
        );
        assert!(
            counts.iter().any(|count| (1..9).contains(count)),
            "{path}: {counts:?}"
        );
    }
}

#[tokio::test]
async fn responses_stop_at_strings_and_messages_take_the_older_field_for_a_form() {
    let server = TestServer::start().await;
    let ask = |stop: Value| json!({ "input": "Hi", "max_output_tokens": 40, "temperature": 0, "stop": stop });
    let text = |reply: &Value| {
        reply["output"][0]["content"][0]["text"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let whole = text(&server.ok("/v1/responses", &ask(Value::Null)).await);
    let stop: String = whole.chars().skip(20).take(4).collect();
    let before = whole.split(&stop).next().unwrap().to_owned();
    let reply = server.ok("/v1/responses", &ask(json!([stop]))).await;
    assert_eq!((text(&reply), &reply["status"]), (before, &"completed".into()));
    let schema = json!({ "type": "object", "properties": { "ok": { "type": "boolean" } },
        "required": ["ok"], "additionalProperties": false });
    let body = json!({ "model": MODEL, "max_tokens": 60, "messages": [{ "role": "user", "content": "x" }],
        "output_format": { "type": "json_schema", "schema": schema } });
    let reply = server.ok("/v1/messages", &body).await;
    let said: Value = serde_json::from_str(reply["content"][0]["text"].as_str().unwrap()).unwrap();
    assert!(said["ok"].is_boolean(), "{reply}");
}
