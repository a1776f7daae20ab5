//! Time on a device, as models spend it: through its stream.

use paceline_device::{Backend, DeviceError, Pending};
use std::time::{Duration, Instant};

/// Samples at least, and time spent on them at least.
const SAMPLES: usize = 7;
const ENOUGH: Duration = Duration::from_millis(120);
/// Calls between two looks at the clock: waiting for the device costs more than a small operation.
const CALLS: usize = 8;

/// How long an operation took, and how much it had to do.
#[derive(Clone, Debug)]
pub(super) struct OpTiming {
    /// The operation and the type of its weights.
    pub(super) name: String,
    /// The sizes it was given.
    pub(super) size: String,
    /// Median time of one call.
    pub(super) seconds: f64,
    /// Arithmetic operations of one call.
    pub(super) flops: f64,
    /// Bytes of weights and activations that one call reads or writes.
    pub(super) bytes: f64,
}

/// Median seconds of one call of what is enqueued.
pub(super) fn seconds<B: Backend>(backend: &B, mut enqueue: impl FnMut()) -> Result<f64, DeviceError> {
    let behind = backend.buffer::<i32>(1)?;
    let mut sample = || -> Result<f64, DeviceError> {
        let start = Instant::now();
        for _ in 0..CALLS {
            enqueue();
        }
        backend.read(&behind, 1).wait()?;
        Ok(start.elapsed().as_secs_f64() / CALLS as f64)
    };
    sample()?;
    let (start, mut samples) = (Instant::now(), Vec::new());
    while samples.len() < SAMPLES || start.elapsed() < ENOUGH {
        samples.push(sample()?);
    }
    samples.sort_by(f64::total_cmp);
    Ok(samples[samples.len() / 2])
}
