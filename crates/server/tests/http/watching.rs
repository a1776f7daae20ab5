//! Those who look at the engine: its steps, its gauges, its requests.

use crate::support::{PATIENCE, TestServer, engine_config, frames};
use paceline::EngineConfig;
use paceline_server::ServerConfig;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const EVENTS: &str = "/v1/engine/events";
const REQUESTS: &str = "/v1/engine/requests";

fn story(tokens: usize) -> Value {
    json!({ "prompt": "Once upon a time", "max_tokens": tokens, "ignore_eos": true, "seed": 4 })
}

/// A viewer, and what it has read.
struct Viewer {
    response: reqwest::Response,
    text: String,
    read: usize,
}

impl Viewer {
    async fn open(server: &TestServer) -> Self {
        let response = server
            .client
            .get(format!("{}{EVENTS}", server.base))
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), 200);
        let (text, read) = (String::new(), 0);
        Self { response, text, read }
    }

    /// The next event: its name and data. `None` at the end.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some(end) = self.text[self.read..].find("\n\n") {
                let frame = &self.text[self.read..self.read + end];
                self.read += end + 2;
                let (name, data) = frame.split_once('\n').unwrap();
                let name = name.strip_prefix("event: ").unwrap().to_owned();
                return Some((
                    name,
                    serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap(),
                ));
            }
            let chunk = tokio::time::timeout(PATIENCE, self.response.chunk())
                .await
                .unwrap();
            self.text.push_str(std::str::from_utf8(&chunk.unwrap()?).unwrap());
        }
    }

    /// The next event of a name.
    async fn named(&mut self, name: &str) -> Value {
        loop {
            let (found, data) = self.next().await.expect("the stream goes on");
            if found == name {
                return data;
            }
        }
    }

    /// Steps until there are so many.
    async fn steps(&mut self, count: usize) -> Vec<Value> {
        let mut steps = Vec::new();
        while steps.len() < count {
            let event = self.named("steps").await;
            assert_eq!(event["lost"], 0);
            steps.extend(event["steps"].as_array().unwrap().iter().cloned());
        }
        steps
    }
}

fn span(step: &Value, name: &str) -> (u64, u64) {
    let time = |place: usize| step[name][place].as_u64().unwrap();
    assert!(time(0) <= time(1), "{name} of {step}");
    (time(0), time(1))
}

/// Steps the device has done.
fn done(server: &TestServer) -> u64 {
    server.engine.stats().pipeline.steps
}

