//! Models against their references, and files that are none. One program of tests, as each would contain all operations anew.

#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

#[path = "../support/model_files.rs"]
mod model_files;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/to_gguf.rs"]
mod to_gguf;

mod eagle3;
mod eagle3_errors;
mod eight_bits;
mod gguf;
mod gguf_errors;
mod golden;
mod layouts;
mod programs;
mod shapes;
mod storyteller;
