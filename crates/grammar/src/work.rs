//! The work that a grammar makes while it follows a text: counted, not timed, so that what a text may be does not
//! depend on how busy the machine is.

use crate::limits::GrammarLimits;
use llguidance::earley::ParserStats;
use paceline_types::ConstraintError;

/// Steps of regular expressions in a microsecond of a usual machine.
const STEPS: u64 = 14;

/// Pairs of items of a parser row, each of which is held against the others, in a microsecond.
const PAIRS: u64 = 2_000;

/// The same for items that are completed, each from every place where it may have begun.
const COMPLETIONS: u64 = 20_000;

/// What has been done for one text, in microseconds of a usual machine.
#[derive(Debug)]
pub(crate) struct Work {
    /// Whether the request has written the rules itself. Such rules may be ambiguous: an item may then have begun at any
    /// token of the text. Those that stand for schemas are not, however many items they have.
    rules: bool,
    /// Items in the parser row behind the text.
    width: u64,
    text: u64,
    drafts: u64,
}

impl Work {
    pub(crate) fn new(rules: bool) -> Self {
        Self {
            rules,
            width: 0,
            text: 0,
            drafts: 0,
        }
    }

    /// Notes the parser rows of tokens that have become part of the text.
    pub(crate) fn grow(&mut self, done: &ParserStats) {
        if let Some(width) = done.all_items.checked_div(done.rows) {
            self.width = width as u64;
        }
    }

    /// Counts what was done for a text of this many tokens, and ends one whose grammar takes too much.
    pub(crate) fn count(
        &mut self,
        done: &ParserStats,
        tokens: usize,
        limits: &GrammarLimits,
    ) -> Result<(), ConstraintError> {
        self.text += self.of(done, tokens);
        let most = limits.work(tokens);
        if self.text <= most {
            return Ok(());
        }
        Err(ConstraintError(format!(
            "after {tokens} tokens the grammar has taken {} ms of work, and {} ms is the most: make it smaller, less ambiguous or left-recursive",
            self.text / 1000,
            most / 1000
        )))
    }

    /// Counts what was done for drafts, apart from the text, which must not depend on them. Whether there may be more:
    /// they may take as much as the text.
    pub(crate) fn count_drafts(&mut self, done: &ParserStats, tokens: usize, limits: &GrammarLimits) -> bool {
        self.drafts += self.of(done, tokens);
        self.drafts <= limits.work(tokens)
    }

    /// No row is taken to be narrower than the one behind the text: many narrow rows do not hide a wide one.
    fn of(&self, done: &ParserStats, tokens: usize) -> u64 {
        let (items, rows) = (done.all_items as u64, (done.rows as u64).max(1));
        let width = self.width.max(items / rows);
        let pairs = items * width;
        let starts = if self.rules { width.min(tokens as u64) } else { 0 };
        done.lexer_cost / STEPS + pairs / PAIRS + pairs * starts / COMPLETIONS
    }
}
