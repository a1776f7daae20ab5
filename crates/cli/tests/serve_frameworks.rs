//! Frameworks that are built on OpenAI's interface, as they come, against `paceline serve`: the evaluation harness,
//! LiteLLM, LangChain, Instructor, Pydantic AI and the Agents SDK. What they make of replies is checked: objects of
//! the type that was asked for, tools that were called, likelihoods. With `PACELINE_TEST_LONG` only.

#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

mod common;
#[path = "../../server/tests/clients/environment.rs"]
mod environment;

use common::served::Served;
use environment::{SCRIPTS, expect_success, gguf, python_with_frameworks};
use std::env;
use std::process::Command;

const FRAMEWORKS: [&str; 6] = [
    "agents_client.py",
    "instructor_client.py",
    "langchain_client.py",
    "litellm_client.py",
    "lm_eval_client.py",
    "pydantic_ai_client.py",
];

/// Runs every script against a server with a model.
fn try_all(model: &[&str]) {
    let arguments = [
        "--api-key",
        "a-key",
        "--served-model-name",
        "model",
        "--max-model-len",
        "4096",
    ];
    let served = Served::start(&[&arguments[..], model].concat());
    for script in FRAMEWORKS {
        let output = Command::new(python_with_frameworks())
            .arg("-B")
            .arg(format!("{SCRIPTS}/frameworks/{script}"))
            .args([&served.url, "model", "a-key"])
            .env("HF_HUB_OFFLINE", "1")
            .output()
            .unwrap();
        println!(
            "{script} with {model:?}:\n{}",
            String::from_utf8_lossy(&output.stdout)
        );
        expect_success(script, &output);
    }
    assert_eq!(served.ask("GET /health", "", "").0, 200);
}

/// Whether there is time for this.
fn long() -> bool {
    let long = env::var_os("PACELINE_TEST_LONG").is_some();
    if !long {
        println!("skipped: set PACELINE_TEST_LONG");
    }
    long
}

#[test]
fn frameworks_work_with_the_built_in_model() {
    if long() {
        try_all(&[]);
    }
}

#[test]
fn frameworks_work_with_a_gguf_file() {
    if long() {
        try_all(&[gguf().to_str().unwrap()]);
    }
}
