//! Text in and out of a model: tokenizer, streaming detokenizer, stop strings, chat templates, tool calls and
//! reasoning.
//!
//! Everything here is plain computation on untrusted input (files and requests): malformed input is an error
//! value. There is no IO, no device and no engine.

mod bounded;
mod chat;
mod config;
mod decoder;
mod detokenizer;
mod error;
mod gguf;
mod parse;
mod pieces;
mod stop;
mod tokenizer;

pub use chat::{ChatInput, ChatTemplate, describe_tools};
pub use config::{NamedTemplate, TokenizerConfig};
pub use decoder::{DecodeOptions, GeneratedToken, Piece, TextDecoder};
pub use detokenizer::Detokenizer;
pub use error::{Result, TextError};
pub use gguf::GgufTokenizer;
pub use parse::{CallFrame, OutputParser, OutputParserOptions, OutputPart, ReasoningFormat, ToolFormat};
pub use stop::{StopOutcome, StopStrings};
pub use tokenizer::{EncodeLimit, Tokenizer};
