//! How tokens came, as replies tell it: it agrees with the text, with the usage and with what was drafted.

use crate::support::{TestServer, engine_config, with};
use futures_util::future::join_all;
use paceline::{EngineConfig, SpeculationConfig};
use paceline_server::ServerConfig;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// An engine that drafts as much as it may.
fn eager() -> EngineConfig {
    EngineConfig {
        speculation: SpeculationConfig {
            depth_control: false,
            draft_tokens: Some(4),
            ..SpeculationConfig::default()
        },
        ..engine_config()
    }
}

async fn server() -> TestServer {
    TestServer::with(ServerConfig::default(), eager()).await
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// The steps of a choice, checked one by one.
fn steps(choice: &Value) -> Vec<Value> {
    let steps = choice["token_origins"].as_array().unwrap().clone();
    for step in &steps {
        let (accepted, drafted) = (number(&step["accepted"]), number(&step["drafted"]));
        let (tokens, rejected) = (list(&step["tokens"]), list(&step["rejected"]));
        assert_eq!(accepted + rejected.len() as u64, drafted, "{step}");
        assert_eq!(step["source"].is_null(), drafted == 0, "{step}");
        assert!(tokens.len() as u64 <= accepted + 1, "{step}");
        for (place, token) in tokens.iter().enumerate() {
            let origin = if (place as u64) < accepted {
                &step["source"]
            } else {
                &json!("sampled")
            };
            assert_eq!(&token["origin"], origin, "{step}");
        }
        // What was rejected is not what the model chose in its place.
        let sampled = tokens.get(accepted as usize);
        if let (Some(sampled), Some(first)) = (sampled, rejected.first()) {
            assert_ne!(sampled["id"], first["id"], "{step}");
        }
        assert!(rejected.iter().all(|token| token["text"].is_string()), "{step}");
    }
    steps
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list"))
}

/// All tokens of steps: their ids and their texts.
fn tokens(steps: &[Value]) -> (Vec<Value>, String) {
    let tokens = || steps.iter().flat_map(|step| list(&step["tokens"]));
    let text = tokens().map(|token| token["text"].as_str().unwrap());
    (
        tokens().map(|token| token["id"].clone()).collect(),
        text.collect(),
    )
}

/// Drafts of a kind that steps have accepted and rejected.
fn drafts(steps: &[Value], source: &str) -> (u64, u64) {
    let of = |field: &'static str| {
        let steps = steps.iter().filter(|step| step["source"] == source);
        steps.map(|step| number(&step[field])).sum::<u64>()
    };
    (of("accepted"), of("drafted") - of("accepted"))
}

/// The usage counts what the steps tell.
fn agree(steps: &[Value], usage: &Value) {
    let decodes: Vec<_> = steps.iter().filter(|step| step["kind"] == "decode").collect();
    let sum = |field: &str| decodes.iter().map(|step| number(&step[field])).sum::<u64>();
    let told = &usage["speculation"];
    let counted = json!([decodes.len(), sum("drafted"), sum("accepted")]);
    assert_eq!(
        json!([told["steps"], told["drafted"], told["accepted"]]),
        counted,
        "{usage}"
    );
}

/// Sends a request whole and as a stream; both tell the same steps, which are those of the first choice.
async fn both_ways(server: &TestServer, path: &str, body: &Value) -> (Vec<Value>, Value) {
    let body = with(
        body.clone(),
        json!({ "return_token_origins": true, "return_token_ids": true }),
    );
    let whole = server.ok(path, &body).await;
    let found = steps(&whole["choices"][0]);
    agree(&found, &whole["usage"]);
    let streamed = with(
        body,
        json!({ "stream": true, "stream_options": { "include_usage": true } }),
    );
    let chunks = server.chunks(path, &streamed).await;
    let pieces = chunks.iter().flat_map(|chunk| list(&chunk["choices"]));
    let again: Vec<Value> = pieces.flat_map(steps).collect();
    agree(&again, &chunks.last().unwrap()["usage"]);
    let (ids, text) = tokens(&found);
    assert_eq!((&ids, &text), (&tokens(&again).0, &tokens(&again).1));
    assert_eq!(json!(ids), whole["choices"][0]["token_ids"]);
    (found, whole)
}