#[tokio::test]
async fn steps_follow_each_other_and_tell_what_the_requests_were_told() {
    let server = TestServer::start().await;
    let mut viewer = Viewer::open(&server).await;
    let hello = viewer.named("hello").await;
    assert_eq!(
        (&hello["pipeline_depth"], &hello["history"]),
        (&json!(2), &json!(512))
    );
    assert_eq!(viewer.named("steps").await["steps"], json!([]));
    let reply = server.ok("/v1/completions", &story(60)).await;
    server.idle().await;
    let steps = viewer.steps(done(&server) as usize).await;
    let numbers: Vec<u64> = steps.iter().map(|step| step["step"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=done(&server)).collect::<Vec<_>>());
    let mut last: Option<&Value> = None;
    for step in &steps {
        let order = ["plan", "submit", "wait", "collect", "emit"].map(|name| span(step, name));
        assert!(order.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{step}");
        let device = span(step, "device");
        assert!(order[0].0 <= device.0 && device.1 <= order[2].1, "{step}");
        if let Some(last) = last {
            assert!(span(last, "plan").1 <= order[0].0, "{last} {step}");
            assert!(span(last, "device").1 <= device.0, "{last} {step}");
            let idle = step["idle_ns"].as_u64();
            assert!(
                idle.is_none_or(|idle| idle == device.0 - span(last, "device").1),
                "{last} {step}"
            );
        }
        let places = step["accepted_by_position"].as_array().unwrap();
        let accepted: u64 = places.iter().map(|count| count.as_u64().unwrap()).sum();
        assert_eq!(Some(accepted), step["accepted"].as_u64(), "{step}");
        last = Some(step);
    }
    let sum = |name: &str| steps.iter().map(|step| step[name].as_u64().unwrap()).sum::<u64>();
    assert_eq!(json!(sum("prompt_tokens")), reply["usage"]["prompt_tokens"]);
    assert_eq!(json!(sum("drafted")), reply["usage"]["speculation"]["drafted"]);
    assert_eq!(json!(sum("accepted")), reply["usage"]["speculation"]["accepted"]);
    assert!(steps.iter().any(|step| step["idle_ns"].is_u64()));
}

#[tokio::test]
async fn gauges_are_of_the_time_since_the_last() {
    let server = TestServer::start().await;
    let mut viewer = Viewer::open(&server).await;
    let before = viewer.named("gauges").await;
    assert_eq!(
        (&before["tokens_per_second"], &before["time_to_first_token_ms"]),
        (&json!(0.0), &Value::Null)
    );
    let reply = server.ok("/v1/completions", &story(60)).await;
    // The sum over all of them is what was generated; the request may have spanned several.
    let (mut tokens, mut requests, mut first, mut drafted) = (0.0, 0.0, None, 0);
    while requests < 0.5 {
        let gauges = viewer.named("gauges").await;
        let seconds = gauges["interval_ms"].as_f64().unwrap() / 1e3;
        tokens += gauges["tokens_per_second"].as_f64().unwrap() * seconds;
        requests += gauges["requests_per_second"].as_f64().unwrap() * seconds;
        first = first.or(gauges["time_to_first_token_ms"].as_f64());
        drafted += gauges["drafts"]["drafted"].as_u64().unwrap();
        let used = &gauges["blocks"];
        assert!(used["used"].as_u64() <= used["total"].as_u64(), "{gauges}");
        assert_eq!((&gauges["slots"], &gauges["waiting"]), (&json!(8), &json!(0)));
    }
    assert_eq!((tokens.round(), requests.round()), (60.0, 1.0));
    assert!(first.unwrap() > 0.0);
    assert_eq!(json!(drafted), reply["usage"]["speculation"]["drafted"]);
}

/// Names of the spans of a trace on its two tracks.
async fn traced(server: &TestServer, path: &str) -> Vec<(u64, String)> {
    let (status, trace) = server.get(path).await;
    assert_eq!(status, 200, "{trace}");
    let spans = trace["traceEvents"].as_array().unwrap().iter();
    let spans = spans.filter(|event| event["ph"] == "X");
    let named = |event: &Value| {
        (
            event["tid"].as_u64().unwrap(),
            event["name"].as_str().unwrap().to_owned(),
        )
    };
    spans.map(named).collect()
}

#[tokio::test]
async fn steps_are_recorded_while_somebody_looks_and_kept_for_the_next() {
    let server = TestServer::start().await;
    server.ok("/v1/completions", &story(30)).await;
    let before = done(&server);
    assert!(before > 0 && traced(&server, "/v1/engine/trace").await.is_empty());
    let mut first = Viewer::open(&server).await;
    assert_eq!(first.named("steps").await["steps"], json!([]));
    server.ok("/v1/completions", &story(30)).await;
    server.idle().await;
    let seen = first.steps((done(&server) - before) as usize).await;
    drop(first);
    let mut second = Viewer::open(&server).await;
    assert_eq!(second.named("steps").await["steps"], json!(seen));
    let spans = traced(&server, "/v1/engine/trace").await;
    for (track, name) in [
        (1, "plan"),
        (1, "submit"),
        (1, "wait"),
        (1, "collect"),
        (1, "emit"),
    ] {
        let count = spans
            .iter()
            .filter(|span| **span == (track, name.to_owned()))
            .count();
        assert_eq!(count, seen.len(), "{name}");
    }
    let device = spans
        .iter()
        .filter(|(track, name)| *track == 2 && name.starts_with("step "));
    assert_eq!(device.count(), seen.len());
}

#[tokio::test]
async fn a_trace_can_be_recorded_with_one_request() {
    let server = TestServer::start().await;
    let trace = traced(&server, "/v1/engine/trace?seconds=0.5");
    let (trace, _) = tokio::join!(trace, async {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        server.ok("/v1/completions", &story(30)).await
    });
    assert!(trace.iter().any(|(_, name)| name == "plan"), "{trace:?}");
    for seconds in ["-1", "x", "61", "1e999", "NaN"] {
        let (status, reply) = server.get(&format!("/v1/engine/trace?seconds={seconds}")).await;
        assert_eq!(
            (status, &reply["error"]["param"]),
            (400, &json!("seconds")),
            "{seconds}"
        );
    }
}

#[tokio::test]
async fn a_viewer_that_never_reads_holds_nothing_up() {
    let server = TestServer::start().await;
    let mut silent = TcpStream::connect(server.address()).await.unwrap();
    let head = format!("GET {EVENTS} HTTP/1.1\r\nhost: x\r\n\r\n");
    silent.write_all(head.as_bytes()).await.unwrap();
    // More steps than are kept for a viewer.
    let body = json!({ "prompt": "Once", "max_tokens": 400, "ignore_eos": true, "speculation": "off" });
    while done(&server) < 1200 {
        let reply = server.ok("/v1/completions", &body).await;
        assert_eq!(reply["usage"]["completion_tokens"], 400);
    }
    // The last step of a request may end behind its reply.
    let before = done(&server);
    let mut viewer = Viewer::open(&server).await;
    let kept = viewer.named("steps").await;
    let (first, count) = (
        kept["steps"][0]["step"].as_u64().unwrap(),
        kept["steps"].as_array().unwrap().len(),
    );
    let newest = before..=done(&server);
    assert!(
        count == 512 && newest.contains(&(first + 511)),
        "{count} steps from {first} on, of {newest:?}"
    );
    drop(silent);
}

#[tokio::test]
async fn viewers_are_let_go_when_the_server_goes_down() {
    let mut server = TestServer::start().await;
    let mut viewer = Viewer::open(&server).await;
    viewer.named("hello").await;
    server.drain();
    while viewer.next().await.is_some() {}
    assert!(server.ended().await.is_ok());
}

/// Starts a stream with a name, and waits for the first of it.
async fn start(server: &TestServer, (id, key): (&str, &str), tokens: usize) -> reqwest::Response {
    let body =
        json!({ "prompt": "Once upon a time", "max_tokens": tokens, "ignore_eos": true, "stream": true });
    let request = server.client.post(format!("{}/v1/completions", server.base));
    let request = request.header("x-request-id", id).bearer_auth(key).json(&body);
    let mut response = request.send().await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["x-request-id"]),
        (200, &id.parse().unwrap())
    );
    assert!(response.chunk().await.unwrap().is_some());
    response
}

