//! Fuzzing of the request types: valid bodies of every endpoint, changed in a few places. Whatever comes of it, the
//! answer is a reply or a refusal with a reason; never a fault, and the server goes on.
//!
//! A failure prints the seed that repeats it. To go on for longer, set `PACELINE_TEST_LONG`, or run the target under a
//! coverage-guided engine:
//!
//! ```text
//! cargo install cargo-bolero && cargo bolero test -p paceline-server --test http fuzz::changed_requests
//! ```

use crate::support::{PATIENCE, TestServer, engine_config, frames};
use bolero::check;
use paceline::EngineConfig;
use paceline_server::ServerConfig;
use serde_json::{Map, Value, json};
use std::env;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One change: where, what kind, and with what.
type Mutation = (u16, u8, u32);

/// Which body, how many changes to make to it, which, and one to its text.
type Input = (u8, u8, [Mutation; 4], Mutation);

/// Bodies that are accepted, with nearly every field that their endpoint knows.
fn bodies() -> Vec<(String, Value)> {
    let bodies: Vec<Value> = serde_json::from_str(include_str!("fuzz_bodies.json")).unwrap();
    let split = |mut entry: Value| (entry["path"].as_str().unwrap().to_owned(), entry["body"].take());
    bodies.into_iter().map(split).collect()
}

/// Every value of a body has a number: its own, then those in it.
fn nth<'a>(value: &'a mut Value, number: &mut usize) -> Option<&'a mut Value> {
    if *number == 0 {
        return Some(value);
    }
    *number -= 1;
    match value {
        Value::Array(entries) => entries.iter_mut().find_map(|entry| nth(entry, number)),
        Value::Object(entries) => entries.values_mut().find_map(|entry| nth(entry, number)),
        _ => None,
    }
}

fn count(value: &Value) -> usize {
    match value {
        Value::Array(entries) => 1 + entries.iter().map(count).sum::<usize>(),
        Value::Object(entries) => 1 + entries.values().map(count).sum::<usize>(),
        _ => 1,
    }
}

/// Values that readers get wrong.
fn nasty(with: u32) -> Value {
    let values = [
        Value::Null,
        json!(true),
        json!(0),
        json!(-1),
        json!(1),
        json!(0.5),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(u64::from(u32::MAX) + 1),
        json!(1e308),
        json!(-1e-308),
        json!(1e39),
        json!(""),
        json!("\0"),
        json!("\u{feff}\u{202e}\u{10ffff}"),
        json!("<|im_start|>{{ x }}{% for %}</think><tool_call>"),
        json!("auto"),
        json!("required"),
        json!([]),
        json!({}),
        json!([[]]),
        json!({ "": {} }),
        json!({ "type": "object" }),
        json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": { "$ref": "#" } } }),
        json!({ "type": "function", "function": { "name": "weather" } }),
        json!({ "type": "any" }),
        json!({ "type": "image_url", "image_url": { "url": "x" } }),
    ];
    values[with as usize % values.len()].clone()
}

fn nested(depth: u32, object: bool) -> Value {
    (0..depth).fold(json!(1), |inner, _| {
        if object {
            json!({ "type": inner })
        } else {
            json!([inner])
        }
    })
}

/// Makes one change to a body.
fn mutate(body: &mut Value, (at, kind, with): Mutation) {
    let other = nth(&mut body.clone(), &mut (with as usize % count(body))).cloned();
    let known: Vec<String> = body
        .as_object()
        .into_iter()
        .flat_map(Map::keys)
        .cloned()
        .collect();
    let mut number = usize::from(at) % count(body);
    let Some(place) = nth(body, &mut number) else {
        return;
    };
    match kind % 16 {
        0..6 => *place = nasty(with),
        6 => *place = json!([place.take()]),
        7 => *place = json!({ "value": place.take() }),
        8 => *place = json!(place.to_string()),
        9 => *place = nested(with % 160, with.is_multiple_of(2)),
        10 => *place = json!("long ".repeat(with as usize % 20_000)),
        11 => *place = json!(vec![nasty(with / 2000); with as usize % 2000]),
        12 => *place = other.unwrap_or_default(),
        _ => match place {
            Value::Object(entries) => {
                let name = known.get(with as usize % known.len().max(1));
                if kind.is_multiple_of(2) {
                    entries.insert(name.cloned().unwrap_or_default(), nasty(with / 100));
                } else if let Some(key) = entries.keys().nth(with as usize % entries.len().max(1)).cloned() {
                    entries.remove(&key);
                }
            }
            Value::Array(entries) => entries.push(other.unwrap_or_default()),
            Value::Number(number) => *place = json!(number.as_f64().unwrap_or(0.0) * f64::from(with)),
            other => *other = nasty(with),
        },
    }
}

