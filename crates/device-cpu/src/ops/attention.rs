//! Causal attention over blocks, with an online softmax.
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

/// Attention of every live token over its request's blocks.
pub(crate) fn attention(pool: &Pool, args: &Attend<'_>) {
    let shape = args.cache.shape();
    let group = args.q.columns / shape.head_dim / shape.heads;
    let heads_per_piece = group.min(ROWS);
    let head_chunks = group.div_ceil(heads_per_piece);
    let spans = spans(args.step, args.q.rows, (ROWS / heads_per_piece).max(1));
    let positions: usize = args.step.tokens[..args.q.rows]
        .iter()
        .map(|token| token.position as usize + 1)
        .sum();
    let total_ns = positions.saturating_mul(args.q.columns) / 8;
    pieces(pool, spans.len() * shape.heads * head_chunks, total_ns, |piece| {
        // The longest contexts first, so that the last pieces to finish are short ones; one head's blocks at a
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
                    && step.tokens[token - 1].request == step.tokens[token].request
                    && step.tokens[token - 1].position + 1 == step.tokens[token].position =>
            {
                span.end = token + 1;
            }
            _ => spans.push(token..token + 1),
        }
    }
    spans
}

struct Piece<'a> {
    args: &'a Attend<'a>,
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
        let rows = self.tokens.len() * self.heads.len();
        let mut running = [Running {
            max: f32::NEG_INFINITY,
            sum: 0.0,
        }; ROWS];
        for row in 0..rows {
            self.output(row).fill(0.0);
        }
        let last = self.args.step.tokens[self.tokens.end - 1].position as usize;
        for start in (0..=last).step_by(TILE) {
            let tile = self.tile(start, (last + 1).min(start + TILE));
            let mut row = 0;
            while row < rows {
                // Rows that see as much of the tile as their neighbour share its loads.
                let valid = self.valid(row, start);
                if valid == 0 {
                    row += 1;
                } else if row + 1 < rows && self.valid(row + 1, start) == valid {
                    self.rows_tile::<S, 2, 4>(s, [row, row + 1], &tile, valid, &mut running);
                    row += 2;
                } else {
                    self.rows_tile::<S, 1, 8>(s, [row], &tile, valid, &mut running);
                    row += 1;
                }
            }
        }
        for (row, running) in running.iter().enumerate().take(rows) {
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
            .blocks(self.args.step.tokens[self.tokens.start].request as usize);
        let mut tile = Tile {
            keys: [std::ptr::null(); TILE],
            values: [std::ptr::null(); TILE],
        };
        for position in start..end {
            let offset = cache.offset(blocks, position, self.kv_head);
            // SAFETY: blocks are only read by this operation; the slices check the bounds.
            unsafe {
                tile.keys[position - start] = cache.keys().slice(offset..offset + head_dim).as_ptr();
                tile.values[position - start] = cache.values().slice(offset..offset + head_dim).as_ptr();
            }
        }
        tile
    }

    /// Positions from `start` on that a row sees of a tile.
    #[inline(always)]
    fn valid(&self, row: usize, start: usize) -> usize {
        let position = self.args.step.tokens[self.token(row)].position as usize;
        (position + 1).saturating_sub(start).min(TILE)
    }

    /// Adds the first `valid` positions of a tile to `R` rows, `W` vectors of the output at a time.
    #[inline(always)]
    fn rows_tile<S: Simd, const R: usize, const W: usize>(
        &self,
        s: S,
        rows: [usize; R],
        tile: &Tile,
        valid: usize,
        running: &mut [Running; ROWS],
    ) {
        let mut queries: [&[f32]; R] = [&[]; R];
        for r in 0..R {
            queries[r] = &self.args.q.row(self.token(rows[r]))[self.columns(rows[r])];
        }
        let mut weights = [[f32::NEG_INFINITY; TILE]; R];
        scores(s, queries, &tile.keys[..valid], &mut weights);
        let mut rescale = [0.0; R];
        let mut outputs = [std::ptr::null_mut(); R];
        for r in 0..R {
            rescale[r] = self.softmax(s, &mut weights[r], &mut running[rows[r]]);
            outputs[r] = self.output(rows[r]).as_mut_ptr();
        }
        let head_dim = self.args.cache.shape().head_dim;
        let values = &tile.values[..valid];
        accumulate::<S, R, W>(s, &weights, values, rescale, (outputs, head_dim));
    }

    /// Turns scores into weights and returns what the running output is to be multiplied with.
    #[inline(always)]
    fn softmax<S: Simd>(&self, s: S, weights: &mut [f32; TILE], running: &mut Running) -> f32 {
        let scale = s.splat(self.args.scale);
        let mut best = s.splat(running.max);
        let (lanes, _) = weights.as_chunks_mut::<LANES>();
        for lane in lanes.iter_mut() {
            let score = s.mul(s.load(lane), scale);
            s.store(score, lane);
            best = s.max(score, best);
        }
        let max = s.largest(best);
        let rescale = s.largest(s.exp(s.splat(running.max - max)));
        let mut sum = s.splat(0.0);
        for lane in lanes.iter_mut() {
            let weight = s.exp(s.sub(s.load(lane), s.splat(max)));
            s.store(weight, lane);
            sum = s.add(sum, weight);
        }
        running.sum = running.sum.mul_add(rescale, s.sum(sum));
        running.max = max;
        rescale
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

/// Keys that are multiplied at a time.
const KEYS: usize = 4;

/// `out[r][i] = q[r] · keys[i]`.
#[inline(always)]
fn scores<S: Simd, const R: usize>(s: S, q: [&[f32]; R], keys: &[*const f32], out: &mut [[f32; TILE]; R]) {
    let (fours, rest) = keys.as_chunks::<KEYS>();
    for (index, four) in fours.iter().enumerate() {
        let dots = dots(s, q, *four);
        for r in 0..R {
            out[r][index * KEYS..(index + 1) * KEYS].copy_from_slice(&dots[r]);
        }
    }
    for (index, key) in rest.iter().enumerate() {
        let dots = dots(s, q, [*key]);
        for r in 0..R {
            out[r][fours.len() * KEYS + index] = dots[r][0];
        }
    }
}

/// Products of some queries with some keys. Each is eight running sums over the head, a fixed tree, then the last
/// few elements, independent of the others.
#[inline(always)]
fn dots<S: Simd, const R: usize, const K: usize>(
    s: S,
    q: [&[f32]; R],
    keys: [*const f32; K],
) -> [[f32; K]; R] {
    let len = q[0].len();
    let full = len / LANES * LANES;
    let mut sums = [[s.splat(0.0); K]; R];
    for at in (0..full).step_by(LANES) {
        let mut queries = [s.splat(0.0); R];
        for r in 0..R {
            // SAFETY: within the query.
            queries[r] = unsafe { s.load_ptr(q[r].as_ptr().add(at)) };
        }
        for k in 0..K {
            // SAFETY: a key has as many elements as a query.
            let key = unsafe { s.load_ptr(keys[k].add(at)) };
            for r in 0..R {
                sums[r][k] = s.mul_add(queries[r], key, sums[r][k]);
            }
        }
    }
    let mut dots = reduce(s, &sums);
    for r in 0..R {
        for k in 0..K {
            for at in full..len {
                // SAFETY: as above.
                dots[r][k] = q[r][at].mul_add(unsafe { *keys[k].add(at) }, dots[r][k]);
            }
        }
    }
    dots
}

/// The sums of all vectors, eight of them at a time.
#[inline(always)]
fn reduce<S: Simd, const R: usize, const K: usize>(s: S, sums: &[[S::F; K]; R]) -> [[f32; K]; R] {
    let mut dots = [[0.0; K]; R];
    if R * K == 1 {
        dots[0][0] = s.sum(sums[0][0]);
        return dots;
    }
    assert!(R * K <= LANES, "at most eight sums");
    let mut vectors = [s.splat(0.0); LANES];
    for r in 0..R {
        for k in 0..K {
            vectors[r * K + k] = sums[r][k];
        }
    }
    let mut lanes = [0.0; LANES];
    s.store(s.sums(vectors), &mut lanes);
    for r in 0..R {
        dots[r].copy_from_slice(&lanes[r * K..(r + 1) * K]);
    }
    dots
}

/// `out[r] = out[r] · rescale[r] + Σ weights[r][i] · values[i]`, in order, for outputs of `head_dim` elements.
#[inline(always)]
fn accumulate<S: Simd, const R: usize, const W: usize>(
    s: S,
    weights: &[[f32; TILE]; R],
    values: &[*const f32],
    rescale: [f32; R],
    (outputs, head_dim): ([*mut f32; R], usize),
) {
    let step = W * LANES;
    let wide = head_dim / step * step;
    for at in (0..wide).step_by(step) {
        let mut sums = [[s.splat(0.0); W]; R];
        for r in 0..R {
            for w in 0..W {
                // SAFETY: within the output.
                let old = unsafe { s.load_ptr(outputs[r].add(at + w * LANES)) };
                sums[r][w] = s.mul(old, s.splat(rescale[r]));
            }
        }
        for (i, value) in values.iter().enumerate() {
            let mut scale = [s.splat(0.0); R];
            for r in 0..R {
                scale[r] = s.splat(weights[r][i]);
            }
            for w in 0..W {
                // SAFETY: a value has as many elements as the output.
                let value = unsafe { s.load_ptr(value.add(at + w * LANES)) };
                for r in 0..R {
                    sums[r][w] = s.mul_add(scale[r], value, sums[r][w]);
                }
            }
        }
        for r in 0..R {
            for w in 0..W {
                // SAFETY: within the output.
                unsafe { s.store_ptr(sums[r][w], outputs[r].add(at + w * LANES)) };
            }
        }
    }
    for r in 0..R {
        for at in (wide..head_dim).step_by(LANES) {
            let width = LANES.min(head_dim - at);
            // SAFETY: within the output, which this piece uses alone.
            let out = unsafe { std::slice::from_raw_parts_mut(outputs[r].add(at), width) };
            let mut sum = s.mul(load_part(s, out), s.splat(rescale[r]));
            for (weight, value) in weights[r].iter().zip(values) {
                // SAFETY: a value has as many elements as the output.
                let value = unsafe { std::slice::from_raw_parts(value.add(at), width) };
                sum = s.mul_add(s.splat(*weight), load_part(s, value), sum);
            }
            store_part(s, sum, out);
        }
    }
}
