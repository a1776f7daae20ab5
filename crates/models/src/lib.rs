//! Model architectures over the device contract.
//!
//! Every supported model is a flat list of residual blocks: `x += scale · block(norm(x))`. An architecture file
//! reads its configuration and says which blocks there are; the layers under [`layers`] know how to load and
//! run them; [`Decoder`] strings them together. Nothing here knows which device it runs on.

pub mod layers;

mod arch;
mod config;
mod decoder;
mod draft_head;
mod eagle3;
mod eight_bits;
mod error;
mod gguf;
mod loader;
mod mtp;
mod part;
mod registry;
mod summary;

pub use config::Config;
pub use decoder::{CacheSizes, Caches, Decoder, Forward, ModelDims};
pub use draft_head::{DraftHead, DraftScope, DraftStates};
pub use eagle3::Eagle3;
pub use error::ModelError;
pub use loader::{LoadStats, Loader, WeightTypes};
pub use mtp::Mtp;
pub use registry::{ArchitectureRow, architecture_names, load, load_config_only, load_random, stored_type};
pub use summary::{LayerCounts, MemoryFigures, Summary};
