//! Handles of a [`Checked`] backend: those of the backend inside, with names.

use super::Shared;
use super::watch::Place;
use crate::{Backend, DeviceError, Element, Pending};

/// What a device says that was lost on purpose.
const LOST: &str = "the device was lost";

/// A buffer and its length.
#[derive(Clone)]
pub struct CheckedBuffer<B: Backend, T: Element> {
    pub(super) inner: B::Buffer<T>,
    pub(super) name: u64,
    pub(super) len: usize,
}

impl<B: Backend, T: Element> CheckedBuffer<B, T> {
    /// The buffer inside.
    pub fn inner(&self) -> &B::Buffer<T> {
        &self.inner
    }
}

/// A tensor and its place.
#[derive(Clone)]
pub struct CheckedTensor<B: Backend> {
    pub(super) inner: B::Tensor,
    pub(super) place: Place,
    /// Rows that the program is shaped for.
    pub(super) bucket: usize,
    /// Rows and columns that the storage has room for.
    pub(super) room: (usize, usize),
}

/// A weight and the operation it is for.
#[derive(Clone)]
pub struct CheckedWeight<B: Backend> {
    pub(super) inner: B::Weight,
    /// Made by [`Backend::gated_weight`]: its rows may be in another order than the file has them.
    pub(super) gated: bool,
}

/// A program and its name.
#[derive(Clone)]
pub struct CheckedProgram<B: Backend> {
    pub(super) inner: B::Program,
    pub(super) name: u64,
}

/// A ring and the words of a place.
#[derive(Clone)]
pub struct CheckedRing<B: Backend> {
    pub(super) inner: B::Ring,
    pub(super) words: usize,
}

/// A record in flight, and what to say when it is there.
pub struct CheckedArrival<B: Backend> {
    /// None comes from a device that is lost.
    pub(super) inner: Option<B::Arrival>,
    pub(super) shared: Shared,
    /// The place that the step gives back.
    pub(super) place: usize,
}

impl<B: Backend> Pending<Vec<i32>> for CheckedArrival<B> {
    fn wait(self) -> Result<Vec<i32>, DeviceError> {
        let record = match self.inner {
            Some(arrival) => arrival.wait(),
            None => Err(DeviceError::Failed(LOST.to_owned())),
        };
        self.shared.lock().arrived(self.place);
        record
    }
}
