//! A kernel with its grid and its arguments, ready to be issued once or captured.

use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::check;
use crate::plants;
use crate::unread::Written;
use cudarc::driver::sys;
use paceline_device::DeviceError;
use std::marker::PhantomData;

/// Clusters of more thread blocks than this have to be asked for.
const PORTABLE_CLUSTER: u32 = 8;

/// A kernel that takes one struct of arguments.
pub(crate) struct Kernel<A> {
    /// The file in `kernels/`, without its ending.
    pub(crate) file: &'static str,
    /// Its name there.
    pub(crate) entry: &'static str,
    arguments: PhantomData<fn(A)>,
}

impl<A: Arguments> Kernel<A> {
    pub(crate) const fn new(file: &'static str, entry: &'static str) -> Self {
        Self {
            file,
            entry,
            arguments: PhantomData,
        }
    }
}

/// How many thread blocks, of how many threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    blocks: [u32; 3],
    threads: u32,
    shared: u32,
    cluster: u32,
    early: bool,
}

impl Grid {
    /// Thread blocks in a row.
    pub(crate) const fn new(blocks: u32, threads: u32) -> Self {
        Self::of([blocks, 1, 1], threads)
    }

    /// Thread blocks in three dimensions.
    pub(crate) const fn of(blocks: [u32; 3], threads: u32) -> Self {
        Self {
            blocks,
            threads,
            shared: 0,
            cluster: 1,
            early: true,
        }
    }

    /// Whether there is no thread block in it.
    pub(crate) const fn is_empty(&self) -> bool {
        self.blocks[0] == 0 || self.blocks[1] == 0 || self.blocks[2] == 0
    }

    /// With this many bytes of dynamic shared memory per thread block.
    pub(crate) const fn shared(mut self, bytes: u32) -> Self {
        self.shared = bytes;
        self
    }

    /// In clusters of this many thread blocks along the first dimension.
    pub(crate) const fn cluster(mut self, blocks: u32) -> Self {
        self.cluster = blocks;
        self
    }

    /// After the kernel ahead has ended, whatever the stream allows: for kernels of fewer thread blocks than
    /// multiprocessors, which an early start would crowd onto a few of them.
    pub(crate) const fn late(mut self) -> Self {
        self.early = false;
        self
    }
}

/// A kernel of a program: its name, and how much of the GPU it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelCall {
    /// Its name in its file.
    pub name: &'static str,
    /// Thread blocks.
    pub blocks: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
    /// Whether it begins only when what is ahead of it has ended.
    pub late: bool,
    /// Whether a result that nobody reads is left out.
    pub spares: bool,
}

/// The bytes of a struct of arguments, aligned for any of them.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Bytes([u8; 64]);

/// A kernel, its grid and its arguments.
pub(crate) struct Launch {
    name: &'static str,
    function: sys::CUfunction,
    grid: Grid,
    arguments: Box<[Bytes]>,
    /// A tensor that it writes, where that is known.
    pub(crate) written: Option<Written>,
    spares: bool,
}

// SAFETY: a handle of a loaded function may be used from any thread.
unsafe impl Send for Launch {}

impl Launch {
    /// Looks the kernel up and copies its arguments.
    pub(crate) fn new<A: Arguments>(
        context: &Context,
        kernel: &Kernel<A>,
        grid: Grid,
        arguments: &A,
    ) -> Result<Self, DeviceError> {
        context.bind();
        let file = plants::file_of(context, kernel.file, kernel.entry);
        let function = context.modules.function(file, kernel.entry, grid.shared)?;
        if grid.cluster > PORTABLE_CLUSTER {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
            // SAFETY: the function is loaded.
            let allowed = unsafe { sys::cuFuncSetAttribute(function, attribute, 1) };
            check(allowed, kernel.entry)?;
        }
        Ok(Self {
            function,
            ..Self::rehearsed(kernel, grid, arguments)
        })
    }

    /// A kernel that is listed, and never issued.
    pub(crate) fn rehearsed<A: Arguments>(kernel: &Kernel<A>, grid: Grid, arguments: &A) -> Self {
        let mut bytes = vec![0; size_of::<A>().next_multiple_of(64)];
        arguments.write(&mut bytes);
        let bytes = bytes.as_chunks().0.iter().map(|chunk| Bytes(*chunk)).collect();
        Self {
            name: kernel.entry,
            function: std::ptr::null_mut(),
            grid,
            arguments: bytes,
            written: None,
            spares: false,
        }
    }

    /// The same, with what it writes.
    pub(crate) fn writing(self, written: Option<Written>) -> Self {
        Self { written, ..self }
    }

    /// Its arguments in words of eight bytes: addresses are such words. What else there is may look like one.
    pub(crate) fn words(&self) -> impl Iterator<Item = u64> {
        let words = self.arguments.iter().flat_map(|bytes| bytes.0.as_chunks().0);
        words.map(|word| u64::from_ne_bytes(*word))
    }

    /// Makes an address null: the result there is left out.
    pub(crate) fn clear_word(&mut self, at: usize) {
        self.arguments[at / 64].0[at % 64..at % 64 + 8].fill(0);
        self.spares = true;
    }

    pub(crate) fn call(&self) -> KernelCall {
        KernelCall {
            name: self.name,
            blocks: self.grid.blocks,
            threads: self.grid.threads,
            shared: self.grid.shared,
            late: !self.grid.early,
            spares: self.spares,
        }
    }

    /// Its name and its thread blocks.
    pub(crate) fn label(&self) -> (&'static str, [u32; 3]) {
        (self.name, self.grid.blocks)
    }

    /// Puts it on a stream, which may be capturing. `dependent`: it may start before what is ahead of it has ended.
    pub(crate) fn issue(&self, stream: sys::CUstream, dependent: bool) -> Result<(), DeviceError> {
        let mut attributes = Vec::with_capacity(2);
        if dependent && self.grid.early {
            attributes.push(attribute(
                sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                |value| value.programmaticStreamSerializationAllowed = 1,
            ));
        }
        if self.grid.cluster > 1 {
            attributes.push(attribute(
                sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                |value| {
                    value.clusterDim.x = self.grid.cluster;
                    value.clusterDim.y = 1;
                    value.clusterDim.z = 1;
                },
            ));
        }
        let config = sys::CUlaunchConfig {
            gridDimX: self.grid.blocks[0],
            gridDimY: self.grid.blocks[1],
            gridDimZ: self.grid.blocks[2],
            blockDimX: self.grid.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.grid.shared,
            hStream: stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        let mut parameters = [self.arguments.as_ptr().cast::<std::ffi::c_void>().cast_mut()];
        // SAFETY: the kernel takes one struct by value, whose bytes these are: `Kernel` and `arguments!` see to it. What its
        // pointers name lives as long as the context.
        let result = unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                self.function,
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        check(result, self.name)
    }
}

fn attribute(
    id: sys::CUlaunchAttributeID,
    set: impl FnOnce(&mut sys::CUlaunchAttributeValue),
) -> sys::CUlaunchAttribute {
    // SAFETY: plain data, for which zero is a value.
    let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
    attribute.id = id;
    set(&mut attribute.value);
    attribute
}
