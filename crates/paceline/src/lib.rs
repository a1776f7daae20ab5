//! The engine as a library.
//!
//! [`Engine::start`] builds a checkpoint's model and starts the step loop on a thread of its own.
//! [`Handle::generate`] hands it a request and returns a [`Generation`]: a stream of [`Event`]s, read by blocking or
//! by `async`. [`Handle::embed`] turns a text into a vector, in the same steps. Every queue is bounded. Dropping a generation cancels it, wherever it is.

mod cancel_flags;
mod channel;
mod client;
mod config;
mod device;
mod drafter;
mod embedding;
mod engine;
mod error;
mod event;
pub mod faults;
mod handle;
mod histogram;
mod masks;
mod memory_plan;
mod options;
mod outline;
mod request;
mod service;
mod speculation;
mod stats;
mod streams;
mod trace;
mod watch;

pub use config::EngineConfig;
pub use device::{
    CudaFound, Device, DeviceChoice, Gpu, LoadedEngine, MemoryLimit, OnDevice, OnFreshDevices, UsableMemory,
    probe_cuda, return_large_allocations,
};
pub use embedding::{Embedded, Embedding, EmbeddingError, EmbeddingRequest};
pub use engine::{Engine, EngineParts, ModelFiles};
pub use error::{RequestError, StartError};
pub use event::{Event, Failure, Finish, Tokens, Usage};
pub use handle::{Canceller, Generation, Handle};
pub use histogram::Histogram;
pub use masks::MaskPool;
pub use memory_plan::MemoryPlan;
pub use options::{
    DefaultSource, NumberBound, OPTIONS, OptionKind, OptionValue, Options, RequestOption, SamplingDefaults,
};
pub use outline::Outline;
pub use paceline_device::{DeviceInfo, ElementTypes};
pub use paceline_runner::ProgramReport;
pub use paceline_schedule::{
    Counters, PipelineTotals, RequestStatus, Span, SpeculationReport, StepOrigins, StepRecord,
};
pub use request::{Continuations, MAX_DEADLINE, Request, RequestSpeculation};
pub use speculation::{DrafterShape, NeuralDrafter, Speculation, SpeculationConfig, SpeculationMethod};
pub use stats::{EngineLimits, Sizes, Stats};
pub use streams::Streams;
pub use watch::{StepViewer, WatchedStep};
