//! Reads of buffers, outside of steps.

use crate::context::Context;
use crate::driver::check;
use cudarc::driver::sys;
use paceline_device::{DeviceError, Element, Pending};
use std::marker::PhantomData;
use std::sync::Arc;

/// Memory of the host that the device can reach.
pub(crate) struct Pinned {
    context: Arc<Context>,
    pub(crate) host: *mut u8,
    /// The same memory as the device sees it.
    pub(crate) address: u64,
    /// What it is where there is no device.
    plain: Option<Vec<u64>>,
}

// SAFETY: whoever owns the memory decides what is read and written; see the users.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Zeroed.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize, what: &str) -> Result<Self, DeviceError> {
        context.bind();
        let (mut host, mut address) = (std::ptr::null_mut::<std::ffi::c_void>(), 0);
        let bytes = bytes.max(1);
        if context.rehearsal {
            return Ok(Self::plain(context, bytes));
        }
        // SAFETY: plain calls with places to write to; the memory is ours and as large as it is zeroed.
        unsafe {
            let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
            let result = sys::cuMemHostAlloc(&raw mut host, bytes, flags);
            if result == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
                return Err(DeviceError::OutOfMemory {
                    what: what.to_owned(),
                    bytes: bytes as u64,
                });
            }
            check(result, "cuMemHostAlloc")?;
            let mapped = sys::cuMemHostGetDevicePointer_v2(&raw mut address, host, 0);
            check(mapped, "cuMemHostGetDevicePointer")?;
            std::ptr::write_bytes(host.cast::<u8>(), 0, bytes);
        }
        Ok(Self {
            context: Arc::clone(context),
            host: host.cast(),
            address,
            plain: None,
        })
    }

    /// Memory that no device reaches, for one that is not there.
    fn plain(context: &Arc<Context>, bytes: usize) -> Self {
        let mut memory = vec![0_u64; bytes.div_ceil(8)];
        Self {
            context: Arc::clone(context),
            host: memory.as_mut_ptr().cast(),
            address: 0,
            plain: Some(memory),
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.plain.is_some() {
            return;
        }
        self.context.bind();
        // SAFETY: it came from the call above and goes back once.
        let _ = unsafe { sys::cuMemFreeHost(self.host.cast()) };
    }
}

/// A read in flight.
pub struct CudaRead<T> {
    context: Arc<Context>,
    /// Where the elements go, or what went wrong.
    pinned: Result<Pinned, DeviceError>,
    elements: usize,
    /// Rows of so many elements, of which the word behind the elements says how many count.
    row: Option<usize>,
    element: PhantomData<fn() -> T>,
}

impl<T: Element> CudaRead<T> {
    /// Reads the first `elements` elements at an address.
    pub(crate) fn elements(context: &Arc<Context>, address: u64, elements: usize) -> Self {
        let copy = |to: u64| {
            let bytes = elements * size_of::<T>();
            // SAFETY: both ends hold this many bytes.
            check(
                unsafe { sys::cuMemcpyAsync(to, address, bytes, context.stream) },
                "cuMemcpyAsync",
            )
        };
        Self::enqueue(context, elements, None, copy)
    }

    /// Reads `rows` rows of `columns` elements that are `stride` elements apart, and how many of them are live.
    pub(crate) fn rows(
        context: &Arc<Context>,
        (address, live): (u64, u64),
        (rows, columns, stride): (usize, usize, usize),
    ) -> Self {
        let copy = |to: u64| {
            let row = columns * size_of::<T>();
            for index in 0..rows {
                let from = address + (index * stride * size_of::<T>()) as u64;
                // SAFETY: the row lies within the tensor, and its copy within the pinned memory.
                let copied =
                    unsafe { sys::cuMemcpyAsync(to + (index * row) as u64, from, row, context.stream) };
                check(copied, "cuMemcpyAsync")?;
            }
            // SAFETY: one word at either end.
            check(
                unsafe { sys::cuMemcpyAsync(to + (rows * row) as u64, live, 4, context.stream) },
                "cuMemcpyAsync",
            )
        };
        Self::enqueue(context, rows * columns, Some(columns), copy)
    }

    fn enqueue(
        context: &Arc<Context>,
        elements: usize,
        row: Option<usize>,
        copy: impl FnOnce(u64) -> Result<(), DeviceError>,
    ) -> Self {
        let pinned = match context.failure() {
            Some(failure) => Err(failure),
            None => Pinned::new(context, elements * size_of::<T>() + 4, "a read")
                .and_then(|pinned| copy(pinned.address).map(|()| pinned)),
        };
        Self {
            context: Arc::clone(context),
            pinned,
            elements,
            row,
            element: PhantomData,
        }
    }
}

impl<T: Element> Pending<Vec<T>> for CudaRead<T> {
    fn wait(self) -> Result<Vec<T>, DeviceError> {
        self.context.count_wait();
        let pinned = self.pinned?;
        self.context.synchronise()?;
        let bytes = self.elements * size_of::<T>();
        // SAFETY: the copies have ended, and the memory is as large as this plus a word.
        let (elements, live) = unsafe {
            let elements = std::slice::from_raw_parts(pinned.host, bytes);
            (elements, pinned.host.add(bytes).cast::<i32>().read_unaligned())
        };
        let mut values = vec![T::default(); self.elements];
        bytemuck::cast_slice_mut(&mut values).copy_from_slice(elements);
        if let Some(row) = self.row {
            values.truncate(usize::try_from(live).unwrap_or(0) * row);
        }
        Ok(values)
    }
}
