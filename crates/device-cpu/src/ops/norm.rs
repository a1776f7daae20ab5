//! RMS norm, alone and fused with the addition to the residual stream, and plain weighted addition.

use super::split;
use super::vector::{inverse_rms, load_part, scale_into, sigmoid, store_part};
use crate::pool::Pool;
use crate::simd::{Kernel, LANES, Simd};
use crate::storage::{In, Out};
use std::ops::Range;

/// `out = x / rms(x) · weight`.
pub(crate) fn rms_norm(pool: &Pool, x: In<'_>, weight: &[f32], eps: f32, out: Out<'_>) {
    split(pool, out.rows, x.columns / 4, |rows| {
        pool.instructions().run(RmsNorm {
            x,
            weight,
            eps,
            out,
            rows,
        });
    });
}

struct RmsNorm<'a> {
    x: In<'a>,
    weight: &'a [f32],
    eps: f32,
    out: Out<'a>,
    rows: Range<usize>,
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for row in self.rows {
            let x = self.x.row(row);
            // SAFETY: every row belongs to one piece.
            let out = unsafe { self.out.row(row) };
            scale_into(s, x, inverse_rms(s, x, self.eps), self.weight, out);
        }
    }
}

/// Views and numbers of [`add_rms_norm`].
#[derive(Clone, Copy)]
pub(crate) struct AddRmsNorm<'a> {
    pub(crate) residual: Out<'a>,
    pub(crate) delta: In<'a>,
    pub(crate) scale: f32,
    pub(crate) weight: &'a [f32],
    pub(crate) eps: f32,
    pub(crate) out: Out<'a>,
}

/// `residual += delta · scale`, then `out = rms_norm(residual)`.
pub(crate) fn add_rms_norm(pool: &Pool, args: AddRmsNorm<'_>) {
    split(pool, args.out.rows, args.delta.columns, |rows| {
        pool.instructions().run(AddRmsNormRows(args, rows));
    });
}

struct AddRmsNormRows<'a>(AddRmsNorm<'a>, Range<usize>);

impl Kernel for AddRmsNormRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self(args, rows) = self;
        for row in rows {
            // SAFETY: every row belongs to one piece, and the two tensors do not overlap.
            let (residual, out) = unsafe { (args.residual.row(row), args.out.row(row)) };
            accumulate(s, residual, args.delta.row(row), args.scale);
            let scale = inverse_rms(s, residual, args.eps);
            scale_into(s, residual, scale, args.weight, out);
        }
    }
}

/// `acc += x · scale`, times `sigmoid(gate)` per row when there is a gate.
pub(crate) fn add(pool: &Pool, acc: Out<'_>, x: In<'_>, scale: f32, gate: Option<In<'_>>) {
    split(pool, acc.rows, x.columns / 6, |rows| {
        pool.instructions().run(Add {
            acc,
            x,
            scale,
            gate,
            rows,
        });
    });
}

struct Add<'a> {
    acc: Out<'a>,
    x: In<'a>,
    scale: f32,
    gate: Option<In<'a>>,
    rows: Range<usize>,
}

impl Kernel for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for row in self.rows {
            let gate = self.gate.map_or(1.0, |gate| sigmoid(gate.row(row)[0]));
            // SAFETY: every row belongs to one piece.
            let acc = unsafe { self.acc.row(row) };
            accumulate(s, acc, self.x.row(row), self.scale * gate);
        }
    }
}

/// `acc = x · scale + acc` with one rounding.
#[inline(always)]
fn accumulate<S: Simd>(s: S, acc: &mut [f32], x: &[f32], scale: f32) {
    let factor = s.splat(scale);
    for (acc, x) in acc.chunks_mut(LANES).zip(x.chunks(LANES)) {
        let sum = s.mul_add(load_part(s, x), factor, load_part(s, acc));
        store_part(s, sum, acc);
    }
}
