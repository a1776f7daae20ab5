//! What the prefix cache holds, told to routers: vLLM's KV events over ZeroMQ.
//!
//! The engine leaves changes of its index in a [`CacheFeed`](paceline_cache::CacheFeed). A thread of its own, the
//! [`Publisher`], makes [`Event`]s of them, numbers them in batches, sends them to whoever listens, and keeps the last ones
//! for those that missed some. The format is described in the crate's README.

mod config;
mod event;
mod log;
mod publisher;
mod replay;
mod usable;
mod wire;

pub use config::{ConfigError, KvEventsConfig};
pub use event::{Event, Events, Kind};
pub use log::Log;
pub use publisher::{Publisher, StartError};
pub use usable::UsableBlocks;
pub use wire::encode;
