//! A compiled grammar.

use crate::compile::{Compiled, compile};
use crate::error::GrammarError;
use crate::matcher::GrammarMatcher;
use crate::spec::{GrammarSpec, Lead};
use crate::tokenizer::TokenizerInfo;
use llguidance::TokenParser;
use llguidance::toktrie::SimpleVob;
use paceline_types::{Constraint, Matcher};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// A grammar, ready for any number of texts. Clones share it.
#[derive(Clone)]
pub struct Grammar {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    info: TokenizerInfo,
    /// Cloned, never run: locked for that alone.
    parser: Mutex<TokenParser>,
    forbidden: SimpleVob,
}

impl Grammar {
    /// Compiles what texts are to follow from their beginning. Takes milliseconds and more.
    pub fn new(info: &TokenizerInfo, spec: &GrammarSpec) -> Result<Self, GrammarError> {
        Self::behind(info, &Lead::None, spec)
    }

    /// Compiles what texts are to follow behind any text that ends with `after`, such as a model's reasoning.
    pub fn after(info: &TokenizerInfo, after: &str, spec: &GrammarSpec) -> Result<Self, GrammarError> {
        Self::behind(info, &Lead::Until(after.to_owned()), spec)
    }

    /// Compiles what texts are to follow behind what may come first.
    pub fn behind(info: &TokenizerInfo, lead: &Lead, spec: &GrammarSpec) -> Result<Self, GrammarError> {
        let Compiled { parser, forbidden } = compile(info, spec, lead)?;
        let grammar = Self {
            shared: Arc::new(Shared {
                info: info.clone(),
                parser: Mutex::new(parser),
                forbidden,
            }),
        };
        // What nothing can satisfy is the fault of who asks, not of the text that would try.
        match grammar.follow().masks(&[]) {
            Ok(_) => Ok(grammar),
            Err(error) => Err(GrammarError::Invalid {
                place: spec.place().to_owned(),
                reason: error.to_string(),
            }),
        }
    }

    /// Follows a text from its beginning.
    fn follow(&self) -> GrammarMatcher {
        GrammarMatcher::new(Arc::clone(&self.shared))
    }
}

impl Shared {
    pub(crate) fn info(&self) -> &TokenizerInfo {
        &self.info
    }

    /// A parser that shares nothing with others, so that none can slow down or end another.
    pub(crate) fn parser(&self) -> TokenParser {
        let parser = self.parser.lock().unwrap_or_else(PoisonError::into_inner);
        parser.deep_clone()
    }

    /// Special tokens that are no part of the grammar.
    pub(crate) fn forbidden(&self) -> &SimpleVob {
        &self.forbidden
    }
}

impl Constraint for Grammar {
    fn matcher(&self) -> Box<dyn Matcher> {
        Box::new(self.follow())
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar")
            .field("info", &self.shared.info)
            .finish_non_exhaustive()
    }
}
