//! The official clients against a real server: what they send is understood, what they get they can read.
//!
//! A test is a script that gets the server's address, the model's name and an API key, and exits with 0 if all it
//! claims holds. What scripts need is in `requirements.txt` and `package-lock.json` and is installed once, into the
//! target folder; where that cannot be done, the tests fail.

#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

mod environment;
mod harness;
#[path = "../http/support.rs"]
#[allow(dead_code, reason = "it serves the tests over plain HTTP too")]
mod support;
mod traces;

use harness::{run_node, run_python, run_python_with};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_anthropic_client_for_python_works() {
    run_python("anthropic_client.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_openai_client_for_python_works_with_chat_and_completions() {
    run_python("openai_client.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_openai_client_for_node_works() {
    run_node("openai_client.mjs").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_openai_client_for_python_gets_replies_of_a_given_form() {
    run_python("openai_structured.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_openai_client_for_python_calls_tools_of_a_model_without_a_format() {
    run_python_with("openai_generic_tools.py", 1024, |model| {
        model.tool_format = Some(paceline_text::ToolFormat::Generic);
        model.reasoning_format = None;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_openai_client_for_node_gets_replies_of_a_given_form() {
    run_node("openai_structured.mjs").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_openai_client_for_python_works_with_responses() {
    run_python("openai_responses.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_openai_client_for_python_works_with_embeddings() {
    run_python("openai_embeddings.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ollama_client_for_python_works() {
    run_python("ollama_client.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_prometheus_parsers_for_python_read_the_metrics() {
    run_python("metrics_parser.py").await;
}
