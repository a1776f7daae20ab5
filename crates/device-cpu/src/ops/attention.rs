//! Causal attention over pages, with an online softmax.
//!
//! Keys are taken in tiles of [`TILE`] positions counted from position 0, whatever the block size. Per tile a row
//! (one query head of one token) computes its scores, raises its running maximum, rescales what it has and adds
//! the tile's values in order of position. A row's arithmetic depends on its position alone, so it does not
//! matter which rows share a piece. A piece is a few consecutive tokens of one request and the query heads of
//! one key-value head: they read the same keys and values while these are in the cache.

use super::vector::{load_part, store_part};
use super::{Step, pieces};
use crate::caches::CpuKvCache;
use crate::pool::Pool;
use crate::simd::{Kernel, LANES, Simd};
use crate::storage::{In, Out};
use std::ops::Range;

/// Positions of a tile.
const TILE: usize = 32;

/// Rows of a piece: their running outputs fit the first-level cache beside a tile.
const ROWS: usize = 32;

/// Views of [`attention`].
#[derive(Clone, Copy)]
pub(crate) struct Attend<'a> {
    pub(crate) q: In<'a>,
    pub(crate) gate: Option<In<'a>>,
    pub(crate) cache: &'a CpuKvCache,
    pub(crate) scale: f32,
    pub(crate) out: Out<'a>,
    pub(crate) step: Step<'a>,
}

/// Attention of every live token over its request's pages.
pub(crate) fn attention(pool: &Pool, args: Attend<'_>) {
    let shape = args.cache.shape();
    let group = args.q.columns / shape.head_dim / shape.heads;
    let heads_per_piece = group.min(ROWS);
    let head_chunks = group.div_ceil(heads_per_piece);
    let spans = spans(args.step, args.q.rows, (ROWS / heads_per_piece).max(1));
    let positions: usize = args.step.positions[..args.q.rows]
        .iter()
        .map(|position| *position as usize + 1)
        .sum();
    let total_ns = positions.saturating_mul(args.q.columns) / 8;
    pieces(pool, spans.len() * shape.heads * head_chunks, total_ns, |piece| {
        // The longest contexts first, so that the last pieces to finish are short ones; one head's pages at a
        // time, so that neighbouring pieces find them in the cache.
        let span = spans[spans.len() - 1 - piece % spans.len()].clone();
        let (kv_head, chunk) = (
            piece / spans.len() / head_chunks,
            piece / spans.len() % head_chunks,
        );
        let first_head = kv_head * group + chunk * heads_per_piece;
        let last_head = ((kv_head + 1) * group).min(first_head + heads_per_piece);
        pool.instructions().run(Piece {
            args,
            tokens: span,
            kv_head,
            heads: first_head..last_head,
        });
    });
}

/// Runs of at most `most` consecutive tokens of one request.
fn spans(step: Step<'_>, tokens: usize, most: usize) -> Vec<Range<usize>> {
    let mut spans: Vec<Range<usize>> = Vec::new();
    for token in 0..tokens {
        match spans.last_mut() {
            Some(span)
                if span.len() < most
                    && step.request_of[token - 1] == step.request_of[token]
                    && step.positions[token - 1] + 1 == step.positions[token] =>
            {
                span.end = token + 1;
            }
            _ => spans.push(token..token + 1),
        }
    }
    spans
}

struct Piece<'a> {
    args: Attend<'a>,
    tokens: Range<usize>,
    kv_head: usize,
    heads: Range<usize>,
}

/// Running softmax of one row; the running output is in the output tensor.
#[derive(Clone, Copy)]
struct Running {
    max: f32,
    sum: f32,
}

/// Where the keys and values of a tile's positions are.
struct Tile {
    keys: [*const f32; TILE],
    values: [*const f32; TILE],
}

