//! NVRTC: kernels from their sources. For `cargo xtask kernels`, which makes the packs, and for GPUs that no pack is for.
//!
//! The library is opened by its path, since Python wheels keep it where no loader looks.

use crate::context::lock;
use libloading::{Library, Symbol};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Every source in `kernels/`, by the name that `#include` knows it by.
const SOURCES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/sources.rs"));

/// The files of kernels, without their ending.
pub fn kernel_files() -> Vec<&'static str> {
    let names = SOURCES.iter().map(|(name, _)| name);
    names.filter_map(|name| name.strip_suffix(".cu")).collect()
}

/// A hash of all sources and of how they are compiled.
pub fn digest() -> String {
    let mut hash = Sha256::new();
    for (name, text) in SOURCES {
        for part in [name, text] {
            hash.update(part);
            hash.update([0]);
        }
    }
    for option in OPTIONS {
        hash.update(option);
    }
    hash.finalize().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The text of a source in `kernels/`, by its name.
pub fn source(name: &str) -> Option<&'static str> {
    SOURCES
        .iter()
        .find(|(source, _)| *source == name)
        .map(|(_, text)| *text)
}

/// The name of the file that kernels of an architecture that no pack is for are kept in.
pub fn kept_name(architecture: &str) -> String {
    format!("kernels-{architecture}-{}.zst", digest())
}

/// Standard headers that kernels ask for and NVRTC does not have.
const STANDARD: [(&str, &str); 2] = [("stdint.h", INTEGERS), ("cstdint", INTEGERS)];
const INTEGERS: &str = "#pragma once
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t; typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t; typedef long long intptr_t;
";

/// What every kernel is compiled with. Fused multiply-add is written where it is meant, so that two kernels of one
/// operation cannot differ in what the compiler makes of them. No line numbers: they would name the folder of the build, and
/// packs are the same wherever they are made.
const OPTIONS: [&str; 3] = ["-std=c++17", "-fmad=false", "-Xptxas=-v"];

/// A header that kernels need, and where toolkits have it.
const HEADER: &str = "cuda_bf16.h";
const TOOLKIT: &str = "/usr/local/cuda/include";

/// NVRTC, opened.
pub struct Compiler {
    library: Library,
    /// Headers of CUDA.
    include: PathBuf,
}

/// A compiled file.
pub struct Compiled {
    /// Machine code; nothing for a virtual architecture.
    pub cubin: Vec<u8>,
    /// What that is made from, with a zero behind it.
    pub ptx: Vec<u8>,
    /// What the compiler and the assembler had to say.
    pub log: String,
}

type Program = *mut c_void;

impl Compiler {
    /// Opens the library at `path`. Headers of CUDA are its own, unpacked to `scratch`, or else those of the toolkit.
    pub fn open(path: &Path, scratch: &Path) -> Result<Self, String> {
        // SAFETY: NVRTC has no initialisers that do more than set up its own state.
        let library =
            unsafe { Library::new(path) }.map_err(|error| format!("{}: {error}", path.display()))?;
        let beside = ["../include", "../../include"].into_iter();
        let toolkit = beside
            .filter_map(|folder| Some(path.parent()?.join(folder)))
            .chain([PathBuf::from(TOOLKIT)])
            .find(|folder| folder.join(HEADER).exists());
        let mut compiler = Self {
            library,
            include: scratch.join("include"),
        };
        match (compiler.unpack_headers(), toolkit) {
            (Ok(()), _) => Ok(compiler),
            (Err(_), Some(folder)) => {
                compiler.include = folder;
                Ok(compiler)
            }
            (Err(why), None) => Err(why),
        }
    }

