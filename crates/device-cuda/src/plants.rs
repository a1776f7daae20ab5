//! Faults on purpose, so that it can be shown that they are found. No engine comes here.

use crate::arguments::{Ptr, arguments};
use crate::context::Context;
use crate::cuda::{Cuda, CudaOptions};
use crate::launch::{Grid, Kernel};
use paceline_device::DeviceError;

arguments! { "plants.h";
    /// A word that is not written.
    struct FailArgs {
        word: Ptr<i32>,
    }
}

const FAIL: Kernel<FailArgs> = Kernel::new("plants", "fail");

/// Opens a GPU whose norms do not wait for the kernel ahead of them. Where kernels run one after the other, that changes
/// nothing.
pub fn open_hasty(options: CudaOptions) -> Result<Cuda, DeviceError> {
    Cuda::open_with(options, true)
}

/// Puts a kernel on the stream that the context does not survive: every call behind it fails, in all of this process.
pub fn lose(cuda: &Cuda) {
    let word = Ptr::new(cuda.context.fault);
    cuda.enqueue(&FAIL, Grid::new(1, 1), &FailArgs { word });
}

/// The file that a kernel is taken from.
pub(crate) fn file_of(context: &Context, file: &'static str, entry: &str) -> &'static str {
    if context.hasty && file == "norm" && entry.starts_with("rms_norm") {
        "plants"
    } else {
        file
    }
}
