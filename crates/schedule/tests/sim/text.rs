//! The text every request must come out with, known before it runs: each token is a function of the request's
//! seed, the position and all tokens before.

use super::grammar::Grammar;
use super::rng::mix;
use paceline_schedule::CheckedRequest;
use paceline_types::{DraftBudget, Pooling, TokenId};
use std::sync::Arc;

/// Tokens there are; few, so that texts overlap.
pub const VOCABULARY: u64 = 20;

/// A hash of no tokens.
const EMPTY: u64 = 0x11;

/// A request as the device and the checker know it.
#[derive(Clone, Debug)]
pub struct Script {
    /// Prompt and full text.
    pub tokens: Vec<TokenId>,
    /// `hashes[p]`: of the first p tokens.
    pub hashes: Vec<u64>,
    pub prompt_len: usize,
    /// The text ends with a stop token.
    pub stops: bool,
    /// Most drafts.
    pub speculation: DraftBudget,
    /// What confines it, without changing it.
    pub grammar: Option<Arc<Grammar>>,
}

/// What the text depends on.
#[derive(Clone, Debug)]
pub struct Limits {
    pub seed: u64,
    /// Whom it may share blocks with: texts of different circles differ in every hash.
    pub circle: u64,
    pub max_length: usize,
    pub min_tokens: usize,
    pub stop_tokens: Vec<TokenId>,
    /// Most drafts, which must not change it.
    pub speculation: DraftBudget,
}

impl Limits {
    /// Nothing but a length.
    pub fn length(max_length: usize) -> Self {
        Self {
            seed: 1,
            circle: 0,
            max_length,
            min_tokens: 0,
            stop_tokens: Vec::new(),
            speculation: CheckedRequest::ANY_DRAFTS,
        }
    }
}

impl Script {
    pub fn new(prompt: &[TokenId], limits: &Limits) -> Self {
        let mut script = Self {
            tokens: Vec::new(),
            hashes: vec![mix(EMPTY, limits.circle)],
            prompt_len: prompt.len(),
            stops: false,
            speculation: limits.speculation,
            grammar: None,
        };
        for token in prompt {
            script.push(*token);
        }
        while script.tokens.len() < limits.max_length && !script.stops {
            let position = script.tokens.len();
            let prefix = script.hashes[position];
            let token = (mix(mix(prefix, limits.seed), position as u64) % VOCABULARY) as TokenId;
            script.push(token);
            script.stops = limits.stop_tokens.contains(&token)
                && script.tokens.len() >= prompt.len() + limits.min_tokens;
        }
        script
    }

    /// The vector that the device makes of the prompt: how many states went into it, and what they add up to.
    pub fn vector(&self, pooling: Pooling) -> Vec<f32> {
        let state = |length: usize| state(self.hashes[length]);
        match pooling {
            Pooling::Last => vec![1.0, state(self.prompt_len) as f32],
            Pooling::Mean => {
                let sum: u64 = (1..=self.prompt_len).map(state).sum();
                vec![self.prompt_len as f32, sum as f32]
            }
        }
    }

    fn push(&mut self, token: TokenId) {
        let before = self.hashes[self.tokens.len()];
        self.hashes.push(mix(before, u64::from(token) + 1));
        self.tokens.push(token);
    }
}

/// A token's state, as far as the device keeps it.
pub fn state(hash: u64) -> u64 {
    hash % 251
}
