//! How operations put their kernels on the stream.

use crate::arguments::Arguments;
use crate::cuda::Cuda;
use crate::launch::{Grid, Kernel, Launch};
use crate::unread::Written;

impl Cuda {
    /// Runs a kernel, or adds it to the program being captured. What is wrong with it is told to whoever waits next. A grid
    /// without thread blocks, as of a program without rows of logits, is nothing to run.
    pub(crate) fn enqueue<A: Arguments>(&self, kernel: &Kernel<A>, grid: Grid, arguments: &A) {
        self.keep_inputs(None);
        self.enqueue_beside_inputs(kernel, grid, arguments);
    }

    /// The same for kernels that write what others read before they wait: tables of a step. The kernel behind it begins when it
    /// has ended, and with that everything of earlier steps (`kernels/paceline.cuh`).
    pub(crate) fn enqueue_fenced<A: Arguments>(&self, kernel: &Kernel<A>, grid: Grid, arguments: &A) {
        self.enqueue(kernel, grid, arguments);
        self.context.fence();
    }

    /// The same for kernels that write neither the inputs of products nor what those were made from.
    pub(crate) fn enqueue_beside_inputs<A: Arguments>(&self, kernel: &Kernel<A>, grid: Grid, arguments: &A) {
        self.enqueue_writing(kernel, grid, arguments, None);
    }

    /// The same, with what the kernel writes where that is known.
    pub(crate) fn enqueue_writing<A: Arguments>(
        &self,
        kernel: &Kernel<A>,
        grid: Grid,
        arguments: &A,
        written: Option<Written>,
    ) {
        if grid.is_empty() {
            return;
        }
        let grid = if self.context.take_fence() {
            grid.late()
        } else {
            grid
        };
        let launch = if self.context.rehearsal {
            Ok(Launch::rehearsed(kernel, grid, arguments))
        } else {
            Launch::new(&self.context, kernel, grid, arguments)
        };
        match launch {
            Ok(launch) => self.context.enqueue(launch.writing(written)),
            Err(error) => self.context.remember(Err(error)),
        }
    }
}
