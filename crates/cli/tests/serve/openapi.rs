//! Schemathesis reads the OpenAPI document of a running server and asks for everything in it, right and wrong: no
//! fault, keys are asked for, methods are known, and every reply has a status and a form that the document tells.

use crate::common::served::{Served, serve};
use crate::environment::{expect_success, python};
use std::env;
use std::process::Command;

#[test]
fn the_server_is_what_its_openapi_document_says() {
    // Replies end early where the context is short; what they are does not depend on it.
    let mut command = serve(&["--max-model-len", "64", "--api-key", "a-key"]);
    command.args(["--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"]);
    let served = Served::spawn(&mut command);
    let examples = if env::var_os("PACELINE_TEST_LONG").is_some() {
        "200"
    } else {
        "4"
    };
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(python())
        .args(["-m", "schemathesis.cli", "run", "--no-color", "--workers", "1"])
        .args(["--phases", "examples,coverage,fuzzing", "--continue-on-failure"])
        .args([
            "--max-examples",
            examples,
            "--seed",
            "1",
            "--request-timeout",
            "60",
        ])
        // What is accepted is not its matter: a value of the right form may be too long for the context, and what
        // only a chat template looks at may be anything. Other tests say what is refused.
        .args([
            "--exclude-checks",
            "positive_data_acceptance,negative_data_rejection",
        ])
        // One goes on for ever, the other as long as it is asked to.
        .args(["--exclude-path-regex", "^/v1/engine/(events|trace)$"])
        .args(["--header", "authorization: Bearer a-key"])
        .arg(format!("http://{}/openapi.json", served.address))
        .current_dir(folder.path())
        .output()
        .unwrap();
    expect_success("schemathesis", &output);
    let (status, _) = served.ask("GET /health", "", "");
    assert_eq!(status, 200);
}
