//! Outcomes as a table.

use crate::judge::{Outcome, Yardstick};
use std::fmt;

/// Columns of the operation's name.
const NAME: usize = 32;
/// Misses of one operation that are printed; the rest is counted.
const MISSES: usize = 5;

/// The first line of a table.
pub struct Header;

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:NAME$}  {:7}  {:>5}  {:>8}  {:>9}  {:>9}",
            "operation", "against", "cases", "worst", "tolerance", "near ties"
        )
    }
}

/// The line of an outcome.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            operation,
            yardstick,
            cases,
            near_ties,
            ..
        } = self;
        let against = match yardstick {
            Yardstick::Reference => "cpu",
            Yardstick::Law => "itself",
            Yardstick::Golden => "golden",
            Yardstick::Alone => "alone",
        };
        let worst = if self.worst > 0.0 {
            format!("{:.1e}", self.worst)
        } else {
            "0".to_owned()
        };
        let (limit, verdict) = (self.limit.to_string(), if self.is_ok() { "ok" } else { "MISS" });
        write!(
            f,
            "{operation:NAME$}  {against:7}  {cases:>5}  {worst:>8}  {limit:>9}  {near_ties:>9}  {verdict}"
        )
    }
}

/// What was missed, one line each.
pub struct Misses<'a>(pub &'a [Outcome]);

impl fmt::Display for Misses<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for outcome in self.0 {
            for miss in outcome.misses.iter().take(MISSES) {
                writeln!(f, "MISS {miss}")?;
            }
            let rest = outcome.misses.len().saturating_sub(MISSES);
            if rest > 0 {
                writeln!(f, "MISS {}: and {rest} more", outcome.operation)?;
            }
        }
        Ok(())
    }
}
