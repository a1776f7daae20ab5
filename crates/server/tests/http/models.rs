//! What is on offer, and whether the server lives.

use crate::support::{MODEL, TestServer};

#[tokio::test]
async fn every_name_of_the_model_is_listed_and_found() {
    let server = TestServer::start().await;
    let (status, list) = server.get("/v1/models").await;
    assert_eq!(status, 200);
    let names: Vec<_> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|card| card["id"].clone())
        .collect();
    assert_eq!(names, [MODEL, "org/alias"]);
    let (status, card) = server.get("/v1/models/org/alias").await;
    assert_eq!((status, card["max_model_len"].as_u64()), (200, Some(512)));
    let (status, error) = server.get("/v1/models/nobody").await;
    assert_eq!(
        (status, &error["error"]["code"]),
        (404, &"model_not_found".into())
    );
}

#[tokio::test]
async fn a_healthy_server_says_so() {
    let server = TestServer::start().await;
    for path in ["/health", "/ping", "/ready"] {
        assert_eq!(server.get(path).await.0, 200, "{path}");
    }
    let (_, version) = server.get("/version").await;
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
}

#[tokio::test]
async fn unknown_paths_and_methods_are_errors_in_the_usual_shape() {
    let server = TestServer::start().await;
    let (status, reply) = server.get("/v1/nothing").await;
    assert_eq!(
        (status, &reply["error"]["type"]),
        (404, &"not_found_error".into())
    );
    let (status, reply) = server.get("/v1/completions").await;
    assert_eq!(status, 405);
    assert!(reply["error"]["message"].as_str().unwrap().contains("GET"));
}
