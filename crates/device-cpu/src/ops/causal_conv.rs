//! Depthwise causal convolution over time with SiLU.

use super::vector::{load_part, store_part};
use super::{Step, pieces};
use crate::caches::CpuStateCache;
use crate::pool::Pool;
use crate::simd::{Kernel, LANES, Simd};
use crate::storage::{In, Out};
use std::ops::Range;

/// Channels of a piece; their taps are transposed once and then serve every token.
const CHANNELS: usize = 128;

/// Most taps.
pub(crate) const MAX_WIDTH: usize = 16;

/// Views of [`causal_conv`].
#[derive(Clone, Copy)]
pub(crate) struct Conv<'a> {
    pub(crate) x: In<'a>,
    pub(crate) weight: &'a [f32],
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) cache: &'a CpuStateCache,
    pub(crate) out: Out<'a>,
    pub(crate) step: Step<'a>,
}

/// `out[t] = silu(bias + Σ_j weight[j] · x[t - (width - 1) + j])`, taps in ascending order; leaves the last
/// inputs of every request in its window.
pub(crate) fn causal_conv(pool: &Pool, args: Conv<'_>) {
    let blocks = args.x.columns.div_ceil(CHANNELS);
    let work = args.x.rows * args.x.columns + args.weight.len();
    pieces(pool, blocks, work, |block| {
        let first = block * CHANNELS;
        let channels = first..args.x.columns.min(first + CHANNELS);
        pool.instructions().run(Piece { args, channels });
    });
}

struct Piece<'a> {
    args: Conv<'a>,
    channels: Range<usize>,
}

impl Kernel for Piece<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.args.cache.shape().conv_width;
        let mut taps = [[0.0; CHANNELS]; MAX_WIDTH];
        let (taps, _) = taps.split_at_mut(width);
        for (i, channel) in self.channels.clone().enumerate() {
            for (j, tap) in taps.iter_mut().enumerate() {
                tap[i] = self.args.weight[channel * width + j];
            }
        }
        for request in 0..self.args.step.requests {
            self.request(s, request, taps);
        }
    }
}

impl Piece<'_> {
    #[inline(always)]
    fn request<S: Simd>(&self, s: S, request: usize, taps: &[[f32; CHANNELS]]) {
        let tokens = self.args.step.request(request, self.args.x.rows);
        let before = taps.len() - 1;
        let count = tokens.rows.len();
        if count == 0 {
            return;
        }
        // SAFETY: a slot belongs to one request, and these channels of it to this piece.
        let window = |row: usize| unsafe { self.args.cache.window(tokens.slot, row, self.channels.clone()) };
        if tokens.fresh {
            (0..before).for_each(|row| window(row).fill(0.0));
        }
        let mut inputs: [&[f32]; MAX_WIDTH] = [&[]; MAX_WIDTH];
        for token in 0..count {
            for (j, input) in inputs.iter_mut().enumerate().take(taps.len()) {
                *input = if token + j < before {
                    window(token + j)
                } else {
                    self.input(tokens.rows.start + token + j - before)
                };
            }
            self.token(s, tokens.rows.start + token, &inputs[..taps.len()], taps);
        }
        for row in 0..before {
            if count + row < before {
                window(row).copy_from_slice(window(count + row));
            } else {
                window(row).copy_from_slice(self.input(tokens.rows.start + count + row - before));
            }
        }
    }

    #[inline(always)]
    fn input(&self, row: usize) -> &[f32] {
        &self.args.x.row(row)[self.channels.clone()]
    }

    #[inline(always)]
    fn token<S: Simd>(&self, s: S, row: usize, inputs: &[&[f32]], taps: &[[f32; CHANNELS]]) {
        // SAFETY: these channels belong to this piece.
        let out = unsafe { self.args.out.part(row, self.channels.clone()) };
        let bias = self.args.bias.map(|bias| &bias[self.channels.clone()]);
        let width = out.len();
        assert!(width <= CHANNELS && inputs.iter().all(|input| input.len() == width));
        for start in (0..width).step_by(LANES) {
            let mut sum = match bias {
                Some(bias) => load_part(s, &bias[start..]),
                None => s.splat(0.0),
            };
            for (input, tap) in inputs.iter().zip(taps) {
                let (tap, input) = if start + LANES <= width {
                    // SAFETY: eight elements from `start` on, as asserted.
                    unsafe {
                        (
                            s.load_ptr(tap.as_ptr().add(start)),
                            s.load_ptr(input.as_ptr().add(start)),
                        )
                    }
                } else {
                    (load_part(s, &tap[start..width]), load_part(s, &input[start..]))
                };
                sum = s.mul_add(tap, input, sum);
            }
            store_part(s, s.silu(sum), &mut out[start..]);
        }
    }
}
