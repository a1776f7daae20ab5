//! What the scheduler has done, in numbers that only grow.

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests that lost their slot and were queued again.
    pub preemptions: u64,
    /// Tokens looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Of these, tokens that need not be run.
    pub prefix_hits: u64,
    /// Places reserved for recurrent states.
    pub snapshots_reserved: u64,
    /// States that the device wrote.
    pub snapshots_written: u64,
    /// States that became part of the prefix cache.
    pub snapshots_published: u64,
    /// Reserved places that went back.
    pub snapshots_released: u64,
    /// Admissions that started from a saved state.
    pub snapshots_used: u64,
    /// Rows that did nothing for any request.
    pub wasted_rows: u64,
    /// Tokens that were run for nothing: rejected drafts and the tokens of wasted rows.
    pub wasted_tokens: u64,
    /// Drafts verified.
    pub drafts_verified: u64,
    /// Of these, drafts accepted.
    pub drafts_accepted: u64,
}
