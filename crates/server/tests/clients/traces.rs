//! Spans of requests, as a collector gets them.

use crate::environment::{SCRIPTS, expect_success, python};
use crate::support::{MODEL, PATIENCE, TestServer, engine_config};
use axum::Router;
use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::routing::post;
use paceline_server::{Sampler, ServerConfig, TraceConfig};
use serde_json::{Value, json};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{self, Receiver};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// A collector on a port of its own, and what it is sent.
async fn collector() -> (String, Receiver<(HeaderMap, Bytes)>) {
    let (sent, received) = mpsc::channel(16);
    let take = move |headers: HeaderMap, body: Bytes| async move {
        let _ = sent.send((headers, body)).await;
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
    let router = Router::new().route("/v1/traces", post(take));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, received)
}

fn config(endpoint: String) -> ServerConfig {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    ServerConfig {
        traces: Some(TraceConfig {
            endpoint,
            headers: vec![pair("x-collector-key", "secret")],
            resource: vec![pair("service.name", "tales"), pair("zone", "a")],
            sampler: Sampler::default(),
            timeout: Duration::from_secs(5),
        }),
        ..ServerConfig::default()
    }
}

/// What OpenTelemetry's own messages make of a body.
fn parse(body: &Bytes) -> Vec<Value> {
    let mut child = Command::new(python())
        .args(["-B", &format!("{SCRIPTS}/otlp_spans.py")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(body).unwrap();
    let output = child.wait_with_output().unwrap();
    expect_success("the reader of spans", &output);
    let read: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(read["size"], body.len(), "all of it is known to OpenTelemetry");
    read["spans"].as_array().unwrap().clone()
}

/// Sends a request with these headers; what its reply calls its place in the trace.
async fn ask(server: &TestServer, headers: &[(&str, &str)], body: &Value) -> String {
    let mut request = server.client.post(format!("{}/v1/completions", server.base));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let reply = request.json(body).send().await.unwrap();
    let context = reply.headers()["traceparent"].to_str().unwrap().to_owned();
    reply.bytes().await.unwrap();
    context
}

/// The parts of a choice of 40 tokens follow each other and say what it took.
fn check_choice(parts: &[Value], request: &Value) {
    assert!(parts.iter().all(|part| part["parent"] == request["span_id"]));
    assert!(
        parts.windows(2).all(|pair| pair[0]["end"] == pair[1]["start"]),
        "{parts:?}"
    );
    let (prefill, decode) = (&parts[1]["attributes"], &parts[2]["attributes"]);
    assert_eq!(prefill["gen_ai.usage.input_tokens"], 4);
    assert_eq!(decode["gen_ai.usage.output_tokens"], 40);
    assert_eq!(decode["gen_ai.response.finish_reason"], "length");
    let count = |name: &str| {
        decode[format!("paceline.speculation.{name}").as_str()]
            .as_i64()
            .unwrap()
    };
    assert!(count("steps") > 0 && count("accepted_tokens") <= count("drafted_tokens"));
    assert_eq!(
        count("steps") + count("accepted_tokens"),
        39,
        "every token but the first: {decode}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_gets_the_spans_of_a_request_in_the_trace_that_it_came_with() {
    let (endpoint, mut received) = collector().await;
    let mut server = TestServer::with(config(endpoint), engine_config()).await;
    let body =
        json!({ "prompt": "Once upon a time", "max_tokens": 40, "ignore_eos": true, "seed": 1, "n": 2 });
    let unsampled = PARENT.replace("-01", "-00");
    let told = ask(&server, &[("traceparent", &unsampled)], &body).await;
    assert!(told.ends_with("-00"), "{told}");
    let headers = [
        ("traceparent", PARENT),
        ("tracestate", "a=1"),
        ("x-request-id", "tale-1"),
    ];
    let told = ask(&server, &headers, &body).await;
    server.drain();
    let (headers, sent) = tokio::time::timeout(PATIENCE, received.recv())
        .await
        .unwrap()
        .unwrap();
    assert!(server.ended().await.is_ok());
    assert_eq!(headers["content-type"], "application/x-protobuf");
    assert_eq!(headers["x-collector-key"], "secret");
    let spans = parse(&sent);
    let names: Vec<&str> = spans.iter().map(|span| span["name"].as_str().unwrap()).collect();
    let choice = ["queue", "prefill", "decode"];
    assert_eq!(
        names,
        [&["POST /v1/completions"], &choice[..], &choice[..]].concat()
    );
    let request = &spans[0];
    let (trace, parent) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    assert_eq!(
        (&request["parent"], &request["kind"]),
        (&json!(parent), &json!(2))
    );
    assert_eq!(
        told,
        format!("00-{trace}-{}-01", request["span_id"].as_str().unwrap())
    );
    assert_eq!(request["attributes"]["gen_ai.request.id"], "tale-1");
    assert_eq!(request["attributes"]["gen_ai.request.model"], MODEL);
    for span in &spans {
        assert_eq!(
            (&span["trace_id"], &span["state"]),
            (&json!(trace), &json!("a=1"))
        );
        assert_eq!(span["resource"], json!({ "service.name": "tales", "zone": "a" }));
        assert_eq!(span["error"], false);
        let within = |time: &str| {
            span[time].as_u64() >= request["start"].as_u64() && span[time].as_u64() <= request["end"].as_u64()
        };
        assert!(within("start") && within("end"), "{span} in {request}");
    }
    for parts in spans[1..].chunks(3) {
        check_choice(parts, request);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_not_there_holds_nothing_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    // It takes connections and never answers.
    let endpoint = format!("http://{}/v1/traces", listener.local_addr().unwrap());
    let mut server = TestServer::with(config(endpoint), engine_config()).await;
    let body = json!({ "prompt": "Once", "max_tokens": 2 });
    for _ in 0..20 {
        ask(&server, &[], &body).await;
    }
    assert_eq!(server.get("/v1/engine").await.1["traces"]["spans_lost"], 0);
    server.drain();
    assert!(server.ended().await.is_ok());
}

#[tokio::test]
async fn without_a_collector_there_are_no_traces() {
    let server = TestServer::start().await;
    let request = server.client.get(format!("{}/health", server.base));
    let reply = request.header("traceparent", PARENT).send().await.unwrap();
    assert!(!reply.headers().contains_key("traceparent"));
    assert_eq!(server.get("/v1/engine").await.1["traces"], Value::Null);
}
