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
/// The driver gives memory in multiples of this.
const PAGE: u64 = 2 << 20;

/// All device memory of one context. The context is current wherever one of these is called.
#[derive(Default)]
pub(crate) struct Arena {
    /// Nothing is taken from a GPU: addresses are made up, and what they would cost is counted.
    rehearsal: bool,
    chunks: Vec<u64>,
    /// The part of the newest shared chunk that is free.
    next: u64,
    end: u64,
    /// Bytes handed out.
    taken: u64,
    /// Bytes of all chunks.
    held: u64,
}

impl Arena {
    /// An arena that counts.
    pub(crate) fn rehearsal() -> Self {
        Self {
            rehearsal: true,
            ..Self::default()
        }
    }

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

    /// Bytes that the GPU no longer has for it.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    fn chunk(&mut self, bytes: u64, what: &str) -> Result<u64, DeviceError> {
        let bytes = bytes.next_multiple_of(PAGE);
        self.held += bytes;
        if self.rehearsal {
            // Behind all that were made up before, and never null.
            return Ok(PAGE + self.held - bytes);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is asked for, in whatever order: aligned, apart from each other, and within what is held.
    #[test]
    fn nothing_overlaps_and_all_is_counted() {
        let mut arena = Arena::rehearsal();
        let sizes = [
            0,
            1,
            4,
            1023,
            1024,
            1025,
            5 << 20,
            LARGE - 1,
            LARGE,
            LARGE + 1,
            3 * LARGE + 7,
        ];
        let (mut ranges, mut asked) = (Vec::new(), 0);
        for round in 0..50 {
            for (index, size) in sizes.iter().enumerate() {
                let size = size / (1 + (round * index as u64) % 7);
                let at = arena.take(size, "something").unwrap();
                assert!(at > 0 && at.is_multiple_of(ALIGNMENT), "{at}");
                ranges.push((at, at + size.max(1)));
                asked += size;
            }
        }
        assert_eq!(arena.taken(), asked);
        assert!(arena.held() >= asked && arena.held().is_multiple_of(PAGE));
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ranges:?}");
        assert!(ranges.last().is_some_and(|last| last.1 <= PAGE + arena.held()));
    }

    #[test]
    fn small_things_share_chunks() {
        let mut arena = Arena::rehearsal();
        for _ in 0..1000 {
            arena.take(1000, "something").unwrap();
        }
        assert_eq!(arena.held(), LARGE);
    }
}
