//! The gated delta rule, on the grid.

use super::grid::{self, Recurrence, Rule};
use super::vector::{load_part, sigmoid, softplus, store_part, sum_of_squares};
use crate::pool::Pool;
use crate::simd::{LANES, Simd};
use crate::storage::In;

/// Keeps the scale of a zero vector finite.
const LENGTH_EPS: f32 = 1e-6;

/// What decays and corrections come from.
#[derive(Clone, Copy)]
pub(crate) struct Delta<'a> {
    pub(crate) a: In<'a>,
    pub(crate) b: In<'a>,
    pub(crate) decay: &'a [f32],
    pub(crate) dt_bias: &'a [f32],
}

/// Advances the states of all requests by their tokens.
pub(crate) fn delta_rule(pool: &Pool, args: &Recurrence<'_, Delta<'_>>) {
    grid::recur(pool, args);
}

impl Rule for Delta<'_> {
    const CORRECTS: bool = true;

    #[inline(always)]
    fn key<S: Simd>(s: S, key: &[f32], out: &mut [f32]) {
        unit_length(s, key, 1.0, out);
    }

    #[inline(always)]
    fn query<S: Simd>(s: S, query: &[f32], out: &mut [f32]) {
        unit_length(s, query, 1.0 / (query.len() as f32).sqrt(), out);
    }

    fn factors(&self, row: usize, head: usize) -> (f32, f32) {
        let step = softplus(self.a.row(row)[head] + self.dt_bias[head]);
        (self.decay[head] * step, sigmoid(self.b.row(row)[head]))
    }

    fn skip(&self, _head: usize) -> f32 {
        0.0
    }
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