async fn call(server: &TestServer, method: reqwest::Method, path: &str, key: &str) -> (u16, Value) {
    let request = server
        .client
        .request(method, format!("{}{path}", server.base))
        .bearer_auth(key);
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

async fn listed(server: &TestServer, key: &str) -> Value {
    let (status, list) = call(server, reqwest::Method::GET, REQUESTS, key).await;
    assert_eq!(status, 200, "{list}");
    list
}

async fn cancel(server: &TestServer, id: &str, key: &str) -> (u16, Value) {
    call(server, reqwest::Method::DELETE, &format!("{REQUESTS}/{id}"), key).await
}

/// An engine that takes its time with long texts.
fn long_texts() -> EngineConfig {
    EngineConfig {
        max_model_len: Some(4096),
        num_blocks: Some(2048),
        ..engine_config()
    }
}

#[tokio::test]
async fn a_request_that_is_cancelled_ends_with_what_it_has_and_frees_its_slot() {
    let server = TestServer::with(ServerConfig::default(), long_texts()).await;
    let stream = start(&server, ("the/first", "none"), 4000).await;
    let list = listed(&server, "none").await;
    let found = &list["requests"][0];
    assert_eq!(
        (
            list["requests"].as_array().unwrap().len(),
            &list["others"]["running"]
        ),
        (1, &json!(0))
    );
    assert_eq!(
        (&found["id"], &found["path"]),
        (&json!("the/first"), &json!("/v1/completions"))
    );
    assert_eq!(
        (&found["state"], &found["max_tokens"]),
        (&json!("running"), &json!(4000))
    );
    assert_eq!(found["prompt_tokens"], found["prompt_tokens_done"]);
    let generated = found["generated_tokens"].as_u64().unwrap();
    assert!(
        (1..4000).contains(&generated) && found["first_token_ms"].as_f64().unwrap() > 0.0,
        "{found}"
    );
    assert_eq!(
        cancel(&server, "the", "none").await.1["error"]["code"],
        "request_not_found"
    );
    let (status, reply) = cancel(&server, "the/first", "none").await;
    assert_eq!(
        (status, reply),
        (200, json!({ "id": "the/first", "cancelled": 1 }))
    );
    let text = tokio::time::timeout(PATIENCE, stream.text())
        .await
        .unwrap()
        .unwrap();
    let frames = frames(&text);
    let last: Value = serde_json::from_str(&frames[frames.len() - 2]).unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "abort");
    let stats = server.idle().await;
    assert!(stats.tokens < 4000 && stats.blocks_used < stats.blocks);
    assert_eq!(listed(&server, "none").await["requests"], json!([]));
    assert_eq!(cancel(&server, "the/first", "none").await.0, 404);
}

