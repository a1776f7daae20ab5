//! Replies of a form that the request asks for.

use crate::support::TestServer;
use paceline_testkit::random_schema;
use paceline_text::ReasoningFormat;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn joined(mut body: Value, more: &Value) -> Value {
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    body
}

fn chat(more: &Value) -> Value {
    let body = json!({ "messages": [{ "role": "user", "content": "Do you like it?" }], "max_tokens": 150, "seed": 3 });
    joined(body, more)
}

fn completion(more: &Value) -> Value {
    let body = json!({ "prompt": "Once upon a time", "max_tokens": 150, "seed": 3 });
    joined(body, more)
}

/// Small enough that every text of it ends.
fn small_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "yes": { "type": "boolean" },
            "count": { "type": "integer", "minimum": 0, "maximum": 99 },
            "colour": { "enum": ["red", "green"] },
        },
        "required": ["yes", "count", "colour"],
        "additionalProperties": false,
    })
}

fn assert_valid(schema: &Value, text: &str) {
    let value: Value =
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{schema}: {text:?}: {error}"));
    let validator = jsonschema::validator_for(schema).unwrap();
    assert!(validator.is_valid(&value), "{schema}: {text}");
}

/// Fields that ask for a form, and what a text of it is.
type Asked = (Value, fn(&str));

fn forms() -> Vec<Asked> {
    let by_schema: fn(&str) = |text| assert_valid(&small_schema(), text);
    let schema = small_schema;
    let choice: fn(&str) = |text| assert!(["yes", "no \"thanks\""].contains(&text), "{text}");
    let year: fn(&str) = |text| {
        let digits = text.strip_prefix("in ").unwrap();
        assert!(
            digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_digit()),
            "{text}"
        );
    };
    let sum: fn(&str) = |text| assert!(text.starts_with("1+") && text.ends_with('!'), "{text}");
    let lark = "start: \"1+\" NUMBER \"!\"\nNUMBER: /[0-9]{1,3}/";
    let choices = json!(["yes", "no \"thanks\""]);
    vec![
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "a", "strict": true, "schema": schema() } } }),
            by_schema,
        ),
        (
            json!({ "response_format": { "type": "json_object", "schema": schema() } }),
            by_schema,
        ),
        (json!({ "guided_json": schema() }), by_schema),
        (json!({ "guided_json": schema().to_string() }), by_schema),
        (json!({ "structured_outputs": { "json": schema() } }), by_schema),
        (json!({ "json_schema": schema() }), by_schema),
        (json!({ "guided_regex": "in [0-9]{4}" }), year),
        (json!({ "structured_outputs": { "regex": r"in \d{4}" } }), year),
        (json!({ "guided_choice": choices }), choice),
        (json!({ "structured_outputs": { "choice": choices } }), choice),
        (json!({ "guided_grammar": lark }), sum),
        (json!({ "structured_outputs": { "grammar": lark } }), sum),
        (json!({ "grammar": lark }), sum),
    ]
}

#[tokio::test]
async fn every_form_is_kept_whole_and_as_a_stream() {
    let server = TestServer::start().await;
    for (more, check) in forms() {
        for temperature in [0, 1] {
            let more = joined(more.clone(), &json!({ "temperature": temperature }));
            let reply = server.ok(CHAT, &chat(&more)).await;
            let choice = &reply["choices"][0];
            let text = choice["message"]["content"].as_str().unwrap();
            assert_eq!(choice["finish_reason"], "stop", "{more} gave {text}");
            check(text);
            let chunks = server
                .chunks(CHAT, &chat(&joined(more.clone(), &json!({ "stream": true }))))
                .await;
            let pieces = chunks.iter().map(|chunk| {
                chunk["choices"][0]["delta"]["content"]
                    .as_str()
                    .unwrap_or_default()
            });
            assert_eq!(pieces.collect::<String>(), text);
            assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");

            let reply = server.ok(COMPLETIONS, &completion(&more)).await;
            let choice = &reply["choices"][0];
            let text = choice["text"].as_str().unwrap();
            assert_eq!(choice["finish_reason"], "stop", "{more} gave {text}");
            check(text);
            let body = completion(&joined(more.clone(), &json!({ "stream": true })));
            let chunks = server.chunks(COMPLETIONS, &body).await;
            let pieces = chunks
                .iter()
                .map(|chunk| chunk["choices"][0]["text"].as_str().unwrap_or_default());
            assert_eq!(pieces.collect::<String>(), text);
        }
    }
}

