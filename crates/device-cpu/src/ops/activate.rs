//! Feed-forward activations.

use super::split;
use super::vector::{load_part, store_part};
use crate::pool::Pool;
use crate::simd::{Kernel, LANES, Simd};
use crate::storage::{In, Out};
use paceline_device::Activation;
use std::ops::Range;

/// `out[T, n]` from `x[T, n]` or, gated, from `x[T, 2n]` with the gate columns first.
pub(crate) fn activate(pool: &Pool, x: In<'_>, activation: Activation, out: Out<'_>) {
    let item_ns = match activation {
        Activation::SiluGated { .. } => out.columns,
        Activation::ReluSquared => out.columns / 6,
    };
    split(pool, out.rows, item_ns, |rows| {
        pool.instructions().run(Activate {
            x,
            activation,
            out,
            rows,
        });
    });
}

struct Activate<'a> {
    x: In<'a>,
    activation: Activation,
    out: Out<'a>,
    rows: Range<usize>,
}

impl Kernel for Activate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for row in self.rows {
            let x = self.x.row(row);
            // SAFETY: every row belongs to one piece.
            let out = unsafe { self.out.row(row) };
            match self.activation {
                Activation::SiluGated { gate_scale } => silu_gated(s, x, gate_scale, out),
                Activation::ReluSquared => relu_squared(s, x, out),
            }
        }
    }
}

#[inline(always)]
fn silu_gated<S: Simd>(s: S, x: &[f32], gate_scale: f32, out: &mut [f32]) {
    let (gate, up) = x.split_at(out.len());
    let scale = s.splat(gate_scale);
    for ((gate, up), out) in gate
        .chunks(LANES)
        .zip(up.chunks(LANES))
        .zip(out.chunks_mut(LANES))
    {
        let gate = s.silu(s.mul(load_part(s, gate), scale));
        store_part(s, s.mul(gate, load_part(s, up)), out);
    }
}

#[inline(always)]
fn relu_squared<S: Simd>(s: S, x: &[f32], out: &mut [f32]) {
    for (x, out) in x.chunks(LANES).zip(out.chunks_mut(LANES)) {
        let positive = s.max(load_part(s, x), s.splat(0.0));
        store_part(s, s.mul(positive, positive), out);
    }
}
