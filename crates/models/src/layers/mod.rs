//! The layers that architectures are made of. Each knows how to load itself and how to run.

mod attention;
mod block;
mod delta_net;
mod linear;
mod mamba2;
mod mlp;
mod moe;
mod norm;
mod rope;
mod stack;

pub use attention::{Attention, AttentionConfig, AttentionScales};
pub use block::{Block, BlockOp, Contribution};
pub use delta_net::{DeltaNet, DeltaNetConfig};
pub use linear::Linear;
pub use mamba2::{Mamba2, Mamba2Config, Mamba2Norm};
pub use mlp::Mlp;
pub use moe::{ExpertLayout, Moe, MoeConfig, RouterKind, SharedExpert};
pub use norm::{Norm, NormKind};
pub use rope::{Rope, RopeConfig};
pub use stack::Stack;
