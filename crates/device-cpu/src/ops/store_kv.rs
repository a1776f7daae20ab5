//! Per-head norm and rotation of queries and keys; keys and values go into the blocks.

use super::vector::{inverse_rms, load_part, scale_in_place, store_part};
use super::{Step, split};
use crate::kv::CpuKvCache;
use crate::pool::Pool;
use crate::simd::{Kernel, LANES, Simd};
use crate::storage::{In, Out};
use std::cell::RefCell;
use std::ops::Range;

/// Norm weights of queries and keys.
#[derive(Clone, Copy)]
pub(crate) struct Norms<'a> {
    pub(crate) q: &'a [f32],
    pub(crate) k: &'a [f32],
    pub(crate) eps: f32,
}

/// Views of [`store_kv`].
#[derive(Clone, Copy)]
pub(crate) struct StoreKv<'a> {
    pub(crate) q: Out<'a>,
    pub(crate) k: In<'a>,
    pub(crate) v: In<'a>,
    pub(crate) norms: Option<Norms<'a>>,
    pub(crate) angles: Option<In<'a>>,
    pub(crate) cache: &'a CpuKvCache,
    pub(crate) step: Step<'a>,
}

/// Normalises and rotates queries in place, and stores keys (normalised, rotated) and values.
pub(crate) fn store_kv(pool: &Pool, args: &StoreKv<'_>) {
    let token_ns = args.q.columns / 2 + args.k.columns;
    split(pool, args.q.rows, token_ns, |rows| {
        pool.instructions().run(StoreRows(args, rows));
    });
}

thread_local! {
    static KEY: RefCell<Vec<f32>> = RefCell::default();
}

struct StoreRows<'a>(&'a StoreKv<'a>, Range<usize>);

impl Kernel for StoreRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self(args, rows) = self;
        let head_dim = args.cache.shape().head_dim;
        // A key before it is rounded to what it is stored as.
        let mut key = KEY.take();
        key.resize(head_dim, 0.0);
        for row in rows {
            let angles = args.angles.map(|angles| angles.row(row));
            // SAFETY: every row belongs to one piece.
            let q = unsafe { args.q.row(row) };
            let norm = args.norms.map(|norms| (norms.q, norms.eps));
            for head in q.chunks_exact_mut(head_dim) {
                norm_and_rotate(s, head, norm, angles);
            }
            store_row(s, args, row, (angles, &mut key));
        }
        KEY.set(key);
    }
}

/// Keys and values of one token; `key` is scratch.
#[inline(always)]
fn store_row<S: Simd>(s: S, args: &StoreKv<'_>, row: usize, (angles, key): (Option<&[f32]>, &mut [f32])) {
    let head_dim = args.cache.shape().head_dim;
    let token = args.step.tokens[row];
    let blocks = args.step.blocks(token.request as usize);
    let position = token.position as usize;
    let norm = args.norms.map(|norms| (norms.k, norms.eps));
    let keys = args.k.row(row).chunks_exact(head_dim);
    let values = args.v.row(row).chunks_exact(head_dim);
    for (head, (k, v)) in keys.zip(values).enumerate() {
        key.copy_from_slice(k);
        norm_and_rotate(s, key, norm, angles);
        let place = args.cache.run(blocks, head, (position, position + 1));
        // SAFETY: a position of a request belongs to one token, so to one piece.
        unsafe { args.cache.store(s, place, key, v) };
    }
}

#[inline(always)]
fn norm_and_rotate<S: Simd>(s: S, head: &mut [f32], norm: Option<(&[f32], f32)>, angles: Option<&[f32]>) {
    if let Some((weight, eps)) = norm {
        let scale = inverse_rms(s, head, eps);
        scale_in_place(s, head, scale, weight);
    }
    if let Some(angles) = angles {
        rotate(s, head, angles);
    }
}

/// Rotates element `i` with `i + n` for `i < n`; later elements stay.
#[inline(always)]
fn rotate<S: Simd>(s: S, head: &mut [f32], angles: &[f32]) {
    let n = angles.len() / 2;
    let (cosines, sines) = angles.split_at(n);
    let (first, rest) = head.split_at_mut(n);
    let second = &mut rest[..n];
    for (((first, second), cosines), sines) in first
        .chunks_mut(LANES)
        .zip(second.chunks_mut(LANES))
        .zip(cosines.chunks(LANES))
        .zip(sines.chunks(LANES))
    {
        let (x, y) = (load_part(s, first), load_part(s, second));
        let (cosine, sine) = (load_part(s, cosines), load_part(s, sines));
        let rotated = s.sub(s.mul(x, cosine), s.mul(y, sine));
        store_part(s, rotated, first);
        store_part(s, s.mul_add(x, sine, s.mul(y, cosine)), second);
    }
}
