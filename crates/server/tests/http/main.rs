//! The server over real sockets, with a real engine and the built-in model.

#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

mod completions;
mod models;
mod support;
