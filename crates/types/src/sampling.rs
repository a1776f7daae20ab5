//! What a caller asks of sampling and what it gets back.

/// A token of a model's vocabulary.
pub type TokenId = u32;

/// How the next token is chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 means the most likely token.
    pub temperature: f32,
    /// Keep the smallest set of tokens whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keep this many of the most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Drop tokens less likely than this share of the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Key of the noise: equal seeds give equal tokens.
    pub seed: u64,
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// Go on past the model's end-of-text tokens.
    pub ignore_eos: bool,
    /// Report this many of the most likely tokens at every position, and the chosen one.
    pub logprobs: Option<usize>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: 0,
            max_tokens: 256,
            ignore_eos: false,
            logprobs: None,
        }
    }
}

/// Log-probabilities at one generated position, of the distribution before temperature and truncation.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Of the chosen token.
    pub chosen: f32,
    /// The most likely tokens, best first; ties by lower id.
    pub top: Vec<(TokenId, f32)>,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token or stop string.
    Stop,
    /// The token limit or the end of the context.
    Length,
    /// The caller asked.
    Cancelled,
}

impl FinishReason {
    /// The name used in replies.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
        }
    }
}
