//! The gated delta rule, token by token.
//!
//! A column of a state matrix never meets another one, so a piece (one head of one request) walks the tokens
//! once per block of columns, and the block stays in the first-level cache. The walk folds the drafts that the
//! last step recorded and that held, then the certain tokens, and leaves the state there; drafts go on from a copy.
//! A row that looks ahead folds everything into the copy.

use super::vector::{load_part, sigmoid, softplus, store_part, sum_of_squares};
use super::{Folded, RequestTokens, Step, pieces};
use crate::caches::{CpuStateCache, Record};
use crate::pool::Pool;
use crate::simd::{Kernel, LANES, Simd};
use crate::storage::{In, Out};
use paceline_device::HeadMap;
use std::ops::Range;

/// Vectors of a full block of columns.
const WIDE: usize = 4;

/// Keeps the scale of a zero vector finite.
const LENGTH_EPS: f32 = 1e-6;

/// Views of [`delta_rule`].
#[derive(Clone, Copy)]
pub(crate) struct Delta<'a> {
    pub(crate) q: In<'a>,
    pub(crate) k: In<'a>,
    pub(crate) v: In<'a>,
    pub(crate) a: In<'a>,
    pub(crate) b: In<'a>,
    pub(crate) decay: &'a [f32],
    pub(crate) dt_bias: &'a [f32],
    pub(crate) head_map: HeadMap,
    pub(crate) cache: &'a CpuStateCache,
    pub(crate) out: Out<'a>,
    pub(crate) step: Step<'a>,
}

/// Advances the states of all requests by their tokens.
pub(crate) fn delta_rule(pool: &Pool, args: &Delta<'_>) {
    let shape = args.cache.shape();
    let heads = shape.heads;
    let total_ns = (args.out.rows + args.step.replayed()) * shape.matrix_elements() / 6;
    pieces(pool, args.step.requests * heads, total_ns, |piece| {
        let tokens = args.step.request(piece / heads, args.out.rows, shape.drafts);
        if !tokens.rows.is_empty() {
            pool.instructions().run(Piece {
                args,
                tokens,
                head: piece % heads,
                keys: key_columns(args, piece % heads),
            });
        }
    });
}

struct Piece<'a> {
    args: &'a Delta<'a>,
    tokens: RequestTokens,
    head: usize,
    /// The columns of queries and keys that this value head reads.
    keys: Range<usize>,
}

fn key_columns(args: &Delta<'_>, head: usize) -> Range<usize> {
    let shape = args.cache.shape();
    let dk = shape.rows;
    let key_heads = args.k.columns / dk;
    let key_head = match args.head_map {
        HeadMap::Grouped => head / (shape.heads / key_heads),
        HeadMap::Tiled => head % key_heads,
    };
    key_head * dk..(key_head + 1) * dk
}

/// What a token does to a block of columns of the state.
struct Fold<'a> {
    /// Unit length.
    k: &'a [f32],
    /// The columns of the block.
    v: &'a [f32],
    /// `exp(g)`.
    decay: f32,
    beta: f32,
}

/// What a token reads from a block of columns of the state.
struct Read<'a> {
    /// Unit length, times `dk^-½`.
    q: &'a [f32],
    out: &'a mut [f32],
}

/// Memory that a piece works in.
struct Scratch<'a> {
    k: &'a mut [f32],
    q: &'a mut [f32],
    /// A block of columns that drafts run on.
    state: Vec<f32>,
}

impl Kernel for Piece<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let shape = self.args.cache.shape();
        let (dk, dv) = (shape.rows, shape.columns);
        // SAFETY: a slot belongs to one request, and this head of it to this piece.
        let state = unsafe { self.args.cache.start_matrix(&self.tokens, self.head) };
        let mut unit = vec![0.0; 2 * dk];
        let (k, q) = unit.split_at_mut(dk);
        let mut scratch = Scratch {
            k,
            q,
            state: Vec::new(),
        };
        let mut column = 0;
        while column < dv {
            let state = &mut state[column..];
            if dv - column >= WIDE * LANES {
                self.block::<S, WIDE>(s, (column, LANES), state, &mut scratch);
                column += WIDE * LANES;
            } else {
                let width = LANES.min(dv - column);
                self.block::<S, 1>(s, (column, width), state, &mut scratch);
                column += width;
            }
        }
        self.write_records(s, scratch.k);
    }
}

