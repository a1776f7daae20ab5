//! A stand-in for NVIDIA's driver: kernels run on the host, as an interpreter of PTX reads them.
//!
//! Tests load it as `libcuda.so.1`. What it is for, and what it judges, is in the README.

mod cluster;
mod decode;
mod driver;
pub mod entry;
mod exec;
mod grid;
mod kernel;
mod lexer;
mod memory;
mod names;
mod parser;
mod rows;
mod settings;
#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::float_cmp,
    reason = "a failure here fails the test"
)]
mod tests;
mod warp;
