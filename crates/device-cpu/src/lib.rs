//! The CPU device: packed weights, vector kernels, a worker pool and an in-order stream.

mod pool;
mod simd;
mod storage;
mod stream;

pub use simd::Instructions;
pub use storage::{CpuBuffer, CpuTensor};
pub use stream::CpuRead;
