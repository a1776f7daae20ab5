//! The device's memory, which is the host's: what was allocated, and checked access to it.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;

/// What new memory holds: no number in any type of floating ones, and a place far away as an index.
pub(crate) const POISON: [u8; 4] = [0xff, 0x7f, 0xff, 0x7f];
/// Larger allocations stay zero: most of them is never touched, and the host would have to find pages for it.
const POISONED: usize = 64 << 20;
/// What starts at multiples of this is aligned for everything.
const ALIGNMENT: usize = 4096;

/// Ranges of memory that kernels may reach, by where they begin.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    ranges: BTreeMap<u64, u64>,
    held: u64,
}

/// A range that was looked up before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Window {
    from: u64,
    to: u64,
}

/// What is wrong with an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// Not in memory that was allocated.
    Outside,
    /// Not at a multiple of its size.
    Crooked,
}

impl Memory {
    /// Takes memory; `poison`: it holds nothing of use. `None` if the host has no more.
    pub(crate) fn take(&mut self, bytes: usize, poison: bool) -> Option<u64> {
        let size = bytes.max(1);
        let layout = Layout::from_size_align(size, ALIGNMENT).ok()?;
        // SAFETY: the layout has a size.
        let at = unsafe { alloc_zeroed(layout) };
        if at.is_null() {
            return None;
        }
        if poison && size < POISONED {
            for index in 0..size {
                // SAFETY: within what was just allocated.
                unsafe { at.add(index).write(POISON[index % 4]) };
            }
        }
        self.ranges.insert(at as u64, at as u64 + size as u64);
        self.held += size as u64;
        Some(at as u64)
    }

    /// Gives back what [`take`](Self::take) gave; false if that is not what it is.
    pub(crate) fn give_back(&mut self, at: u64) -> bool {
        let Some(end) = self.ranges.remove(&at) else {
            return false;
        };
        let size = (end - at) as usize;
        self.held -= size as u64;
        if let Ok(layout) = Layout::from_size_align(size, ALIGNMENT) {
            // SAFETY: it was allocated with this layout, and is no longer listed.
            unsafe { dealloc(at as *mut u8, layout) };
        }
        true
    }

    /// Bytes that were taken.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// Whether these bytes were allocated together. What was found is kept in the window.
    #[inline(always)]
    fn check(&self, window: &mut Window, at: u64, bytes: u64) -> Result<(), Wrong> {
        if at >= window.from && at.wrapping_add(bytes) <= window.to && at.wrapping_add(bytes) >= at {
            return Ok(());
        }
        self.look_up(window, at, bytes)
    }

    #[inline(never)]
    fn look_up(&self, window: &mut Window, at: u64, bytes: u64) -> Result<(), Wrong> {
        let end = at.checked_add(bytes).ok_or(Wrong::Outside)?;
        let (from, to) = self.ranges.range(..=at).next_back().ok_or(Wrong::Outside)?;
        if end > *to {
            return Err(Wrong::Outside);
        }
        *window = Window { from: *from, to: *to };
        Ok(())
    }

    /// Reads up to sixteen bytes, the first one lowest.
    #[inline(always)]
    pub(crate) fn load(&self, window: &mut Window, at: u64, bytes: u64) -> Result<u128, Wrong> {
        if at & (bytes - 1) != 0 {
            return Err(Wrong::Crooked);
        }
        self.check(window, at, bytes)?;
        // SAFETY: these bytes are allocated and lie at a multiple of their number; the driver runs nothing beside a kernel, and
        // what the host writes in mapped memory meanwhile are words that it never writes where kernels look.
        unsafe {
            Ok(match bytes {
                1 => u128::from((at as *const u8).read_volatile()),
                2 => u128::from((at as *const u16).read_volatile()),
                4 => u128::from((at as *const u32).read_volatile()),
                8 => u128::from((at as *const u64).read_volatile()),
                _ => {
                    let (low, high) = (at as *const u64, (at + 8) as *const u64);
                    u128::from(low.read_volatile()) | u128::from(high.read_volatile()) << 64
                }
            })
        }
    }

    /// Writes up to sixteen bytes.
    #[inline(always)]
    pub(crate) fn store(&self, window: &mut Window, at: u64, bytes: u64, value: u128) -> Result<(), Wrong> {
        if at & (bytes - 1) != 0 {
            return Err(Wrong::Crooked);
        }
        self.check(window, at, bytes)?;
        // SAFETY: as above; the host reads what kernels write as atomics, or when the stream has been waited for.
        unsafe {
            match bytes {
                1 => (at as *mut u8).write_volatile(value as u8),
                2 => (at as *mut u16).write_volatile(value as u16),
                4 => (at as *mut u32).write_volatile(value as u32),
                8 => (at as *mut u64).write_volatile(value as u64),
                _ => {
                    (at as *mut u64).write_volatile(value as u64);
                    ((at + 8) as *mut u64).write_volatile((value >> 64) as u64);
                }
            }
        }
        Ok(())
    }

    /// Whether these bytes were allocated together.
    pub(crate) fn covers(&self, at: u64, bytes: u64) -> Result<(), Wrong> {
        self.check(&mut Window::default(), at, bytes)
    }

    /// Reads many bytes.
    pub(crate) fn read(&self, at: u64, to: &mut [u8]) -> Result<(), Wrong> {
        self.check(&mut Window::default(), at, to.len() as u64)?;
        // SAFETY: these bytes are allocated; what they go to is memory of Rust's and elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(at as *const u8, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Writes many bytes.
    pub(crate) fn write(&self, at: u64, from: &[u8]) -> Result<(), Wrong> {
        self.check(&mut Window::default(), at, from.len() as u64)?;
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), at as *mut u8, from.len()) };
        Ok(())
    }

    /// Writes a pattern over and over.
    pub(crate) fn fill(&self, at: u64, pattern: &[u8], bytes: usize) -> Result<(), Wrong> {
        let all: Vec<u8> = pattern.iter().copied().cycle().take(bytes).collect();
        self.write(at, &all)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let all: Vec<u64> = self.ranges.keys().copied().collect();
        for at in all {
            self.give_back(at);
        }
    }
}
