//! The Mamba2 state space recurrence, token by token.
//!
//! Rows of a state matrix never meet, so a piece (one head of one request) walks the tokens once per block of
//! rows, and the block stays in the first-level cache. The walk folds the drafts that the last step recorded and
//! that held, then the certain tokens, and leaves the state there; drafts go on from a copy. A row that looks ahead
//! folds everything into the copy.

use super::vector::{load_part, softplus, store_part};
use super::{Folded, RequestTokens, Step, pieces};
use crate::caches::{CpuStateCache, Record};
use crate::pool::Pool;
use crate::simd::{Kernel, LANES, Simd};
use crate::storage::{In, Out};
use std::ops::Range;

/// Rows of a block.
const ROWS: usize = 4;

/// Views of [`state_space`].
#[derive(Clone, Copy)]
pub(crate) struct Space<'a> {
    pub(crate) x: In<'a>,
    pub(crate) b: In<'a>,
    pub(crate) c: In<'a>,
    pub(crate) dt: In<'a>,
    pub(crate) decay: &'a [f32],
    pub(crate) skip: &'a [f32],
    pub(crate) dt_bias: &'a [f32],
    pub(crate) dt_limits: (f32, f32),
    pub(crate) cache: &'a CpuStateCache,
    pub(crate) out: Out<'a>,
    pub(crate) step: Step<'a>,
}

/// Advances the states of all requests by their tokens.
pub(crate) fn state_space(pool: &Pool, args: &Space<'_>) {
    let shape = args.cache.shape();
    let heads = shape.heads;
    let total_ns = (args.out.rows + args.step.replayed()) * shape.matrix_elements() / 8;
    pieces(pool, args.step.requests * heads, total_ns, |piece| {
        let tokens = args.step.request(piece / heads, args.out.rows, shape.drafts);
        if !tokens.rows.is_empty() {
            let head = piece % heads;
            let factors = tokens.rows.clone().map(|row| factors(args, row, head)).collect();
            pool.instructions().run(Piece {
                args,
                tokens,
                head,
                group: group_columns(args, head),
                factors,
            });
        }
    });
}

struct Piece<'a> {
    args: &'a Space<'a>,
    tokens: RequestTokens,
    head: usize,
    /// The columns of `B` and `C` that this head reads.
    group: Range<usize>,
    /// Per token, its `exp(dt · decay)` and `dt`.
    factors: Vec<(f32, f32)>,
}

fn group_columns(args: &Space<'_>, head: usize) -> Range<usize> {
    let shape = args.cache.shape();
    let n = shape.columns;
    let group = head / (shape.heads / (args.b.columns / n));
    group * n..(group + 1) * n
}

/// A token's `exp(dt · decay)` and `dt`.
fn factors(args: &Space<'_>, row: usize, head: usize) -> (f32, f32) {
    let (least, most) = args.dt_limits;
    let dt = softplus(args.dt.row(row)[head] + args.dt_bias[head])
        .max(least)
        .min(most);
    ((dt * args.decay[head]).exp(), dt)
}

/// What a token does to a block of rows of the state.
struct Fold<'a> {
    /// The rows of the block.
    x: &'a [f32],
    b: &'a [f32],
    /// `exp(dt · decay)`.
    decay: f32,
    dt: f32,
}

/// What a token reads from a block of rows of the state.
struct Read<'a> {
    c: &'a [f32],
    skip: f32,
    out: &'a mut [f32],
}

impl Kernel for Piece<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.args.cache.shape().columns;
        // SAFETY: a slot belongs to one request, and this head of it to this piece.
        let state = unsafe { self.args.cache.start_matrix(&self.tokens, self.head) };
        let mut copy = Vec::new();
        let mut first = 0;
        for block in state.chunks_mut(ROWS * n) {
            if block.len() == ROWS * n {
                self.block::<S, ROWS>(s, first, block, &mut copy);
                first += ROWS;
            } else {
                for row in block.chunks_mut(n) {
                    self.block::<S, 1>(s, first, row, &mut copy);
                    first += 1;
                }
            }
        }
        self.write_records();
    }
}

