//! Support of the simulation: a scripted device on virtual time, and a world of requests around it.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

pub mod check;
pub mod device;
pub mod grammar;
pub mod rng;
pub mod scenario;
pub mod text;
pub mod world;
