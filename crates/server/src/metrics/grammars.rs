//! What happens to grammars, read at the time of the scrape.

use super::write::Writer;
use crate::constraint::Grammars;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt::{self, Error};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Reads the counts of grammars.
pub(super) struct GrammarCollector(pub(super) Arc<Grammars>);

impl fmt::Debug for GrammarCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GrammarCollector")
    }
}

impl Collector for GrammarCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let (mut writer, counts) = (Writer(encoder), self.0.counts());
        let read = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        writer.counters(
            ("paceline:grammar_compiles", "Grammars compiled, by how it ended"),
            "outcome",
            &[("ok", read(&counts.compiled)), ("refused", read(&counts.refused))],
        )?;
        writer.seconds(
            (
                "paceline:grammar_compile_seconds",
                "Time that went into compiling grammars",
            ),
            read(&counts.compile_ns),
        )?;
        writer.counters(
            (
                "paceline:grammar_cache_lookups",
                "Grammars asked for, by whether one was kept from before",
            ),
            "outcome",
            &[("hit", read(&counts.hits)), ("miss", read(&counts.misses))],
        )?;
        let kept = self.0.kept() as f64;
        writer.gauge(
            ("paceline:grammars_kept", "Compiled grammars that are kept"),
            kept,
        )
    }
}
