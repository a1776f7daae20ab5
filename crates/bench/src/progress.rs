//! How far a measurement is.

use std::fmt::Display;

/// What a [`Bar`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Parts of the measurement.
    Tasks,
    /// Seconds of a measurement that has an end in time.
    Seconds,
}

/// Shows the user how far a measurement is.
pub trait Progress {
    /// Begins a measurement of `total` units.
    fn bar(&self, total: u64, unit: Unit) -> Box<dyn Bar>;

    /// Shows one line that is no result.
    fn note(&self, line: &dyn Display);
}

/// Shows nothing: for a part of a measurement that has a bar of its own.
pub(crate) struct Silent;

impl Progress for Silent {
    fn bar(&self, _: u64, _: Unit) -> Box<dyn Bar> {
        Box::new(Self)
    }

    fn note(&self, _: &dyn Display) {}
}

impl Bar for Silent {
    fn name(&self, _: String) {}

    fn advance(&self, _: u64) {}
}

/// One measurement under way; dropping it takes it off the screen.
pub trait Bar {
    /// Says what is being measured now.
    fn name(&self, task: String);

    /// Counts `units` more as done.
    fn advance(&self, units: u64);
}
