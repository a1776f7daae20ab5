//! RMS norm by groups of columns, combined with a SiLU gate.

use super::split;
use super::vector::{inverse_rms, load_part, scale_in_place, scale_into, store_part};
use crate::pool::Pool;
use crate::simd::{Kernel, LANES, Simd};
use crate::storage::{In, Out};
use paceline_device::GateOrder;
use std::ops::Range;

/// Views and numbers of [`gated_norm`].
#[derive(Clone, Copy)]
pub(crate) struct Gated<'a> {
    pub(crate) x: In<'a>,
    pub(crate) gate: In<'a>,
    pub(crate) weight: Option<&'a [f32]>,
    pub(crate) group: usize,
    pub(crate) order: GateOrder,
    pub(crate) eps: f32,
    pub(crate) out: Out<'a>,
}

/// `norm(x) · silu(gate)`, `norm(x · silu(gate))` or, without a norm weight, `x · silu(gate)`.
pub(crate) fn gated_norm(pool: &Pool, args: Gated<'_>) {
    split(pool, args.out.rows, args.x.columns, |rows| {
        pool.instructions().run(GatedRows(args, rows));
    });
}

struct GatedRows<'a>(Gated<'a>, Range<usize>);

impl Kernel for GatedRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self(args, rows) = self;
        for row in rows {
            // SAFETY: every row belongs to one piece.
            let out = unsafe { args.out.row(row) };
            let groups = args.x.row(row).chunks(args.group);
            let gates = args.gate.row(row).chunks(args.group);
            for (index, ((x, gate), out)) in groups.zip(gates).zip(out.chunks_mut(args.group)).enumerate() {
                let weight = args.weight.map(|weight| {
                    let start = if weight.len() == args.group {
                        0
                    } else {
                        index * args.group
                    };
                    &weight[start..start + args.group]
                });
                one_group(s, &args, x, gate, (weight, out));
            }
        }
    }
}

#[inline(always)]
fn one_group<S: Simd>(
    s: S,
    args: &Gated<'_>,
    x: &[f32],
    gate: &[f32],
    (weight, out): (Option<&[f32]>, &mut [f32]),
) {
    match (weight, args.order) {
        (Some(weight), GateOrder::NormThenGate) => {
            scale_into(s, x, inverse_rms(s, x, args.eps), weight, out);
            gate_in_place(s, out, gate);
        }
        (weight, _) => {
            out.copy_from_slice(x);
            gate_in_place(s, out, gate);
            if let Some(weight) = weight {
                let scale = inverse_rms(s, out, args.eps);
                scale_in_place(s, out, scale, weight);
            }
        }
    }
}

/// `x ← x · silu(gate)`.
#[inline(always)]
fn gate_in_place<S: Simd>(s: S, x: &mut [f32], gate: &[f32]) {
    for (x, gate) in x.chunks_mut(LANES).zip(gate.chunks(LANES)) {
        let gated = s.mul(load_part(s, x), s.silu(load_part(s, gate)));
        store_part(s, gated, x);
    }
}
