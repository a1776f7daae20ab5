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

/// Keys, queries and factors of the tokens, which every block of columns needs.
struct Tokens {
    /// Per token its key and its query, see [`Fold`] and [`Read`].
    units: Vec<f32>,
    /// Per token its decay and `β`.
    factors: Vec<(f32, f32)>,
}

/// Where a block of columns is and where it goes to, which may be the same. Rows are as far apart as in the whole
/// matrix.
#[derive(Clone, Copy)]
struct Place {
    from: *const f32,
    to: *mut f32,
}

impl Kernel for Piece<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let shape = self.args.cache.shape();
        let dv = shape.columns;
        // SAFETY: a slot belongs to one request, and this head of it to this piece.
        let state = unsafe { self.args.cache.start_matrix(&self.tokens, self.head) };
        let tokens = self.prepare(s);
        // What drafts run on. The first of them fills it, block by block.
        let mut copy: Vec<f32> = Vec::new();
        if !self.tokens.drafts().is_empty() {
            copy.reserve_exact(state.len());
        }
        let mut column = 0;
        while column < dv {
            let state = &mut state[column..];
            let copy = copy.as_mut_ptr().wrapping_add(column);
            if dv - column >= WIDE * LANES {
                self.block::<S, WIDE>(s, (column, LANES), (state, copy), &tokens);
                column += WIDE * LANES;
            } else {
                let width = LANES.min(dv - column);
                self.block::<S, 1>(s, (column, width), (state, copy), &tokens);
                column += width;
            }
        }
        self.write_records(&tokens);
    }
}

