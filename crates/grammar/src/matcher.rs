//! Follows one text through a grammar.

use crate::grammar::Shared;
use crate::tokenizer::first_line;
use crate::work::Work;
use llguidance::TokenParser;
use llguidance::api::StopReason;
use llguidance::earley::ParserStats;
use llguidance::panic_utils::catch_unwind;
use paceline_types::{ConstraintError, Matcher, TokenId, TokenMask};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// Where a text stands in a grammar.
pub(crate) struct GrammarMatcher {
    grammar: Arc<Shared>,
    parser: TokenParser,
    committed: Vec<TokenId>,
    /// A token that ends the text has come where nothing else could.
    ended: bool,
    /// Drafts have been looked at since the start. What they come to is taken back, but the work for it counts against
    /// the limits.
    drafted: bool,
    /// Drafts ran into a limit: no more are looked at.
    burnt: bool,
    work: Work,
}

/// Which token a probe goes on with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Path {
    First,
    Middle,
    Last,
}

impl GrammarMatcher {
    pub(crate) fn new(grammar: Arc<Shared>) -> Self {
        let rules = grammar.has_rules();
        Self {
            parser: grammar.parser(),
            grammar,
            committed: Vec::new(),
            ended: false,
            drafted: false,
            burnt: false,
            work: Work::new(rules),
        }
    }

    /// Takes a step along a path; false where there is none.
    pub(crate) fn probe(&mut self, path: Path) -> Result<bool, ConstraintError> {
        let Some(mask) = self.mask()? else {
            return Ok(false);
        };
        let ends = self.grammar.info().ends();
        let tokens: Vec<_> = mask.tokens().filter(|token| !ends.contains(token)).collect();
        let token = match path {
            Path::First => tokens.first(),
            Path::Middle => tokens.get(tokens.len() / 2),
            Path::Last => tokens.last(),
        };
        match token.copied() {
            Some(token) => self.consume(token).map(|()| true),
            None => Ok(false),
        }
    }

    /// What the parser has done since `before`.
    fn done(&self, before: &ParserStats) -> ParserStats {
        self.parser.parser_stats().delta(before)
    }

    /// Counts what was done for the text since `before`.
    fn count(&mut self, before: &ParserStats) -> Result<(), ConstraintError> {
        let (done, limits) = (self.done(before), self.grammar.info().limits());
        self.work.count(&done, self.committed.len(), limits)
    }

    /// Counts what was done for drafts since `before`; where it is too much, these were the last.
    fn count_drafts(&mut self, before: &ParserStats) {
        let (done, limits) = (self.done(before), self.grammar.info().limits());
        self.burnt |= !self.work.count_drafts(&done, self.committed.len(), limits);
    }

