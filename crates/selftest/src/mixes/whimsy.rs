//! A constraint without a grammar: what may come is a matter of the text's hash, and sometimes there is no choice.

use paceline_types::{Constraint, ConstraintError, Matcher, TokenId, TokenMask};
use std::sync::Arc;

/// Tokens that it speaks of; the smallest model knows them all.
const TOKENS: TokenId = 200;

/// A constraint that follows from its seed.
#[derive(Clone, Copy, Debug)]
pub struct Whimsy(pub u64);

impl Constraint for Whimsy {
    fn matcher(&self) -> Box<dyn Matcher> {
        Box::new(*self)
    }
}

impl Whimsy {
    /// A constraint with its name.
    pub fn named(seed: u64) -> (String, Arc<dyn Constraint>) {
        (format!("whimsy {seed}"), Arc::new(Self(seed)))
    }

    fn after(self, token: TokenId) -> Self {
        Self(mixed(self.0 ^ u64::from(token)))
    }

    /// One time in three there is one token; else one in four may come.
    fn allowed(self) -> Vec<TokenId> {
        let only = (mixed(self.0 ^ 1) % u64::from(TOKENS)) as TokenId;
        if self.0.is_multiple_of(3) {
            return vec![only];
        }
        let may = |token: &TokenId| mixed(self.0 ^ u64::from(*token) << 32).is_multiple_of(4);
        (0..TOKENS).filter(|token| *token == only || may(token)).collect()
    }
}

fn mixed(value: u64) -> u64 {
    let value = (value ^ value >> 31)
        .wrapping_add(0x9e37_79b9)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value ^ value >> 29
}

impl Matcher for Whimsy {
    fn commit(&mut self, tokens: &[TokenId]) -> Result<(), ConstraintError> {
        for token in tokens {
            if !self.allowed().contains(token) {
                return Err(ConstraintError(format!("{token} was not to come")));
            }
            *self = self.after(*token);
        }
        Ok(())
    }

    fn forced(&mut self, most: usize) -> Result<Vec<TokenId>, ConstraintError> {
        let (mut at, mut forced) = (*self, Vec::new());
        while forced.len() < most
            && let [only] = at.allowed()[..]
        {
            forced.push(only);
            at = at.after(only);
        }
        Ok(forced)
    }

    fn masks(&mut self, drafts: &[TokenId]) -> Result<Vec<TokenMask>, ConstraintError> {
        let mut at = *self;
        let mut masks = vec![TokenMask::of(&at.allowed(), TOKENS as usize)];
        for (index, draft) in drafts.iter().enumerate() {
            if !masks[index].allows(*draft) {
                break;
            }
            at = at.after(*draft);
            masks.push(TokenMask::of(&at.allowed(), TOKENS as usize));
        }
        Ok(masks)
    }

    fn is_finished(&self) -> bool {
        false
    }
}
