//! What can be wrong with a grammar.

use paceline_types::TokenId;
use std::time::Duration;

/// Why there is no grammar. Messages say what is wrong and where, in the terms of the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// A token that ends a text is none of the tokenizer's.
    #[error("the end token {id} is not one of the tokenizer's {vocabulary} tokens")]
    UnknownEnd {
        /// Id of the token.
        id: TokenId,
        /// One past the largest there is.
        vocabulary: usize,
    },
    /// The vocabulary cannot be used for grammars.
    #[error("the tokenizer cannot be used for grammars: {0}")]
    Tokenizer(String),
    /// Something is larger than allowed.
    #[error("{place}: {what} is {value}, but at most {bound} is possible")]
    TooLarge {
        /// Where, as a JSON pointer or the kind of the grammar.
        place: String,
        /// Name of what is too large.
        what: &'static str,
        /// How large it is.
        value: usize,
        /// How large it may be.
        bound: usize,
    },
    /// It could not be compiled in time.
    #[error("it takes longer than {} ms to compile; make it smaller", time.as_millis())]
    TooSlow {
        /// The time it had.
        time: Duration,
    },
    /// The request that asked for it has given up.
    #[error("its compilation was given up")]
    Cancelled,
    /// It is no grammar, or one that is not supported.
    #[error("{place}: {reason}")]
    Invalid {
        /// Where, as a JSON pointer or the kind of the grammar.
        place: String,
        /// What is wrong with it.
        reason: String,
    },
}