#[tokio::test]
async fn any_object_is_an_object_as_far_as_it_comes() {
    let server = TestServer::start().await;
    let ask = json!({ "prompt": "}", "add_special_tokens": false });
    let end = server.ok("/tokenize", &ask).await["tokens"][0].to_string();
    for more in [
        json!({ "response_format": { "type": "json_object" } }),
        json!({ "structured_outputs": { "json_object": true } }),
    ] {
        let cut = joined(more.clone(), &json!({ "max_tokens": 3 }));
        let reply = server.ok(CHAT, &chat(&cut)).await;
        let choice = &reply["choices"][0];
        assert!(choice["message"]["content"].as_str().unwrap().starts_with('{'));
        assert_eq!(choice["finish_reason"], "length");
        let ended = joined(more, &json!({ "logit_bias": { end.as_str(): 100 } }));
        let reply = server.ok(CHAT, &chat(&ended)).await;
        let choice = &reply["choices"][0];
        assert_eq!(choice["finish_reason"], "stop");
        assert_valid(
            &json!({ "type": "object" }),
            choice["message"]["content"].as_str().unwrap(),
        );
    }
}

#[tokio::test]
async fn every_choice_has_the_form_and_log_probabilities() {
    let server = TestServer::start().await;
    let more = json!({
        "n": 3, "temperature": 1, "return_token_ids": true, "logprobs": true, "top_logprobs": 2,
        "response_format": { "type": "json_schema", "json_schema": { "name": "a", "schema": small_schema() } },
    });
    let reply = server.ok(CHAT, &chat(&more)).await;
    let choices = reply["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    let mut texts = Vec::new();
    for choice in choices {
        let text = choice["message"]["content"].as_str().unwrap();
        assert_valid(&small_schema(), text);
        let entries = choice["logprobs"]["content"].as_array().unwrap();
        assert_eq!(entries.len(), choice["token_ids"].as_array().unwrap().len());
        assert!(
            entries
                .iter()
                .all(|entry| entry["top_logprobs"].as_array().unwrap().len() == 2)
        );
        texts.push(text);
    }
    assert!(texts.iter().any(|text| text != &texts[0]), "{texts:?}");
    // Several prompts, each with choices of its own.
    let more =
        json!({ "prompt": ["The fox", "A cat"], "n": 2, "guided_choice": ["red", "green"], "logprobs": 1 });
    let reply = server.ok(COMPLETIONS, &completion(&more)).await;
    let choices = reply["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 4);
    for choice in choices {
        assert!(choice["text"] == "red" || choice["text"] == "green", "{choice}");
    }
}

#[tokio::test]
async fn a_reply_that_is_cut_says_so() {
    let server = TestServer::start().await;
    let more = json!({ "guided_json": small_schema(), "max_tokens": 4 });
    let reply = server.ok(CHAT, &chat(&more)).await;
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    let body =
        json!({ "input": "Hello", "max_output_tokens": 4, "text": { "format": { "type": "json_object" } } });
    let reply = server.ok("/v1/responses", &body).await;
    assert_eq!(reply["incomplete_details"]["reason"], "max_output_tokens");
}

#[tokio::test]
async fn the_other_interfaces_keep_schemas_too() {
    let server = TestServer::start().await;
    for seed in 0..3 {
        let mut body = json!({
            "input": "Do you like it?", "max_output_tokens": 150, "seed": seed,
            "text": { "format": { "type": "json_schema", "name": "a", "strict": true, "schema": small_schema() } },
        });
        let reply = server.ok("/v1/responses", &body).await;
        assert_eq!(reply["status"], "completed");
        let text = reply["output"][0]["content"][0]["text"]
            .as_str()
            .unwrap()
            .to_owned();
        assert_valid(&small_schema(), &text);
        body["stream"] = true.into();
        let frames = server.stream("/v1/responses", &body).await;
        let last: Value = serde_json::from_str(frames.last().unwrap()).unwrap();
        assert_eq!(last["type"], "response.completed");
        assert_eq!(last["response"]["output"][0]["content"][0]["text"], text.as_str());

        let mut body = json!({
            "messages": [{ "role": "user", "content": "Do you like it?" }], "max_tokens": 150, "seed": seed,
            "output_config": { "format": { "type": "json_schema", "schema": small_schema() } },
        });
        let reply = server.ok("/v1/messages", &body).await;
        assert_eq!(reply["stop_reason"], "end_turn");
        let text = reply["content"][0]["text"].as_str().unwrap().to_owned();
        assert_valid(&small_schema(), &text);
        body["stream"] = true.into();
        let frames = server.stream("/v1/messages", &body).await;
        let events = frames
            .iter()
            .map(|frame| serde_json::from_str::<Value>(frame).unwrap());
        let pieces = events.map(|event| event["delta"]["text"].as_str().unwrap_or_default().to_owned());
        assert_eq!(pieces.collect::<String>(), text);
    }
}

#[tokio::test]
async fn what_is_no_form_is_refused_by_the_name_of_its_field() {
    let server = TestServer::start().await;
    let deep = (0..100).fold(json!({ "type": "string" }), |inner, _| json!({ "items": inner }));
    let wide: Vec<String> = (0..30_000).map(|index| format!("value {index}")).collect();
    let schema = |schema: Value| json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": schema } } });
    for (more, param, part) in [
        (schema(json!({ "type": "thing" })), "response_format", "thing"),
        (
            schema(json!({ "properties": { "a": { "items": { "type": "thing" } } } })),
            "response_format",
            "/properties/a/items",
        ),
        (schema(deep), "response_format", "nesting"),
        (schema(json!({ "enum": wide })), "response_format", "20000"),
        (schema(json!("{")), "response_format.json_schema.schema", "JSON"),
        (schema(json!(5)), "response_format.json_schema.schema", "object"),
        (
            schema(json!({ "type": "integer", "minimum": 3, "maximum": 2 })),
            "response_format",
            "3",
        ),
        (json!({ "guided_regex": "a(b" }), "guided_regex", "unclosed"),
        (json!({ "guided_regex": 5 }), "guided_regex", "5"),
        (
            json!({ "guided_regex": "(a{1000}){1000}" }),
            "guided_regex",
            "too many",
        ),
        (
            json!({ "guided_grammar": "start: thing" }),
            "guided_grammar",
            "thing",
        ),
        (json!({ "grammar": "root ::= \"a\"" }), "grammar", "GBNF"),
        (json!({ "guided_choice": [] }), "guided_choice", "no text"),
        (json!({ "guided_choice": [5] }), "guided_choice[0]", "5"),
        (json!({ "guided_json": "{" }), "guided_json", "JSON"),
        (json!({ "structured_outputs": 5 }), "structured_outputs", "5"),
        (
            json!({ "guided_regex": "a", "structured_outputs": { "choice": ["a"] } }),
            "guided_regex",
            "`structured_outputs.choice`",
        ),
    ] {
        for (path, body) in [(CHAT, chat(&more)), (COMPLETIONS, completion(&more))] {
            let (status, reply) = server.post(path, &body).await;
            let error = &reply["error"];
            let shown: String = reply.to_string().chars().take(900).collect();
            assert_eq!((status, &error["param"]), (400, &param.into()), "{shown}");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(part) && message.len() < 1500, "{shown}");
        }
    }
    // Nothing of this reached the engine, and the server goes on.
    assert_eq!(server.idle().await.finished, 0);
    server.ok(CHAT, &chat(&json!({ "guided_choice": ["yes"] }))).await;
}

#[tokio::test]
async fn a_grammar_is_compiled_once_and_what_it_forces_is_drafted() {
    let server = TestServer::start().await;
    let more = json!({ "guided_choice": ["the quick brown fox jumps over the lazy dog and runs away"] });
    for _ in 0..3 {
        server.ok(CHAT, &chat(&more)).await;
    }
    server.post(CHAT, &chat(&json!({ "guided_regex": "(" }))).await;
    let (_, state) = server.get("/v1/engine").await;
    let grammars = &state["grammars"];
    assert_eq!(
        (
            &grammars["compiled"],
            &grammars["refused"],
            &grammars["cache_hits"],
            &grammars["kept"]
        ),
        (&1.into(), &1.into(), &2.into(), &1.into()),
        "{grammars}"
    );
    let source = &state["speculation"]["by_source"]["grammar"];
    assert!(source["drafted"].as_u64().unwrap() > 10, "{source}");
    assert_eq!(source["drafted"], source["accepted"]);
    let request = server.client.get(format!("{}/metrics", server.base)).send();
    let text = request.await.unwrap().text().await.unwrap();
    for (name, label, value) in [
        ("paceline:grammar_compiles_total", "outcome=\"ok\"", "1"),
        ("paceline:grammar_compiles_total", "outcome=\"refused\"", "1"),
        ("paceline:grammar_cache_lookups_total", "outcome=\"hit\"", "2"),
        ("paceline:grammar_cache_lookups_total", "outcome=\"miss\"", "2"),
        (
            "paceline:draft_tokens_total",
            "source=\"grammar\"",
            &source["drafted"].to_string(),
        ),
    ] {
        let line = text
            .lines()
            .find(|line| line.starts_with(name) && line.contains(label));
        let line = line.unwrap_or_else(|| panic!("{name} with {label} is missing"));
        assert!(line.ends_with(&format!(" {value}")), "{line}");
    }
}

/// Options that make the model write a text where anything may come: its tokens, each likelier than the next and
/// unlikely once it has come up.
async fn dictate(server: &TestServer, text: &str) -> Value {
    let ask = json!({ "prompt": text, "add_special_tokens": false });
    let tokens = server.ok("/tokenize", &ask).await["tokens"]
        .as_array()
        .unwrap()
        .clone();
    let bias = tokens.iter().enumerate();
    let bias = bias.map(|(index, token)| (token.to_string(), json!(900 - 100 * index)));
    let bias: serde_json::Map<_, _> = bias.collect();
    json!({ "logit_bias": bias, "repetition_penalty": 1e6, "temperature": 0 })
}

#[tokio::test]
async fn a_grammar_holds_behind_the_reasoning() {
    let server =
        TestServer::serving(|model| model.reasoning_format = Some(ReasoningFormat::DeepseekR1)).await;
    let asked = json!({ "guided_json": small_schema() });
    // As long as the model reasons, anything may come.
    let reply = server
        .ok(CHAT, &chat(&joined(asked.clone(), &json!({ "max_tokens": 20 }))))
        .await;
    let message = &reply["choices"][0]["message"];
    assert_eq!(
        (&message["content"], &reply["choices"][0]["finish_reason"]),
        (&"".into(), &"length".into())
    );
    assert!(!message["reasoning_content"].as_str().unwrap().starts_with('{'));
    // From the end of that on, only what the schema describes.
    let dictated = dictate(&server, "</think>").await;
    let reply = server.ok(CHAT, &chat(&joined(asked, &dictated))).await;
    let choice = &reply["choices"][0];
    assert_eq!(choice["finish_reason"], "stop", "{choice}");
    assert_valid(&small_schema(), choice["message"]["content"].as_str().unwrap());
}

/// The request for a random schema, sampled in some way.
fn random_request(seed: u64) -> (Value, Value) {
    let schema = random_schema(seed);
    let body = json!({
        "prompt": "Once upon a time there was a little dog.", "max_tokens": 120, "seed": seed,
        "temperature": ([0.0, 0.7, 1.0][seed as usize % 3]), "top_k": if seed % 4 == 1 { 20 } else { 0 },
        "frequency_penalty": if seed % 5 == 3 { 0.3 } else { 0.0 }, "return_token_ids": true,
        "response_format": { "type": "json_schema", "json_schema": { "name": "random", "schema": schema } },
    });
    (schema, body)
}

async fn together(server: &TestServer, bodies: &[Value]) -> Vec<Value> {
    let tasks: Vec<_> = bodies
        .iter()
        .map(|body| {
            let request = server
                .client
                .post(format!("{}{COMPLETIONS}", server.base))
                .json(body);
            tokio::spawn(async move { request.send().await.unwrap().json::<Value>().await.unwrap() })
        })
        .collect();
    let mut replies = Vec::new();
    for task in tasks {
        replies.push(task.await.unwrap());
    }
    replies
}

#[tokio::test]
async fn a_reply_that_its_grammar_ends_says_what_it_ran_into() {
    let server = TestServer::start().await;
    let grammar = "start: e\ne: e e | e \"a\" | \"a\" e | \"a\"\n";
    let how = json!({ "max_tokens": 400, "min_tokens": 390, "guided_grammar": grammar });
    for (path, asked) in [
        ("/v1/completions", json!({ "prompt": "Once" })),
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "user", "content": "Once" }] }),
        ),
    ] {
        let mut body = asked;
        body.as_object_mut()
            .unwrap()
            .extend(how.as_object().unwrap().clone());
        let reply = server.ok(path, &body).await;
        let choice = &reply["choices"][0];
        assert_eq!(choice["finish_reason"], "constraint", "{path}");
        let told = choice["stop_reason"].as_str().unwrap();
        assert!(told.contains("ms of work"), "{path}: {told}");
    }
}

