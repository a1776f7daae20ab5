//! Choosing tokens.

use crate::arguments::arguments;
use crate::cuda::Cuda;
use paceline_device::Sample;

arguments! { "sample.h"; }

impl Cuda {
    pub(crate) fn enqueue_sample(&self, _args: &Sample<'_, Self>) {
        self.missing("sample");
    }
}
