//! Measurements: of engines ([`latency`], [`throughput`], [`pipeline`], [`speculation`]), of servers with OpenAI's
//! interface ([`serve`]), of a device's operations ([`ops`]) and of what a model loses by how it is run ([`quality`]).
//!
//! Each takes a configuration and returns results, which are JSON ([`serde::Serialize`]) and a table
//! ([`Results::write`]). A [`Subject`] starts the engines, a [`Progress`] is told how far the measurement is.

mod drafts;
mod error;
pub mod format;
pub mod latency;
mod load;
pub mod ops;
pub mod pipeline;
mod progress;
pub mod quality;
pub mod serve;
pub mod speculation;
mod subject;
pub mod throughput;

pub use drafts::DraftFigures;
pub use error::BenchError;
pub use load::settled_stats;
pub use progress::{Bar, Progress, Unit};
pub use subject::{EngineSetup, Subject, SubjectError};

use serde::Serialize;
use std::io::{self, Write};

/// What was measured.
pub trait Results: Serialize {
    /// Writes a table for people.
    fn write(&self, out: &mut dyn Write) -> io::Result<()>;
}
