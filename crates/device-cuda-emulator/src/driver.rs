//! The driver behind the calls: memory, modules, functions, graphs. A stream is never behind: what is put on it has run.

use crate::decode;
use crate::exec::Trouble;
use crate::grid::{self, Shape};
use crate::kernel::Kernel;
use crate::memory::Memory;
use crate::parser::{Module, parse};
use crate::settings::Settings;
use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Code {
    Success = 0,
    InvalidValue = 1,
    OutOfMemory = 2,
    InvalidImage = 200,
    InvalidPtx = 218,
    InvalidHandle = 400,
    NotFound = 500,
    IllegalAddress = 700,
    LaunchTimeout = 702,
    IllegalInstruction = 715,
    Misaligned = 716,
    LaunchFailed = 719,
}

impl Code {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Success => "CUDA_SUCCESS\0",
            Self::InvalidValue => "CUDA_ERROR_INVALID_VALUE\0",
            Self::OutOfMemory => "CUDA_ERROR_OUT_OF_MEMORY\0",
            Self::InvalidImage => "CUDA_ERROR_INVALID_IMAGE\0",
            Self::InvalidPtx => "CUDA_ERROR_INVALID_PTX\0",
            Self::InvalidHandle => "CUDA_ERROR_INVALID_HANDLE\0",
            Self::NotFound => "CUDA_ERROR_NOT_FOUND\0",
            Self::IllegalAddress => "CUDA_ERROR_ILLEGAL_ADDRESS\0",
            Self::LaunchTimeout => "CUDA_ERROR_LAUNCH_TIMEOUT\0",
            Self::IllegalInstruction => "CUDA_ERROR_ILLEGAL_INSTRUCTION\0",
            Self::Misaligned => "CUDA_ERROR_MISALIGNED_ADDRESS\0",
            Self::LaunchFailed => "CUDA_ERROR_LAUNCH_FAILED\0",
        }
    }

    fn of(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Address => Self::IllegalAddress,
            Trouble::Misaligned => Self::Misaligned,
            Trouble::Trap => Self::IllegalInstruction,
            Trouble::Rule => Self::LaunchFailed,
            Trouble::Stuck => Self::LaunchTimeout,
        }
    }
}

/// A code, and what it is about.
pub(crate) type Failure = (Code, String);

/// A module's text, read once; what is loaded again is this one again.
struct Image {
    text: Arc<str>,
    module: Module<'static>,
    globals: HashMap<&'static str, u64>,
    kernels: HashMap<String, usize>,
}

/// A kernel and the shared memory that launches may add.
struct Function {
    kernel: Arc<Kernel>,
    allowed: usize,
}

/// Shared memory that a launch may ask for unasked, and at most.
const PLAIN_SHARED: usize = 48 << 10;
const MOST_SHARED: usize = 227 << 10;

/// A launch as it is put on a stream.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) function: usize,
    pub(crate) shape: Shape,
    pub(crate) parameters: Vec<u8>,
}

/// What a kernel has taken so far.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    launches: u64,
    instructions: u64,
    lanes: u64,
    time: Duration,
}

/// Everything.
pub(crate) struct Driver {
    pub(crate) settings: Settings,
    pub(crate) memory: Memory,
    images: Vec<Image>,
    functions: Vec<Function>,
    pub(crate) graphs: Vec<Vec<Launch>>,
    /// Launches of streams that are being captured.
    pub(crate) captures: HashMap<usize, Vec<Launch>>,
    pub(crate) streams: usize,
    /// What a kernel has failed with: every call says so until the device is opened again.
    failure: Option<Code>,
    /// The last message for each code.
    pub(crate) messages: HashMap<u32, &'static std::ffi::CStr>,
    launches: u64,
    taken: BTreeMap<String, Taken>,
}

