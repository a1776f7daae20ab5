//! What drafts did for a reply, as every interface reports it.

use paceline::SpeculationReport;
use serde::Serialize;

/// The field `speculation` of a reply's usage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct SpeculationUsage {
    steps: u64,
    drafted: u64,
    accepted: u64,
    /// Tokens per step; 1 without drafts.
    mean_acceptance_length: f64,
    /// Time gained against plain decoding, as estimated; less than 0 if it was lost.
    ms_saved: f64,
}

impl SpeculationUsage {
    /// `None` if nothing is known: there was no decode step, or the text ended before the engine counted.
    pub(crate) fn of(report: &SpeculationReport) -> Option<Self> {
        let mean_acceptance_length = report.mean_length()?;
        Some(Self {
            steps: report.steps,
            drafted: report.drafted,
            accepted: report.accepted,
            mean_acceptance_length,
            ms_saved: report.gained_ns as f64 / 1e6,
        })
    }
}
