//! A captured step: one straight graph of kernels.

use crate::context::{Context, lock};
use crate::driver::check;
use crate::launch::{KernelCall, Launch};
use cudarc::driver::sys;
use paceline_device::DeviceError;
use std::sync::Arc;

/// A captured program. Clones share the graph.
#[derive(Clone)]
pub struct CudaProgram(Arc<Graph>);

struct Graph {
    context: Arc<Context>,
    /// Null if it could not be made; the context knows why.
    template: sys::CUgraph,
    executable: sys::CUgraphExec,
    /// What it is made of, if kernels are timed or rehearsed.
    launches: Vec<Launch>,
}

// SAFETY: the handles may be used from any thread, and are only launched.
unsafe impl Send for Graph {}
// SAFETY: as above.
unsafe impl Sync for Graph {}

impl CudaProgram {
    /// Makes a graph of the operations that were collected. A failure is remembered by the context.
    pub(crate) fn new(context: &Arc<Context>, launches: Vec<Launch>) -> Self {
        let mut graph = Graph {
            context: Arc::clone(context),
            template: std::ptr::null_mut(),
            executable: std::ptr::null_mut(),
            launches: Vec::new(),
        };
        if context.failure().is_none() && !context.rehearsal {
            context.bind();
            context.remember(graph.build(&launches));
        }
        if context.rehearsal || lock(&context.times).is_some() {
            graph.launches = launches;
        }
        Self(Arc::new(graph))
    }

    /// The kernels that it would run, if it was captured in a rehearsal.
    pub fn kernels(&self) -> Vec<KernelCall> {
        self.0.launches.iter().map(Launch::call).collect()
    }

    /// Enqueues all of it.
    pub(crate) fn launch(&self) {
        let Graph {
            context, executable, ..
        } = &*self.0;
        if executable.is_null() || context.failure().is_some() {
            return;
        }
        context.bind();
        if let Some(times) = lock(&context.times).as_mut() {
            let program = Arc::as_ptr(&self.0) as usize;
            return context.remember(times.run(program, &self.0.launches, context.stream));
        }
        // SAFETY: the graph is whole, and everything that it names lives as long as the context.
        context.remember(check(
            unsafe { sys::cuGraphLaunch(*executable, context.stream) },
            "cuGraphLaunch",
        ));
    }
}

impl Graph {
    fn build(&mut self, launches: &[Launch]) -> Result<(), DeviceError> {
        let stream = self.context.stream;
        // SAFETY: this thread alone captures, and ends what it began; the handles come from the calls before.
        unsafe {
            let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
            check(sys::cuStreamBeginCapture_v2(stream, mode), "cuStreamBeginCapture")?;
            let issued = launches
                .iter()
                .try_for_each(|launch| launch.issue(stream, self.context.dependent));
            let ended = check(
                sys::cuStreamEndCapture(stream, &raw mut self.template),
                "cuStreamEndCapture",
            );
            issued.and(ended)?;
            let made = sys::cuGraphInstantiateWithFlags(&raw mut self.executable, self.template, 0);
            check(made, "cuGraphInstantiate")?;
            check(sys::cuGraphUpload(self.executable, stream), "cuGraphUpload")
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        self.context.bind();
        // SAFETY: each was made once and goes once; the driver keeps what is still running.
        unsafe {
            if !self.executable.is_null() {
                let _ = sys::cuGraphExecDestroy(self.executable);
            }
            if !self.template.is_null() {
                let _ = sys::cuGraphDestroy(self.template);
            }
        }
    }
}
