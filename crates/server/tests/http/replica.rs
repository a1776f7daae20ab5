//! What routers ask of a replica, and what they send along.

use crate::support::{MODEL, PATIENCE, TestServer, engine_config, with};
use serde_json::{Value, json};
use std::time::Instant;

#[tokio::test]
async fn routers_learn_which_model_it_is_and_how_large() {
    let server = TestServer::start().await;
    for path in [
        "/server_info",
        "/get_server_info",
        "/model_info",
        "/get_model_info",
    ] {
        let (status, info) = server.get(path).await;
        assert_eq!(status, 200, "{path}");
        for name in ["model_id", "served_model_name", "model_path"] {
            assert_eq!(info[name], MODEL, "{path}");
        }
        // A path would send a router to its own disk or to the hub.
        assert_eq!(info["tokenizer_path"], Value::Null, "{path}");
        if path.ends_with("server_info") {
            let sizes = ["dp_size", "tp_size", "max_running_requests", "context_length"];
            assert_eq!(
                sizes.map(|name| info[name].clone()),
                [1, 1, 8, 512].map(|size| json!(size))
            );
            let tokens = engine_config().num_blocks.unwrap() as u64 * info["page_size"].as_u64().unwrap();
            assert_eq!(info["max_total_num_tokens"], tokens);
            assert_eq!(info["status"], "ready");
        }
    }
}

#[tokio::test]
async fn load_is_told_while_there_is_some_and_none_afterwards() {
    let server = TestServer::start().await;
    let body = json!({ "prompt": "Once", "max_tokens": 480, "ignore_eos": true, "stream": true });
    let mut streams = Vec::new();
    for _ in 0..11 {
        streams.push(server.send("/v1/completions", &body).await);
    }
    let start = Instant::now();
    loop {
        let (_, loads) = server.get("/v1/loads?include=core,queues,memory").await;
        let (_, load) = server.get("/get_load").await;
        let (detailed, load) = (&loads["loads"][0], &load[0]);
        let queue = [&detailed["num_waiting_reqs"], &load["num_waiting_reqs"]];
        if detailed["num_running_reqs"] == 8 && queue == [3, 3] {
            assert_eq!(load["num_reqs"], 11);
            assert_eq!(
                (&detailed["utilization"], &loads["aggregate"]["total_reqs"]),
                (&json!(1.0), &json!(11))
            );
            assert!(detailed["token_usage"].as_f64().unwrap() > 0.0, "{loads}");
            assert!(load["num_tokens"].as_u64().unwrap() > 0, "{load}");
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{loads} {load}");
    }
    drop(streams);
    server.idle().await;
    assert_eq!(server.get("/get_load").await.1[0]["num_reqs"], 0);
}

#[tokio::test]
async fn what_routers_add_to_a_request_changes_nothing_and_its_name_comes_back() {
    let server = TestServer::start().await;
    let body = json!({
        "messages": [{ "role": "user", "content": "Tell me of a fox." }], "max_tokens": 12, "temperature": 0,
    });
    let plain = server.ok("/v1/chat/completions", &body).await;
    let added = json!({
        "max_tokens": null, "max_completion_tokens": 12, "no_stop_trim": false, "ignore_eos": false,
        "separate_reasoning": true, "stream_reasoning": true, "return_hidden_states": false,
        "continue_final_message": false, "skip_special_tokens": true,
    });
    let request = server.client.post(format!("{}/v1/chat/completions", server.base));
    let request = request
        .header("x-request-id", "router-7")
        .json(&with(body, added));
    let reply = request.send().await.unwrap();
    assert_eq!(reply.status(), 200);
    assert_eq!(reply.headers()["x-request-id"], "router-7");
    let reply: Value = reply.json().await.unwrap();
    assert_eq!(reply["choices"], plain["choices"]);
}
