//! What tests share: the reference models of the repository, a plain way to run them, and how to compare.
//!
//! For tests alone, so a missing or damaged fixture is a panic.

mod compare;
mod fixtures;
mod stepper;

pub use compare::{assert_same_bits, relative_error};
pub use fixtures::{DraftReference, FIXTURES, Fixture, storyteller, storyteller_reference};
pub use stepper::{Program, SampleRow, StepRow, Stepper, StepperConfig};
