//! Experts of a mixture.

use crate::arguments::arguments;
use crate::cuda::Cuda;
use crate::weight::CudaWeight;
use paceline_device::DeviceError;
use paceline_device::Experts;

/// The experts of one layer.
#[derive(Clone)]
pub struct CudaExperts;

impl CudaExperts {
    pub(crate) fn new(
        _cuda: &Cuda,
        _gate_up: Vec<CudaWeight>,
        _down: Vec<CudaWeight>,
    ) -> Result<Self, DeviceError> {
        Err(DeviceError::Failed("experts are not there yet".to_owned()))
    }
}

arguments! { "experts.h"; }

impl Cuda {
    pub(crate) fn enqueue_experts(&self, _args: &Experts<'_, Self>) {
        self.missing("experts");
    }
}
