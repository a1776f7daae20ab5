//! The engine on the CPU: one program of tests, since each contains all of the engine. Those that watch their process have their own.

#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

mod embeddings;
mod faults;
mod handle;
mod identity;
mod kernels;
mod mixed_load;
mod model;
mod reference_drafts;
mod regressions;
mod verify;
