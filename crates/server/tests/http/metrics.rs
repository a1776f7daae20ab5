//! `/metrics`, `/v1/engine` and the dashboard that reads them.

use crate::support::{MODEL, TestServer, engine_config};
use paceline::{EngineConfig, SpeculationConfig, SpeculationMethod, Stats};
use paceline_server::ServerConfig;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What vLLM calls them, and of which type they are.
const VLLM: [(&str, &str); 27] = [
    ("vllm:num_requests_running", "gauge"),
    ("vllm:num_requests_waiting", "gauge"),
    ("vllm:kv_cache_usage_perc", "gauge"),
    ("vllm:cache_config_info", "gauge"),
    ("vllm:prompt_tokens_total", "counter"),
    ("vllm:generation_tokens_total", "counter"),
    ("vllm:prefix_cache_queries_total", "counter"),
    ("vllm:prefix_cache_hits_total", "counter"),
    ("vllm:num_preemptions_total", "counter"),
    ("vllm:request_success_total", "counter"),
    ("vllm:time_to_first_token_seconds", "histogram"),
    ("vllm:inter_token_latency_seconds", "histogram"),
    ("vllm:time_per_output_token_seconds", "histogram"),
    ("vllm:request_time_per_output_token_seconds", "histogram"),
    ("vllm:e2e_request_latency_seconds", "histogram"),
    ("vllm:request_queue_time_seconds", "histogram"),
    ("vllm:request_prefill_time_seconds", "histogram"),
    ("vllm:request_decode_time_seconds", "histogram"),
    ("vllm:request_prompt_tokens", "histogram"),
    ("vllm:request_generation_tokens", "histogram"),
    ("vllm:iteration_tokens_total", "histogram"),
    ("vllm:spec_decode_num_drafts_total", "counter"),
    ("vllm:spec_decode_num_draft_tokens_total", "counter"),
    ("vllm:spec_decode_num_accepted_tokens_total", "counter"),
    ("vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter"),
    ("paceline:queue_age_seconds", "gauge"),
    ("paceline:speculation_gain_seconds", "gauge"),
];

/// A scrape, read: types by name, values by name with labels.
#[derive(Debug, Default)]
struct Scrape {
    types: BTreeMap<String, String>,
    samples: BTreeMap<String, f64>,
}

impl Scrape {
    /// Reads the older text format and checks what it demands: a type before the samples, labels on all.
    fn read(text: &str) -> Self {
        let mut scrape = Self::default();
        for line in text.lines() {
            if let Some(described) = line.strip_prefix("# TYPE ") {
                let (name, kind) = described.split_once(' ').unwrap();
                let twice = scrape.types.insert(name.to_owned(), kind.to_owned());
                assert!(twice.is_none(), "{name} is described twice");
            } else if !line.starts_with("# HELP ") {
                let (series, value) = line.rsplit_once(' ').unwrap();
                let name = series.split('{').next().unwrap();
                assert!(scrape.family(name).is_some(), "{name} has no type");
                let common = format!("model_name=\"{MODEL}\",engine=\"0\"");
                let short = series.replace(&common, "").replace("{,", "{").replace("{}", "");
                assert!(short.len() < series.len(), "{series} lacks its labels");
                let twice = scrape.samples.insert(short, value.parse().unwrap());
                assert!(twice.is_none(), "{series} is there twice");
            }
        }
        scrape
    }

    fn family(&self, name: &str) -> Option<&str> {
        let bare = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end));
        let found = [Some(name), bare].into_iter().flatten();
        found
            .filter_map(|name| self.types.get(name))
            .map(String::as_str)
            .next()
    }

    fn value(&self, series: &str) -> f64 {
        *self
            .samples
            .get(series)
            .unwrap_or_else(|| panic!("there is no {series}"))
    }
}

async fn text(server: &TestServer, accept: &str) -> (String, String) {
    let request = server.client.get(format!("{}/metrics", server.base));
    let response = request.header("accept", accept).send().await.unwrap();
    assert_eq!(response.status(), 200);
    let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
    (kind, response.text().await.unwrap())
}

async fn scrape(server: &TestServer) -> Scrape {
    let (kind, text) = text(server, "*/*").await;
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    Scrape::read(&text)
}

