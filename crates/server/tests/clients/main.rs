//! The official clients against a real server: what they send is understood, what they get they can read.
//!
//! A test is a script that gets the server's address, the model's name and an API key, and exits with 0 if all it
//! claims holds. What scripts need is in `requirements.txt` and is installed once, into the target folder.

#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

mod harness;
#[path = "../http/support.rs"]
#[allow(dead_code, reason = "it serves the tests over plain HTTP too")]
mod support;

use harness::python_script;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_anthropic_client_for_python_works() {
    python_script("anthropic_client.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_openai_client_for_python_works_with_responses() {
    python_script("openai_responses.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_prometheus_parsers_for_python_read_the_metrics() {
    python_script("metrics_parser.py").await;
}
