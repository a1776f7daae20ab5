//! `paceline serve` as a worker of NVIDIA Dynamo, with Dynamo's own frontend, router and indexer. With `PACELINE_TEST_LONG`
//! only.

use crate::common::repository;
use crate::environment::{expect_success, python_with_dynamo};
use std::process::Command;

/// Runs a script of the integration with a model.
fn run(script: &str, model: &str) {
    if std::env::var_os("PACELINE_TEST_LONG").is_none() {
        println!("skipped: set PACELINE_TEST_LONG");
        return;
    }
    let output = Command::new(python_with_dynamo())
        .arg("-B")
        .arg(repository("integrations/dynamo/tests").join(script))
        .arg(env!("CARGO_BIN_EXE_paceline"))
        .arg(repository(model))
        .output()
        .unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    expect_success(script, &output);
}

#[test]
fn warm_prompts_find_their_replica_and_texts_survive_its_death() {
    run("end_to_end.py", "assets/storyteller");
}

#[test]
fn the_indexer_of_dynamo_agrees_with_the_cache() {
    run("indexer.py", "fixtures/qwen3");
}
