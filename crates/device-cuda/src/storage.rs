//! Handles of device memory.

use crate::arguments::Ptr;
use crate::context::Context;
use paceline_device::Element;
use std::marker::PhantomData;
use std::sync::Arc;

/// A one-dimensional array on the device.
pub struct CudaBuffer<T> {
    pub(crate) context: Arc<Context>,
    address: u64,
    len: usize,
    element: PhantomData<fn() -> T>,
}

impl<T> Clone for CudaBuffer<T> {
    fn clone(&self) -> Self {
        Self {
            context: Arc::clone(&self.context),
            ..*self
        }
    }
}

impl<T: Element> CudaBuffer<T> {
    pub(crate) fn new(context: &Arc<Context>, address: u64, len: usize) -> Self {
        Self {
            context: Arc::clone(context),
            address,
            len,
            element: PhantomData,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn ptr(&self) -> Ptr<T> {
        Ptr::new(self.address)
    }
}

/// A matrix of f32 on the device, or some columns of one.
#[derive(Clone)]
pub struct CudaTensor {
    /// The whole storage.
    pub(crate) storage: CudaBuffer<f32>,
    /// Elements from one row to the next.
    pub(crate) stride: usize,
    /// First column of the view.
    pub(crate) first: usize,
    /// Columns of the view.
    pub(crate) columns: usize,
    /// Rows the program is shaped for.
    pub(crate) bucket: usize,
    /// Rows that carry data.
    pub(crate) live: CudaBuffer<i32>,
}

impl CudaTensor {
    /// The first element of the view.
    pub(crate) fn data(&self) -> Ptr<f32> {
        Ptr::new(self.storage.address() + self.first as u64 * 4)
    }
}
