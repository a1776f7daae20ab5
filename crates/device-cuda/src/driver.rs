//! The driver: whether it is there, and the calls of it that this crate makes, with errors in words.

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};
use paceline_device::DeviceError;
use std::ffi::CStr;
use std::fmt;

/// Turns the result of a call into a [`DeviceError`] that names it.
pub(crate) fn check(result: CUresult, call: &str) -> Result<(), DeviceError> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(DeviceError::Failed(format!("{call}: {}", words(result))))
}

/// What the driver says about an error.
fn words(result: CUresult) -> String {
    let text = |call: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: the driver was called before, or there would be no result; it hands out static texts.
        unsafe {
            (call(result, &raw mut text) == CUresult::CUDA_SUCCESS && !text.is_null())
                .then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    };
    let name = text(sys::cuGetErrorName).unwrap_or_else(|| format!("error {}", result as u32));
    match text(sys::cuGetErrorString) {
        Some(text) => format!("{text} ({name})"),
        None => name,
    }
}

/// A GPU that the driver lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its number.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Bytes of its memory.
    pub memory: u64,
    /// Multiprocessors.
    pub multiprocessors: u32,
}

#[cfg(test)]
impl Gpu {
    /// One that no machine has, for tests of what needs none.
    pub(crate) fn imagined() -> Self {
        Self {
            ordinal: 0,
            name: "none".to_owned(),
            capability: (9, 0),
            memory: 1 << 30,
            multiprocessors: 100,
        }
    }
}

/// What there is of CUDA on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// There is no driver library.
    NoDriver,
    /// The driver cannot be used; in its words.
    Unusable(String),
    /// The driver and what it lists.
    Driver {
        /// Version of CUDA that the driver supports: 13000 is 13.0.
        version: u32,
        /// The GPUs, which may be none: `CUDA_VISIBLE_DEVICES` hides those that it does not name.
        gpus: Vec<Gpu>,
    },
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDriver => f.write_str("no NVIDIA driver (libcuda.so.1) was found"),
            Self::Unusable(why) => write!(f, "the NVIDIA driver cannot be used: {why}"),
            Self::Driver { gpus, .. } if gpus.is_empty() => f.write_str(
                "the NVIDIA driver lists no GPU; CUDA_VISIBLE_DEVICES hides those that it does not name",
            ),
            Self::Driver { gpus, .. } => {
                let names: Vec<String> = gpus
                    .iter()
                    .map(|gpu| format!("cuda:{} {}", gpu.ordinal, gpu.name))
                    .collect();
                f.write_str(&names.join(", "))
            }
        }
    }
}

/// Looks for a driver and its GPUs. Never fails and never panics.
pub fn probe() -> Found {
    // SAFETY: opens the library and nothing else.
    if !unsafe { sys::is_culib_present() } {
        return Found::NoDriver;
    }
    list().unwrap_or_else(|error| Found::Unusable(error.to_string()))
}

fn list() -> Result<Found, DeviceError> {
    let (mut version, mut count) = (0, 0);
    // SAFETY: plain calls with places to write to; the library is there.
    unsafe {
        let started = sys::cuInit(0);
        if started == CUresult::CUDA_ERROR_NO_DEVICE {
            return Ok(Found::Driver {
                version: 0,
                gpus: Vec::new(),
            });
        }
        check(started, "cuInit")?;
        check(sys::cuDriverGetVersion(&raw mut version), "cuDriverGetVersion")?;
        check(sys::cuDeviceGetCount(&raw mut count), "cuDeviceGetCount")?;
    }
    let gpus = (0..count).map(describe).collect::<Result<_, _>>()?;
    Ok(Found::Driver {
        version: version as u32,
        gpus,
    })
}

fn describe(ordinal: i32) -> Result<Gpu, DeviceError> {
    let (mut device, mut name, mut memory) = (0, [0; 128], 0);
    // SAFETY: as above; the name fits its buffer by the length given.
    unsafe {
        check(sys::cuDeviceGet(&raw mut device, ordinal), "cuDeviceGet")?;
        check(
            sys::cuDeviceGetName(name.as_mut_ptr(), 127, device),
            "cuDeviceGetName",
        )?;
        check(
            sys::cuDeviceTotalMem_v2(&raw mut memory, device),
            "cuDeviceTotalMem",
        )?;
    }
    // SAFETY: the last byte stays zero.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }
        .to_string_lossy()
        .into_owned();
    let major = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok(Gpu {
        ordinal: ordinal as usize,
        name,
        capability: (major, minor),
        memory: memory as u64,
        multiprocessors: attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
    })
}

fn attribute(device: sys::CUdevice, attribute: Attribute) -> Result<u32, DeviceError> {
    let mut value = 0;
    // SAFETY: a plain call with a place to write to.
    let found = unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, device) };
    check(found, "cuDeviceGetAttribute")?;
    Ok(value as u32)
}
