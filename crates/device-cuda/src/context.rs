//! One GPU in use: its context, its stream, its memory and its kernels.

use crate::arena::Arena;
use crate::cuda::CudaOptions;
use crate::driver::{self, Found, Gpu, check};
use crate::launch::Launch;
use crate::pack::{Architecture, Modules};
use crate::times::KernelTimes;
use cudarc::driver::sys;
use paceline_device::DeviceError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A GPU with everything that was made on it. Dropping it gives all memory back.
pub(crate) struct Context {
    pub(crate) gpu: Gpu,
    pub(crate) architecture: Architecture,
    handle: sys::CUcontext,
    pub(crate) stream: sys::CUstream,
    arena: Mutex<Arena>,
    pub(crate) modules: Modules,
    /// The operations collected so far, while a program is being captured.
    capture: Mutex<Option<Vec<Launch>>>,
    failure: Mutex<Option<DeviceError>>,
    pub(crate) waits: AtomicU64,
    /// The next kernel begins when all before it have ended.
    fenced: AtomicBool,
    pub(crate) started: Instant,
    /// The GPU's clock at `started`, in nanoseconds.
    pub(crate) clock: u64,
    /// One word on the device: what a kernel found wrong, 0 if nothing.
    pub(crate) fault: u64,
    /// Whether a kernel may start before the one ahead of it has ended.
    pub(crate) dependent: bool,
    /// Times of kernels, where they are asked for.
    pub(crate) times: Mutex<Option<KernelTimes>>,
    /// Some kernels do not wait for the one ahead of them, which is a fault on purpose.
    pub(crate) hasty: bool,
    /// There is no GPU behind it: nothing runs, and memory is counted.
    pub(crate) rehearsal: bool,
}