/// Makes one change to the text of a body, or none.
fn damage(text: &mut Vec<u8>, (at, kind, with): Mutation) {
    let at = usize::from(at) % text.len();
    match kind % 24 {
        0 => text.truncate(at),
        1 => text[at] = with as u8,
        2 => text[at] ^= 1 << (with % 8),
        3 => drop(text.splice(at..at, [0xff, 0xc3])),
        4 => drop(text.splice(at..at, *b"\\ud800")),
        5 => drop(text.splice(at..at, [b'['].repeat(with as usize % 100_000))),
        6 => drop(text.splice(at..at, *b"1e999")),
        7 => drop(text.drain(at..text.len().min(at + with as usize % 16))),
        _ => {}
    }
}

/// What came of one request: whether it was accepted. Panics if the answer is none.
async fn check_answer(server: &TestServer, path: &str, text: Vec<u8>) -> bool {
    let shown = String::from_utf8_lossy(&text[..text.len().min(2000)]).into_owned();
    let request = server.client.post(format!("{}{path}", server.base)).body(text);
    let answer = async {
        let response = request.send().await.unwrap();
        let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
        (response.status().as_u16(), kind, response.text().await.unwrap())
    };
    let (status, kind, reply) = tokio::time::timeout(PATIENCE, answer)
        .await
        .unwrap_or_else(|_| panic!("{path} {shown} has no answer"));
    let place = format!("{path} {shown} gave {status} {reply}");
    if status == 200 && kind.starts_with("text/event-stream") {
        for frame in frames(&reply).iter().filter(|frame| *frame != "[DONE]") {
            let frame: Value = serde_json::from_str(frame).unwrap();
            let failed = [&frame["error"], &frame["response"]["error"]];
            assert!(failed.iter().all(|error| error.is_null()), "{place}");
        }
        return true;
    }
    let reply: Value = serde_json::from_str(&reply).unwrap_or_else(|_| panic!("no JSON: {place}"));
    if status == 200 {
        assert!(reply.get("error").is_none_or(Value::is_null), "{place}");
        return true;
    }
    assert!([400, 404, 413].contains(&status), "{place}");
    let message = reply["error"]["message"].as_str().unwrap_or_default();
    assert!(!message.is_empty() && message.len() < 5000, "{place}");
    false
}

#[test]
fn changed_requests() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let engine = EngineConfig {
        max_model_len: Some(192),
        ..engine_config()
    };
    let server = runtime.block_on(TestServer::with(ServerConfig::default(), engine));
    let bodies = bodies();
    for (path, body) in &bodies {
        let accepted = runtime.block_on(check_answer(&server, path, body.to_string().into_bytes()));
        assert!(accepted, "{path} {body}");
    }
    let (accepted, all) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let iterations = if env::var_os("PACELINE_TEST_LONG").is_some() {
        100_000
    } else {
        3000
    };
    let test = AssertUnwindSafe(|(which, changes, mutations, last): &Input| {
        let (path, body) = &bodies[usize::from(*which) % bodies.len()];
        let mut body = body.clone();
        for mutation in &mutations[..[1, 1, 2, 4][usize::from(changes % 4)]] {
            mutate(&mut body, *mutation);
        }
        let mut text = body.to_string().into_bytes();
        damage(&mut text, *last);
        let ok = runtime.block_on(check_answer(&server, path, text));
        all.fetch_add(1, Ordering::Relaxed);
        accepted.fetch_add(usize::from(ok), Ordering::Relaxed);
    });
    check!()
        .with_type::<Input>()
        .with_iterations(iterations)
        .for_each(|input| (*test)(input));
    let (accepted, all) = (accepted.into_inner(), all.into_inner());
    println!("{accepted} of {all} requests were accepted");
    assert!(
        accepted * 20 > all && (all - accepted) * 20 > all,
        "{accepted} of {all}"
    );
    runtime.block_on(async {
        server.idle().await;
        assert_eq!(server.get("/health").await.0, 200);
    });
}
