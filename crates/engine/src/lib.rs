//! Runs models: steps over device tables, and generation on top of them.

mod error;
mod generate;
mod runner;
mod validate;

pub use error::EngineError;
pub use generate::{Generator, GeneratorConfig, Outcome, Sampled};
pub use runner::{Program, Runner, RunnerConfig, SampleRow, StepRow};
