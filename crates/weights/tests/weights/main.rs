//! Files of models, here and on the hub. One program of tests.

#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

#[path = "../support/mod.rs"]
mod support;

mod fuzz_headers;
mod gguf_files;
mod hub_downloads;
mod hub_models;
mod safetensors_files;