#[tokio::test]
async fn tenants_neither_see_nor_cancel_requests_of_others() {
    let config = ServerConfig {
        api_keys: vec!["alpha".to_owned(), "beta".to_owned()],
        ..ServerConfig::default()
    };
    let server = TestServer::with(config, long_texts()).await;
    let stream = start(&server, ("mine", "alpha"), 4000).await;
    let others = listed(&server, "beta").await;
    assert_eq!(
        others,
        json!({ "requests": [], "others": { "running": 1, "waiting": 0 } })
    );
    assert_eq!(cancel(&server, "mine", "beta").await.0, 404);
    let own = listed(&server, "alpha").await;
    assert_eq!(
        (&own["requests"][0]["id"], &own["others"]["running"]),
        (&json!("mine"), &json!(0))
    );
    assert_eq!(cancel(&server, "mine", "nobody").await.0, 401);
    assert_eq!(cancel(&server, "mine", "alpha").await.0, 200);
    assert!(
        tokio::time::timeout(PATIENCE, stream.text())
            .await
            .unwrap()
            .unwrap()
            .contains("abort")
    );
}

#[tokio::test]
async fn a_request_that_waits_for_a_slot_is_listed_and_can_be_cancelled() {
    let config = EngineConfig {
        max_num_seqs: 1,
        ..long_texts()
    };
    let server = TestServer::with(ServerConfig::default(), config).await;
    let stream = start(&server, ("runs", "none"), 4000).await;
    let waits = server.client.post(format!("{}/v1/completions", server.base));
    let waits = waits.header("x-request-id", "waits").json(&story(10)).send();
    let waits = tokio::spawn(waits);
    let found = loop {
        let list = listed(&server, "none").await;
        if let Some(found) = list["requests"].get(1) {
            break found.clone();
        }
    };
    assert_eq!(
        (&found["id"], &found["state"], &found["generated_tokens"]),
        (&json!("waits"), &json!("waiting"), &json!(0))
    );
    assert_eq!(
        (&found["first_token_ms"], &found["prompt_tokens_done"]),
        (&Value::Null, &json!(0))
    );
    assert_eq!(cancel(&server, "waits", "none").await.0, 200);
    let reply: Value = waits.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!(
        (
            &reply["choices"][0]["finish_reason"],
            &reply["usage"]["completion_tokens"]
        ),
        (&json!("abort"), &json!(0))
    );
    assert_eq!(cancel(&server, "runs", "none").await.0, 200);
    assert!(stream.text().await.unwrap().contains("abort"));
    server.idle().await;
}

#[tokio::test]
async fn streams_of_other_interfaces_end_as_theirs_do_when_they_are_cancelled() {
    let server = TestServer::with(ServerConfig::default(), long_texts()).await;
    let talk = json!([{ "role": "user", "content": "Tell me about a fox." }]);
    for (path, body, end) in [
        (
            "/v1/messages",
            json!({ "messages": talk, "max_tokens": 4000, "ignore_eos": true, "stream": true }),
            "event: message_stop",
        ),
        (
            "/v1/responses",
            json!({ "input": "Tell me about a fox.", "max_output_tokens": 4000, "ignore_eos": true, "stream": true }),
            "event: response.incomplete",
        ),
        (
            "/api/chat",
            json!({ "model": "storyteller", "messages": talk, "options": { "ignore_eos": true, "num_predict": 4000 } }),
            "\"done_reason\":\"cancelled\"",
        ),
    ] {
        let request = server.client.post(format!("{}{path}", server.base));
        let request = request.header("x-request-id", "one").json(&body);
        let mut stream = request.send().await.unwrap();
        assert!(stream.chunk().await.unwrap().is_some(), "{path}");
        assert_eq!(cancel(&server, "one", "none").await.0, 200, "{path}");
        let text = tokio::time::timeout(PATIENCE, stream.text())
            .await
            .unwrap()
            .unwrap();
        assert!(
            text.contains(end),
            "{path} ends with {}",
            &text[text.len().saturating_sub(400)..]
        );
    }
    server.idle().await;
}
