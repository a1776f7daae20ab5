//! The program as people run it. One program of tests, as each would contain all of what they share.

#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

#[path = "../common/mod.rs"]
mod common;

mod batch;
mod bench_compare;
mod bench_gpu;
mod bench_quality;
mod bench_serve;
mod chat;
mod defaults;
mod engine_faults;
mod failures;
mod generate;
mod gguf;
mod hub;
mod inspect;
mod install;
mod packaging;
mod readme;
mod sampling;
mod selftest;
mod speculation;
mod terminal;
mod tools;