#[tokio::test]
async fn origins_agree_with_text_and_usage_for_every_drafter() {
    let server = server().await;
    let again = "Tom had a red ball. He liked the red ball. Tom had a red ball. He liked";
    for (method, source) in [("ngram", "ngram"), ("mtp", "neural")] {
        let body = json!({ "prompt": again, "max_tokens": 70, "seed": 5, "temperature": 0.7,
            "ignore_eos": true, "speculation": method });
        let (found, whole) = both_ways(&server, TEXT, &body).await;
        let text = whole["choices"][0]["text"].as_str().unwrap();
        assert_eq!(tokens(&found).1, text);
        let (accepted, rejected) = drafts(&found, source);
        assert!(
            accepted > 0 && rejected > 0,
            "{method}: {accepted} accepted, {rejected} rejected"
        );
        assert_eq!(found[0]["kind"], "prefill");
        assert!(found[1..].iter().all(|step| step["kind"] == "decode"));
        // The same seed without drafts: the same text, every token sampled.
        let plain = with(body, json!({ "speculation": "off" }));
        let (sampled, without) = both_ways(&server, TEXT, &plain).await;
        assert_eq!(without["choices"][0]["text"], text);
        assert_eq!(sampled.len(), 70);
        assert!(sampled.iter().all(|step| step["source"].is_null()));
    }
}

#[tokio::test]
async fn what_a_grammar_forces_is_told_from_what_was_drafted() {
    let server = server().await;
    let schema = json!({ "type": "object", "additionalProperties": false,
        "properties": { "a_rather_long_name_of_a_field": { "type": "string" } },
        "required": ["a_rather_long_name_of_a_field"] });
    let body = json!({ "messages": [{ "role": "user", "content": "What is it?" }], "max_tokens": 60, "seed": 1,
        "response_format": { "type": "json_schema", "json_schema": { "name": "x", "schema": schema } } });
    let (found, whole) = both_ways(&server, CHAT, &body).await;
    let content = whole["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(tokens(&found).1, content);
    let (forced, refused) = drafts(&found, "grammar");
    assert!(forced > 3, "{forced} forced");
    assert_eq!(refused, 0, "what is forced is accepted");
    let plain = with(body, json!({ "speculation": "off" }));
    let reply = server.ok(CHAT, &plain).await;
    assert_eq!(reply["choices"][0]["message"]["content"], content);
}

#[tokio::test]
async fn steps_behind_a_stop_string_are_told_though_their_tokens_are_not() {
    let server = server().await;
    let body = json!({ "prompt": "Once upon a time", "max_tokens": 200, "seed": 3, "ignore_eos": true,
        "speculation": "mtp" });
    let free = server.ok(TEXT, &body).await;
    let text = free["choices"][0]["text"].as_str().unwrap();
    let stop = text.get(100..106).unwrap();
    let body = with(body, json!({ "stop": stop, "return_token_origins": true }));
    for _ in 0..4 {
        let reply = server.ok(TEXT, &body).await;
        let found = steps(&reply["choices"][0]);
        agree(&found, &reply["usage"]);
        assert_eq!(tokens(&found).1, reply["choices"][0]["text"].as_str().unwrap());
    }
}

#[tokio::test]
async fn several_choices_have_steps_of_their_own_and_one_usage() {
    let server = server().await;
    let body = json!({ "prompt": "Once upon a time", "max_tokens": 40, "seed": 9, "n": 3, "return_token_origins": true });
    let reply = server.ok(TEXT, &body).await;
    let mut all = Vec::new();
    for choice in list(&reply["choices"]) {
        let found = steps(choice);
        assert_eq!(tokens(&found).1, choice["text"].as_str().unwrap());
        all.extend(found);
    }
    agree(&all, &reply["usage"]);
}

#[tokio::test]
async fn origins_survive_preemption_and_are_told_only_where_asked() {
    let config = EngineConfig {
        num_blocks: Some(30),
        max_model_len: Some(256),
        ..eager()
    };
    let server = TestServer::with(ServerConfig::default(), config).await;
    let body = |seed: u64, origins: bool| {
        json!({ "prompt": format!("Number {seed} went"), "max_tokens": 200, "seed": seed, "ignore_eos": true,
            "return_token_origins": origins })
    };
    let bodies: Vec<Value> = (0..6).map(|seed| body(seed, seed % 2 == 0)).collect();
    let replies = join_all(bodies.iter().map(|body| server.ok(TEXT, body))).await;
    assert!(server.idle().await.counters.preemptions > 0);
    for (seed, reply) in replies.iter().enumerate() {
        let choice = &reply["choices"][0];
        if seed % 2 == 0 {
            let found = steps(choice);
            agree(&found, &reply["usage"]);
            assert_eq!(tokens(&found).1, choice["text"].as_str().unwrap());
        } else {
            assert!(choice.get("token_origins").is_none(), "{choice}");
        }
    }
}
