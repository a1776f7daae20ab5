//! What a request gets does not depend on what else is asked: a crowd on one server against the same requests one at
//! a time on another.

use crate::support::{PATIENCE, TestServer, frames};
use futures_util::StreamExt;
use serde_json::{Map, Value, json};

/// Requests at a time.
const CROWD: usize = 64;

const PROMPTS: [&str; 5] = [
    "Once upon a time",
    "The fox",
    "In a small house by the sea",
    "Tom had a red ball.",
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park with her",
];

/// A request of a kind by its number: endpoint and body.
fn request(number: usize) -> (&'static str, Value) {
    let prompt = PROMPTS[number % PROMPTS.len()];
    let said = json!([{ "role": "system", "content": "Be kind." }, { "role": "user", "content": prompt }]);
    let completion = |more| ("/v1/completions", json!({ "prompt": prompt }), more);
    let chat = |more| ("/v1/chat/completions", json!({ "messages": said }), more);
    let said_once = json!([{ "role": "user", "content": prompt }]);
    let message = |more| ("/v1/messages", json!({ "messages": said_once }), more);
    let (path, mut body, more) = match number % 21 {
        0 => completion(json!({ "temperature": 0 })),
        1 => completion(json!({ "temperature": 1.2, "top_p": 0.9, "stream": true })),
        2 => completion(json!({ "n": 2, "presence_penalty": 0.5, "stream": number.is_multiple_of(3) })),
        3 => completion(json!({ "stop": ["the", " a "], "logprobs": 3 })),
        4 => completion(json!({ "speculation": "off", "top_k": 20 })),
        5 => {
            completion(json!({ "logit_bias": { "50": 2.0 }, "min_tokens": 10, "echo": true, "logprobs": 1 }))
        }
        6 => completion(
            json!({ "prompt": [[443, 441, 261, 393], [443, 441, 261]], "repetition_penalty": 1.3 }),
        ),
        7 => completion(json!({ "prompt": [443, 441, 261, 393], "min_p": 0.1, "bad_words": ["little"] })),
        8 => chat(json!({ "temperature": 0, "stream": true })),
        9 => chat(json!({ "logprobs": true, "top_logprobs": 2, "frequency_penalty": 0.7 })),
        10 => chat(json!({ "n": 3, "stop": "and", "stream": true })),
        11 => chat(json!({ "tools": tools(), "tool_choice": "auto", "speculation": "ngram" })),
        12 => chat(json!({ "logprobs": true, "top_logprobs": 5, "stream": true, "ignore_eos": true })),
        13 => (
            "/v1/responses",
            json!({ "input": said }),
            json!({ "max_output_tokens": 30 }),
        ),
        14 => (
            "/v1/responses",
            json!({ "input": prompt }),
            json!({ "stream": true, "temperature": 0.7 }),
        ),
        15 => message(json!({ "stop_sequences": ["the"], "temperature": 0.9 })),
        16 => chat(json!({ "response_format": format(), "logprobs": true, "n": 2 })),
        17 => {
            completion(json!({ "structured_outputs": { "regex": "[A-Z][a-z ]{5,40}\\." }, "stream": true }))
        }
        18 => chat(json!({ "tools": tools(), "tool_choice": "required", "temperature": 0 })),
        19 => chat(
            json!({ "response_format": { "type": "json_object" }, "speculation": "off", "stream": true }),
        ),
        _ => message(json!({
            "tools": [{ "name": "weather", "input_schema": parameters() }],
            "tool_choice": { "type": "any" },
        })),
    };
    extend(
        &mut body,
        json!({ "max_tokens": 20 + number % 40, "seed": number, "return_token_ids": true }),
    );
    extend(&mut body, more);
    (path, body)
}

fn parameters() -> Value {
    json!({
        "type": "object",
        "properties": { "city": { "enum": ["Rome", "Oslo"] }, "days": { "type": "integer" } },
        "required": ["city"],
        "additionalProperties": false,
    })
}

pub(crate) fn tools() -> Value {
    json!([{ "type": "function", "function": { "name": "weather", "parameters": parameters() } }])
}

pub(crate) fn format() -> Value {
    json!({ "type": "json_schema", "json_schema": { "name": "weather", "schema": parameters() } })
}

pub(crate) fn extend(body: &mut Value, more: Value) {
    if let (Value::Object(body), Value::Object(more)) = (body, more) {
        body.extend(more);
    }
}

