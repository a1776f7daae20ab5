//! Loops over slices that the kernels share.

use crate::simd::{LANES, Simd};

/// Up to eight elements, the missing lanes zero.
#[inline(always)]
pub(crate) fn load_part<S: Simd>(s: S, from: &[f32]) -> S::F {
    load_padded(s, from, 0.0)
}

/// Up to eight elements, the missing lanes `padding`.
#[inline(always)]
pub(crate) fn load_padded<S: Simd>(s: S, from: &[f32], padding: f32) -> S::F {
    if let Some(full) = from.first_chunk::<LANES>() {
        return s.load(full);
    }
    let mut lanes = [padding; LANES];
    lanes[..from.len()].copy_from_slice(from);
    s.load(&lanes)
}

/// As many lanes as there is room for.
#[inline(always)]
pub(crate) fn store_part<S: Simd>(s: S, value: S::F, to: &mut [f32]) {
    if let Some(full) = to.first_chunk_mut::<LANES>() {
        s.store(value, full);
        return;
    }
    let mut lanes = [0.0; LANES];
    s.store(value, &mut lanes);
    let len = to.len();
    to.copy_from_slice(&lanes[..len]);
}

/// The sum of squares: 32 running sums, then a fixed tree, then the last few elements one by one.
#[inline(always)]
pub(crate) fn sum_of_squares<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut sums = [s.splat(0.0); 4];
    let (blocks, rest) = x.as_chunks::<{ 4 * LANES }>();
    for block in blocks {
        let (lanes, _) = block.as_chunks::<LANES>();
        for i in 0..4 {
            let v = s.load(&lanes[i]);
            sums[i] = s.mul_add(v, v, sums[i]);
        }
    }
    let (lanes, tail) = rest.as_chunks::<LANES>();
    for lane in lanes {
        let v = s.load(lane);
        sums[0] = s.mul_add(v, v, sums[0]);
    }
    let mut sum = s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])));
    for x in tail {
        sum = x.mul_add(*x, sum);
    }
    sum
}

/// `1 / sqrt(mean(x²) + eps)`.
#[inline(always)]
pub(crate) fn inverse_rms<S: Simd>(s: S, x: &[f32], eps: f32) -> f32 {
    1.0 / (sum_of_squares(s, x) / x.len() as f32 + eps).sqrt()
}

/// `x[i] ← x[i] · scale · w[i]`, the product with `scale` first.
#[inline(always)]
pub(crate) fn scale_in_place<S: Simd>(s: S, x: &mut [f32], scale: f32, w: &[f32]) {
    let factor = s.splat(scale);
    for (x, w) in x.chunks_mut(LANES).zip(w.chunks(LANES)) {
        let y = s.mul(s.mul(load_part(s, x), factor), load_part(s, w));
        store_part(s, y, x);
    }
}

/// `out[i] = x[i] · scale · w[i]`, the product with `scale` first.
#[inline(always)]
pub(crate) fn scale_into<S: Simd>(s: S, x: &[f32], scale: f32, w: &[f32], out: &mut [f32]) {
    let factor = s.splat(scale);
    for ((x, w), out) in x.chunks(LANES).zip(w.chunks(LANES)).zip(out.chunks_mut(LANES)) {
        let y = s.mul(s.mul(load_part(s, x), factor), load_part(s, w));
        store_part(s, y, out);
    }
}

/// `ln(1 + e^x)`, which is `x` where the difference no longer shows. Plain scalar code on every machine.
pub(crate) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// `1 / (1 + e^-x)`, plain scalar code on every machine.
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
