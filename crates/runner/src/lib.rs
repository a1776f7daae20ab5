//! Runs step plans on a device: a plan becomes one array of words and one program launch, a record becomes a
//! [`StepOutput`](paceline_types::StepOutput).

mod decode;
mod encode;
mod programs;
mod propose;
mod runner;
mod text_fit;

pub use encode::{ListsTooLong, list_words};
pub use programs::{ProgramReport, ProgramSet, Shape};
pub use propose::{Chain, HeadProposer, ModelProposer, NgramProposer, Proposer, RowsRead, Stage};
pub use runner::{DeviceRunner, InFlight, RunnerConfig};
