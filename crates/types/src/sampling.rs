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
    /// Multiplies (divides) negative (positive) logits of tokens that occur in prompt or text; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens that occur in the generated text.
    pub presence_penalty: f32,
    /// Subtracted once per occurrence in the generated text.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Sequences that must not come up.
    pub bad_words: Vec<Vec<TokenId>>,
    /// Key of the noise: equal seeds give equal tokens.
    pub seed: u64,
    /// Fewest tokens to generate: no stop token is chosen before.
    pub min_tokens: usize,
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// Go on past the model's end-of-text tokens.
    pub ignore_eos: bool,
    /// Tokens that end the text, besides the model's own.
    pub stop_tokens: Vec<TokenId>,
    /// Report this many of the most likely tokens at every position, and the chosen one.
    pub logprobs: Option<usize>,
    /// Report this many of the most likely tokens at every position of the prompt, and its own token.
    pub prompt_logprobs: Option<usize>,
    /// Report how every token came: sampled or drafted, and the drafts that were rejected.
    pub origins: bool,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            bad_words: Vec::new(),
            seed: 0,
            min_tokens: 0,
            max_tokens: 256,
            ignore_eos: false,
            stop_tokens: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
            origins: false,
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
    /// The token limit or the end of the context. A prompt that becomes a vector has it from the start, and ends when
    /// it is run.
    Length,
    /// The caller asked.
    Cancelled,
    /// The deadline passed.
    Deadline,
    /// The constraint left no token to go on with, or could not be followed any further.
    Constraint,
    /// It goes on elsewhere. The engine's caller ends it so; the engine itself never does.
    Moved,
}

impl FinishReason {
    /// The name used in replies.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
            Self::Deadline => "deadline",
            Self::Constraint => "constraint",
            Self::Moved => "moved",
        }
    }
}