#[tokio::test]
async fn finished_replies_validate_and_drafts_change_no_token() {
    let server = TestServer::start().await;
    let count = if std::env::var_os("PACELINE_TEST_LONG").is_some() {
        200
    } else {
        40
    };
    let mut done = 0;
    for first in (0..count).step_by(8) {
        let (schemas, bodies): (Vec<_>, Vec<_>) = (first..first + 8).map(random_request).unzip();
        let plain: Vec<_> = bodies
            .iter()
            .map(|body| joined(body.clone(), &json!({ "speculation": "off" })))
            .collect();
        let (drafted, plain) = (together(&server, &bodies).await, together(&server, &plain).await);
        for ((schema, drafted), plain) in schemas.iter().zip(&drafted).zip(&plain) {
            let choice = &drafted["choices"][0];
            assert_eq!(choice, &plain["choices"][0], "{schema}");
            if choice["finish_reason"] == "stop" {
                assert_valid(schema, choice["text"].as_str().unwrap());
                done += 1;
            } else {
                assert_eq!(choice["finish_reason"], "length", "{schema}: {drafted}");
            }
        }
    }
    println!("{done} of {count} replies came to their end");
    assert!(done * 2 > count, "{done} of {count} replies came to their end");
}

#[tokio::test]
async fn constrained_requests_change_nothing_for_others() {
    let server = TestServer::start().await;
    let free = |seed: u64| {
        json!({ "prompt": "Tim and Lily went to the park.", "max_tokens": 40, "seed": seed, "return_token_ids": true,
            "temperature": ([0.0, 1.0][seed as usize % 2]) })
    };
    let mut alone = Vec::new();
    for seed in 0..6 {
        alone.push(server.ok(COMPLETIONS, &free(seed)).await["choices"].clone());
    }
    for round in 0..3 {
        let mut bodies: Vec<_> = (0..6).map(free).collect();
        bodies.extend((0..6).map(|seed| random_request(50 + round * 6 + seed).1));
        let replies = together(&server, &bodies).await;
        for (reply, alone) in replies.iter().zip(&alone) {
            assert_eq!(&reply["choices"], alone);
        }
    }
}
