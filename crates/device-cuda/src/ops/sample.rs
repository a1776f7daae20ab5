//! Choosing tokens.

use crate::arguments::arguments;
use crate::cuda::Cuda;
use crate::storage::CudaTensor;
use paceline_device::Sampling;

arguments! { "sample.h"; }

impl Cuda {
    pub(crate) fn enqueue_sample(&self, _logits: &CudaTensor, _args: &Sampling<'_, Self>) {
        self.missing("sample");
    }
}
