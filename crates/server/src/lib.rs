//! The engine over HTTP.
//!
//! [`Server::serve`] answers requests on a listener until it is told to drain or the engine fails. There are three
//! layers: connections and limits ([`ServerConfig`]), the interfaces (`openai` and others, each with its wire
//! types), and below them one way to generate ([`generation`]) that they share. No flags, no environment, no exit.

mod active;
mod admission;
mod anthropic;
mod app;
mod auth;
mod body;
mod config;
mod connections;
mod constraint;
mod conversation;
mod embedding;
mod engine_state;
mod envelope;
pub mod error;
mod events;
mod fields;
pub mod generation;
mod health;
mod identifiers;
mod interface;
mod lifecycle;
mod llama_cpp;
mod metrics;
mod model;
mod ollama;
mod openai;
mod openapi;
mod page;
mod places;
mod prefix_salts;
mod preparation;
mod replica;
mod reply;
mod request_log;
mod responses;
mod routes;
mod scores;
mod server;
mod sse;
mod tokens;
mod traces;
mod watchdog;
mod write_timeout;

pub use config::{KvEventsAddress, PrefixCacheScope, ServerConfig, TlsConfig, TlsError};
pub use model::{ModelDetails, ServedModel};
pub use server::{Feature, ServeError, Server};
pub use traces::{Sampler, SamplerError, TraceConfig};