impl Piece<'_> {
    /// Walks the tokens for `N` vectors of columns from `column` on, each with `width` lanes in use; `state`
    /// starts with the first of them.
    #[inline(always)]
    fn block<S: Simd, const N: usize>(
        &self,
        s: S,
        (column, width): (usize, usize),
        state: &mut [f32],
        scratch: &mut Scratch<'_>,
    ) {
        let dv = self.args.cache.shape().columns;
        let columns = column..column + (N - 1) * LANES + width;
        for (index, folded) in self.tokens.kept().enumerate() {
            self.fold::<S, N>(s, folded, columns.clone(), (state, dv), scratch);
            self.save(index + 1, state, columns.clone());
        }
        if !self.tokens.drafts().is_empty() {
            let mut copy = std::mem::take(&mut scratch.state);
            copy.clear();
            for row in state.chunks(dv) {
                copy.extend_from_slice(&row[..columns.len()]);
            }
            for folded in self.tokens.tried() {
                let state = (&mut copy[..], columns.len());
                self.fold::<S, N>(s, folded, columns.clone(), state, scratch);
            }
            scratch.state = copy;
        }
    }

    /// Folds a record, or a token whose outputs are read, into a block of columns.
    #[inline(always)]
    fn fold<S: Simd, const N: usize>(
        &self,
        s: S,
        folded: Folded,
        columns: Range<usize>,
        state: (&mut [f32], usize),
        scratch: &mut Scratch<'_>,
    ) {
        let index = match folded {
            Folded::Record(index) => index,
            Folded::Token(row) => return self.token::<S, N>(s, row, columns, state, scratch),
        };
        // SAFETY: records are written when all blocks are done with them.
        let record = unsafe { self.args.cache.record(self.tokens.slot, self.head, index) };
        let width = constant_width::<N>(columns.len());
        let fold = Fold {
            k: record.by_row,
            v: &record.by_column[columns],
            decay: record.factors[0],
            beta: record.factors[1],
        };
        advance::<S, N>(s, &fold, None, state, width);
    }

    /// Folds a token of this step into a block of columns and reads its outputs.
    #[inline(always)]
    fn token<S: Simd, const N: usize>(
        &self,
        s: S,
        row: usize,
        columns: Range<usize>,
        state: (&mut [f32], usize),
        scratch: &mut Scratch<'_>,
    ) {
        let args = self.args;
        let dk = scratch.q.len();
        let (decay, beta) = self.key(s, row, scratch.k);
        let q = &args.q.row(row)[self.keys.clone()];
        unit_length(s, q, 1.0 / (dk as f32).sqrt(), scratch.q);
        let width = constant_width::<N>(columns.len());
        let first = self.head * args.cache.shape().columns;
        let columns = first + columns.start..first + columns.end;
        let fold = Fold {
            k: scratch.k,
            v: &args.v.row(row)[columns.clone()],
            decay,
            beta,
        };
        let read = Read {
            q: scratch.q,
            // SAFETY: the columns of this head belong to this piece.
            out: unsafe { args.out.part(row, columns) },
        };
        advance::<S, N>(s, &fold, Some(read), state, width);
    }

    /// Writes a token's unit-length key and returns its decay and `β`.
    #[inline(always)]
    fn key<S: Simd>(&self, s: S, row: usize, k: &mut [f32]) -> (f32, f32) {
        let args = self.args;
        unit_length(s, &args.k.row(row)[self.keys.clone()], 1.0, k);
        let step = softplus(args.a.row(row)[self.head] + args.dt_bias[self.head]);
        let decay = (args.decay[self.head] * step).exp();
        (decay, sigmoid(args.b.row(row)[self.head]))
    }

    /// Saves a block of columns if a snapshot is due after this fold.
    #[inline(always)]
    fn save(&self, folds: usize, state: &[f32], columns: Range<usize>) {
        if let Some(snapshot) = self.tokens.snapshot_after(folds) {
            let cache = self.args.cache;
            let dv = cache.shape().columns;
            // SAFETY: a snapshot is written for one request, and this head of it by this piece.
            let saved = unsafe { cache.saved_matrix(snapshot, self.head) };
            for (saved, row) in saved.chunks_mut(dv).zip(state.chunks(dv)) {
                saved[columns.clone()].copy_from_slice(&row[..columns.len()]);
            }
        }
    }

    /// Records the drafts, so that the next step can fold those that held.
    #[inline(always)]
    fn write_records<S: Simd>(&self, s: S, k: &mut [f32]) {
        let (cache, head) = (self.args.cache, self.head);
        let dv = cache.shape().columns;
        for (index, row) in self.tokens.recorded() {
            let (decay, beta) = self.key(s, row, k);
            let record = Record {
                by_row: k,
                by_column: &self.args.v.row(row)[head * dv..(head + 1) * dv],
                factors: [decay, beta],
            };
            // SAFETY: this head of the slot belongs to this piece, which holds no record any more.
            unsafe { cache.write_record(self.tokens.slot, head, index, record) };
        }
    }
}