impl Kernel for Piece<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let heads = self.heads.len();
        let mut running = [Running {
            max: f32::NEG_INFINITY,
            sum: 0.0,
        }; ROWS];
        for row in 0..self.tokens.len() * heads {
            self.output(row).fill(0.0);
        }
        let positions = self.args.step.positions;
        let last = positions[self.tokens.end - 1] as usize;
        for start in (0..=last).step_by(TILE) {
            let tile = self.tile(start, (last + 1).min(start + TILE));
            for (index, token) in self.tokens.clone().enumerate() {
                let position = positions[token] as usize;
                if position >= start {
                    let valid = (position + 1 - start).min(TILE);
                    for row in index * heads..(index + 1) * heads {
                        self.row_tile(s, row, &tile, valid, &mut running[row]);
                    }
                }
            }
        }
        for (row, running) in running.iter().enumerate().take(self.tokens.len() * heads) {
            self.finish(s, row, running.sum);
        }
    }
}

impl Piece<'_> {
    /// Columns of a row's head within its token's row.
    #[inline(always)]
    fn columns(&self, row: usize) -> Range<usize> {
        let head_dim = self.args.cache.shape().head_dim;
        let head = self.heads.start + row % self.heads.len();
        head * head_dim..(head + 1) * head_dim
    }

    #[inline(always)]
    fn token(&self, row: usize) -> usize {
        self.tokens.start + row / self.heads.len()
    }

    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "exclusive because pieces are disjoint")]
    fn output(&self, row: usize) -> &mut [f32] {
        // SAFETY: these heads of these tokens belong to this piece, which uses one row at a time.
        unsafe { self.args.out.part(self.token(row), self.columns(row)) }
    }

    /// Finds the rows of positions `start..end`.
    #[inline(always)]
    fn tile(&self, start: usize, end: usize) -> Tile {
        let cache = self.args.cache;
        let head_dim = cache.shape().head_dim;
        let blocks = self
            .args
            .step
            .blocks(self.args.step.request_of[self.tokens.start] as usize);
        let mut tile = Tile {
            keys: [std::ptr::null(); TILE],
            values: [std::ptr::null(); TILE],
        };
        for position in start..end {
            let offset = cache.offset(blocks, position, self.kv_head);
            // SAFETY: pages are only read by this operation; the slices check the bounds.
            unsafe {
                tile.keys[position - start] = cache.keys().slice(offset..offset + head_dim).as_ptr();
                tile.values[position - start] = cache.values().slice(offset..offset + head_dim).as_ptr();
            }
        }
        tile
    }

    /// Adds the first `valid` positions of a tile to a row.
    #[inline(always)]
    fn row_tile<S: Simd>(&self, s: S, row: usize, tile: &Tile, valid: usize, running: &mut Running) {
        let q = &self.args.q.row(self.token(row))[self.columns(row)];
        let mut weights = [f32::NEG_INFINITY; TILE];
        scores(s, q, &tile.keys[..valid], &mut weights);
        let scale = s.splat(self.args.scale);
        let mut best = s.splat(running.max);
        let (lanes, _) = weights.as_chunks_mut::<LANES>();
        for lane in lanes.iter_mut() {
            let score = s.mul(s.load(lane), scale);
            s.store(score, lane);
            best = s.max(score, best);
        }
        let max = s.largest(best);
        let rescale = exp(s, running.max - max);
        let mut sum = s.splat(0.0);
        for lane in lanes.iter_mut() {
            let weight = s.exp(s.sub(s.load(lane), s.splat(max)));
            s.store(weight, lane);
            sum = s.add(sum, weight);
        }
        running.sum = running.sum.mul_add(rescale, s.sum(sum));
        running.max = max;
        accumulate(
            s,
            &weights[..valid],
            &tile.values[..valid],
            rescale,
            self.output(row),
        );
    }

    /// Divides by the sum of weights and applies the gate.
    #[inline(always)]
    fn finish<S: Simd>(&self, s: S, row: usize, sum: f32) {
        let gate = self
            .args
            .gate
            .map(|gate| &gate.row(self.token(row))[self.columns(row)]);
        let factor = s.splat(1.0 / sum);
        for (chunk, out) in self.output(row).chunks_mut(LANES).enumerate() {
            let mut value = s.mul(load_part(s, out), factor);
            if let Some(gate) = gate {
                value = s.mul(value, s.sigmoid(load_part(s, &gate[chunk * LANES..])));
            }
            store_part(s, value, out);
        }
    }
}