    /// Runs something of the library that may panic.
    fn guarded<T>(
        &mut self,
        call: impl FnOnce(&mut TokenParser) -> Result<T, String>,
    ) -> Result<T, ConstraintError> {
        let parser = &mut self.parser;
        // A parser that panicked is not used again: its request ends.
        let outcome = catch_unwind(AssertUnwindSafe(|| Ok(call(parser))));
        match outcome {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(reason)) => Err(ConstraintError(reason)),
            Err(error) => Err(ConstraintError(first_line(&error))),
        }
    }

    fn consume(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        self.guarded(|parser| {
            let refused = |error: &dyn std::fmt::Display| {
                format!(
                    "token {token} is not what the grammar allows: {}",
                    first_line(error)
                )
            };
            let back = parser.consume_token(token).map_err(|error| refused(&error))?;
            if back != 0 {
                return Err(refused(&"it would have to go back"));
            }
            parser.check_stop().map_err(|error| refused(&error))?;
            Ok(())
        })
    }

    /// The mask behind what was consumed, or `None` if nothing may come.
    fn mask(&mut self) -> Result<Option<TokenMask>, ConstraintError> {
        let info = self.grammar.info();
        match self.parser.stop_reason() {
            StopReason::NoExtension if self.ended => return Ok(None),
            StopReason::NoExtension => {
                let ends = TokenMask::of(info.ends(), info.vocabulary());
                return Ok(Some(ends).filter(|ends| !ends.is_empty()));
            }
            StopReason::EndOfSentence => return Ok(None),
            _ => {}
        }
        let words = info.vocabulary().div_ceil(32);
        let computed = self.guarded(|parser| match parser.compute_mask() {
            // Where a token is forced, the library does not look at errors.
            Ok(set) => match parser.parser.get_error() {
                Some(error) => Err(first_line(&error.message())),
                None => Ok(Some(set)),
            },
            Err(_) if parser.stop_reason() == StopReason::NoExtensionBias => Ok(None),
            Err(error) => Err(first_line(&error)),
        })?;
        let Some(mut set) = computed else {
            return Ok(None);
        };
        set.sub(self.grammar.forbidden());
        let mut bits = set.as_slice().to_vec();
        bits.resize(words, 0);
        let mask = TokenMask::new(bits);
        Ok(Some(mask).filter(|mask| !mask.is_empty()))
    }

    /// Masks behind drafts, after the first, and how many drafts were consumed.
    fn look_ahead(
        &mut self,
        drafts: &[TokenId],
        masks: &mut Vec<TokenMask>,
    ) -> Result<usize, ConstraintError> {
        for (index, draft) in drafts.iter().enumerate() {
            if !masks[index].allows(*draft) || self.grammar.info().ends().contains(draft) {
                return Ok(index);
            }
            self.drafted = true;
            self.consume(*draft)?;
            match self.mask()? {
                Some(mask) => masks.push(mask),
                None => return Ok(index + 1),
            }
        }
        Ok(drafts.len())
    }

    /// Goes back to the committed text after drafts went wrong behind it, which is work for them.
    fn restart(&mut self) -> Result<(), ConstraintError> {
        self.parser = self.grammar.parser();
        (self.ended, self.drafted) = (false, false);
        let committed = std::mem::take(&mut self.committed);
        let before = self.parser.parser_stats().clone();
        let advanced = self.advance(&committed);
        self.count_drafts(&before);
        advanced
    }

    fn advance(&mut self, tokens: &[TokenId]) -> Result<(), ConstraintError> {
        for token in tokens {
            let complete = self.parser.stop_reason() == StopReason::NoExtension;
            if complete && !self.ended && self.grammar.info().ends().contains(token) {
                self.ended = true;
            } else {
                self.consume(*token)?;
            }
            self.committed.push(*token);
        }
        Ok(())
    }
}

impl Matcher for GrammarMatcher {
    fn commit(&mut self, tokens: &[TokenId]) -> Result<(), ConstraintError> {
        let before = self.parser.parser_stats().clone();
        self.advance(tokens)?;
        self.work.grow(&self.done(&before));
        self.count(&before)
    }

    fn forced(&mut self, most: usize) -> Result<Vec<TokenId>, ConstraintError> {
        if most == 0 || self.parser.stop_reason() != StopReason::NotStopped {
            return Ok(Vec::new());
        }
        let before = self.parser.parser_stats().clone();
        let mut tokens = self.guarded(|parser| Ok(parser.compute_ff_tokens()))?;
        self.count(&before)?;
        tokens.truncate(most);
        Ok(tokens)
    }

    fn masks(&mut self, drafts: &[TokenId]) -> Result<Vec<TokenMask>, ConstraintError> {
        let dead_end = || ConstraintError("no token of the model can go on with the grammar here".to_owned());
        let before = self.parser.parser_stats().clone();
        let first = match self.mask() {
            Ok(mask) => {
                self.count(&before)?;
                mask
            }
            // Without the work for drafts, the text may go on.
            Err(_) if self.drafted => {
                self.restart()?;
                self.mask()?
            }
            Err(error) => return Err(error),
        };
        let mut masks = vec![first.ok_or_else(dead_end)?];
        if self.burnt {
            return Ok(masks);
        }
        // What drafts run into is no fault of the text: without them it would not have happened.
        let before = self.parser.parser_stats().clone();
        let went_back = match self.look_ahead(drafts, &mut masks) {
            Ok(0) => Ok(()),
            Ok(consumed) => {
                self.guarded(|parser| parser.rollback(consumed).map_err(|error| first_line(&error)))
            }
            Err(error) => Err(error),
        };
        self.count_drafts(&before);
        if went_back.is_err() {
            self.burnt = true;
            self.restart()?;
        }
        Ok(masks)
    }

    fn is_finished(&self) -> bool {
        match self.parser.stop_reason() {
            StopReason::EndOfSentence => true,
            StopReason::NoExtension => self.ended || self.grammar.info().ends().is_empty(),
            _ => false,
        }
    }
}
