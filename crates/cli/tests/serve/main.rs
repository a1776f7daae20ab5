//! `paceline serve` as a process. One program of tests, as each would contain all of what they share.

#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../server/tests/clients/environment.rs"]
mod environment;

mod dynamo;
mod faults;
mod frameworks;
mod kubernetes;
mod kv_events;
mod load;
mod openapi;
mod process;
mod readme;
mod routers;
mod stalled;
