//! Depthwise causal convolution over time with SiLU.
//!
//! A slot's window ends with the inputs of the last step's drafts. Those that held are part of the past, so the
//! past is read that much further on, and what did not hold is overwritten. A row that looks ahead adds its inputs
//! behind that past and moves nothing.

use super::vector::{load_part, store_part};
use super::{RequestTokens, Start, Step, pieces};
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
/// of every request that later steps need in its window.
pub(crate) fn causal_conv(pool: &Pool, args: &Conv<'_>) {
    let blocks = args.x.columns.div_ceil(CHANNELS);
    let work = args.x.rows * args.x.columns + args.weight.len();
    pieces(pool, blocks, work, |block| {
        let first = block * CHANNELS;
        let channels = first..args.x.columns.min(first + CHANNELS);
        pool.instructions().run(Piece { args, channels });
    });
}

struct Piece<'a> {
    args: &'a Conv<'a>,
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
        for request in 0..self.args.step.requests {
            self.request(s, request, &taps[..width]);
        }
    }

    #[inline(always)]
    fn request<S: Simd>(&self, s: S, request: usize, taps: &[[f32; CHANNELS]]) {
        let room = self.args.cache.shape().drafts;
        let tokens = self.args.step.request(request, self.args.x.rows, room);
        let before = taps.len() - 1;
        if tokens.rows.is_empty() {
            return;
        }
        self.start(&tokens);
        let mut inputs: [&[f32]; MAX_WIDTH] = [&[]; MAX_WIDTH];
        for row in tokens.rows.clone() {
            // The current token is `before` inputs after the first one it meets.
            let first = tokens.replay + row - tokens.rows.start;
            for (j, input) in inputs.iter_mut().enumerate().take(taps.len()) {
                *input = self.seen(&tokens, before, first + j);
            }
            self.token(s, row, &inputs[..taps.len()], taps);
        }
        if let Some((folds, snapshot)) = tokens.snapshot() {
            for row in 0..before {
                // SAFETY: a snapshot is written for one request, and these channels of it by this piece.
                let saved = unsafe { self.args.cache.saved_window(snapshot, row, self.channels.clone()) };
                saved.copy_from_slice(self.seen(&tokens, before, folds + row));
            }
        }
        let moved = tokens.advance();
        if moved > 0 {
            // Inputs move to the front, so none is overwritten before it has been moved.
            for row in 0..before {
                self.window(tokens.slot, row)
                    .copy_from_slice(self.seen(&tokens, before, moved + row));
            }
        }
        for (index, row) in tokens.recorded() {
            self.window(tokens.slot, before + index)
                .copy_from_slice(self.input(row));
        }
    }

    /// Makes the window the one that the request starts from.
    #[inline(always)]
    fn start(&self, tokens: &RequestTokens) {
        let cache = self.args.cache;
        for row in 0..cache.shape().conv_width - 1 {
            match tokens.start {
                Start::Kept => return,
                Start::Zero => self.window(tokens.slot, row).fill(0.0),
                Start::Snapshot(snapshot) => {
                    // SAFETY: these channels belong to this piece.
                    let saved = unsafe { cache.saved_window(snapshot, row, self.channels.clone()) };
                    self.window(tokens.slot, row).copy_from_slice(saved);
                }
            }
        }
    }

    /// An input of the request, counted from the start of its window: `before` inputs, those that are replayed,
    /// and those of this step.
    #[inline(always)]
    fn seen(&self, tokens: &RequestTokens, before: usize, index: usize) -> &[f32] {
        let past = before + tokens.replay;
        if index < past {
            // SAFETY: a slot belongs to one request, and these channels of it to this piece, which writes none
            // of those it reads.
            unsafe { self.args.cache.window(tokens.slot, index, self.channels.clone()) }
        } else {
            self.input(tokens.rows.start + index - past)
        }
    }

    #[inline(always)]
    #[expect(
        clippy::mut_from_ref,
        reason = "exclusive by the division into channels, not by borrow"
    )]
    fn window(&self, slot: usize, row: usize) -> &mut [f32] {
        // SAFETY: as in `seen`; a row is moved to another one.
        unsafe { self.args.cache.window_mut(slot, row, self.channels.clone()) }
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