impl Piece<'_> {
    /// Brings keys and queries to unit length.
    #[inline(always)]
    fn prepare<S: Simd>(&self, s: S) -> Tokens {
        let (args, head) = (self.args, self.head);
        let dk = self.keys.len();
        let rows = self.tokens.rows.clone();
        let mut units = vec![0.0; rows.len() * 2 * dk];
        let mut factors = Vec::with_capacity(rows.len());
        for (row, unit) in rows.zip(units.chunks_exact_mut(2 * dk)) {
            let (k, q) = unit.split_at_mut(dk);
            unit_length(s, &args.k.row(row)[self.keys.clone()], 1.0, k);
            unit_length(
                s,
                &args.q.row(row)[self.keys.clone()],
                1.0 / (dk as f32).sqrt(),
                q,
            );
            let step = softplus(args.a.row(row)[head] + args.dt_bias[head]);
            let decay = (args.decay[head] * step).exp();
            factors.push((decay, sigmoid(args.b.row(row)[head])));
        }
        Tokens { units, factors }
    }

    /// The key, the query and the factors of a row.
    #[inline(always)]
    fn prepared<'a>(&self, tokens: &'a Tokens, row: usize) -> (&'a [f32], &'a [f32], (f32, f32)) {
        let (index, dk) = (row - self.tokens.rows.start, self.keys.len());
        let (k, q) = tokens.units[2 * dk * index..2 * dk * (index + 1)].split_at(dk);
        (k, q, tokens.factors[index])
    }

    /// Walks the tokens for `N` vectors of columns from `column` on, each with `width` lanes in use; `state`
    /// starts with the first of them, and so does `copy`, where drafts go.
    #[inline(always)]
    fn block<S: Simd, const N: usize>(
        &self,
        s: S,
        (column, width): (usize, usize),
        (state, copy): (&mut [f32], *mut f32),
        tokens: &Tokens,
    ) {
        let columns = column..column + (N - 1) * LANES + width;
        let needed = (self.keys.len() - 1) * self.args.cache.shape().columns + columns.len();
        assert!(state.len() >= needed, "a block of columns inside the state");
        for (index, folded) in self.tokens.kept().enumerate() {
            let to = state.as_mut_ptr();
            let place = Place { from: to, to };
            // SAFETY: the block is inside the state, as asserted.
            unsafe { self.fold::<S, N>(s, folded, columns.clone(), place, tokens) };
            self.save(index + 1, state, columns.clone());
        }
        if self.tokens.drafts().is_empty() {
            return;
        }
        let mut place = Place {
            from: state.as_ptr(),
            to: copy,
        };
        for folded in self.tokens.tried() {
            // SAFETY: the same place in the copy, which has room for a whole state; the first fold writes all of it
            // before a later one reads it.
            unsafe { self.fold::<S, N>(s, folded, columns.clone(), place, tokens) };
            place.from = copy;
        }
    }

    /// Folds a record, or a token whose outputs are read, into a block of columns.
    ///
    /// # Safety
    /// As [`advance`].
    #[inline(always)]
    unsafe fn fold<S: Simd, const N: usize>(
        &self,
        s: S,
        folded: Folded,
        columns: Range<usize>,
        place: Place,
        tokens: &Tokens,
    ) {
        let index = match folded {
            Folded::Record(index) => index,
            // SAFETY: forwarded.
            Folded::Token(row) => return unsafe { self.token::<S, N>(s, row, columns, place, tokens) },
        };
        // SAFETY: records are written when all blocks are done with them.
        let record = unsafe { self.args.cache.record(self.tokens.slot, self.head, index) };
        let fold = Fold {
            k: record.by_row,
            v: &record.by_column[columns],
            decay: record.factors[0],
            beta: record.factors[1],
        };
        let stride = self.args.cache.shape().columns;
        // SAFETY: forwarded.
        unsafe { advance::<S, N>(s, &fold, None, place, stride) };
    }

    /// Folds a token of this step into a block of columns and reads its outputs.
    ///
    /// # Safety
    /// As [`advance`].
    #[inline(always)]
    unsafe fn token<S: Simd, const N: usize>(
        &self,
        s: S,
        row: usize,
        columns: Range<usize>,
        place: Place,
        tokens: &Tokens,
    ) {
        let args = self.args;
        let (k, q, (decay, beta)) = self.prepared(tokens, row);
        let stride = args.cache.shape().columns;
        let first = self.head * stride;
        let columns = first + columns.start..first + columns.end;
        let fold = Fold {
            k,
            v: &args.v.row(row)[columns.clone()],
            decay,
            beta,
        };
        let read = Read {
            q,
            // SAFETY: the columns of this head belong to this piece.
            out: unsafe { args.out.part(row, columns) },
        };
        // SAFETY: forwarded.
        unsafe { advance::<S, N>(s, &fold, Some(read), place, stride) };
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
    fn write_records(&self, tokens: &Tokens) {
        let (cache, head) = (self.args.cache, self.head);
        let dv = cache.shape().columns;
        for (index, row) in self.tokens.recorded() {
            let (k, _, (decay, beta)) = self.prepared(tokens, row);
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

/// The lanes in use of the last of the `N` vectors that hold the columns: a constant where it matters.
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

/// One token's update of `N` vectors of columns, and what it reads from them.
///
/// # Safety
/// As many columns as `fold` has values, of as many rows as it has keys, `stride` apart, can be read and written at
/// their places.
#[inline(always)]
unsafe fn advance<S: Simd, const N: usize>(
    s: S,
    fold: &Fold<'_>,
    read: Option<Read<'_>>,
    place: Place,
    stride: usize,
) {
    let dk = fold.k.len();
    let used = fold.v.len();
    let width = constant_width::<N>(used);
    // A fold that nobody reads goes over its key instead, and uses nothing of it.
    let q = read.as_ref().map_or(fold.k, |read| read.q);
    assert!(q.len() == dk && used == (N - 1) * LANES + width);
    let Place { from, to } = place;
    let decay = s.splat(fold.decay);
    let mut seen = [s.splat(0.0); N];
    for (i, k) in fold.k.iter().enumerate() {
        let k = s.splat(*k);
        for n in 0..N {
            // SAFETY: within the block.
            let old = unsafe { load(s, from.add(i * stride + n * LANES), width) };
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
            // SAFETY: within the block.
            unsafe {
                let place = i * stride + n * LANES;
                let old = load(s, from.add(place), width);
                let value = s.mul_add(k, update[n], s.mul(old, decay));
                store(s, value, to.add(place), width);
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
            let mut lanes = [0.0; LANES];
            s.store(value, &mut lanes);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, width);
        }
    }
}
