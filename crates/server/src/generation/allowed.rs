//! `allowed_token_ids`: nothing but these tokens may come.

use paceline_types::{Constraint, ConstraintError, Matcher, TokenId, TokenMask};

/// The tokens that may come, at every position.
#[derive(Clone, Debug)]
pub(crate) struct AllowedTokens(pub(crate) TokenMask);

impl Constraint for AllowedTokens {
    fn matcher(&self) -> Box<dyn Matcher> {
        Box::new(self.clone())
    }
}

impl Matcher for AllowedTokens {
    fn commit(&mut self, _: &[TokenId]) -> Result<(), ConstraintError> {
        Ok(())
    }

    fn forced(&mut self, _: usize) -> Result<Vec<TokenId>, ConstraintError> {
        Ok(Vec::new())
    }

    fn masks(&mut self, drafts: &[TokenId]) -> Result<Vec<TokenMask>, ConstraintError> {
        let allowed = drafts.iter().take_while(|draft| self.0.allows(**draft));
        Ok(vec![self.0.clone(); allowed.count() + 1])
    }

    fn is_finished(&self) -> bool {
        false
    }
}