/// A text that repeats itself, so that there are drafts.
fn body(more: &Value) -> Value {
    let mut body = json!({ "prompt": "The cat saw the dog. The cat saw the dog. The cat saw the dog. The cat saw the", "max_tokens": 24,
        "temperature": 0, "seed": 7, "ignore_eos": true });
    let fields = body.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn names_and_types_are_those_of_vllm() {
    let server = TestServer::start().await;
    let scrape = scrape(&server).await;
    for (name, kind) in VLLM {
        assert_eq!(scrape.types.get(name).map(String::as_str), Some(kind), "{name}");
        let there = |series: &&String| series.split('{').next() == Some(name) || kind == "histogram";
        assert!(
            scrape.samples.keys().any(|series| there(&series)),
            "{name} has no samples"
        );
    }
    let config =
        "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"512\",enable_prefix_caching=\"True\"}";
    assert!((scrape.value(config) - 1.0).abs() < f64::EPSILON);
    // Ends that have not been seen yet are there, so that the first one is a rise.
    for reason in ["stop", "length", "abort", "error", "deadline"] {
        let series = format!("vllm:request_success_total{{finished_reason=\"{reason}\"}}");
        assert!(scrape.value(&series).abs() < f64::EPSILON);
    }
}

#[tokio::test]
async fn counters_rise_by_what_replies_say() {
    let server = TestServer::start().await;
    let before = scrape(&server).await;
    let (mut prompt, mut generated, mut requests) = (0, 0, 0);
    for (more, choices) in [
        (json!({}), 1),
        (json!({ "n": 2, "temperature": 1 }), 2),
        (json!({ "prompt": ["One day", "The sea"] }), 2),
        (json!({ "stop": ["e"], "min_tokens": 4, "max_tokens": 60 }), 1),
        (json!({ "max_tokens": 1 }), 1),
    ] {
        let usage = server.ok("/v1/completions", &body(&more)).await["usage"].clone();
        prompt += usage["prompt_tokens"].as_u64().unwrap();
        generated += usage["completion_tokens"].as_u64().unwrap();
        requests += choices;
    }
    let chunks = server
        .chunks(
            "/v1/completions",
            &body(&json!({ "stream": true, "stream_options": { "include_usage": true } })),
        )
        .await;
    let usage = &chunks.last().unwrap()["usage"];
    prompt += usage["prompt_tokens"].as_u64().unwrap();
    generated += usage["completion_tokens"].as_u64().unwrap();
    requests += 1;
    let stats = server.idle().await;
    let after = scrape(&server).await;
    let rise = |series: &str| (after.value(series) - before.value(series)).round() as u64;
    assert_eq!(rise("vllm:prompt_tokens_total"), prompt);
    assert_eq!(rise("vllm:generation_tokens_total"), generated);
    for name in [
        "e2e_request_latency_seconds",
        "time_to_first_token_seconds",
        "request_decode_time_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
    ] {
        assert_eq!(rise(&format!("vllm:{name}_count")), requests, "{name}");
        assert_eq!(
            rise(&format!("vllm:{name}_bucket{{le=\"+Inf\"}}")),
            requests,
            "{name}"
        );
    }
    assert_eq!(rise("vllm:request_generation_tokens_sum"), generated);
    let ends = |reason: &str| {
        rise(&format!(
            "vllm:request_success_total{{finished_reason=\"{reason}\"}}"
        ))
    };
    assert_eq!(
        (ends("stop"), ends("length"), ends("abort")),
        (1, requests - 1, 0)
    );
    assert_eq!(rise("vllm:iteration_tokens_total_count"), stats.pipeline.steps);
    // A request with one token has no time per further token.
    assert_eq!(
        rise("vllm:request_time_per_output_token_seconds_count"),
        requests - 1
    );
    for series in ["request_queue_time", "e2e_request_latency"] {
        let seconds = after.value(&format!("vllm:{series}_seconds_sum"));
        assert!(
            (0.0..60.0 * requests as f64).contains(&seconds),
            "{series} {seconds}"
        );
    }
    assert!(after.value("vllm:num_requests_running").abs() < f64::EPSILON);
    assert!(after.value("vllm:kv_cache_usage_perc").abs() < f64::EPSILON);
}

/// What the engine counted, by series.
fn counted(stats: &Stats) -> Vec<(&'static str, u64)> {
    let (c, p) = (&stats.counters, &stats.pipeline);
    vec![
        ("vllm:spec_decode_num_drafts_total", c.draft_rows),
        ("vllm:spec_decode_num_draft_tokens_total", c.drafts_verified),
        ("vllm:spec_decode_num_accepted_tokens_total", c.drafts_accepted),
        (
            "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"}",
            c.accepted_by_position[0],
        ),
        (
            "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"6\"}",
            c.accepted_by_position[6],
        ),
        (
            "paceline:draft_tokens_per_pos_total{position=\"0\"}",
            c.drafted_by_position[0],
        ),
        ("paceline:draft_tokens_total{source=\"ngram\"}", c.ngram.drafted),
        (
            "paceline:accepted_tokens_total{source=\"ngram\"}",
            c.ngram.accepted,
        ),
        ("paceline:draft_tokens_total{source=\"neural\"}", 0),
        ("paceline:draft_tokens_total{source=\"grammar\"}", 0),
        ("paceline:wasted_tokens_total", c.wasted_tokens),
        ("paceline:wasted_rows_total", c.wasted_rows),
        ("paceline:draft_passes_total", c.draft_passes),
        ("vllm:prefix_cache_queries_total", c.prefix_queries),
        ("vllm:prefix_cache_hits_total", c.prefix_hits),
        ("paceline:steps_total", p.steps),
        ("paceline:host_waits_total{place=\"collect\"}", p.steps),
        ("paceline:host_waits_total{place=\"elsewhere\"}", 0),
        ("paceline:engine_tokens_total", stats.tokens),
        ("paceline:blocks", 512),
        ("paceline:blocks_free", (stats.blocks - stats.blocks_used) as u64),
        ("paceline:slots", 8),
    ]
}

