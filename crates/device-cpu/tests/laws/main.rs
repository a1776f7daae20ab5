//! What every operation promises, checked through the public interface: a row's result depends on nothing but
//! its own inputs, to the last bit, and agrees with plain arithmetic in f64.

mod harness;
mod recurrence;
mod rows;
mod sampling;
mod sequence;
mod stream;
