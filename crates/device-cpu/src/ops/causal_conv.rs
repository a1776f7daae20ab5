//! Depthwise causal convolution over time with SiLU.
//!
//! A slot keeps raw inputs by position: enough for the window before any token that may come next, of those that are
//! certain or may be taken back.

use super::vector::{load_part, store_part};
use super::{RequestTokens, Step, pieces};
use crate::caches::CpuStateCache;
use crate::pool::Pool;
use crate::simd::{Kernel, LANES, Simd};
use crate::storage::{In, Out};
use std::ops::Range;

/// Channels of a piece; their taps are transposed once and then serve every token.
const CHANNELS: usize = 128;

/// Most taps.
pub(crate) const MAX_WIDTH: usize = 16;

/// The number of taps that nearly all models have; loops over it are unrolled.
const USUAL_WIDTH: usize = 4;

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

/// `out[t] = silu(bias + Σ_j weight[j] · x[t - (width - 1) + j])`, taps in ascending order; leaves the inputs
/// of every request that later steps need.
pub(crate) fn causal_conv(pool: &Pool, args: &Conv<'_>) {
    let blocks = args.x.columns.div_ceil(CHANNELS);
    let total_ns = args.x.rows * args.x.columns + args.weight.len() / 4;
    let requests = &args.step.recurrent_requests(args.x.rows, args.cache.shape());
    pieces(pool, blocks, total_ns, |block| {
        let first = block * CHANNELS;
        let channels = first..args.x.columns.min(first + CHANNELS);
        pool.instructions().run(Piece {
            args,
            requests,
            channels,
        });
    });
}

struct Piece<'a> {
    args: &'a Conv<'a>,
    requests: &'a [RequestTokens],
    channels: Range<usize>,
}

impl Kernel for Piece<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.args.cache.shape().conv_width {
            USUAL_WIDTH => self.requests::<S, USUAL_WIDTH>(s, USUAL_WIDTH),
            width => self.requests::<S, MAX_WIDTH>(s, width),
        }
    }
}

/// Taps `[channels][width]` to `[width][channels]`.
#[inline(always)]
fn transpose(weight: &[f32], width: usize, taps: &mut [[f32; CHANNELS]]) {
    // In one pass, the loads of four taps become vectors.
    if let ([a, b, c, d], (weight, [])) = (&mut *taps, weight.as_chunks::<USUAL_WIDTH>()) {
        let taps = a.iter_mut().zip(b).zip(c).zip(d);
        for ((((a, b), c), d), weight) in taps.zip(weight) {
            (*a, *b, *c, *d) = (weight[0], weight[1], weight[2], weight[3]);
        }
        return;
    }
    for (j, taps) in taps.iter_mut().enumerate() {
        for (tap, weight) in taps.iter_mut().zip(weight.chunks_exact(width)) {
            *tap = weight[j];
        }
    }
}

impl Piece<'_> {
    /// All requests, with room for `W` taps.
    #[inline(always)]
    fn requests<S: Simd, const W: usize>(&self, s: S, width: usize) {
        let mut taps = [[0.0; CHANNELS]; W];
        let weight = &self.args.weight[self.channels.start * width..self.channels.end * width];
        transpose(weight, width, &mut taps[..width]);
        for tokens in self.requests {
            self.request(s, tokens, &taps[..width]);
        }
    }

    #[inline(always)]
    fn request<S: Simd>(&self, s: S, tokens: &RequestTokens, taps: &[[f32; CHANNELS]]) {
        let (cache, before) = (self.args.cache, taps.len() - 1);
        let positions = tokens.positions.clone();
        if let Some(snapshot) = tokens.restore {
            for place in 0..before {
                // SAFETY: these channels belong to this piece.
                let saved = unsafe { cache.saved_input(snapshot, place, self.channels.clone()) };
                self.keep(tokens.slot, positions.start - before + place, saved);
            }
        }
        for position in positions.clone() {
            let mut inputs: [&[f32]; MAX_WIDTH] = [&[]; MAX_WIDTH];
            for (tap, input) in inputs.iter_mut().enumerate().take(taps.len()) {
                *input = self.seen(tokens, (position + tap).checked_sub(before));
            }
            self.token(s, tokens.row(position), &inputs[..taps.len()], taps);
        }
        if let Some((position, snapshot)) = tokens.snapshot {
            for place in 0..before {
                // SAFETY: a snapshot is written for one request, and these channels of it by this piece.
                let saved = unsafe { cache.saved_input(snapshot, place, self.channels.clone()) };
                saved.copy_from_slice(self.seen(tokens, Some(position - before + place)));
            }
        }
        let room = cache.shape().conv_inputs();
        for position in positions.start.max(positions.end.saturating_sub(room))..positions.end {
            self.keep(tokens.slot, position, self.input(tokens.row(position)));
        }
    }

    /// The input at a position: of this step, of one before, or zero before the sequence.
    #[inline(always)]
    fn seen(&self, tokens: &RequestTokens, position: Option<usize>) -> &[f32] {
        match position {
            None => &[0.0; CHANNELS][..self.channels.len()],
            // SAFETY: a slot belongs to one request, and these channels of it to this piece, which writes when it has
            // read all it needs.
            Some(position) if position < tokens.positions.start => unsafe {
                self.args
                    .cache
                    .input(tokens.slot, position, self.channels.clone())
            },
            Some(position) => self.input(tokens.row(position)),
        }
    }

    /// Keeps an input for later steps.
    #[inline(always)]
    fn keep(&self, slot: usize, position: usize, input: &[f32]) {
        // SAFETY: as in `seen`; the input is in a tensor or a snapshot.
        let kept = unsafe { self.args.cache.input_mut(slot, position, self.channels.clone()) };
        kept.copy_from_slice(input);
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
