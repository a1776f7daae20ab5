//! The operations: one file each, written against plain views, a worker pool and [`Simd`](crate::simd::Simd).

pub(crate) mod accept;
pub(crate) mod activate;
pub(crate) mod attention;
pub(crate) mod candidates;
pub(crate) mod causal_conv;
pub(crate) mod clear_kv;
pub(crate) mod delta_rule;
pub(crate) mod drafts;
pub(crate) mod embed;
pub(crate) mod experts;
pub(crate) mod gated_norm;
pub(crate) mod gather;
pub(crate) mod linear;
pub(crate) mod ngram;
pub(crate) mod norm;
pub(crate) mod options;
pub(crate) mod pooling;
pub(crate) mod prepare;
pub(crate) mod publish;
pub(crate) mod rope;
pub(crate) mod route;
pub(crate) mod sample;
pub(crate) mod state_space;
pub(crate) mod store_kv;
pub(crate) mod vector;

use crate::cpu::Cpu;
use crate::pool::Pool;
use paceline_device::StepTables;
use paceline_device::abi::{RequestRow, TokenRow};
use std::ops::Range;

/// Work below this many (estimated) nanoseconds stays on the calling thread: waking a worker costs about as much.
const INLINE_NS: usize = 10_000;

/// Smallest piece worth claiming.
const PIECE_NS: usize = 4_000;

/// Runs `work` over ranges that cover `0..items`, on several threads if the whole is worth it. `item_ns` is the
/// estimated time of one item.
pub(crate) fn split(pool: &Pool, items: usize, item_ns: usize, work: impl Fn(Range<usize>) + Sync) {
    let total = items.saturating_mul(item_ns);
    if items == 0 {
        return;
    }
    if total < INLINE_NS || pool.threads() == 1 || items == 1 {
        work(0..items);
        return;
    }
    let pieces = (total / PIECE_NS).clamp(1, pool.threads() * 4).min(items);
    pool.run(pieces, |piece, _| {
        work(items * piece / pieces..items * (piece + 1) / pieces);
    });
}

/// Runs `work` for every piece: on the calling thread if all of them together take less than it costs to wake
/// the others, else spread over the pool.
pub(crate) fn pieces(pool: &Pool, pieces: usize, total_ns: usize, work: impl Fn(usize) + Sync) {
    if total_ns < INLINE_NS {
        (0..pieces).for_each(work);
    } else {
        pool.run(pieces, |piece, _| work(piece));
    }
}

/// The tables of a step as an operation sees them.
#[derive(Clone, Copy)]
pub(crate) struct Step<'a> {
    pub(crate) tokens: &'a [TokenRow],
    request_rows: &'a [RequestRow],
    block_table: &'a [i32],
    blocks_per_request: usize,
    /// Request rows that carry data.
    pub(crate) requests: usize,
}

/// The tokens of one request in a step, and what they mean for its recurrent state.
pub(crate) struct RequestTokens {
    /// Token rows.
    pub(crate) rows: Range<usize>,
    /// Index of its recurrent state.
    pub(crate) slot: usize,
    /// What the state is before anything is folded into it.
    pub(crate) start: Start,
    /// Records of the last step to fold in first.
    pub(crate) replay: usize,
    /// How many of the last rows are drafts, which leave no trace in the state.
    drafts: usize,
    /// Whether nothing is kept, not even what is replayed. All rows are drafts then.
    ahead: bool,
    /// Fold after which the state is saved, and the snapshot it goes to.
    snapshot: Option<(usize, usize)>,
}

/// Where a request's state comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// Its last step left it.
    Kept,
    /// The sequence starts here.
    Zero,
    /// A snapshot holds it.
    Snapshot(usize),
}

/// What is folded into a state next.
#[derive(Clone, Copy)]
pub(crate) enum Folded {
    /// This record of the slot.
    Record(usize),
    /// The token of this row.
    Token(usize),
}

impl RequestTokens {
    /// What is folded into the state that is kept, in order.
    #[inline(always)]
    pub(crate) fn kept(&self) -> impl Iterator<Item = Folded> {
        let records = if self.ahead { 0 } else { self.replay };
        let certain = self.rows.start..self.rows.end - self.drafts;
        (0..records).map(Folded::Record).chain(certain.map(Folded::Token))
    }

    /// What is folded into a copy of it after that, in order. Nothing if there are no drafts.
    #[inline(always)]
    pub(crate) fn tried(&self) -> impl Iterator<Item = Folded> {
        let records = if self.ahead { self.replay } else { 0 };
        (0..records)
            .map(Folded::Record)
            .chain(self.drafts().map(Folded::Token))
    }

