//! A compiled grammar.

use crate::budget::CompileBudget;
use crate::compile::{Compiled, compile};
use crate::error::GrammarError;
use crate::matcher::{GrammarMatcher, Path};
use crate::spec::{GrammarSpec, Lead};
use crate::tokenizer::TokenizerInfo;
use llguidance::TokenParser;
use llguidance::toktrie::SimpleVob;
use paceline_types::{Constraint, ConstraintError, Matcher};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Tokens of a text that are tried before a grammar is taken, along each of a few paths.
const PROBED: usize = 12;

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
    /// Whether the request has written rules of its own.
    rules: bool,
}

impl Grammar {
    /// Compiles what texts are to follow from their beginning. Takes milliseconds and more.
    pub fn new(info: &TokenizerInfo, spec: &GrammarSpec) -> Result<Self, GrammarError> {
        Self::behind(info, &Lead::None, spec, &CompileBudget::default())
    }

    /// Compiles what texts are to follow behind any text that ends with `after`, such as a model's reasoning.
    pub fn after(info: &TokenizerInfo, after: &str, spec: &GrammarSpec) -> Result<Self, GrammarError> {
        let lead = Lead::Until(after.to_owned());
        Self::behind(info, &lead, spec, &CompileBudget::default())
    }

    /// Compiles what texts are to follow behind what may come first, within a time. What cannot be followed under the
    /// limits is refused here, not in the midst of a text.
    pub fn behind(
        info: &TokenizerInfo,
        lead: &Lead,
        spec: &GrammarSpec,
        budget: &CompileBudget,
    ) -> Result<Self, GrammarError> {
        let Compiled { parser, forbidden } = compile(info, spec, lead, budget)?;
        let grammar = Self {
            shared: Arc::new(Shared {
                info: info.clone(),
                parser: Mutex::new(parser),
                forbidden,
                rules: spec.has_rules(),
            }),
        };
        // What nothing can satisfy is the fault of the request, not of the text that would try.
        let invalid = |error: ConstraintError| GrammarError::Invalid {
            place: spec.place().to_owned(),
            reason: error.to_string(),
        };
        grammar.follow().masks(&[]).map_err(invalid)?;
        for path in [Path::First, Path::Middle, Path::Last] {
            let mut matcher = grammar.follow();
            for _ in 0..PROBED {
                budget.check()?;
                if !matcher.probe(path).map_err(invalid)? {
                    break;
                }
            }
        }
        Ok(grammar)
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

    /// Whether the request has written rules of its own.
    pub(crate) fn has_rules(&self) -> bool {
        self.rules
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
