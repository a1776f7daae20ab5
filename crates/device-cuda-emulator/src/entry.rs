//! The calls of the driver's library, as C knows them.

use crate::driver::{Code, Driver, Failure, Launch};
use crate::grid::Shape;
use crate::settings::Settings;
use cudarc::driver::sys::{CUlaunchAttributeID, CUlaunchConfig};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

type Handle = *mut c_void;

fn driver() -> &'static Mutex<Driver> {
    static DRIVER: OnceLock<Mutex<Driver>> = OnceLock::new();
    DRIVER.get_or_init(|| Mutex::new(Driver::new(Settings::from_environment())))
}

/// Does something and says how it went.
fn call(act: impl FnOnce(&mut Driver) -> Result<(), Failure>) -> u32 {
    let mut driver = driver().lock().unwrap_or_else(PoisonError::into_inner);
    match act(&mut driver) {
        Ok(()) => Code::Success as u32,
        Err(failure) => {
            driver.explain(&failure);
            failure.0 as u32
        }
    }
}

/// Handles are numbers, and never null.
fn handle(index: usize) -> Handle {
    std::ptr::without_provenance_mut(index + 1)
}

fn index(handle: Handle) -> usize {
    handle.addr().wrapping_sub(1)
}

/// Writes a result to where the caller wants it.
///
/// # Safety
/// The place is good for it.
unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Failure> {
    if to.is_null() {
        return Err((Code::InvalidValue, "a place for a result is null".to_owned()));
    }
    // SAFETY: as the caller says.
    unsafe { to.write(value) };
    Ok(())
}

fn outside(at: u64) -> Failure {
    (Code::InvalidValue, format!("{at:#x} is not in device memory"))
}

macro_rules! calls {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),*) $(-> with $driver:ident)? $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As the driver's own: pointers are good for what they are for.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> u32 {
            call(|driver| {
                let _ = &driver;
                $(let $driver = driver;)?
                // SAFETY: pointers are those of the caller, who has to see to them.
                #[allow(unused_unsafe, reason = "some calls have no pointers")]
                unsafe { $body }
            })
        }
    )*};
}