impl Driver {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            memory: Memory::default(),
            images: Vec::new(),
            functions: Vec::new(),
            graphs: Vec::new(),
            captures: HashMap::new(),
            streams: 0,
            failure: None,
            messages: HashMap::new(),
            launches: 0,
            taken: BTreeMap::new(),
        }
    }

    /// Whether nothing has failed.
    pub(crate) fn state(&self) -> Result<(), Failure> {
        self.failure.map_or(Ok(()), |code| Err((code, String::new())))
    }

    /// Opened again: what failed before is over.
    pub(crate) fn reset(&mut self) {
        self.failure = None;
    }

    /// Keeps the message of a failure for whoever asks.
    pub(crate) fn explain(&mut self, (code, text): &Failure) {
        if let Ok(text) = CString::new(text.as_str())
            && !text.is_empty()
        {
            self.messages
                .insert(*code as u32, Box::leak(text.into_boxed_c_str()));
        }
    }

    pub(crate) fn take(&mut self, bytes: usize, poison: bool) -> Result<u64, Failure> {
        if self.memory.held() + bytes as u64 > self.settings.memory {
            return Err((Code::OutOfMemory, format!("{bytes} bytes more than there are")));
        }
        let taken = self.memory.take(bytes, poison);
        taken.ok_or_else(|| (Code::OutOfMemory, "the host has no more memory".to_owned()))
    }

    /// Reads a module.
    pub(crate) fn load(&mut self, text: &[u8]) -> Result<usize, Failure> {
        if text.starts_with(b"\x7fELF") {
            let why = "this is machine code; the emulator runs PTX";
            return Err((Code::InvalidImage, why.to_owned()));
        }
        let text = std::str::from_utf8(text).map_err(|why| (Code::InvalidImage, why.to_string()))?;
        if let Some(known) = self.images.iter().position(|image| &*image.text == text) {
            return Ok(known);
        }
        // It stays as long as the process: a handle may be used at any time.
        let kept: &'static str = Box::leak(text.to_owned().into_boxed_str());
        let module = parse(kept).map_err(|why| (Code::InvalidPtx, why))?;
        let mut globals = HashMap::new();
        for variable in module
            .variables
            .iter()
            .filter(|variable| variable.space != ".shared")
        {
            let at = self.take(variable.bytes as usize, false)?;
            let written = self.memory.write(at, &variable.contents);
            written.map_err(|_| {
                (
                    Code::InvalidPtx,
                    format!("{}: more values than room", variable.name),
                )
            })?;
            globals.insert(variable.name, at);
        }
        self.images.push(Image {
            text: kept.into(),
            module,
            globals,
            kernels: HashMap::new(),
        });
        Ok(self.images.len() - 1)
    }

    /// Looks for a kernel.
    pub(crate) fn function(&mut self, image: usize, name: &str) -> Result<usize, Failure> {
        let image = self
            .images
            .get_mut(image)
            .ok_or((Code::InvalidHandle, String::new()))?;
        if let Some(known) = image.kernels.get(name) {
            return Ok(*known);
        }
        let entry = image.module.entries.iter().find(|entry| entry.name == name);
        let entry = entry.ok_or_else(|| (Code::NotFound, format!("there is no kernel {name}")))?;
        let kernel = decode::kernel(&image.module, entry, &image.globals, &image.text);
        let kernel = Arc::new(kernel.map_err(|why| (Code::InvalidPtx, why))?);
        image.kernels.insert(name.to_owned(), self.functions.len());
        self.functions.push(Function {
            kernel,
            allowed: PLAIN_SHARED,
        });
        Ok(self.functions.len() - 1)
    }

    /// Allows a kernel so much shared memory beside its own.
    pub(crate) fn allow(&mut self, function: usize, bytes: usize) -> Result<(), Failure> {
        let function = self
            .functions
            .get_mut(function)
            .ok_or((Code::InvalidHandle, String::new()))?;
        if bytes > MOST_SHARED {
            return Err((
                Code::InvalidValue,
                format!("{bytes} bytes of shared memory, where {MOST_SHARED} are the most"),
            ));
        }
        function.allowed = bytes;
        Ok(())
    }

    /// Bytes of a kernel's parameters, and where each one is.
    pub(crate) fn parameters(&self, function: usize) -> Option<&[(usize, usize)]> {
        self.functions
            .get(function)
            .map(|function| function.kernel.parameters.as_slice())
    }

    /// Runs a kernel, or adds it to the graph that is being captured.
    pub(crate) fn launch(&mut self, stream: usize, launch: Launch) -> Result<(), Failure> {
        let function = self
            .functions
            .get(launch.function)
            .ok_or((Code::InvalidHandle, String::new()))?;
        let (shape, kernel) = (&launch.shape, &function.kernel);
        let own = kernel.shared_end - crate::names::SHARED_BASE as usize;
        let fits = shape.shared <= function.allowed && shape.shared + own <= MOST_SHARED;
        let whole = shape.blocks[0].is_multiple_of(shape.cluster.max(1))
            && shape.blocks.iter().all(|blocks| *blocks > 0);
        if !fits || !whole || !(1..=1024).contains(&shape.threads) {
            return Err((
                Code::InvalidValue,
                format!("kernel {}: {shape:?} cannot be launched", kernel.name),
            ));
        }
        if let Some(captured) = self.captures.get_mut(&stream) {
            captured.push(launch);
            return Ok(());
        }
        self.run(&launch)
    }

    /// Runs a graph.
    pub(crate) fn launch_graph(&mut self, graph: usize) -> Result<(), Failure> {
        let launches = self
            .graphs
            .get(graph)
            .cloned()
            .ok_or((Code::InvalidHandle, String::new()))?;
        launches.iter().try_for_each(|launch| self.run(launch))
    }

    fn run(&mut self, launch: &Launch) -> Result<(), Failure> {
        self.state()?;
        let kernel = Arc::clone(&self.functions[launch.function].kernel);
        self.launches += 1;
        let seed = self.settings.seed.wrapping_add(self.launches << 20);
        let began = Instant::now();
        let done = grid::run(
            &kernel,
            &launch.shape,
            &launch.parameters,
            &self.memory,
            &self.settings,
            seed,
        );
        let taken = self.taken.entry(kernel.name.clone()).or_default();
        taken.launches += 1;
        taken.time += began.elapsed();
        match done {
            Ok(count) => {
                taken.instructions += count.instructions;
                taken.lanes += count.lanes;
                Ok(())
            }
            Err(fault) => {
                let code = Code::of(fault.trouble);
                self.failure = Some(code);
                Err((code, fault.text))
            }
        }
    }

    /// Writes the table of kernels, if anybody wants it.
    pub(crate) fn tell(&self) {
        let Some(path) = &self.settings.times else { return };
        let mut lines: Vec<_> = self.taken.iter().collect();
        lines.sort_by_key(|(_, taken)| std::cmp::Reverse(taken.time));
        let lines = lines.iter().map(|(name, taken)| {
            let (seconds, lanes) = (taken.time.as_secs_f64(), taken.lanes);
            let rate = lanes as f64 / seconds.max(1e-9) / 1e6;
            let (launches, instructions) = (taken.launches, taken.instructions);
            format!(
                "{seconds:9.3} s {rate:8.1} M/s {launches:7} launches {instructions:12} {lanes:14} {name}\n"
            )
        });
        // Nobody is there to be told that it cannot be written.
        let _ = std::fs::write(path, lines.collect::<String>());
    }
}
