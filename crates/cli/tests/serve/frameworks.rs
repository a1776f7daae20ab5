//! Frameworks that are built on OpenAI's interface, as they come, against `paceline serve` as it comes: the evaluation
//! harness, LiteLLM, LangChain, Instructor, Pydantic AI, the Agents SDK, `llm` and Vercel's AI SDK; and Ollama's own client.
//! What they make of replies is checked: objects of the type that was asked for, tools that were called, likelihoods. With
//! `PACELINE_TEST_LONG` only.

use crate::common::paceline;
use crate::common::served::Served;
use crate::environment::{
    SCRIPTS, expect_success, gguf, node_framework_script, python, python_with_frameworks, python_with_llm,
};
use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

const FRAMEWORKS: [&str; 6] = [
    "agents_client.py",
    "instructor_client.py",
    "langchain_client.py",
    "litellm_client.py",
    "lm_eval_client.py",
    "pydantic_ai_client.py",
];

/// What clients send that insist on a key; a server without keys takes any.
const ANY_KEY: &str = "any-key";

/// A server as it comes, with nothing but a port of its own.
fn start(arguments: &[&str]) -> Served {
    let mut command = paceline();
    command.args(["serve", "--port", "0"]).args(arguments);
    command.env_remove("PACELINE_API_KEY").env_remove("VLLM_API_KEY");
    Served::spawn(command.stderr(Stdio::null()))
}

/// Runs a script against a server, with the name that the server gives its model.
fn try_one(served: &Served, (model, key): (&str, &str), interpreter: &Path, script: &Path) {
    let output = Command::new(interpreter)
        .arg(script)
        .args([&served.url, model, key])
        .env("HF_HUB_OFFLINE", "1")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{} with {model}:\n{text}", script.display());
    expect_success(&script.to_string_lossy(), &output);
}

/// Runs every script against a server with a model.
fn try_all(arguments: &[&str]) {
    let served = start(arguments);
    let models = served.get("/v1/models");
    let model = models["data"][0]["id"].as_str().unwrap();
    let run = |interpreter: &Path, script: &Path| try_one(&served, (model, ANY_KEY), interpreter, script);
    let folder = Path::new(SCRIPTS).join("frameworks");
    for script in FRAMEWORKS {
        run(&python_with_frameworks(), &folder.join(script));
    }
    run(&python_with_llm(), &folder.join("llm_client.py"));
    run(&python(), &Path::new(SCRIPTS).join("ollama_client.py"));
    run(Path::new("node"), &node_framework_script("ai_sdk_client.mjs"));
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

#[test]
fn a_framework_tells_a_wrong_key_from_other_errors() {
    if long() {
        let served = start(&["--api-key", "a-key"]);
        let script = Path::new(SCRIPTS).join("frameworks/litellm_keys.py");
        try_one(
            &served,
            ("storyteller", "a-key"),
            &python_with_frameworks(),
            &script,
        );
    }
}