/// The lanes in use of the last of `N` vectors of so many columns: a constant where it matters.
#[inline(always)]
fn constant_width<const N: usize>(columns: usize) -> usize {
    if N == 1 { columns } else { LANES }
}

/// `out = x / |x| · scale`.
#[inline(always)]
fn unit_length<S: Simd>(s: S, x: &[f32], scale: f32, out: &mut [f32]) {
    let inverse = s.splat(1.0 / (sum_of_squares(s, x) + LENGTH_EPS).sqrt());
    let scale = s.splat(scale);
    for (x, out) in x.chunks(LANES).zip(out.chunks_mut(LANES)) {
        store_part(s, s.mul(s.mul(load_part(s, x), inverse), scale), out);
    }
}

/// One token's update of `N` vectors of columns, each with `width` lanes in use, and what it reads from them.
#[inline(always)]
fn advance<S: Simd, const N: usize>(
    s: S,
    fold: &Fold<'_>,
    read: Option<Read<'_>>,
    (state, stride): (&mut [f32], usize),
    width: usize,
) {
    let dk = fold.k.len();
    let used = (N - 1) * LANES + width;
    // A fold that nobody reads goes over its key instead, and uses nothing of it.
    let q = read.as_ref().map_or(fold.k, |read| read.q);
    assert!(q.len() == dk && fold.v.len() == used);
    assert!(state.len() >= (dk - 1) * stride + used);
    let state = state.as_mut_ptr();
    let decay = s.splat(fold.decay);
    let mut seen = [s.splat(0.0); N];
    for (i, k) in fold.k.iter().enumerate() {
        let k = s.splat(*k);
        for n in 0..N {
            // SAFETY: within the state, as asserted.
            let old = unsafe { load(s, state.add(i * stride + n * LANES), width) };
            seen[n] = s.mul_add(s.mul(old, decay), k, seen[n]);
        }
    }
    let beta = s.splat(fold.beta);
    let mut update = seen;
    for n in 0..N {
        update[n] = s.mul(beta, s.sub(load_part(s, &fold.v[n * LANES..]), seen[n]));
    }
    let mut sums = [s.splat(0.0); N];
    for (i, (k, q)) in fold.k.iter().zip(q).enumerate() {
        let (k, q) = (s.splat(*k), s.splat(*q));
        for n in 0..N {
            // SAFETY: within the state, as asserted.
            unsafe {
                let place = state.add(i * stride + n * LANES);
                let value = s.mul_add(k, update[n], s.mul(load(s, place, width), decay));
                store(s, value, place, width);
                if read.is_some() {
                    sums[n] = s.mul_add(value, q, sums[n]);
                }
            }
        }
    }
    if let Some(Read { out, .. }) = read {
        assert!(out.len() == used);
        for n in 0..N {
            store_part(s, sums[n], &mut out[n * LANES..]);
        }
    }
}

/// # Safety
/// `width` readable elements, at most eight.
#[inline(always)]
unsafe fn load<S: Simd>(s: S, from: *const f32, width: usize) -> S::F {
    // SAFETY: forwarded. The width is a constant where it matters.
    unsafe {
        if width == LANES {
            s.load_ptr(from)
        } else {
            load_part(s, std::slice::from_raw_parts(from, width))
        }
    }
}

/// # Safety
/// `width` writable elements, at most eight.
#[inline(always)]
unsafe fn store<S: Simd>(s: S, value: S::F, to: *mut f32, width: usize) {
    // SAFETY: forwarded.
    unsafe {
        if width == LANES {
            s.store_ptr(value, to);
        } else {
            store_part(s, value, std::slice::from_raw_parts_mut(to, width));
        }
    }
}