    /// The records to write and the row that each is made from. None of them is among those replayed, unless those
    /// are part of the state now.
    #[inline(always)]
    pub(crate) fn recorded(&self) -> impl Iterator<Item = (usize, usize)> {
        let first = if self.ahead { self.replay } else { 0 };
        (first..).zip(self.drafts())
    }

    /// By how many tokens the state that is kept advances.
    pub(crate) fn advance(&self) -> usize {
        if self.ahead {
            0
        } else {
            self.replay + self.rows.len() - self.drafts
        }
    }

    /// Rows of tokens that may be taken back.
    pub(crate) fn drafts(&self) -> Range<usize> {
        self.rows.end - self.drafts..self.rows.end
    }

    /// The snapshot, and the number of folds after which it is to hold the state.
    #[inline(always)]
    pub(crate) fn snapshot_after(&self, folds: usize) -> Option<usize> {
        let (after, snapshot) = self.snapshot?;
        (after == folds).then_some(snapshot)
    }

    /// The snapshot to write, and the fold after which it is due.
    pub(crate) fn snapshot(&self) -> Option<(usize, usize)> {
        self.snapshot
    }

    /// The row makes sense, and there is room for its records.
    fn check(&self, request: usize, room: usize) {
        let (count, replay, drafts) = (self.rows.len(), self.replay, self.drafts);
        let after = self.snapshot.map_or(0, |(after, _)| after);
        // Records behind the replayed ones, or in place of them.
        let records = if self.ahead {
            replay + drafts
        } else {
            replay.max(drafts)
        };
        assert!(
            records <= room,
            "request row {request}: {drafts} drafts and {replay} replayed records, with room for {room}"
        );
        assert!(
            drafts <= count && after <= self.advance(),
            "request row {request}: {drafts} drafts of {count} tokens, a snapshot after {after} folds"
        );
        assert!(
            replay == 0 || self.start == Start::Kept,
            "request row {request} replays records of another state"
        );
        assert!(
            !self.ahead || count == 0 || self.start == Start::Kept,
            "request row {request} looks ahead of a state that it does not have yet"
        );
    }
}

impl<'a> Step<'a> {
    /// The tables as they are now.
    ///
    /// # Safety
    /// Only on the stream.
    pub(crate) unsafe fn of(tables: &'a StepTables<Cpu>) -> Self {
        // SAFETY: tables are written by copies on the stream, never by an operation that reads them.
        unsafe {
            let live = usize::try_from(tables.requests.live.read()[0]).unwrap_or(0);
            Self {
                tokens: tables.token_rows.read(),
                request_rows: tables.request_rows.read(),
                block_table: tables.block_table.read(),
                blocks_per_request: tables.limits.blocks_per_request,
                requests: live.min(tables.requests.bucket),
            }
        }
    }

    /// The tokens of a request row of a recurrent layer; `tokens` is the number of live token rows, `room` the
    /// number of drafts that the layer can record.
    pub(crate) fn request(&self, request: usize, tokens: usize, room: usize) -> RequestTokens {
        let row = &self.request_rows[request];
        let (first, count) = (row.first_token as usize, row.token_count as usize);
        assert!(
            first <= tokens && count <= tokens - first,
            "request row {request} has tokens {first}+{count} of {tokens}"
        );
        let start = match row.restore {
            0 if row.replay == 0 && count > 0 && self.tokens[first].position == 0 => Start::Zero,
            0 => Start::Kept,
            snapshot => Start::Snapshot(snapshot as usize - 1),
        };
        let ahead = row.ahead != 0;
        let drafts = match count {
            0 => 0,
            count if ahead => count,
            _ => row.drafts as usize,
        };
        let after = row.snapshot_after as usize;
        let tokens = RequestTokens {
            rows: first..first + count,
            slot: row.slot as usize,
            start,
            replay: row.replay as usize,
            drafts,
            ahead,
            snapshot: (after > 0).then_some((after, row.snapshot as usize)),
        };
        tokens.check(request, room);
        tokens
    }

    /// Records that are folded in this step, all requests together.
    pub(crate) fn replayed(&self) -> usize {
        let rows = &self.request_rows[..self.requests];
        rows.iter().map(|row| row.replay as usize).sum()
    }

    /// The blocks of a request row, in order of position.
    pub(crate) fn blocks(&self, request: usize) -> &'a [i32] {
        let first = self.request_rows[request].slot as usize * self.blocks_per_request;
        &self.block_table[first..first + self.blocks_per_request]
    }
}
