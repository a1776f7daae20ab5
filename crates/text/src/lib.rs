//! Text in and out of a model: tokenizer, streaming detokenizer, stop strings, chat templates.
//!
//! Everything here is plain computation on untrusted input (files and requests): malformed input is an error
//! value. There is no IO, no device and no engine.

mod chat;
mod config;
mod detokenizer;
mod error;
mod gguf;
mod pieces;
mod stop;
mod tokenizer;

pub use chat::{ChatInput, ChatTemplate};
pub use config::{NamedTemplate, TokenizerConfig};
pub use detokenizer::Detokenizer;
pub use error::{Result, TextError};
pub use gguf::GgufTokenizer;
pub use stop::{StopOutcome, StopStrings};
pub use tokenizer::Tokenizer;
