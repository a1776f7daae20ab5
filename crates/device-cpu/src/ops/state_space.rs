//! The Mamba2 state space recurrence, token by token.
//!
//! Rows of a state matrix never meet, so a piece (one head of one request) walks the tokens once per block of
//! rows, and the block stays in the first-level cache.

use super::vector::{load_part, softplus, store_part};
use super::{RequestTokens, Step, pieces};
use crate::caches::CpuStateCache;
use crate::pool::Pool;
use crate::simd::{Kernel, LANES, Simd};
use crate::storage::{In, Out};

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
    let total_ns = args.out.rows * shape.matrix_elements() / 8;
    pieces(pool, args.step.requests * heads, total_ns, |piece| {
        let tokens = args.step.request(piece / heads, args.out.rows);
        if !tokens.rows.is_empty() {
            pool.instructions().run(Piece {
                args,
                tokens,
                head: piece % heads,
            });
        }
    });
}

struct Piece<'a> {
    args: &'a Space<'a>,
    tokens: RequestTokens,
    head: usize,
}

/// What a token does to every row of the state.
struct Token<'a> {
    b: &'a [f32],
    c: &'a [f32],
    dt: f32,
    /// `exp(dt · decay)`.
    decay: f32,
    skip: f32,
}

impl Kernel for Piece<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let shape = self.args.cache.shape();
        let (p, n) = (shape.rows, shape.columns);
        // SAFETY: a slot belongs to one request, and this head of it to this piece.
        let state = unsafe { self.args.cache.matrix(self.tokens.slot, self.head) };
        if self.tokens.fresh {
            state.fill(0.0);
        }
        for (block, rows) in state.chunks_mut(ROWS * n).enumerate() {
            let first = self.head * p + block * ROWS;
            let count = rows.len() / n;
            for row in self.tokens.rows.clone() {
                let token = self.token(row, n);
                let x = &self.args.x.row(row)[first..first + count];
                // SAFETY: the columns of this head belong to this piece.
                let out = unsafe { self.args.out.part(row, first..first + count) };
                if count == ROWS {
                    advance::<S, ROWS>(s, &token, rows, x, out);
                } else {
                    for (i, rows) in rows.chunks_mut(n).enumerate() {
                        advance::<S, 1>(s, &token, rows, &x[i..=i], &mut out[i..=i]);
                    }
                }
            }
        }
    }
}

impl Piece<'_> {
    #[inline(always)]
    fn token(&self, row: usize, n: usize) -> Token<'_> {
        let args = self.args;
        let group = self.head / (args.cache.shape().heads / (args.b.columns / n));
        let columns = group * n..(group + 1) * n;
        let (least, most) = args.dt_limits;
        let dt = softplus(args.dt.row(row)[self.head] + args.dt_bias[self.head])
            .max(least)
            .min(most);
        Token {
            b: &args.b.row(row)[columns.clone()],
            c: &args.c.row(row)[columns],
            dt,
            decay: (dt * args.decay[self.head]).exp(),
            skip: args.skip[self.head],
        }
    }
}

/// One token's update of `N` rows.
#[inline(always)]
fn advance<S: Simd, const N: usize>(s: S, token: &Token<'_>, state: &mut [f32], x: &[f32], out: &mut [f32]) {
    let n = token.b.len();
    let decay = s.splat(token.decay);
    let mut inputs = [s.splat(0.0); N];
    for i in 0..N {
        inputs[i] = s.splat(token.dt * x[i]);
    }
    let mut sums = inputs;
    for sum in &mut sums {
        *sum = s.splat(0.0);
    }
    assert!(token.c.len() == n && state.len() == N * n);
    let full = n / LANES * LANES;
    for at in (0..full).step_by(LANES) {
        // SAFETY: eight elements of each row from `at` on, as asserted.
        unsafe {
            let b = s.load_ptr(token.b.as_ptr().add(at));
            let c = s.load_ptr(token.c.as_ptr().add(at));
            for i in 0..N {
                let place = state.as_mut_ptr().add(i * n + at);
                let value = s.mul_add(inputs[i], b, s.mul(s.load_ptr(place), decay));
                s.store_ptr(value, place);
                sums[i] = s.mul_add(value, c, sums[i]);
            }
        }
    }
    if full < n {
        // Lanes past the end hold zeros in `b` and `c`, and add nothing.
        let (b, c) = (load_part(s, &token.b[full..]), load_part(s, &token.c[full..]));
        for i in 0..N {
            let state = &mut state[i * n + full..(i + 1) * n];
            let value = s.mul_add(inputs[i], b, s.mul(load_part(s, state), decay));
            store_part(s, value, state);
            sums[i] = s.mul_add(value, c, sums[i]);
        }
    }
    for i in 0..N {
        out[i] = token.skip.mul_add(x[i], s.sum(sums[i]));
    }
}
