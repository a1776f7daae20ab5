//! A client of servers with OpenAI's interface, ours or another.
//!
//! [`Client`] sends requests, [`Reply`] is an answer as it comes; [`Poster`] sends bytes to an address. Nothing is retried and nothing is printed.

mod address;
mod error;
mod events;
mod http;
mod openai;
mod poster;

pub use error::ClientError;
pub use events::{Event, EventStream};
pub use http::Client;
pub use openai::{Chunk, Endpoint, Reply, Speculation, Usage};
pub use poster::Poster;
