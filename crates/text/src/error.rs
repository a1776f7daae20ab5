//! What can go wrong with text.

use paceline_types::TokenId;

/// Result of the operations of this crate.
pub type Result<T> = std::result::Result<T, TextError>;

/// An error about a tokenizer, its files, or a chat template.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The tokenizer file is not valid, or describes something that cannot be built.
    #[error("invalid tokenizer: {0}")]
    InvalidTokenizer(String),
    /// The tokenizer turns tokens into text in a way that cannot be streamed here.
    #[error("unsupported tokenizer decoder {0}")]
    UnsupportedDecoder(String),
    /// `tokenizer.ggml.model` names no supported kind of tokenizer.
    #[error("unsupported GGUF tokenizer model {0:?} (supported: \"gpt2\", \"llama\")")]
    UnsupportedGgufModel(String),
    /// `tokenizer.ggml.pre` names no supported pre-tokenizer.
    #[error("unsupported GGUF pre-tokenizer {0:?}")]
    UnsupportedPreTokenizer(String),
    /// The GGUF vocabulary contradicts itself.
    #[error("invalid GGUF vocabulary: {0}")]
    InvalidGgufVocabulary(String),
    /// A token id that the vocabulary does not have.
    #[error("token {id} is outside the vocabulary of {vocab_size} tokens")]
    UnknownToken {
        /// The offending id.
        id: TokenId,
        /// One past the largest id.
        vocab_size: usize,
    },
    /// The tokenizer refused a text.
    #[error("cannot encode text of {bytes} bytes: {reason}")]
    Encode {
        /// Length of the text.
        bytes: usize,
        /// What the tokenizer said.
        reason: String,
    },
    /// A text has more tokens than it may have.
    #[error("the text has at least {at_least} tokens; it may have {limit}")]
    TooLong {
        /// As far as they were counted.
        at_least: usize,
        /// How many it may have.
        limit: usize,
    },
    /// The caller no longer wants the tokens.
    #[error("given up")]
    GivenUp,
    /// `tokenizer_config.json` is not valid.
    #[error("invalid tokenizer configuration: {0}")]
    InvalidConfig(String),
    /// There is no chat template, or it is blank.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The chat template does not parse.
    #[error("invalid chat template: {0}")]
    InvalidTemplate(String),
    /// The chat template refused the conversation by `raise_exception`.
    #[error("{0}")]
    TemplateRaised(String),
    /// The chat template failed on the conversation.
    #[error("cannot render the chat template: {0}")]
    Render(String),
    /// No format of tool calls or of reasoning has this name.
    #[error("unknown {what} parser {name:?} (known: {choices})")]
    UnknownFormat {
        /// What the format is of.
        what: &'static str,
        /// The name that was given.
        name: String,
        /// The names there are.
        choices: String,
    },
}
