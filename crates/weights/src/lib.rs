//! Model files: where they come from and what is in them.
//!
//! [`Checkpoint`] opens a model (a folder in Hugging Face layout, a GGUF file, or bytes embedded in the binary)
//! and hands out its tensors and side files; [`hub`] turns a model argument into something `Checkpoint` can open,
//! downloading it first where needed.
//!
//! Everything read here is untrusted. A malformed file is an error that names the file and the tensor or field at
//! fault; it is never a panic, and no length found in a file is believed before it is compared with the file's own.

mod bytes;
mod checkpoint;
mod error;
mod folder;
pub mod gguf;
pub mod gguf_writer;
pub mod hub;
mod json;
mod model_files;
pub mod safetensors;
mod split;

pub use bytes::Bytes;
pub use checkpoint::{Checkpoint, Format, ModelParts, RawTensor, TensorView};
pub use error::WeightsError;
pub use gguf::{GgufError, GgufMetadata};
pub use model_files::weight_files;
pub use safetensors::SafetensorsError;
