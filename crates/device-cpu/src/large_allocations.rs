//! How the allocator of the C library treats large allocations.

/// From this size on, an allocation is a mapping of its own.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE: core::ffi::c_int = 1 << 20;

/// Has large allocations go back to the system when they are freed. To be called when a process starts.
///
/// The GNU library learns from the first large one that is freed to keep those that follow, thread by thread, so that a
/// server would hold what a few large requests took for as long as it runs. With other libraries this does nothing.
pub fn return_large_allocations() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it sets a number of the allocator, under the allocator's lock; every number is a good one.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}
