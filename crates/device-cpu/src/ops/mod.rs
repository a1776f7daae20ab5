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
pub(crate) mod grid;
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
use paceline_device::abi::{RequestRow, TokenRow};
use paceline_device::{StateShape, StepTables};
use paceline_types::STATE_GRID;
use std::ops::Range;

/// What sharing work out costs, in nanoseconds: a part for the job, and one for every thread, as each that joins takes the job's
/// cache line from the others. Workers are awake in the middle of a step.
const JOB_NS: usize = 3_000;
const JOIN_NS: usize = 500;

/// Smallest piece worth claiming.
const PIECE_NS: usize = 2_000;

/// Whether work of this many (estimated) nanoseconds is worth sharing out; else it stays on the calling thread.
pub(crate) fn is_shared(threads: usize, total_ns: usize) -> bool {
    threads > 1 && total_ns >= JOB_NS + JOIN_NS * threads
}

/// Runs `work` over ranges that cover `0..items`, on several threads if the whole is worth it. `item_ns` is the
/// estimated time of one item.
pub(crate) fn split(pool: &Pool, items: usize, item_ns: usize, work: impl Fn(Range<usize>) + Sync) {
    let total = items.saturating_mul(item_ns);
    if items == 0 {
        return;
    }
    if !is_shared(pool.threads(), total) || items == 1 {
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
    if is_shared(pool.threads(), total_ns) {
        pool.run(pieces, |piece, _| work(piece));
    } else {
        (0..pieces).for_each(work);
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
    /// Their positions.
    pub(crate) positions: Range<usize>,
    /// Index of its recurrent state.
    pub(crate) slot: usize,
    /// Where its state stands, and where it is left.
    pub(crate) state: Range<usize>,
    /// The snapshot that holds the state.
    pub(crate) restore: Option<usize>,
    /// The position whose state is saved, and the snapshot it goes to.
    pub(crate) snapshot: Option<(usize, usize)>,
}

impl RequestTokens {
    /// The token row of a position.
    #[inline(always)]
    pub(crate) fn row(&self, position: usize) -> usize {
        self.rows.start + position - self.positions.start
    }

    /// The positions whose entries outlive the row: those that no state which it stores contains.
    pub(crate) fn open(&self) -> Range<usize> {
        self.positions.start.max(self.state.end)..self.positions.end
    }

    /// The row makes sense, and the rings hold what it needs.
    fn check(&self, request: usize, shape: StateShape) {
        let (positions, state) = (&self.positions, &self.state);
        let on_grid = |position: usize| position.is_multiple_of(STATE_GRID);
        assert!(
            on_grid(state.start) && on_grid(state.end) && state.start <= state.end,
            "request row {request}: the state goes from {} to {}",
            state.start,
            state.end
        );
        assert!(
            state.start <= positions.start && state.end <= positions.end,
            "request row {request}: tokens {positions:?} with states {state:?}"
        );
        let entries = shape.entries();
        assert!(
            positions.start - state.start <= entries && positions.end - state.end <= entries,
            "request row {request}: tokens {positions:?} with states {state:?} and {entries} entries"
        );
        assert!(
            self.restore.is_none() || state.start == positions.start,
            "request row {request} starts at {} from a snapshot of {}",
            positions.start,
            state.start
        );
        let saved = self.snapshot.map_or(state.end, |(position, _)| position);
        assert!(
            on_grid(saved) && saved <= state.end && (self.snapshot.is_none() || saved > state.start),
            "request row {request}: a snapshot at {saved} with states {state:?}"
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

    /// The tokens of all request rows that have any, for a recurrent layer with this shape; `tokens` is the number of live
    /// token rows. An operation asks once: its pieces are many and short.
    pub(crate) fn recurrent_requests(&self, tokens: usize, shape: StateShape) -> Vec<RequestTokens> {
        let requests = 0..self.requests;
        requests
            .filter_map(|request| self.request(request, tokens, shape))
            .collect()
    }

    fn request(&self, request: usize, tokens: usize, shape: StateShape) -> Option<RequestTokens> {
        let row = &self.request_rows[request];
        let (first, count) = (row.first_token as usize, row.token_count as usize);
        assert!(
            first <= tokens && count <= tokens - first,
            "request row {request} has tokens {first}+{count} of {tokens}"
        );
        if count == 0 {
            return None;
        }
        let position = self.tokens[first].position as usize;
        let tokens = RequestTokens {
            rows: first..first + count,
            positions: position..position + count,
            slot: row.slot as usize,
            state: row.state_at as usize..row.state_end as usize,
            restore: (row.restore as usize).checked_sub(1),
            snapshot: (row.snapshot_at > 0).then_some((row.snapshot_at as usize, row.snapshot as usize)),
        };
        tokens.check(request, shape);
        Some(tokens)
    }

    /// The blocks of a request row, in order of position.
    pub(crate) fn blocks(&self, request: usize) -> &'a [i32] {
        let first = self.request_rows[request].slot as usize * self.blocks_per_request;
        &self.block_table[first..first + self.blocks_per_request]
    }
}

#[cfg(all(test, not(loom), target_os = "linux", target_arch = "x86_64"))]
mod counts;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::simd::Instructions;
    use std::sync::Mutex;

    const ITEMS: usize = 8;

    /// The ranges that work becomes, by their ends.
    fn ends(threads: usize, item_ns: usize) -> Vec<usize> {
        let pool = Pool::new(threads, Instructions::Portable);
        let seen = Mutex::new(Vec::new());
        split(&pool, ITEMS, item_ns, |range| {
            seen.lock().expect("nobody panics").push(range);
        });
        let mut seen = seen.into_inner().expect("nobody panics");
        seen.sort_by_key(|range| range.start);
        let starts = seen.iter().map(|range| range.start);
        let ends: Vec<usize> = seen.iter().map(|range| range.end).collect();
        assert!(
            starts.eq([0].into_iter().chain(ends.iter().copied()).take(ends.len())),
            "{seen:?}"
        );
        ends
    }

    /// What is not shared out, or cut too fine, is as right and takes longer.
    #[test]
    fn work_is_shared_out_from_what_that_costs_on_in_pieces_that_are_worth_it() {
        let cost = |threads: usize| JOB_NS + JOIN_NS * threads;
        for threads in [2, 4] {
            assert!(!is_shared(threads, cost(threads) - 1) && is_shared(threads, cost(threads)));
            assert_eq!(ends(threads, cost(threads) / ITEMS - 1), [ITEMS]);
            let pieces = ends(threads, cost(threads).div_ceil(ITEMS));
            assert_eq!(pieces.len(), cost(threads) / PIECE_NS, "{pieces:?}");
            assert_eq!(pieces.last(), Some(&ITEMS));
        }
        assert!(!is_shared(1, usize::MAX));
        assert_eq!(ends(1, 1 << 30), [ITEMS]);
    }
}
