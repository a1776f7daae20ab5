//! Constraints on what a request may say, as the engine sees them: masks of tokens, position by position.
//!
//! What a constraint is made of (a schema, a grammar) is up to the implementation of these traits.

use crate::TokenId;
use std::fmt;

/// The tokens that may come at a position, a bit each.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenMask(Box<[u32]>);

impl TokenMask {
    /// From words of 32 tokens, lowest token in the lowest bit.
    pub fn new(words: impl Into<Box<[u32]>>) -> Self {
        Self(words.into())
    }

    /// With these tokens out of `vocabulary`; others are left out.
    pub fn of(tokens: &[TokenId], vocabulary: usize) -> Self {
        let mut words = vec![0; vocabulary.div_ceil(32)];
        for token in tokens {
            if let Some(word) = words.get_mut(*token as usize / 32) {
                *word |= 1 << (token % 32);
            }
        }
        Self(words.into())
    }

    /// Whether the token may come. One that the mask does not reach may not.
    pub fn allows(&self, token: TokenId) -> bool {
        self.0
            .get(token as usize / 32)
            .is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// How many tokens may come.
    pub fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether nothing may come.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// 32 tokens per word, the lowest bit first.
    pub fn words(&self) -> &[u32] {
        &self.0
    }

    /// The tokens that may come, in order.
    pub fn tokens(&self) -> impl Iterator<Item = TokenId> + '_ {
        let bits = |(index, word): (usize, &u32)| {
            let word = *word;
            let base = index as u32 * 32;
            (0..32)
                .filter(move |bit| word >> bit & 1 == 1)
                .map(move |bit| base + bit)
        };
        self.0.iter().enumerate().flat_map(bits)
    }
}

impl fmt::Debug for TokenMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenMask({} tokens)", self.count())
    }
}

/// What a request's text must follow. Shared by all continuations that do.
pub trait Constraint: fmt::Debug + Send + Sync {
    /// Follows one continuation, from its beginning. May take long: not for a thread that others wait for.
    fn matcher(&self) -> Box<dyn Matcher>;
}

/// Follows one continuation. What it answers depends on the tokens committed and on nothing else.
///
/// Calls may take long: they are made on threads of their own. A call that fails may leave it useless.
pub trait Matcher: Send {
    /// Takes the tokens that have become part of the text.
    fn commit(&mut self, tokens: &[TokenId]) -> Result<(), ConstraintError>;

    /// Tokens that must follow now, at most `most`; often none.
    fn forced(&mut self, most: usize) -> Result<Vec<TokenId>, ConstraintError>;

    /// The mask behind the committed text, and one behind each of `drafts` up to the first that may not come or
    /// behind which nothing could: `masks.len() - 1` drafts may stay. No mask is empty. Changes nothing.
    fn masks(&mut self, drafts: &[TokenId]) -> Result<Vec<TokenMask>, ConstraintError>;

    /// Whether the text is complete and nothing may follow, not even a token that ends it.
    fn is_finished(&self) -> bool;
}

/// Why a text cannot go on under its constraint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConstraintError(pub String);

impl fmt::Display for ConstraintError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConstraintError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_hold_the_tokens_they_were_made_of() {
        let mask = TokenMask::of(&[0, 31, 32, 70, 900], 71);
        assert_eq!(mask.tokens().collect::<Vec<_>>(), [0, 31, 32, 70]);
        assert_eq!((mask.count(), mask.words().len()), (4, 3));
        assert!(mask.allows(70) && !mask.allows(1) && !mask.allows(900));
        assert!(!mask.is_empty() && TokenMask::of(&[], 71).is_empty());
    }
}