#[inline(always)]
fn exp<S: Simd>(s: S, x: f32) -> f32 {
    s.largest(s.exp(s.splat(x)))
}

/// `out[i] = q · keys[i]`: eight running sums over the head, a fixed tree, then the last few elements.
#[inline(always)]
fn scores<S: Simd>(s: S, q: &[f32], keys: &[*const f32], out: &mut [f32; TILE]) {
    let (fours, rest) = keys.as_chunks::<4>();
    for (four, out) in fours.iter().zip(out.chunks_exact_mut(4)) {
        out.copy_from_slice(&dots(s, q, *four));
    }
    let done = fours.len() * 4;
    for (key, out) in rest.iter().zip(&mut out[done..]) {
        [*out] = dots(s, q, [*key]);
    }
}

/// Products of one query with several keys; each key's sum is independent of the others.
#[inline(always)]
fn dots<S: Simd, const N: usize>(s: S, q: &[f32], keys: [*const f32; N]) -> [f32; N] {
    let (lanes, tail) = q.as_chunks::<LANES>();
    let mut sums = [s.splat(0.0); N];
    for (chunk, lane) in lanes.iter().enumerate() {
        let q = s.load(lane);
        for i in 0..N {
            // SAFETY: a key has as many elements as the query.
            let key = unsafe { s.load_ptr(keys[i].add(chunk * LANES)) };
            sums[i] = s.mul_add(q, key, sums[i]);
        }
    }
    let mut dots = [0.0; N];
    for i in 0..N {
        dots[i] = s.sum(sums[i]);
        for (j, q) in tail.iter().enumerate() {
            // SAFETY: as above.
            dots[i] = q.mul_add(unsafe { *keys[i].add(lanes.len() * LANES + j) }, dots[i]);
        }
    }
    dots
}

/// `out = out · rescale + Σ weights[i] · values[i]`, in order.
#[inline(always)]
fn accumulate<S: Simd>(s: S, weights: &[f32], values: &[*const f32], rescale: f32, out: &mut [f32]) {
    const WIDE: usize = 8;
    let (wide, rest) = out.as_chunks_mut::<{ WIDE * LANES }>();
    let wides = wide.len();
    for (chunk, out) in wide.iter_mut().enumerate() {
        let (out, _) = out.as_chunks_mut::<LANES>();
        let mut sums = [s.splat(0.0); WIDE];
        for i in 0..WIDE {
            sums[i] = s.mul(s.load(&out[i]), s.splat(rescale));
        }
        for (weight, value) in weights.iter().zip(values) {
            let weight = s.splat(*weight);
            for i in 0..WIDE {
                // SAFETY: a value has as many elements as the output.
                let value = unsafe { s.load_ptr(value.add((chunk * WIDE + i) * LANES)) };
                sums[i] = s.mul_add(weight, value, sums[i]);
            }
        }
        for i in 0..WIDE {
            s.store(sums[i], &mut out[i]);
        }
    }
    for (chunk, out) in rest.chunks_mut(LANES).enumerate() {
        let start = (wides * WIDE + chunk) * LANES;
        let mut sum = s.mul(load_part(s, out), s.splat(rescale));
        for (weight, value) in weights.iter().zip(values) {
            // SAFETY: a value has as many elements as the output.
            let value = unsafe { std::slice::from_raw_parts(value.add(start), out.len()) };
            sum = s.mul_add(s.splat(*weight), load_part(s, value), sum);
        }
        store_part(s, sum, out);
    }
}
