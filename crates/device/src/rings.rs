//! The two rings between host and device: plans one way, records the other.
//!
//! Both have a place per step in flight, in memory that host and device see. A program finds its place by a counter on
//! the device, so nothing about a step is part of the program that runs it, and nothing is copied between two programs.

use crate::abi::Wide;
use crate::{Backend, DeviceError};
use std::collections::VecDeque;

/// The rings, as a program sees them.
#[derive(Clone)]
pub struct StepRings<B: Backend> {
    /// Places of either ring.
    pub depth: usize,
    /// Plans, see [`Plan`](crate::abi::Plan).
    pub plans: B::Ring,
    /// Records, see [`Record`](crate::abi::Record).
    pub records: B::Ring,
    /// One element: steps that the device has begun.
    pub begun: B::Buffer<Wide>,
}

impl<B: Backend> StepRings<B> {
    /// Rings for `depth` steps in flight whose plans and records have at most these numbers of words.
    pub fn new(
        backend: &B,
        depth: usize,
        (plan_words, record_words): (usize, usize),
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            depth,
            plans: backend.ring(depth, plan_words)?,
            records: backend.ring(depth, record_words)?,
            begun: backend.buffer(1)?,
        })
    }
}

/// A place in both rings. Whoever holds it may write the plan there, or knows that a step in flight does not read it
/// any more. There is one of each, so no two steps in flight can share a place.
#[derive(Debug)]
pub struct RingPlace(usize);

impl RingPlace {
    /// Which place it is.
    pub const fn index(&self) -> usize {
        self.0
    }
}

/// The places that no step in flight has.
#[derive(Debug)]
pub struct FreePlaces(VecDeque<RingPlace>);

impl FreePlaces {
    /// All places of rings for `depth` steps, the first step's in front.
    pub fn new(depth: usize) -> Self {
        Self((0..depth).map(RingPlace).collect())
    }

    /// The place for the next step; `None` if all are taken.
    pub fn take(&mut self) -> Option<RingPlace> {
        self.0.pop_front()
    }

    /// Takes back the place of a step that was collected. Steps are collected in order, so places are taken in order.
    pub fn put_back(&mut self, place: RingPlace) {
        self.0.push_back(place);
    }
}