calls! {
    /// Starts; an old processor is no device.
    fn cuInit(_flags: u32) {
        #[cfg(target_arch = "x86_64")]
        let able = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("bmi2") && is_x86_feature_detected!("lzcnt");
        #[cfg(not(target_arch = "x86_64"))]
        let able = true;
        if able { Ok(()) } else { Err((Code::NotFound, "the emulator needs a processor with AVX2 and FMA".to_owned())) }
    }
    /// The version of CUDA.
    fn cuDriverGetVersion(version: *mut c_int) { put(version, 13_000) }
    /// One device.
    fn cuDeviceGetCount(count: *mut c_int) { put(count, 1) }
    /// Its number.
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) { put(device, ordinal) }
    /// Its name.
    fn cuDeviceGetName(name: *mut c_char, length: c_int, _device: c_int) {
        let text = c"Paceline's emulator of a GPU".to_bytes_with_nul();
        if (length as usize) < text.len() {
            return Err((Code::InvalidValue, "too little room for a name".to_owned()));
        }
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, text.len());
        Ok(())
    }
    /// Its memory.
    fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) -> with driver { put(bytes, driver.settings.memory as usize) }
    /// What there is of it, and what is left.
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> with driver {
        let all = driver.settings.memory;
        put(free, all.saturating_sub(driver.memory.held()) as usize)?;
        put(total, all as usize)
    }
    /// The capability is one that no pack is for, so that kernels come from the cache of those that were compiled.
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _device: c_int) -> with driver {
        match attribute {
            75 => put(value, 9),
            76 => put(value, 1),
            16 => put(value, driver.settings.multiprocessors as c_int),
            other => Err((Code::InvalidValue, format!("the emulator has no attribute {other}"))),
        }
    }
    /// The device's context, of which there is one.
    fn cuDevicePrimaryCtxRetain(context: *mut Handle, _device: c_int) -> with driver {
        driver.reset();
        put(context, handle(0))
    }
    /// It is always the one.
    fn cuCtxSetCurrent(_context: Handle) { Ok(()) }
    /// A stream.
    fn cuStreamCreate(stream: *mut Handle, _flags: u32) -> with driver {
        driver.streams += 1;
        put(stream, handle(driver.streams))
    }
    /// A stream ends, and the table of kernels is written.
    fn cuStreamDestroy_v2(stream: Handle) -> with driver {
        driver.captures.remove(&index(stream));
        driver.tell();
        Ok(())
    }
    /// Everything has run.
    fn cuStreamSynchronize(_stream: Handle) -> with driver { driver.state() }
    /// Everything has run.
    fn cuStreamQuery(_stream: Handle) -> with driver { driver.state() }
    /// Launches are collected from now on.
    fn cuStreamBeginCapture_v2(stream: Handle, _mode: c_int) -> with driver {
        driver.captures.insert(index(stream), Vec::new());
        Ok(())
    }
    /// What was collected.
    fn cuStreamEndCapture(stream: Handle, graph: *mut Handle) -> with driver {
        let launches = driver.captures.remove(&index(stream));
        driver.graphs.push(launches.ok_or((Code::InvalidValue, "nothing was captured".to_owned()))?);
        put(graph, handle(driver.graphs.len() - 1))
    }
    /// A graph is as good as what it was made of.
    fn cuGraphInstantiateWithFlags(made: *mut Handle, graph: Handle, _flags: u64) { put(made, graph) }
    /// There is nothing to prepare.
    fn cuGraphUpload(_graph: Handle, _stream: Handle) { Ok(()) }
    /// Runs a graph.
    fn cuGraphLaunch(graph: Handle, _stream: Handle) -> with driver { driver.launch_graph(index(graph)) }
    /// A graph that was made is the one that it was made of.
    fn cuGraphExecDestroy(_graph: Handle) { Ok(()) }
    /// Its handle stays taken.
    fn cuGraphDestroy(graph: Handle) -> with driver {
        driver.graphs.get_mut(index(graph)).ok_or((Code::InvalidHandle, String::new()))?.clear();
        Ok(())
    }
    /// Reads PTX, which ends with a zero.
    fn cuModuleLoadData(module: *mut Handle, image: *const c_void) -> with driver {
        let text = CStr::from_ptr(image.cast());
        put(module, handle(driver.load(text.to_bytes())?))
    }
    /// What was read is kept.
    fn cuModuleUnload(_module: Handle) { Ok(()) }
    /// Looks for a kernel.
    fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) -> with driver {
        let name = CStr::from_ptr(name).to_string_lossy();
        put(function, handle(driver.function(index(module), &name)?))
    }
    /// Allows a kernel more shared memory, or larger clusters.
    fn cuFuncSetAttribute(function: Handle, attribute: c_int, value: c_int) -> with driver {
        if attribute == 8 { driver.allow(index(function), value as usize) } else { Ok(()) }
    }
    /// Runs a kernel.
    fn cuLaunchKernelEx(config: *const CUlaunchConfig, function: Handle, parameters: *mut *mut c_void, _extra: *mut *mut c_void) -> with driver {
        let places = driver.parameters(index(function)).ok_or((Code::InvalidHandle, String::new()))?;
        let end = places.last().map_or(0, |(at, bytes)| at + bytes);
        let mut bytes = vec![0; end];
        for (number, (at, size)) in places.iter().enumerate() {
            let from = parameters.add(number).read().cast::<u8>();
            std::ptr::copy_nonoverlapping(from, bytes[*at..].as_mut_ptr(), *size);
        }
        let config = &*config;
        let mut cluster = 1;
        for number in 0..config.numAttrs as usize {
            let attribute = &*config.attrs.add(number);
            if attribute.id == CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION {
                cluster = attribute.value.clusterDim.x;
            }
        }
        let shape = Shape {
            blocks: [config.gridDimX, config.gridDimY, config.gridDimZ],
            threads: config.blockDimX,
            cluster,
            shared: config.sharedMemBytes as usize,
        };
        let launch = Launch { function: index(function), shape, parameters: bytes };
        driver.launch(index(config.hStream.cast()), launch)
    }
    /// Device memory, which holds nothing of use.
    fn cuMemAlloc_v2(at: *mut u64, bytes: usize) -> with driver { put(at, driver.take(bytes, true)?) }
    /// Gives it back.
    fn cuMemFree_v2(at: u64) -> with driver { if driver.memory.give_back(at) { Ok(()) } else { Err(outside(at)) } }
    /// Memory of the host that the device sees.
    fn cuMemHostAlloc(at: *mut *mut c_void, bytes: usize, _flags: u32) -> with driver {
        put(at, std::ptr::with_exposed_provenance_mut(driver.take(bytes, true)? as usize))
    }
    /// It sees it at the same address.
    fn cuMemHostGetDevicePointer_v2(to: *mut u64, at: *mut c_void, _flags: u32) { put(to, at.expose_provenance() as u64) }
    /// Gives it back.
    fn cuMemFreeHost(at: *mut c_void) -> with driver {
        if driver.memory.give_back(at.addr() as u64) { Ok(()) } else { Err(outside(at.addr() as u64)) }
    }
    /// Copies on the device.
    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, _stream: Handle) -> with driver {
        driver.state()?;
        let mut all = vec![0; bytes];
        driver.memory.read(from, &mut all).map_err(|_| outside(from))?;
        driver.memory.write(to, &all).map_err(|_| outside(to))
    }
    /// Copies from the device.
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, _stream: Handle) -> with driver {
        driver.state()?;
        let to = std::slice::from_raw_parts_mut(to.cast(), bytes);
        driver.memory.read(from, to).map_err(|_| outside(from))
    }
    /// Copies from the device.
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> with driver {
        driver.state()?;
        let to = std::slice::from_raw_parts_mut(to.cast(), bytes);
        driver.memory.read(from, to).map_err(|_| outside(from))
    }
    /// Copies to the device.
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, _stream: Handle) -> with driver {
        driver.state()?;
        let from = std::slice::from_raw_parts(from.cast(), bytes);
        driver.memory.write(to, from).map_err(|_| outside(to))
    }
    /// Fills memory with words.
    fn cuMemsetD32Async(at: u64, value: u32, count: usize, _stream: Handle) -> with driver {
        driver.state()?;
        driver.memory.fill(at, &value.to_le_bytes(), 4 * count).map_err(|_| outside(at))
    }
    /// Fills memory with bytes.
    fn cuMemsetD8Async(at: u64, value: u8, count: usize, _stream: Handle) -> with driver {
        driver.state()?;
        driver.memory.fill(at, &[value], count).map_err(|_| outside(at))
    }
    /// An event is the time when it was recorded.
    fn cuEventCreate(event: *mut Handle, _flags: u32) {
        put(event, Box::into_raw(Box::<Option<Instant>>::default()).cast())
    }
    /// It is over.
    fn cuEventDestroy_v2(event: Handle) {
        drop(Box::from_raw(event.cast::<Option<Instant>>()));
        Ok(())
    }
    /// Now.
    fn cuEventRecord(event: Handle, _stream: Handle) {
        *event.cast::<Option<Instant>>() = Some(Instant::now());
        Ok(())
    }
    /// It has been.
    fn cuEventSynchronize(_event: Handle) -> with driver { driver.state() }
    /// Time between two events.
    fn cuEventElapsedTime_v2(milliseconds: *mut f32, first: Handle, last: Handle) {
        let time = |event: Handle| *event.cast::<Option<Instant>>();
        let between = time(last).zip(time(first)).map(|(last, first)| last.saturating_duration_since(first));
        put(milliseconds, between.map_or(0.0, |time| time.as_secs_f32() * 1000.0))
    }
    /// What the last error of this kind was about.
    fn cuGetErrorString(error: u32, text: *mut *const c_char) -> with driver {
        let known = driver.messages.get(&error).copied();
        put(text, known.unwrap_or(c"an error of the emulator").as_ptr())
    }
    /// The name of an error.
    fn cuGetErrorName(error: u32, text: *mut *const c_char) {
        put(text, name(error).as_ptr())
    }
}

/// The name of a code, with a zero behind it.
fn name(code: u32) -> &'static CStr {
    const KNOWN: [Code; 11] = [
        Code::InvalidValue,
        Code::OutOfMemory,
        Code::InvalidImage,
        Code::InvalidPtx,
        Code::InvalidHandle,
        Code::NotFound,
        Code::IllegalAddress,
        Code::LaunchTimeout,
        Code::IllegalInstruction,
        Code::Misaligned,
        Code::LaunchFailed,
    ];
    let known = KNOWN
        .into_iter()
        .find(|known| *known as u32 == code)
        .unwrap_or(Code::Success);
    CStr::from_bytes_with_nul(known.name().as_bytes()).unwrap_or(c"an error")
}
