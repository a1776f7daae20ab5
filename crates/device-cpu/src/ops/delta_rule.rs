//! The gated delta rule, token by token.
//!
//! A column of a state matrix never meets another one, so a piece (one head of one request) walks the tokens
//! once per block of columns, and the block stays in the first-level cache.

use super::vector::{load_part, sigmoid, softplus, store_part, sum_of_squares};
use super::{RequestTokens, Step, pieces};
use crate::caches::CpuStateCache;
use crate::pool::Pool;
use crate::simd::{Kernel, LANES, Simd};
use crate::storage::{In, Out};
use paceline_device::HeadMap;

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
    let total_ns = args.out.rows * shape.matrix_elements() / 6;
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
    args: &'a Delta<'a>,
    tokens: RequestTokens,
    head: usize,
}

/// What a token does to every column of the state.
struct Token<'a> {
    /// Unit length.
    k: &'a [f32],
    /// Unit length, times `dk^-½`.
    q: &'a [f32],
    /// `exp(g)`.
    decay: f32,
    beta: f32,
}

impl Kernel for Piece<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let shape = self.args.cache.shape();
        let (dk, dv) = (shape.rows, shape.columns);
        // SAFETY: a slot belongs to one request, and this head of it to this piece.
        let state = unsafe { self.args.cache.matrix(self.tokens.slot, self.head) };
        if self.tokens.fresh {
            state.fill(0.0);
        }
        let mut unit = vec![0.0; 2 * dk];
        let (k, q) = unit.split_at_mut(dk);
        let mut column = 0;
        while column < dv {
            let wide = dv - column >= WIDE * LANES;
            let width = if wide {
                WIDE * LANES
            } else {
                LANES.min(dv - column)
            };
            for row in self.tokens.rows.clone() {
                let token = self.token(s, row, k, q);
                let start = self.head * dv + column;
                let v = &self.args.v.row(row)[start..start + width];
                // SAFETY: the columns of this head belong to this piece.
                let out = unsafe { self.args.out.part(row, start..start + width) };
                let state = (&mut state[column..], dv);
                if wide {
                    advance::<S, WIDE>(s, &token, state, (v, out), LANES);
                } else {
                    advance::<S, 1>(s, &token, state, (v, out), width);
                }
            }
            column += width;
        }
    }
}

impl Piece<'_> {
    #[inline(always)]
    fn token<'t, S: Simd>(&self, s: S, row: usize, k: &'t mut [f32], q: &'t mut [f32]) -> Token<'t> {
        let args = self.args;
        let dk = k.len();
        let key_heads = args.k.columns / dk;
        let key_head = match args.head_map {
            HeadMap::Grouped => self.head / (args.cache.shape().heads / key_heads),
            HeadMap::Tiled => self.head % key_heads,
        };
        let columns = key_head * dk..(key_head + 1) * dk;
        unit_length(s, &args.k.row(row)[columns.clone()], 1.0, k);
        unit_length(s, &args.q.row(row)[columns], 1.0 / (dk as f32).sqrt(), q);
        let step = softplus(args.a.row(row)[self.head] + args.dt_bias[self.head]);
        Token {
            k,
            q,
            decay: (args.decay[self.head] * step).exp(),
            beta: sigmoid(args.b.row(row)[self.head]),
        }
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

/// One token's update of `N` vectors of columns, each with `width` lanes in use.
#[inline(always)]
fn advance<S: Simd, const N: usize>(
    s: S,
    token: &Token<'_>,
    (state, stride): (&mut [f32], usize),
    (v, out): (&[f32], &mut [f32]),
    width: usize,
) {
    let dk = token.k.len();
    let used = (N - 1) * LANES + width;
    assert!(token.q.len() == dk && v.len() == used && out.len() == used);
    assert!(state.len() >= (dk - 1) * stride + used);
    let state = state.as_mut_ptr();
    let decay = s.splat(token.decay);
    let mut seen = [s.splat(0.0); N];
    for (i, k) in token.k.iter().enumerate() {
        let k = s.splat(*k);
        for n in 0..N {
            // SAFETY: within the state, as asserted.
            let old = unsafe { load(s, state.add(i * stride + n * LANES), width) };
            seen[n] = s.mul_add(s.mul(old, decay), k, seen[n]);
        }
    }
    let beta = s.splat(token.beta);
    let mut update = seen;
    for n in 0..N {
        update[n] = s.mul(beta, s.sub(load_part(s, &v[n * LANES..]), seen[n]));
    }
    let mut read = [s.splat(0.0); N];
    for (i, (k, q)) in token.k.iter().zip(token.q).enumerate() {
        let (k, q) = (s.splat(*k), s.splat(*q));
        for n in 0..N {
            // SAFETY: within the state, as asserted.
            unsafe {
                let place = state.add(i * stride + n * LANES);
                let value = s.mul_add(k, update[n], s.mul(load(s, place, width), decay));
                store(s, value, place, width);
                read[n] = s.mul_add(value, q, read[n]);
            }
        }
    }
    for n in 0..N {
        store_part(s, read[n], &mut out[n * LANES..]);
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