/// What the engine measured in nanoseconds, by series in seconds.
fn measured(stats: &Stats) -> Vec<(&'static str, f64)> {
    let (c, p) = (&stats.counters, &stats.pipeline);
    vec![
        ("paceline:device_busy_seconds_total", p.device_ns as f64),
        ("paceline:bubble_seconds_total", p.bubble_ns as f64),
        (
            "paceline:host_wait_seconds_total{place=\"collect\"}",
            p.waits.collect_ns as f64,
        ),
        (
            "paceline:step_phase_seconds_total{phase=\"plan\"}",
            p.plan_ns as f64,
        ),
        ("paceline:draft_seconds_total", c.draft_ns as f64),
        ("paceline:verify_seconds_total", (p.device_ns - c.draft_ns) as f64),
        ("paceline:speculation_gain_seconds", c.gained_ns as f64),
    ]
}

#[tokio::test]
async fn the_engines_numbers_are_those_of_its_statistics() {
    let speculation = SpeculationConfig {
        method: SpeculationMethod::Ngram,
        depth_control: false,
        ..SpeculationConfig::default()
    };
    let engine = EngineConfig {
        speculation,
        ..engine_config()
    };
    let server = TestServer::with(ServerConfig::default(), engine).await;
    for _ in 0..2 {
        server
            .ok("/v1/completions", &body(&json!({ "max_tokens": 100 })))
            .await;
    }
    let stats = server.idle().await;
    let (c, p) = (&stats.counters, &stats.pipeline);
    assert!(c.drafts_verified > 0 && c.prefix_hits > 0, "{stats}");
    let scrape = scrape(&server).await;
    for (series, count) in counted(&stats) {
        assert_eq!(scrape.value(series).round() as u64, count, "{series}");
    }
    for (series, ns) in measured(&stats) {
        assert!((scrape.value(series) - ns / 1e9).abs() < 1e-9, "{series}");
    }
    let (_, state) = server.get("/v1/engine").await;
    let drafts = &state["speculation"];
    assert_eq!(drafts["drafted"], c.drafts_verified);
    assert_eq!(drafts["accepted"], c.drafts_accepted);
    assert_eq!(drafts["by_position"][0]["accepted"], c.accepted_by_position[0]);
    assert_eq!(drafts["mean_length"].as_f64(), stats.mean_length());
    assert_eq!(state["pipeline"]["steps"], p.steps);
}