// SAFETY: handles of the driver may be used from any thread; what is changed through them is behind locks.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(crate) fn open(options: &CudaOptions, hasty: bool) -> Result<Self, DeviceError> {
        let (ordinal, dependent) = (options.ordinal, options.dependent_launch);
        let gpu = find(ordinal)?;
        let modules = Modules::new(gpu.capability, options.kernel_cache.as_deref())?;
        let (mut device, mut handle, mut stream) = (0, std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: plain calls with places to write to; the driver has listed this device.
        unsafe {
            check(sys::cuDeviceGet(&raw mut device, ordinal as i32), "cuDeviceGet")?;
            check(
                sys::cuDevicePrimaryCtxRetain(&raw mut handle, device),
                "cuDevicePrimaryCtxRetain",
            )?;
            check(sys::cuCtxSetCurrent(handle), "cuCtxSetCurrent")?;
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            check(sys::cuStreamCreate(&raw mut stream, flags), "cuStreamCreate")?;
        }
        let architecture = Architecture::of(gpu.capability)?;
        let mut context = Self {
            dependent: dependent && gpu.capability.0 >= 9,
            hasty,
            rehearsal: false,
            architecture,
            gpu,
            handle,
            stream,
            arena: Mutex::default(),
            modules,
            capture: Mutex::default(),
            failure: Mutex::default(),
            waits: AtomicU64::new(0),
            fenced: AtomicBool::new(false),
            started: Instant::now(),
            clock: 0,
            fault: 0,
            times: Mutex::new(options.kernel_times.clone().map(KernelTimes::new)),
        };
        context.fault = context.zeroed(4, "the error word")?;
        context.start_clock()?;
        Ok(context)
    }

    /// A context without a GPU, to count what would be taken of one.
    pub(crate) fn rehearse(gpu: Gpu) -> Result<Self, DeviceError> {
        Ok(Self {
            architecture: Architecture::of(gpu.capability)?,
            gpu,
            handle: std::ptr::null_mut(),
            stream: std::ptr::null_mut(),
            arena: Mutex::new(Arena::rehearsal()),
            modules: Modules::none(),
            capture: Mutex::default(),
            failure: Mutex::default(),
            waits: AtomicU64::new(0),
            fenced: AtomicBool::new(false),
            started: Instant::now(),
            clock: 0,
            fault: 0,
            dependent: false,
            hasty: false,
            times: Mutex::default(),
            rehearsal: true,
        })
    }

    /// Makes this context the one that the calling thread's calls are for.
    pub(crate) fn bind(&self) {
        if self.rehearsal {
            return;
        }
        // SAFETY: the context lives as long as this. If the device is lost, the call behind this one says so.
        let _ = unsafe { sys::cuCtxSetCurrent(self.handle) };
    }

    /// Device memory with undefined contents.
    pub(crate) fn take(&self, bytes: u64, what: &str) -> Result<u64, DeviceError> {
        self.bind();
        lock(&self.arena).take(bytes, what)
    }

    /// Device memory that is zero for everything enqueued from now on.
    pub(crate) fn zeroed(&self, bytes: u64, what: &str) -> Result<u64, DeviceError> {
        let at = self.take(bytes, what)?;
        if bytes == 0 || self.rehearsal {
            return Ok(at);
        }
        // SAFETY: the range was just taken.
        let zeroed = unsafe { sys::cuMemsetD8Async(at, 0, bytes as usize, self.stream) };
        check(zeroed, "cuMemsetD8Async")?;
        Ok(at)
    }

    /// Bytes of device memory that were asked for. A rehearsal says what the GPU would no longer have.
    pub(crate) fn allocated(&self) -> u64 {
        let arena = lock(&self.arena);
        if self.rehearsal {
            arena.held()
        } else {
            arena.taken()
        }
    }

    /// Free and total bytes of the GPU's memory.
    pub(crate) fn memory(&self) -> Option<(u64, u64)> {
        if self.rehearsal {
            return Some((self.gpu.memory, self.gpu.memory));
        }
        self.bind();
        let (mut free, mut total) = (0, 0);
        // SAFETY: a plain call with places to write to.
        let result = unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        check(result, "cuMemGetInfo")
            .ok()
            .map(|()| (free as u64, total as u64))
    }

    /// Runs an operation, or adds it to the program being captured. In a rehearsal nothing runs.
    /// Says that the next kernel may begin only when all before it have ended.
    pub(crate) fn fence(&self) {
        self.fenced.store(true, Ordering::Relaxed);
    }

    /// Whether that was said since it was asked last.
    pub(crate) fn take_fence(&self) -> bool {
        self.fenced.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn enqueue(&self, launch: Launch) {
        if let Some(program) = lock(&self.capture).as_mut() {
            program.push(launch);
            return;
        }
        if self.failure().is_none() && !self.rehearsal {
            self.bind();
            self.remember(launch.issue(self.stream, self.dependent));
        }
    }

    pub(crate) fn begin_capture(&self) {
        *lock(&self.capture) = Some(Vec::new());
    }

    pub(crate) fn end_capture(&self) -> Vec<Launch> {
        lock(&self.capture).take().unwrap_or_default()
    }

    /// The first thing that went wrong.
    pub(crate) fn failure(&self) -> Option<DeviceError> {
        lock(&self.failure).clone()
    }

    /// Keeps the first error; everything enqueued after it is skipped, and whoever waits is told.
    pub(crate) fn remember(&self, result: Result<(), DeviceError>) {
        if let Err(error) = result {
            lock(&self.failure).get_or_insert(error);
        }
    }

    /// Blocks until everything enqueued so far has run.
    pub(crate) fn synchronise(&self) -> Result<(), DeviceError> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        if self.rehearsal {
            return Ok(());
        }
        self.bind();
        // SAFETY: the stream lives as long as this.
        let result = check(unsafe { sys::cuStreamSynchronize(self.stream) }, "the stream");
        self.remember(result.clone());
        result
    }

    /// Whether everything enqueued so far has run, in the driver's words.
    pub(crate) fn query(&self) -> sys::CUresult {
        if self.rehearsal {
            return sys::CUresult::CUDA_SUCCESS;
        }
        self.bind();
        // SAFETY: the stream lives as long as this.
        unsafe { sys::cuStreamQuery(self.stream) }
    }

    pub(crate) fn count_wait(&self) {
        self.waits.fetch_add(1, Ordering::Relaxed);
    }

    /// Reads the GPU's clock, so that its times can be given as times since [`started`](Self::started).
    fn start_clock(&mut self) -> Result<(), DeviceError> {
        let at = self.zeroed(8, "the clock")?;
        self.synchronise()?;
        crate::ops::clock::read(self, at)?.issue(self.stream, false)?;
        self.started = Instant::now();
        self.synchronise()?;
        let mut clock = 0_u64;
        // SAFETY: eight bytes at either end.
        let result = unsafe { sys::cuMemcpyDtoH_v2((&raw mut clock).cast(), at, 8) };
        self.clock = clock;
        check(result, "cuMemcpyDtoH")
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.rehearsal {
            return;
        }
        self.bind();
        // SAFETY: nothing else holds this context, so nothing is enqueued any more; what is, ends first. Errors of a lost
        // device have been reported to whoever waited.
        unsafe {
            let _ = sys::cuStreamSynchronize(self.stream);
            lock(&self.arena).release();
            self.modules.unload();
            let _ = sys::cuStreamDestroy_v2(self.stream);
        }
    }
}

/// The GPU with this number, or what there is instead.
fn find(ordinal: usize) -> Result<Gpu, DeviceError> {
    let found = driver::probe();
    if let Found::Driver { gpus, .. } = &found
        && let Some(gpu) = gpus.get(ordinal)
    {
        return Ok(gpu.clone());
    }
    Err(DeviceError::Absent(match found {
        Found::Driver { ref gpus, .. } if !gpus.is_empty() => {
            format!("there is no cuda:{ordinal}; the driver lists {found}")
        }
        found => format!("there is no cuda:{ordinal}: {found}"),
    }))
}

/// What is behind these locks stays valid whatever a holder did.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