/// A reply without what is different by intention: names that are made up, times, and what drafts did.
fn gist(text: &str) -> Value {
    if let Ok(reply) = serde_json::from_str::<Value>(text) {
        let parts = [
            "choices",
            "output",
            "content",
            "stop_reason",
            "stop_sequence",
            "status",
            "error",
        ];
        let parts = parts.iter().map(|part| (part.to_string(), reply[*part].clone()));
        let mut gist = Value::Object(parts.collect());
        strip_names(&mut gist);
        return gist;
    }
    joined(text)
}

/// The frames of a stream as one object: texts and lists grow, the last of other values counts. How a text is cut into
/// frames depends on the time.
pub(crate) fn joined(text: &str) -> Value {
    let mut whole = Map::new();
    for frame in frames(text).iter().filter(|frame| *frame != "[DONE]") {
        let frame: Value = serde_json::from_str(frame).unwrap();
        assert!(frame["error"].is_null(), "{frame}");
        for choice in frame["choices"].as_array().into_iter().flatten() {
            let place = whole
                .entry(choice["index"].to_string())
                .or_insert_with(|| json!({}));
            join(place, choice);
        }
        if frame["type"] == "response.output_text.delta" {
            join(whole.entry("text").or_insert_with(|| json!("")), &frame["delta"]);
        }
        if !frame["response"].is_null() {
            whole.insert("status".to_owned(), frame["response"]["status"].clone());
        }
    }
    let mut whole = Value::Object(whole);
    strip_names(&mut whole);
    whole
}

pub(crate) fn join(place: &mut Value, more: &Value) {
    match (place, more) {
        (Value::Object(place), Value::Object(more)) => {
            for (name, value) in more {
                match place.get_mut(name) {
                    Some(known) if name != "role" => join(known, value),
                    _ => drop(place.insert(name.clone(), value.clone())),
                }
            }
        }
        (Value::Array(place), Value::Array(more)) => place.extend(more.clone()),
        (Value::String(place), Value::String(more)) => place.push_str(more),
        (_, Value::Null) => {}
        (place, more) => *place = more.clone(),
    }
}

pub(crate) fn strip_names(value: &mut Value) {
    match value {
        Value::Object(entries) => {
            entries.retain(|name, _| name != "id" && name != "call_id");
            entries.values_mut().for_each(strip_names);
        }
        Value::Array(entries) => entries.iter_mut().for_each(strip_names),
        _ => {}
    }
}

async fn ask(request: reqwest::RequestBuilder) -> Value {
    let reply = async {
        let response = request.send().await.unwrap();
        let status = response.status();
        let text = response.text().await.unwrap();
        assert_eq!(status, 200, "{text}");
        gist(&text)
    };
    tokio::time::timeout(PATIENCE, reply).await.unwrap()
}

/// Clients that leave: at once, or after some part of a stream.
async fn come_and_go(client: reqwest::Client, base: String, number: usize) {
    let (path, mut body) = request(number);
    extend(
        &mut body,
        json!({ "stream": true, "max_tokens": 400, "ignore_eos": true }),
    );
    let sent = client.post(format!("{base}{path}")).json(&body).send().await;
    let mut parts = sent.unwrap().bytes_stream();
    for _ in 0..number % 7 {
        if parts.next().await.is_none() {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_gets_what_each_of_it_gets_alone() {
    let server = TestServer::start().await;
    let (mut tasks, mut guests) = (Vec::new(), Vec::new());
    for number in 0..CROWD {
        let (path, body) = request(number);
        let request = server.client.post(format!("{}{path}", server.base)).json(&body);
        tasks.push(tokio::spawn(ask(request)));
        if number.is_multiple_of(3) {
            let guest = come_and_go(server.client.clone(), server.base.clone(), number);
            guests.push(tokio::spawn(guest));
        }
    }
    let mut together = Vec::new();
    for task in tasks {
        together.push(task.await.unwrap());
    }
    for guest in guests {
        guest.await.unwrap();
    }
    let stats = server.idle().await;
    assert_eq!(stats.blocks_used, 0, "blocks are left over");
    let server = TestServer::start().await;
    for (number, together) in together.into_iter().enumerate() {
        let (path, body) = request(number);
        let request = server.client.post(format!("{}{path}", server.base)).json(&body);
        assert_eq!(ask(request).await, together, "{number}: {path} {body}");
    }
}