    /// The version, as `13.4`.
    pub fn version(&self) -> Result<String, String> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the type is that of NVRTC's header.
        unsafe {
            let version: Symbol<unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int> =
                self.symbol("nvrtcVersion")?;
            self.check(version(&raw mut major, &raw mut minor), "nvrtcVersion")?;
        }
        Ok(format!("{major}.{minor}"))
    }

    /// Compiles `kernels/{file}.cu` for an architecture such as `sm_90a`.
    pub fn compile(&self, file: &str, architecture: &str) -> Result<Compiled, String> {
        self.compile_edited(file, architecture, &[])
    }

    /// The same with other texts for some of the sources, by their names: for tests that plant a fault.
    pub fn compile_edited(
        &self,
        file: &str,
        architecture: &str,
        edited: &[(&str, &str)],
    ) -> Result<Compiled, String> {
        let name = format!("{file}.cu");
        let text = |(name, text): &(&'static str, &'static str)| {
            let other = edited.iter().find(|(edited, _)| edited == name);
            (
                name.to_owned(),
                other.map_or(*text, |(_, other)| other).to_owned(),
            )
        };
        let sources: Vec<(&str, String)> = SOURCES.iter().map(text).collect();
        if !sources.iter().any(|(source, _)| *source == name) {
            return Err(format!("there is no kernel file {name}"));
        }
        self.compile_source(&name, &sources, architecture)
    }

    /// Compiles files for one architecture, on all cores. They come by name.
    pub fn compile_files(
        &self,
        files: &[&str],
        architecture: &str,
    ) -> Result<Vec<(String, Compiled)>, String> {
        let (next, done) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
        let work = || {
            while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                let compiled = self.compile(file, architecture);
                lock(&done).insert((*file).to_owned(), compiled);
            }
        };
        std::thread::scope(|scope| {
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            (0..threads).for_each(|_| drop(scope.spawn(work)));
        });
        let done = std::mem::take(&mut *lock(&done));
        done.into_iter()
            .map(|(file, compiled)| Ok((file, compiled?)))
            .collect()
    }

    fn compile_source(
        &self,
        name: &str,
        sources: &[(&str, String)],
        architecture: &str,
    ) -> Result<Compiled, String> {
        let source = sources.iter().find(|(source, _)| *source == name);
        let source = source.map_or("", |(_, text)| text);
        let headers: Vec<(CString, CString)> = sources
            .iter()
            .map(|(name, text)| (*name, text.as_str()))
            .filter(|(name, _)| !is_kernel(name))
            .chain(STANDARD)
            .map(|(name, text)| Ok((c_string(name)?, c_string(text)?)))
            .collect::<Result<_, String>>()?;
        let names: Vec<*const c_char> = headers.iter().map(|(name, _)| name.as_ptr()).collect();
        let texts: Vec<*const c_char> = headers.iter().map(|(_, text)| text.as_ptr()).collect();
        let (source, file) = (c_string(source)?, c_string(name)?);
        let mut program: Program = std::ptr::null_mut();
        // SAFETY: the types are those of NVRTC's header, and every pointer names something that outlives the calls.
        unsafe {
            let create: Symbol<
                unsafe extern "C" fn(
                    *mut Program,
                    *const c_char,
                    *const c_char,
                    c_int,
                    *const *const c_char,
                    *const *const c_char,
                ) -> c_int,
            > = self.symbol("nvrtcCreateProgram")?;
            let result = create(
                &raw mut program,
                source.as_ptr(),
                file.as_ptr(),
                headers.len() as c_int,
                texts.as_ptr(),
                names.as_ptr(),
            );
            self.check(result, "nvrtcCreateProgram")?;
            let compiled = self.run(program, architecture);
            let destroy: Symbol<unsafe extern "C" fn(*mut Program) -> c_int> =
                self.symbol("nvrtcDestroyProgram")?;
            destroy(&raw mut program);
            compiled.map_err(|error| format!("{name} for {architecture}: {error}"))
        }
    }

    /// # Safety
    /// `program` was made by `nvrtcCreateProgram`.
    unsafe fn run(&self, program: Program, architecture: &str) -> Result<Compiled, String> {
        // A virtual architecture, such as compute_90a, has no machine code.
        let real = architecture.starts_with("sm_");
        let mut options: Vec<CString> = OPTIONS
            .iter()
            .filter(|option| real || !option.starts_with("-Xptxas"))
            .map(|option| c_string(option))
            .collect::<Result<_, _>>()?;
        options.push(c_string(&format!("-arch={architecture}"))?);
        options.push(c_string(&format!("-I{}", self.include.display()))?);
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: as the caller says; the types are those of NVRTC's header.
        unsafe {
            let compile: Symbol<unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int> =
                self.symbol("nvrtcCompileProgram")?;
            let result = compile(program, pointers.len() as c_int, pointers.as_ptr());
            let log = self.bytes(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")?;
            let log = String::from_utf8_lossy(&log)
                .trim_end_matches('\0')
                .trim()
                .to_owned();
            self.check(result, "nvrtcCompileProgram")
                .map_err(|error| format!("{error}\n{log}"))?;
            let cubin = if real {
                self.bytes(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN")?
            } else {
                Vec::new()
            };
            let ptx = self.bytes(program, "nvrtcGetPTXSize", "nvrtcGetPTX")?;
            Ok(Compiled { cubin, ptx, log })
        }
    }

    /// # Safety
    /// `program` was made by `nvrtcCreateProgram`, and the functions give a size and fill as much.
    unsafe fn bytes(&self, program: Program, size_of: &str, get: &str) -> Result<Vec<u8>, String> {
        // SAFETY: as the caller says.
        unsafe {
            let size: Symbol<unsafe extern "C" fn(Program, *mut usize) -> c_int> = self.symbol(size_of)?;
            let fill: Symbol<unsafe extern "C" fn(Program, *mut c_char) -> c_int> = self.symbol(get)?;
            let mut length = 0;
            self.check(size(program, &raw mut length), size_of)?;
            let mut bytes = vec![0_u8; length];
            self.check(fill(program, bytes.as_mut_ptr().cast()), get)?;
            Ok(bytes)
        }
    }

    /// NVRTC brings the headers of CUDA with it since 13.3.
    fn unpack_headers(&self) -> Result<(), String> {
        if self.include.join(HEADER).exists() {
            return Ok(());
        }
        std::fs::create_dir_all(&self.include)
            .map_err(|error| format!("{}: {error}", self.include.display()))?;
        let folder = c_string(&self.include.display().to_string())?;
        // SAFETY: the type is that of NVRTC's header.
        unsafe {
            let install: Symbol<unsafe extern "C" fn(*const c_char, c_int, *mut *const c_char) -> c_int> =
                self.symbol("nvrtcInstallBundledHeaders").map_err(|_| {
                    "this NVRTC has no headers (13.3 and later do), and no toolkit has any".to_owned()
                })?;
            let mut message = std::ptr::null();
            self.check(
                install(folder.as_ptr(), 0, &raw mut message),
                "nvrtcInstallBundledHeaders",
            )
        }
    }

    /// # Safety
    /// `T` is the type of the function in NVRTC's header.
    unsafe fn symbol<T>(&self, name: &str) -> Result<Symbol<'_, T>, String> {
        // SAFETY: as the caller says.
        unsafe { self.library.get(name) }.map_err(|error| format!("{name}: {error}"))
    }

    fn check(&self, result: c_int, call: &str) -> Result<(), String> {
        if result == 0 {
            return Ok(());
        }
        // SAFETY: the type is that of NVRTC's header, and it hands out static texts.
        let text = unsafe {
            let text: Symbol<unsafe extern "C" fn(c_int) -> *const c_char> =
                self.symbol("nvrtcGetErrorString")?;
            CStr::from_ptr(text(result)).to_string_lossy().into_owned()
        };
        Err(format!("{call}: {text}"))
    }
}

/// Whether a source is a file of kernels, not a header.
fn is_kernel(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|end| end == "cu")
}

fn c_string(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|error| error.to_string())
}