#[tokio::test]
async fn refusals_connections_and_departures_are_counted() {
    let server = TestServer::configured(|config| config.max_body_bytes = 1000).await;
    assert_eq!(server.get("/nowhere").await.0, 404);
    assert_eq!(
        server.post("/v1/completions", &body(&json!({ "n": 0 }))).await.0,
        400
    );
    let large = json!({ "prompt": "x".repeat(2000) });
    assert_eq!(server.post("/v1/completions", &large).await.0, 413);
    // Most of it is still to come when the client goes.
    let long = body(&json!({ "stream": true, "max_tokens": 400, "ignore_eos": true }));
    let mut response = server.send("/v1/completions", &long).await;
    assert!(response.chunk().await.unwrap().is_some());
    drop(response);
    server.idle().await;
    let mut seen = scrape(&server).await;
    let departures = "vllm:request_success_total{finished_reason=\"abort\"}";
    for _ in 0..100 {
        if seen.value(departures) > 0.5 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        seen = scrape(&server).await;
    }
    let count = |series: &str| seen.value(series).round() as u64;
    assert_eq!(count(departures), 1);
    assert_eq!(count("vllm:e2e_request_latency_seconds_count"), 0);
    for (status, expected) in [(400, 1), (404, 1), (413, 1), (429, 0), (503, 0)] {
        let series = format!("paceline:rejected_requests_total{{status=\"{status}\"}}");
        assert_eq!(count(&series), expected, "{status}");
    }
    assert!(count("paceline:open_connections") >= 1);
    assert_eq!(count("paceline:engine_up"), 1);
}

#[tokio::test]
async fn those_who_wait_are_seen_with_their_age() {
    let engine = EngineConfig {
        max_num_seqs: 1,
        ..engine_config()
    };
    let server = TestServer::with(ServerConfig::default(), engine).await;
    let long = body(&json!({ "stream": true, "max_tokens": 400, "ignore_eos": true }));
    let running: Vec<_> = futures(&server, &long).await;
    let mut waited = false;
    for _ in 0..200 {
        let seen = scrape(&server).await;
        if seen.value("vllm:num_requests_waiting") > 0.5 {
            waited |= seen.value("paceline:queue_age_seconds") > 0.0;
        }
        if waited {
            break;
        }
    }
    assert!(waited, "no request was seen waiting");
    drop(running);
    server.idle().await;
    assert!(scrape(&server).await.value("paceline:queue_age_seconds").abs() < f64::EPSILON);
}

/// Four streams that have begun.
async fn futures(server: &TestServer, body: &Value) -> Vec<reqwest::Response> {
    let mut responses = Vec::new();
    for _ in 0..4 {
        responses.push(server.send("/v1/completions", body).await);
    }
    responses
}

#[tokio::test]
async fn the_dashboard_asks_for_nothing_that_is_not_there() {
    let server = TestServer::start().await;
    let scrape = scrape(&server).await;
    let names: BTreeSet<&str> = scrape
        .samples
        .keys()
        .filter_map(|series| series.split('{').next())
        .collect();
    let dashboard: Value =
        serde_json::from_str(include_str!("../../../../dashboards/paceline.json")).unwrap();
    let mut asked = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap_or(&Vec::new()) {
            let expression = target["expr"].as_str().unwrap();
            let words = expression.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
            for name in words.filter(|word| word.contains(':')) {
                assert!(names.contains(name), "{name} in {}", panel["title"]);
                asked += 1;
            }
            assert_eq!(target["datasource"]["uid"], "${datasource}");
        }
    }
    assert!(asked > 40);
}

#[tokio::test]
async fn the_live_state_tells_what_is_on_and_how_it_is_going() {
    let server = TestServer::start().await;
    server.ok("/v1/completions", &body(&json!({}))).await;
    server.idle().await;
    let (status, state) = server.get("/v1/engine").await;
    assert_eq!(status, 200);
    assert_eq!(state["model"]["name"], MODEL);
    assert_eq!(state["status"]["phase"], "serving");
    assert_eq!(state["device"]["name"], "cpu");
    assert_eq!(state["device"]["elements"]["kv"], "F32");
    assert_eq!(state["slots"]["total"], 8);
    assert_eq!(state["slots"]["requests_ended"], 1);
    assert_eq!(state["cache"]["blocks"], 512);
    assert_eq!(state["pipeline"]["depth"], 2);
    assert_eq!(state["limits"]["max_model_len"], 512);
    assert_eq!(state["speculation"]["configuration"]["draft_tokens"], 7);
    assert!(state["memory"]["total"].as_u64() > Some(0));
    assert!(state["uptime_seconds"].as_f64() > Some(0.0));
    assert!(state["features"].is_array());
}
