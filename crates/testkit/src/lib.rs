//! What tests share: the reference models of the repository, a plain way to run them, and how to compare.
//!
//! For tests alone, so a missing or damaged fixture is a panic.

mod compare;
mod files;
mod fixtures;
mod held;
mod matrix;
mod numbers;
mod random;
mod schemas;
mod solo;
mod stepper;

pub use compare::{assert_same_bits, relative_error};
pub use files::{Stored, in_memory, safetensors};
pub use fixtures::{
    DraftReference, FIXTURES, Fixture, HEADS, HeadFixture, repository, storyteller, storyteller_in,
    storyteller_reference, storyteller_reference_in,
};
pub use held::{Gate, held};
pub use matrix::Matrix;
pub use numbers::Random;
pub use random::{overflowing_model, random_draft_model, random_eagle3};
pub use schemas::random_schema;
pub use solo::{GREEDY, Solo, greedy_difference};
pub use stepper::{Program, SampleRow, StepRow, Stepper, StepperConfig};
