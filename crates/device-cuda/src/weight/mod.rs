//! Weights on the device.

use crate::cuda::Cuda;
use paceline_device::{DeviceError, WeightPart};
use paceline_types::DType;

/// A weight matrix.
#[derive(Clone)]
pub struct CudaWeight;

impl CudaWeight {
    pub(crate) fn pack(
        _cuda: &Cuda,
        _parts: &[WeightPart<'_>],
        _store_as: Option<DType>,
    ) -> Result<Self, DeviceError> {
        Err(DeviceError::Failed("weights are not there yet".to_owned()))
    }
}
