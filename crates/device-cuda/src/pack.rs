//! Compiled kernels: one pack per architecture, in the binary.
//!
//! A pack is a bundle of cubins by the names of their files. The driver loads machine code of the right architecture
//! without compiling anything.

use crate::bundle;
use crate::compiler::kernel_files;
use crate::context::lock;
use crate::driver::check;
use crate::unknown::Places;
use cudarc::driver::sys::{self, CUfunction_attribute};
use paceline_device::DeviceError;
use std::collections::HashMap;
use std::ffi::CString;
use std::path::Path;
use std::sync::Mutex;

/// Shared memory of a thread block that needs no asking for.
const PLAIN_SHARED: u32 = 48 << 10;

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

    /// The one whose code a GPU of this compute capability runs, or whose paths code for it takes: kernels ask for the
    /// capability in the same way.
    pub(crate) fn of((major, minor): (u32, u32)) -> Result<Self, DeviceError> {
        match major {
            8 => Ok(Self::Sm80),
            9 => Ok(Self::Sm90a),
            10 | 11 => Ok(Self::Sm100),
            12.. => Ok(Self::Sm120),
            _ => Err(DeviceError::Absent(format!(
                "there are no kernels for compute capability {major}.{minor}; 8.0 and later are needed"
            ))),
        }
    }

    pub(crate) const fn pack(self) -> &'static [u8] {
        match self {
            Self::Sm80 => include_bytes!("../kernels/packs/sm_80.zst"),
            Self::Sm90a => include_bytes!("../kernels/packs/sm_90a.zst"),
            Self::Sm100 => include_bytes!("../kernels/packs/sm_100.zst"),
            Self::Sm120 => include_bytes!("../kernels/packs/sm_120.zst"),
        }
    }
}

/// The kernels of one architecture, loaded as they are asked for.
pub(crate) struct Modules {
    /// What they were compiled for.
    pub(crate) name: String,
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
    /// Those of the pack, or, for a GPU that there is none for, those that are made and kept in `cache`.
    pub(crate) fn new((major, minor): (u32, u32), cache: Option<&Path>) -> Result<Self, DeviceError> {
        let architecture = Architecture::of((major, minor))?;
        let (name, cubins) = if matches!((major, minor), (8 | 10 | 12, _) | (9, 0)) {
            let name = architecture.name().to_owned();
            let damaged = || DeviceError::Failed(format!("the pack of {name} is damaged"));
            (
                name.clone(),
                bundle::split_compressed(architecture.pack()).ok_or_else(damaged)?,
            )
        } else {
            let name = format!("sm_{major}{minor}");
            let cubins = Places::usual(cache).kernels(&name, &kernel_files())?;
            (name, cubins)
        };
        Ok(Self {
            name,
            cubins: cubins.into_iter().collect(),
            loaded: Mutex::default(),
        })
    }

    /// No kernels: nothing is going to be launched.
    pub(crate) fn none() -> Self {
        Self {
            name: "nothing".to_owned(),
            cubins: HashMap::new(),
            loaded: Mutex::default(),
        }
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
    fn every_gpu_from_ampere_on_has_kernels_or_takes_the_paths_of_one_that_has() {
        let name = |capability| Architecture::of(capability).map(Architecture::name).ok();
        for (capability, expected) in [
            ((7, 5), None),
            ((8, 0), Some("sm_80")),
            ((8, 9), Some("sm_80")),
            ((9, 0), Some("sm_90a")),
            ((10, 3), Some("sm_100")),
            ((11, 0), Some("sm_100")),
            ((12, 1), Some("sm_120")),
            ((13, 0), Some("sm_120")),
        ] {
            assert_eq!(name(capability), expected, "{capability:?}");
        }
    }
}
