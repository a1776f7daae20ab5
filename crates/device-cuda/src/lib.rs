//! NVIDIA GPUs as a device: the operations of [`Backend`](paceline_device::Backend) as kernels, a step as one graph.
//!
//! Nothing of CUDA is needed to build this crate and nothing but the driver to run it. Kernels are the `.cu` files in
//! `kernels/`, compiled ahead for each architecture to the packs beside them (`cargo xtask kernels`); the driver is looked
//! for when a device is opened.

mod arena;
mod arguments;
pub mod bundle;
mod caches;
pub mod compiler;
mod context;
mod cuda;
mod driver;
mod enqueue;
mod launch;
mod ops;
pub mod pack;
#[doc(hidden)]
pub mod plants;
mod program;
mod read;
mod ring;
mod scratch;
mod storage;
mod times;
mod unknown;
mod unread;
mod views;
mod weight;

pub use caches::{CudaKvCache, CudaStateCache};
pub use cuda::{Cuda, CudaOptions};
pub use driver::{Found, Gpu, probe};
pub use launch::KernelCall;
pub use ops::experts::CudaExperts;
pub use program::CudaProgram;
pub use read::CudaRead;
pub use ring::{CudaArrival, CudaRing};
pub use storage::{CudaBuffer, CudaTensor};
pub use weight::CudaWeight;
