//! Compiled kernels: one pack per architecture, in the binary.
//!
//! A pack is a list of (name of the file, cubin), compressed. The driver loads machine code of the right architecture
//! without compiling anything.

use crate::context::lock;
use crate::driver::check;
use cudarc::driver::sys::{self, CUfunction_attribute};
use paceline_device::DeviceError;
use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::sync::Mutex;

/// Shared memory of a thread block that needs no asking for.
const PLAIN_SHARED: u32 = 48 << 10;
/// Compression of packs; they are made rarely.
const LEVEL: i32 = 19;

/// Architectures that there are packs for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Ampere and Ada.
    Sm80,
    /// Hopper.
    Sm90a,
    /// Blackwell in data centres.
    Sm100,
    /// Blackwell in workstations.
    Sm120,
}

impl Architecture {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Sm80, Self::Sm90a, Self::Sm100, Self::Sm120];

    /// The name that the compiler knows it by.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sm80 => "sm_80",
            Self::Sm90a => "sm_90a",
            Self::Sm100 => "sm_100",
            Self::Sm120 => "sm_120",
        }
    }

    /// The one whose code a GPU of this compute capability runs.
    pub(crate) fn of(capability: (u32, u32)) -> Result<Self, DeviceError> {
        match capability {
            (8, _) => Ok(Self::Sm80),
            (9, 0) => Ok(Self::Sm90a),
            (10, _) => Ok(Self::Sm100),
            (12, _) => Ok(Self::Sm120),
            (major, minor) => Err(DeviceError::Absent(format!(
                "there are no kernels for compute capability {major}.{minor}; 8.0 and later are needed"
            ))),
        }
    }

    const fn pack(self) -> &'static [u8] {
        match self {
            Self::Sm80 => include_bytes!("../kernels/packs/sm_80.zst"),
            Self::Sm90a => include_bytes!("../kernels/packs/sm_90a.zst"),
            Self::Sm100 => include_bytes!("../kernels/packs/sm_100.zst"),
            Self::Sm120 => include_bytes!("../kernels/packs/sm_120.zst"),
        }
    }
}

/// Files of kernels and their machine code, as one compressed pack.
pub fn write(cubins: &[(String, Vec<u8>)]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for (name, cubin) in cubins {
        for part in [name.as_bytes(), cubin] {
            bytes.extend((part.len() as u32).to_le_bytes());
            bytes.extend(part);
        }
    }
    zstd::encode_all(bytes.as_slice(), LEVEL)
}

/// What [`write()`] was given; `None` if these are not bytes that it made.
pub fn read(pack: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    let bytes = zstd::decode_all(pack).ok()?;
    let mut rest = bytes.as_slice();
    let mut part = || {
        let (length, tail) = rest.split_first_chunk()?;
        let (part, tail) = tail.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        rest = tail;
        Some(part.to_vec())
    };
    let mut cubins = Vec::new();
    while let Some(name) = part() {
        cubins.push((String::from_utf8(name).ok()?, part()?));
    }
    Some(cubins)
}

/// The kernels of one architecture, loaded as they are asked for.
pub(crate) struct Modules {
    cubins: HashMap<String, Vec<u8>>,
    loaded: Mutex<Loaded>,
}

#[derive(Default)]
struct Loaded {
    modules: HashMap<&'static str, sys::CUmodule>,
    /// Functions, and the shared memory that they were allowed.
    functions: HashMap<(&'static str, &'static str), (sys::CUfunction, u32)>,
}

// SAFETY: handles of loaded code may be used from any thread.
unsafe impl Send for Loaded {}

impl Modules {
    pub(crate) fn new(architecture: Architecture) -> Result<Self, DeviceError> {
        let cubins = read(architecture.pack())
            .ok_or_else(|| DeviceError::Failed(format!("the pack of {} is damaged", architecture.name())))?;
        Ok(Self {
            cubins: cubins.into_iter().collect(),
            loaded: Mutex::default(),
        })
    }

    /// A kernel, allowed to use this much dynamic shared memory. The context is current.
    pub(crate) fn function(
        &self,
        file: &'static str,
        entry: &'static str,
        shared: u32,
    ) -> Result<sys::CUfunction, DeviceError> {
        let mut loaded = lock(&self.loaded);
        let Loaded { modules, functions } = &mut *loaded;
        let (function, allowed) = match functions.get(&(file, entry)) {
            Some(&known) => known,
            None => (self.find(modules, file, entry)?, PLAIN_SHARED),
        };
        if shared > allowed {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is loaded.
            let allowed = unsafe { sys::cuFuncSetAttribute(function, attribute, shared as i32) };
            check(allowed, entry)?;
        }
        functions.insert((file, entry), (function, allowed.max(shared)));
        Ok(function)
    }

    /// Unloads everything. The context is current.
    ///
    /// # Safety
    /// No kernel of it runs any more.
    pub(crate) unsafe fn unload(&self) {
        let mut loaded = lock(&self.loaded);
        loaded.functions.clear();
        for (_, module) in loaded.modules.drain() {
            // SAFETY: it was loaded once and goes once.
            let _ = unsafe { sys::cuModuleUnload(module) };
        }
    }

    fn find(
        &self,
        modules: &mut HashMap<&'static str, sys::CUmodule>,
        file: &'static str,
        entry: &'static str,
    ) -> Result<sys::CUfunction, DeviceError> {
        let module = match modules.get(file) {
            Some(&module) => module,
            None => self.load(file)?,
        };
        modules.insert(file, module);
        let name = CString::new(entry).map_err(|error| DeviceError::Failed(error.to_string()))?;
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded and the name ends with a zero.
        let found = unsafe { sys::cuModuleGetFunction(&raw mut function, module, name.as_ptr()) };
        check(found, &format!("kernel {entry} of {file}"))?;
        Ok(function)
    }

    fn load(&self, file: &'static str) -> Result<sys::CUmodule, DeviceError> {
        let cubin = self
            .cubins
            .get(file)
            .ok_or_else(|| DeviceError::Failed(format!("the pack has no kernels of {file}")))?;
        let mut module = std::ptr::null_mut();
        // SAFETY: a whole cubin, whose header says how long it is.
        let loaded = unsafe { sys::cuModuleLoadData(&raw mut module, cubin.as_ptr().cast()) };
        check(loaded, file)?;
        Ok(module)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_hold_what_was_written() {
        let cubins = vec![("a".to_owned(), vec![1, 2, 3]), ("bc".to_owned(), Vec::new())];
        let pack = write(&cubins).unwrap();
        assert_eq!(read(&pack), Some(cubins));
        assert_eq!(read(&pack[..pack.len() - 1]), None);
        assert_eq!(read(b"something else"), None);
    }
}
