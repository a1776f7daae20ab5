//! Structured output: JSON schemas, regular expressions, Lark grammars, choices and tool calls as constraints on the
//! tokens of a text.
//!
//! [`TokenizerInfo`] is made once per model, a [`Grammar`] once per schema; a grammar is the
//! [`Constraint`](paceline_types::Constraint) of as many requests as like. What is in a schema is untrusted: it is a
//! grammar or an error, after bounded work.

mod budget;
mod closed;
mod compile;
mod error;
mod grammar;
mod lark;
mod limits;
mod matcher;
mod spec;
mod tokenizer;
mod work;

pub use budget::CompileBudget;
pub use error::GrammarError;
pub use grammar::Grammar;
pub use limits::GrammarLimits;
pub use spec::{Call, GrammarSpec, Lead, Part};
pub use tokenizer::TokenizerInfo;