impl Piece<'_> {
    /// Walks the tokens for `N` rows of the state from `first` on; `copy` is what drafts run on.
    #[inline(always)]
    fn block<S: Simd, const N: usize>(&self, s: S, first: usize, state: &mut [f32], copy: &mut Vec<f32>) {
        let rows = first..first + N;
        for (index, folded) in self.tokens.kept().enumerate() {
            self.fold::<S, N>(s, folded, rows.clone(), state);
            self.save(index + 1, first, state);
        }
        if !self.tokens.drafts().is_empty() {
            copy.clear();
            copy.extend_from_slice(state);
            for folded in self.tokens.tried() {
                self.fold::<S, N>(s, folded, rows.clone(), copy);
            }
        }
    }

    /// Folds a record, or a token whose outputs are read, into a block of rows.
    #[inline(always)]
    fn fold<S: Simd, const N: usize>(&self, s: S, folded: Folded, rows: Range<usize>, state: &mut [f32]) {
        let index = match folded {
            Folded::Record(index) => index,
            Folded::Token(row) => return self.token::<S, N>(s, row, rows, state),
        };
        // SAFETY: records are written when all blocks are done with them.
        let record = unsafe { self.args.cache.record(self.tokens.slot, self.head, index) };
        let fold = Fold {
            x: &record.by_row[rows],
            b: record.by_column,
            decay: record.factors[0],
            dt: record.factors[1],
        };
        advance::<S, N>(s, &fold, None, state);
    }

    /// Folds a token of this step into a block of rows and reads its outputs.
    #[inline(always)]
    fn token<S: Simd, const N: usize>(&self, s: S, row: usize, rows: Range<usize>, state: &mut [f32]) {
        let args = self.args;
        let (decay, dt) = self.factors[row - self.tokens.rows.start];
        let first = self.head * args.cache.shape().rows;
        let columns = first + rows.start..first + rows.end;
        let fold = Fold {
            x: &args.x.row(row)[columns.clone()],
            b: &args.b.row(row)[self.group.clone()],
            decay,
            dt,
        };
        let read = Read {
            c: &args.c.row(row)[self.group.clone()],
            skip: args.skip[self.head],
            // SAFETY: the columns of this head belong to this piece.
            out: unsafe { args.out.part(row, columns) },
        };
        advance::<S, N>(s, &fold, Some(read), state);
    }

    /// Saves a block of rows if a snapshot is due after this fold.
    #[inline(always)]
    fn save(&self, folds: usize, first: usize, state: &[f32]) {
        if let Some(snapshot) = self.tokens.snapshot_after(folds) {
            let cache = self.args.cache;
            // SAFETY: a snapshot is written for one request, and this head of it by this piece.
            let saved = unsafe { cache.saved_matrix(snapshot, self.head) };
            saved[first * cache.shape().columns..][..state.len()].copy_from_slice(state);
        }
    }

    /// Records the drafts, so that the next step can fold those that held.
    fn write_records(&self) {
        let (args, head) = (self.args, self.head);
        let p = args.cache.shape().rows;
        for (index, row) in self.tokens.recorded() {
            let (decay, dt) = self.factors[row - self.tokens.rows.start];
            let record = Record {
                by_row: &args.x.row(row)[head * p..(head + 1) * p],
                by_column: &args.b.row(row)[self.group.clone()],
                factors: [decay, dt],
            };
            // SAFETY: this head of the slot belongs to this piece, which holds no record any more.
            unsafe { args.cache.write_record(self.tokens.slot, head, index, record) };
        }
    }
}

/// One token's update of `N` rows, and what it reads from them.
#[inline(always)]
fn advance<S: Simd, const N: usize>(s: S, fold: &Fold<'_>, read: Option<Read<'_>>, state: &mut [f32]) {
    let n = fold.b.len();
    let decay = s.splat(fold.decay);
    let mut inputs = [s.splat(0.0); N];
    for i in 0..N {
        inputs[i] = s.splat(fold.dt * fold.x[i]);
    }
    let mut sums = [s.splat(0.0); N];
    // A fold that nobody reads goes over `b` twice, and uses nothing of it.
    let c = read.as_ref().map_or(fold.b, |read| read.c);
    assert!(c.len() == n && state.len() == N * n);
    let full = n / LANES * LANES;
    for at in (0..full).step_by(LANES) {
        // SAFETY: eight elements of each row from `at` on, as asserted.
        unsafe {
            let b = s.load_ptr(fold.b.as_ptr().add(at));
            let c = s.load_ptr(c.as_ptr().add(at));
            for i in 0..N {
                let place = state.as_mut_ptr().add(i * n + at);
                let value = s.mul_add(inputs[i], b, s.mul(s.load_ptr(place), decay));
                s.store_ptr(value, place);
                if read.is_some() {
                    sums[i] = s.mul_add(value, c, sums[i]);
                }
            }
        }
    }
    if full < n {
        // Lanes past the end hold zeros in `b` and `c`, and add nothing.
        let (b, c) = (load_part(s, &fold.b[full..]), load_part(s, &c[full..]));
        for i in 0..N {
            let state = &mut state[i * n + full..(i + 1) * n];
            let value = s.mul_add(inputs[i], b, s.mul(load_part(s, state), decay));
            store_part(s, value, state);
            sums[i] = s.mul_add(value, c, sums[i]);
        }
    }
    if let Some(Read { skip, out, .. }) = read {
        for i in 0..N {
            out[i] = skip.mul_add(fold.x[i], s.sum(sums[i]));
        }
    }
}
