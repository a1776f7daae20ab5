//! The CPU device: packed weights, vector kernels, a worker pool and an in-order stream.
//!
//! [`Cpu`] implements [`paceline_device::Backend`]. Operations are closures on a stream thread; each one is a
//! function in `ops` that sees plain slices and a worker pool. Everything is accumulated in a fixed order that
//! depends on nothing but the row's own inputs, so results are equal to the last bit for any batch, number of
//! threads, instruction set and division of a sequence into steps.

mod caches;
mod checks;
mod cpu;
mod dots;
mod enqueue;
#[cfg(all(test, loom))]
mod interleavings;
mod kv;
mod large_allocations;
mod ops;
mod packed;
mod philox;
mod pool;
mod regions;
mod simd;
mod storage;
mod stream;
mod sync;
mod team;
mod usable_memory;
mod weight;

pub use caches::CpuStateCache;
pub use cpu::{Cpu, CpuOptions, CpuProgram};
pub use kv::CpuKvCache;
pub use large_allocations::return_large_allocations;
pub use ops::experts::CpuExperts;
pub use packed::{PackedKey, PackedWeights, PackedWriter};
pub use simd::Instructions;
#[cfg(target_arch = "aarch64")]
pub use simd::Neon;
#[cfg(target_arch = "x86_64")]
pub use simd::{Avx2, Avx512};
pub use storage::{CpuBuffer, CpuRing, CpuTensor};
pub use stream::{CpuArrival, CpuRead};
pub use usable_memory::{MemoryLimit, UsableMemory};
pub use weight::CpuWeight;
