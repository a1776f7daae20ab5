//! One file per architecture: configuration in, residual blocks out.

mod builder;
pub(crate) use builder::{Builder, token_list};
mod transformer;

pub(crate) mod bamba;
pub(crate) mod falcon_h1;
pub(crate) mod granite_h;
pub(crate) mod llama;
pub(crate) mod nemotron_h;
pub(crate) mod qwen2;
pub(crate) mod qwen3;
pub(crate) mod qwen3_5;
pub(crate) mod qwen3_moe;
pub(crate) mod qwen3_next;
pub(crate) mod qwen_hybrid;
