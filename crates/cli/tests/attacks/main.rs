//! What a hostile or careless client, operator or model can do to `paceline serve`, done to the real program.
//!
//! While an attack goes on, a client with another key asks for a text again and again and has to get it. Afterwards the
//! server is healthy and holds nothing, and its memory is back. Every test prints what it cost: resident memory before,
//! at its peak and after, and how long the other client had to wait. By default attacks are small; with
//! `PACELINE_TEST_LONG` they have the size that once took servers down.

#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

#[path = "../common/mod.rs"]
mod common;
mod fairness;
mod grammars;
mod models;
mod process;
mod prompts;
mod readers;
mod victim;
