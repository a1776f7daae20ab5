//! Generating, for every interface: a checked task in, a stream of text per choice out.

mod allowed;
mod collect;
mod continuation;
mod parts;
mod speculation;
mod steps;
mod stream;
mod task;

pub use collect::{Collected, Completion, collect};
pub(crate) use continuation::{Continuation, Resumed, has_moved};
pub use paceline::{Failure, Finish};
pub use paceline_text::GeneratedToken;
pub(crate) use parts::PartReader;
pub(crate) use speculation::SpeculationUsage;
pub use steps::{Piece, Step};
pub(crate) use stream::Means;
pub use stream::Outputs;
pub(crate) use task::{StreamOptions, cache_salt, stream};

use paceline::Request;
use paceline_text::{DecodeOptions, TextDecoder};
use paceline_types::TokenId;
use std::sync::Arc;

/// What to generate. The engine checks it when it is handed in.
#[derive(Clone, Debug, Default)]
pub struct GenerationTask {
    /// One or more prompts. Choice `c` of prompt `p` has the index `p * n + c`.
    pub prompts: Vec<Arc<[TokenId]>>,
    /// What all of them are asked with; its own prompt is empty.
    pub request: Request,
    /// How tokens become text.
    pub decoding: DecodeOptions,
    /// Nothing but these tokens may come.
    pub allowed: Option<Vec<TokenId>>,
    /// The client's own part of the salt.
    pub cache_salt: Option<String>,
    /// Keep this many of the last tokens of each prompt.
    pub truncate: Option<usize>,
    /// The text so far, of a task that goes on with one.
    pub resumed: Option<TextDecoder>,
    /// It can go on elsewhere when the server goes down.
    pub movable: bool,
}

/// Something a generation yields: text with its tokens. Choices are numbered over all prompts. Log-probabilities of a
/// prompt come all at once and before any text of its choices, and only if they were asked for.
pub type Output = paceline::Event<Piece>;
