//! Device memory: taken in chunks, handed out from the front, given back with the device.
//!
//! An engine allocates what its plan says when it starts and nothing afterwards, so nothing is ever returned to the arena:
//! an address stays good for as long as the context that it came from.

use crate::driver::check;
use cudarc::driver::sys;
use paceline_device::DeviceError;

/// What starts at multiples of this is aligned for every copy and every instruction.
pub(crate) const ALIGNMENT: u64 = 1024;
/// Requests from this size on get a chunk of their own.
const LARGE: u64 = 32 << 20;

/// All device memory of one context. The context is current wherever one of these is called.
#[derive(Default)]
pub(crate) struct Arena {
    chunks: Vec<u64>,
    /// The part of the newest shared chunk that is free.
    next: u64,
    end: u64,
    /// Bytes handed out.
    taken: u64,
}

impl Arena {
    /// The address of `bytes` bytes, aligned. Their contents are undefined.
    pub(crate) fn take(&mut self, bytes: u64, what: &str) -> Result<u64, DeviceError> {
        let size = bytes.max(1).next_multiple_of(ALIGNMENT);
        self.taken += bytes;
        if size >= LARGE {
            return self.chunk(size, what);
        }
        if self.end - self.next < size {
            self.next = self.chunk(LARGE, what)?;
            self.end = self.next + LARGE;
        }
        let at = self.next;
        self.next += size;
        Ok(at)
    }

    /// Bytes handed out.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    fn chunk(&mut self, bytes: u64, what: &str) -> Result<u64, DeviceError> {
        let mut at = 0;
        // SAFETY: a plain call with a place to write to.
        let result = unsafe { sys::cuMemAlloc_v2(&raw mut at, bytes as usize) };
        if result == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(DeviceError::OutOfMemory {
                what: what.to_owned(),
                bytes,
            });
        }
        check(result, "cuMemAlloc")?;
        self.chunks.push(at);
        Ok(at)
    }

    /// Gives everything back.
    ///
    /// # Safety
    /// Nothing on the device uses it any more.
    pub(crate) unsafe fn release(&mut self) {
        for chunk in self.chunks.drain(..) {
            // SAFETY: it came from the call above and goes back once. A device that is lost has nothing to give back.
            let _ = unsafe { sys::cuMemFree_v2(chunk) };
        }
    }
}
