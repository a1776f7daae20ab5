//! Keys and values in blocks, and the states of recurrent layers.

use crate::cuda::Cuda;
use paceline_device::{DeviceError, KvShape, StateShape};

/// The paged keys and values of one attention layer.
#[derive(Clone)]
pub struct CudaKvCache;

impl CudaKvCache {
    pub(crate) fn new(_cuda: &Cuda, _shape: KvShape) -> Result<Self, DeviceError> {
        Err(DeviceError::Failed("caches are not there yet".to_owned()))
    }
}

/// The states of one recurrent layer.
#[derive(Clone)]
pub struct CudaStateCache;

impl CudaStateCache {
    pub(crate) fn new(_cuda: &Cuda, _shape: StateShape) -> Result<Self, DeviceError> {
        Err(DeviceError::Failed("caches are not there yet".to_owned()))
    }
}
