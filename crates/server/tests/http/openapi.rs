//! `/openapi.json` tells the truth.

use crate::support::{PATIENCE, TestServer};
use jsonschema::Validator;
use serde_json::{Value, json};

async fn document(server: &TestServer) -> Value {
    let (status, document) = server.get("/openapi.json").await;
    assert_eq!(status, 200);
    document
}

/// A schema of the document on its own.
fn validator(document: &Value, schema: &Value) -> Validator {
    let mut schema = schema.clone();
    schema["components"] = document["components"].clone();
    jsonschema::draft202012::new(&schema).unwrap()
}

fn check(document: &Value, schema: &Value, value: &Value, place: &str) {
    let validator = validator(document, schema);
    let errors: Vec<String> = validator
        .iter_errors(value)
        .map(|error| format!("{} at {}", error, error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{place}: {errors:?}\n{value}");
}

/// The schema of an operation's reply in JSON.
fn reply_schema<'a>(document: &'a Value, operation: &'a Value, status: u16) -> &'a Value {
    let mut reply = &operation["responses"][status.to_string()];
    if let Some(reference) = reply["$ref"].as_str() {
        reply = document.pointer(&reference[1..]).unwrap();
    }
    let schema = &reply["content"]["application/json"]["schema"];
    assert!(schema.is_object(), "{status} is not described: {operation}");
    schema
}

#[tokio::test]
async fn examples_are_accepted_and_replies_have_the_form_that_is_told() {
    let server = TestServer::start().await;
    let document = document(&server).await;
    let mut examples = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let operation = &methods["post"];
        let content = &operation["requestBody"]["content"]["application/json"];
        for (name, example) in content["examples"].as_object().into_iter().flatten() {
            let (body, place) = (&example["value"], format!("{path} {name}"));
            check(&document, &content["schema"], body, &place);
            if body["stream"] == true {
                assert!(!server.stream(path, body).await.is_empty(), "{place}");
            } else {
                let reply = server.ok(path, body).await;
                check(&document, reply_schema(&document, operation, 200), &reply, &place);
            }
            examples += 1;
        }
    }
    assert!(examples >= 10);
}

#[tokio::test]
async fn what_can_be_got_has_the_form_that_is_told() {
    let server = TestServer::start().await;
    let document = document(&server).await;
    server
        .ok("/v1/completions", &json!({ "prompt": "Hello", "max_tokens": 9 }))
        .await;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let Some(operation) = methods.get("get") else {
            continue;
        };
        let path = path.replace("{name}", "org/alias");
        let request = server.client.get(format!("{}{path}", server.base)).send();
        let response = tokio::time::timeout(PATIENCE, request).await.unwrap().unwrap();
        assert_eq!(response.status(), 200, "{path}");
        let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
        let kind = kind.split(';').next().unwrap();
        let content = operation["responses"]["200"]["content"].as_object().unwrap();
        assert!(content.contains_key(kind), "{path} gives {kind}");
        if kind == "application/json" {
            let reply: Value = response.json().await.unwrap();
            check(&document, reply_schema(&document, operation, 200), &reply, &path);
        }
    }
}

/// Fields with values within their bounds and beyond.
fn numbers() -> Vec<(&'static str, Value)> {
    vec![
        ("temperature", json!([0, 0.5, 3, -0.1, "x"])),
        ("top_p", json!([0, 0.5, 1, 1.1, true])),
        (
            "top_k",
            json!([-2, -1, 0, 40, 4_294_967_295u64, 4_294_967_296u64, 1.5]),
        ),
        ("min_p", json!([-0.1, 0, 1, 1.1])),
        ("repetition_penalty", json!([0, 0.1, 2])),
        ("presence_penalty", json!([-2.1, -2, 2, 2.1])),
        ("frequency_penalty", json!([-2.1, -2, 2, 2.1])),
        ("n", json!([0, 1, 8, 9])),
        ("logprobs", json!([-1, 0, 20, 21])),
        ("seed", json!([-1, 0, u64::MAX, 0.5])),
        ("deadline_ms", json!([0, 1, 604_800_000, 604_800_001])),
        (
            "priority",
            json!([-2_147_483_648i64, -1, 0, 2_147_483_647, 2_147_483_648i64]),
        ),
        (
            "stop",
            json!(["x", ["x", "y"], "", [""], 5, vec!["x"; 64], vec!["x"; 65]]),
        ),
        ("stop_token_ids", json!([[], [0], [-1], [99_999]])),
        ("logit_bias", json!([{}, { "5": 1.5 }, { "x": 1 }, { "5": "1" }])),
        ("model", json!(["storyteller", "org/alias", "gpt-9", 5])),
        (
            "speculation",
            json!(["off", "auto", "magic", { "max_tokens": 7 }, { "max_tokens": 8 }, 5]),
        ),
        ("prompt", json!(["x", ["x", [1]], [1, 2], [], [[]], [-1], 5])),
        ("suffix", json!(["", "x"])),
        ("use_beam_search", json!([false, true])),
        ("echo", json!([true, "yes"])),
        ("bad_words", json!([[], ["x"], [5], "x"])),
        ("min_tokens", json!([0, 1, -1])),
        ("max_tokens", json!([1, 1u64 << 40, -1, 1.5])),
    ]
}

/// The same of fields that say what form the text must have.
fn forms() -> Vec<(&'static str, Value)> {
    vec![
        (
            "response_format",
            json!([{ "type": "text" }, { "type": "json_object" }, { "type": "xml" }, {}, 5, "text"]),
        ),
        ("guided_regex", json!(["a+", "", 5])),
        ("guided_choice", json!([["a", "b"], [], [""], [5], "a"])),
        ("guided_json", json!([{}, { "type": "string" }, 5, []])),
        (
            "structured_outputs",
            json!([{}, { "regex": "a" }, { "choice": [] }, { "structural_tag": {} }, { "json": 5 }, 5]),
        ),
    ]
}

#[tokio::test]
async fn bounds_are_those_of_the_server() {
    let server = TestServer::start().await;
    let document = document(&server).await;
    let operation = &document["paths"]["/v1/completions"]["post"];
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    let validator = validator(&document, schema);
    let mut refused = 0;
    let rows = numbers().into_iter().chain(forms());
    for (field, values) in rows {
        for value in values.as_array().unwrap() {
            let mut body = json!({ "prompt": "Once", "max_tokens": 2 });
            body[field] = value.clone();
            let valid = validator.is_valid(&body);
            let (status, reply) = server.post("/v1/completions", &body).await;
            assert_eq!(status == 200, valid, "{field} {value} gave {reply}");
            if !valid {
                check(
                    &document,
                    reply_schema(&document, operation, status),
                    &reply,
                    field,
                );
                refused += 1;
            }
            body[field] = Value::Null;
            assert_eq!(validator.is_valid(&body), field != "prompt", "{field}");
        }
    }
    assert!(refused > 30);
}
