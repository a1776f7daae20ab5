//! The server over real sockets, with a real engine and the built-in model.

#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

mod chat;
mod completions;
mod continuation;
mod drain;
mod embeddings;
mod faults;
mod forced_calls;
mod fuzz;
mod generic_calls;
mod hostile;
mod identity;
mod limits;
mod llama_cpp;
mod messages;
mod metrics;
mod models;
mod ollama;
mod openapi;
mod origins;
mod page;
mod replica;
mod requests;
mod responses;
mod sharing;
mod stalled;
mod structured;
mod support;
mod tokens;
mod usage;
mod watching;
