//! Spans of requests, for those who follow a request across machines: W3C trace context in and out, and OTLP to a
//! collector. Nothing of it is there unless it is asked for.

mod context;
mod export;
mod otlp;
mod sampler;
mod spans;

pub(crate) use context::{TRACEPARENT, TraceContext};
pub(crate) use export::Exporter;
pub use sampler::{Sampler, SamplerError};
pub(crate) use spans::{Outcome, RequestSpans};

/// Where spans go, and which.
#[derive(Clone, Debug)]
pub struct TraceConfig {
    /// The collector's address for spans, such as `http://127.0.0.1:4318/v1/traces`; they are sent as OTLP in protobuf.
    pub endpoint: String,
    /// Headers of what is sent there.
    pub headers: Vec<(String, String)>,
    /// What tells this server from others: `service.name` and more.
    pub resource: Vec<(String, String)>,
    /// Which requests have spans.
    pub sampler: Sampler,
    /// How long the collector may take to accept spans.
    pub timeout: std::time::Duration,
}
