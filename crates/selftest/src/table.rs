//! Outcomes as a table.

use crate::judge::{Outcome, Yardstick};
use std::fmt;

/// Outcomes, aligned, one per line; then what was missed.
pub struct Table<'a>(pub &'a [Outcome]);

/// Misses of one operation that are printed; the rest is counted.
const MISSES: usize = 5;

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.iter().map(|outcome| outcome.operation.chars().count());
        let width = names.max().unwrap_or(0).max("operation".len());
        writeln!(
            f,
            "{:width$}  {:9}  {:>6}  {:>8}  {:>9}  {:>9}",
            "operation", "against", "cases", "worst", "tolerance", "near ties"
        )?;
        for outcome in self.0 {
            let Outcome {
                operation,
                yardstick,
                cases,
                worst,
                limit,
                near_ties,
                ..
            } = outcome;
            let against = match yardstick {
                Yardstick::Reference => "cpu",
                Yardstick::Law => "itself",
            };
            let worst = if *worst > 0.0 {
                format!("{worst:.1e}")
            } else {
                "0".to_owned()
            };
            let verdict = if outcome.is_ok() { "ok" } else { "MISS" };
            let limit = limit.to_string();
            writeln!(
                f,
                "{operation:width$}  {against:9}  {cases:>6}  {worst:>8}  {limit:>9}  {near_ties:>9}  {verdict}"
            )?;
        }
        for outcome in self.0.iter().filter(|outcome| !outcome.is_ok()) {
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
