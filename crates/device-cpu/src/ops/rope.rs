//! Cosines and sines of the rotary position embedding, once per step.

use super::split;
use crate::pool::Pool;
use crate::storage::Out;
use paceline_device::abi::TokenRow;

/// `out[t] = cos(p·f) | sin(p·f)`, times `factor`. The angle is an f32 product.
pub(crate) fn rope_angles(pool: &Pool, tokens: &[TokenRow], frequencies: &[f32], factor: f32, out: Out<'_>) {
    let n = frequencies.len();
    split(pool, out.rows, 20 * n, |rows| {
        for row in rows {
            // SAFETY: every row belongs to one piece.
            let (cosines, sines) = unsafe { out.row(row) }.split_at_mut(n);
            let position = tokens[row].position as f32;
            for i in 0..n {
                let (sine, cosine) = (position * frequencies[i]).sin_cos();
                cosines[i] = cosine * factor;
                sines[i] = sine * factor;
            }
        }
    });
}
