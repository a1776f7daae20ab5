//! What tests share: the reference models of the repository and how to compare with them.
//!
//! For tests alone, so a missing or damaged fixture is a panic.

mod compare;
mod fixtures;

pub use compare::{assert_same_bits, relative_error};
pub use fixtures::{DraftReference, FIXTURES, Fixture, storyteller, storyteller_reference};
