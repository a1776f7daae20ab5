//! What clients see of an engine that fails.

use crate::support::{PATIENCE, TestServer, engine_config};
use paceline::faults::Fault;
use paceline::{Device, EngineConfig, EngineParts, Request};
use paceline_device::Checked;
use paceline_device_cpu::{Cpu, CpuOptions};
use paceline_server::{ServeError, ServerConfig};
use paceline_testkit::storyteller;
use paceline_types::SamplingParams;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Short steps, so that everybody runs in the one that fails.
fn short_steps() -> EngineConfig {
    EngineConfig {
        max_num_batched_tokens: 64,
        ..engine_config()
    }
}

/// A server whose engine fails with a step.
async fn failing(fault: Fault, step: u64, config: ServerConfig) -> TestServer {
    let short = short_steps();
    let device = Device::open(&short).unwrap();
    let loaded = device.load(&storyteller(), short, &|_| {}).unwrap();
    let engine = loaded.start_failing(fault, step);
    TestServer::of(config, engine.unwrap(), |_| {}).await
}

/// A server whose device is lost with a step.
async fn losing(step: u64) -> TestServer {
    let device = Checked::new(Cpu::new(CpuOptions::default()));
    device.lose_after(step - 1);
    let parts = EngineParts::load(device, &storyteller(), short_steps(), &|_| {}).unwrap();
    let engine = parts.start_around(|runner| runner).unwrap();
    TestServer::of(ServerConfig::default(), engine, |_| {}).await
}

/// Sends a request and returns status and text, all of it.
async fn ask(server: &TestServer, path: &str, body: Value) -> (u16, String) {
    let response = server.send(path, &body).await;
    let status = response.status().as_u16();
    let text = tokio::time::timeout(PATIENCE, response.text()).await.unwrap();
    (status, text.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_reply_ends_with_the_cause_and_the_server_with_an_error() {
    for (fault, cause) in [
        (
            Fault::Panic,
            "its thread panicked: a fault was injected in step 30",
        ),
        (Fault::Submit, "the device failed: a fault was injected"),
        (Fault::Collect, "the device failed: a fault was injected"),
        (Fault::Hang, "no step for 3 s"),
    ] {
        let mut config = ServerConfig::default();
        if fault == Fault::Hang {
            config.watchdog_timeout = Some(Duration::from_secs(3));
        }
        let server = failing(fault, 30, config).await;
        every_reply_ends_with(cause, &format!("{fault:?}"), server).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_is_lost_in_mid_run_ends_every_reply_with_the_cause() {
    let cause = "the device failed: device operation failed: the device was lost";
    every_reply_ends_with(cause, "lost", losing(30).await).await;
}

async fn every_reply_ends_with(cause: &str, fault: &str, server: TestServer) {
    let prompt = json!({ "prompt": "Once", "max_tokens": 400, "ignore_eos": true });
    let talk = json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 400,
            "ignore_eos": true });
    let with_stream = |body: &Value| {
        let mut body = body.clone();
        body["stream"] = true.into();
        body
    };
    let answer = json!({ "input": "Hi", "max_output_tokens": 400, "stream": true, "ignore_eos": true });
    let vector = json!({ "input": vec![vec![1; 500]; 12] });
    let (whole, stream, chat, messages, responses, vectors) = tokio::join!(
        ask(&server, "/v1/completions", prompt.clone()),
        ask(&server, "/v1/completions", with_stream(&prompt)),
        ask(&server, "/v1/chat/completions", with_stream(&talk)),
        ask(&server, "/v1/messages", with_stream(&talk)),
        ask(&server, "/v1/responses", answer),
        ask(&server, "/v1/embeddings", vector),
    );
    for (name, status, reply, parts) in [
        ("completion", 500, whole, &["server_error"][..]),
        ("stream", 200, stream, &["data: {\"error\"", "[DONE]"]),
        ("chat", 200, chat, &["data: {\"error\"", "[DONE]"]),
        ("messages", 200, messages, &["event: error"]),
        ("responses", 200, responses, &["event: response.failed"]),
        ("embeddings", 500, vectors, &["server_error"]),
    ] {
        let (found, text) = reply;
        let end: String = text
            .chars()
            .rev()
            .take(3000)
            .collect::<Vec<_>>()
            .iter()
            .rev()
            .collect();
        assert_eq!(found, status, "{fault} {name}: {end}");
        for part in parts.iter().chain([&cause]) {
            assert!(end.contains(part), "{fault} {name} lacks {part}: {end}");
        }
    }
    match server.ended().await {
        Err(ServeError::Engine(reason)) => assert!(reason.contains(cause), "{fault}: {reason}"),
        other => panic!("{fault}: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_engine_is_not_healthy_and_takes_nothing() {
    // The watchdog may find out between the fault and the questions, and end the server; then it is tried again.
    for _ in 0..20 {
        let server = failing(Fault::Panic, 5, ServerConfig::default()).await;
        assert_eq!(server.get("/health").await.0, 200);
        // No client is told of the fault: it is for the questions to find out.
        let request = Request {
            prompt: [1, 2, 3].into(),
            sampling: SamplingParams {
                max_tokens: 100,
                ..SamplingParams::default()
            }
            .into(),
            ..Request::default()
        };
        let mut generation = server.engine.generate(request).unwrap();
        while tokio::task::block_in_place(|| generation.next_blocking()).is_some() {}
        let start = Instant::now();
        while server.engine.fault().is_none() {
            assert!(start.elapsed() < PATIENCE);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let health = server.client.get(format!("{}/health", server.base)).send().await;
        let ready = server.client.get(format!("{}/ready", server.base)).send().await;
        let body = json!({ "prompt": "Once" });
        let url = format!("{}/v1/completions", server.base);
        let asked = server.client.post(url).json(&body).send().await;
        let seen: Vec<Option<u16>> = [&health, &ready, &asked]
            .map(|reply| reply.as_ref().ok().map(|reply| reply.status().as_u16()))
            .into();
        assert!(seen.iter().flatten().all(|status| *status == 503), "{seen:?}");
        let ended = server.ended().await;
        assert!(matches!(ended, Err(ServeError::Engine(_))), "{ended:?}");
        if seen.iter().all(Option::is_some) {
            return;
        }
    }
    panic!("the server always ended before it could be asked");
}
