//! Times of kernels, for whoever looks for where a step spends its time: programs run kernel by kernel, each timed alone, and
//! a file has a table per program, anew after every step. Steps are slower then: nothing overlaps, and an event on either
//! side of a kernel adds about two microseconds to it.

use crate::driver::check;
use crate::launch::Launch;
use cudarc::driver::sys;
use paceline_device::DeviceError;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

/// What has been measured so far.
pub(crate) struct KernelTimes {
    path: PathBuf,
    events: Vec<sys::CUevent>,
    programs: BTreeMap<usize, ProgramTimes>,
}

/// Of one program.
#[derive(Default)]
struct ProgramTimes {
    runs: u32,
    kernels: usize,
    /// Calls and microseconds by kernel and thread blocks.
    by_kernel: BTreeMap<(&'static str, [u32; 3]), (u32, f64)>,
}

impl KernelTimes {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            events: Vec::new(),
            programs: BTreeMap::new(),
        }
    }

    /// Runs a program, known by its number, kernel by kernel, and waits for it.
    pub(crate) fn run(
        &mut self,
        program: usize,
        launches: &[Launch],
        stream: sys::CUstream,
    ) -> Result<(), DeviceError> {
        while self.events.len() <= launches.len() {
            let mut event = std::ptr::null_mut();
            // SAFETY: a plain call with a place to write to.
            check(unsafe { sys::cuEventCreate(&raw mut event, 0) }, "cuEventCreate")?;
            self.events.push(event);
        }
        // SAFETY: events and stream live as long as the context, which is bound.
        let mark = |event| check(unsafe { sys::cuEventRecord(event, stream) }, "cuEventRecord");
        mark(self.events[0])?;
        for (launch, event) in launches.iter().zip(&self.events[1..]) {
            launch.issue(stream, false)?;
            mark(*event)?;
        }
        // SAFETY: as above.
        check(unsafe { sys::cuStreamSynchronize(stream) }, "the stream")?;
        let times = self.programs.entry(program).or_default();
        times.runs += 1;
        times.kernels = launches.len();
        for (launch, pair) in launches.iter().zip(self.events.windows(2)) {
            let mut milliseconds = 0.0;
            // SAFETY: both events have been recorded, and a place to write to.
            let elapsed = unsafe { sys::cuEventElapsedTime_v2(&raw mut milliseconds, pair[0], pair[1]) };
            check(elapsed, "cuEventElapsedTime")?;
            let sum = times.by_kernel.entry(launch.label()).or_default();
            *sum = (sum.0 + 1, sum.1 + 1e3 * f64::from(milliseconds));
        }
        std::fs::write(&self.path, self.tables()).map_err(|error| {
            DeviceError::Failed(format!("times of kernels, {}: {error}", self.path.display()))
        })
    }

    /// The tables, the largest share first.
    fn tables(&self) -> String {
        let mut text = String::new();
        for times in self.programs.values() {
            let runs = f64::from(times.runs);
            let total: f64 = times.by_kernel.values().map(|sum| sum.1).sum();
            let _ = writeln!(
                text,
                "\n{} kernels, {} runs, {:.1} us per run\n{:>9} {:>7} {:>9}  kernel, thread blocks",
                times.kernels,
                times.runs,
                total / runs,
                "us",
                "calls",
                "us each",
            );
            let mut rows: Vec<_> = times.by_kernel.iter().collect();
            rows.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
            for ((name, blocks), (calls, sum)) in rows {
                let _ = writeln!(
                    text,
                    "{:9.1} {:7.1} {:9.2}  {name} {blocks:?}",
                    sum / runs,
                    f64::from(*calls) / runs,
                    sum / f64::from(*calls),
                );
            }
        }
        text
    }
}

impl Drop for KernelTimes {
    fn drop(&mut self) {
        for event in self.events.drain(..) {
            // SAFETY: made here, used by nobody else.
            let _ = unsafe { sys::cuEventDestroy_v2(event) };
        }
    }
}
