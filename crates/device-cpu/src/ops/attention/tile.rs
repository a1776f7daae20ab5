//! Tiles of keys and values, and the arithmetic of one.

use super::TILE;
use crate::kv::CpuKvCache;
use crate::simd::{PANEL, Simd};
use std::ops::Range;

/// Panels of a tile's keys.
const PANELS: usize = TILE / PANEL;

/// Where the keys and values of a tile's positions are.
pub(super) struct Tile {
    /// Panels of positions, the first dimension of each; the next dimension is `stride` further.
    keys: [*const f32; PANELS],
    stride: usize,
    values: [*const f32; TILE],
}

/// Room for the keys and values of a tile that cannot be read where they are stored.
#[derive(Default)]
pub(super) struct Wide {
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Wide {
    pub(super) fn fit(&mut self, head_dim: usize) {
        let elements = TILE * head_dim.next_multiple_of(PANEL);
        for numbers in [&mut self.keys, &mut self.values] {
            numbers.resize(numbers.len().max(elements), 0.0);
        }
    }
}

impl Tile {
    /// Finds `positions` of a head, at most [`TILE`] of them. What is not stored in full width, or in parts that are too
    /// short, is copied.
    ///
    /// # Safety
    /// Only on the stream, while nothing writes the blocks, and for as long as `wide` is left alone.
    #[inline(always)]
    pub(super) unsafe fn find<S: Simd>(
        s: S,
        cache: &CpuKvCache,
        (blocks, head): (&[i32], usize),
        positions: Range<usize>,
        wide: &mut Wide,
    ) -> Self {
        let shape = cache.shape();
        let width = shape.head_dim.next_multiple_of(PANEL);
        let mut tile = Self {
            keys: [wide.keys.as_ptr(), wide.keys.as_ptr().wrapping_add(PANEL)],
            stride: TILE,
            values: [wide.values.as_ptr(); TILE],
        };
        let mut at = positions.start;
        while at < positions.end {
            let run = cache.run(blocks, head, (at, positions.end));
            let index = at - positions.start;
            if let Some(keys) = cache.keys_in_place(run) {
                tile.stride = shape.block_size;
                for panel in 0..run.len.div_ceil(PANEL) {
                    tile.keys[index / PANEL + panel] = keys.wrapping_add(panel * PANEL);
                }
            } else {
                // SAFETY: forwarded.
                unsafe { cache.widen_keys(s, run, &mut wide.keys[index..], TILE) };
            }
            let (first, apart) = if let Some(values) = cache.values_in_place(run) {
                (values, shape.head_dim)
            } else {
                let to = &mut wide.values[index * width..];
                // SAFETY: forwarded.
                unsafe { cache.widen_values(s, run, to, width) };
                (to.as_ptr(), width)
            };
            for i in 0..run.len {
                tile.values[index + i] = first.wrapping_add(i * apart);
            }
            at += run.len;
        }
        if positions.len() <= PANEL {
            // Scores beyond the last position are dropped, so any keys will do.
            tile.keys[1] = tile.keys[0];
        }
        tile
    }

    /// Asks for positions that come next, all at once: where what is stored is not what is read, their lines are others.
    #[inline(always)]
    pub(super) fn ask_for<S: Simd>(
        s: S,
        cache: &CpuKvCache,
        (blocks, head): (&[i32], usize),
        positions: Range<usize>,
    ) {
        let mut at = positions.start;
        while at < positions.end {
            let run = cache.run(blocks, head, (at, positions.end));
            cache.prefetch(s, run);
            at += run.len;
        }
    }

    /// `out[r][i] = q[r] · keys[i]`, one chain each over the dimensions; what is beyond the tile's positions is not
    /// defined. If `ASK` says so, it asks for the keys of the next tile on the way, a line for each that is read: asked for
    /// all at once, they would keep the machine from reading anything else until most of them are there.
    ///
    /// # Safety
    /// The tile is still there, and queries and keys have `head_dim` numbers.
    #[inline(always)]
    pub(super) unsafe fn scores<S: Simd, const R: usize, const ASK: bool>(
        &self,
        s: S,
        (q, head_dim): ([*const f32; R], usize),
        next: &Self,
    ) -> [[f32; TILE]; R] {
        let mut sums = [[s.panel_splat(0.0); PANELS]; R];
        for d in 0..head_dim {
            let mut keys = [s.panel_splat(0.0); PANELS];
            for p in 0..PANELS {
                // SAFETY: forwarded.
                keys[p] = unsafe { s.panel_load(self.keys[p].add(d * self.stride)) };
                if ASK {
                    s.prefetch(next.keys[p].wrapping_add(d * next.stride).cast());
                }
            }
            for r in 0..R {
                // SAFETY: forwarded.
                let q = s.panel_splat(unsafe { *q[r].add(d) });
                for p in 0..PANELS {
                    sums[r][p] = s.panel_mul_add(q, keys[p], sums[r][p]);
                }
            }
        }
        let mut scores = [[0.0; TILE]; R];
        for r in 0..R {
            for p in 0..PANELS {
                // SAFETY: a row of scores has as many panels.
                unsafe { s.panel_store(sums[r][p], scores[r].as_mut_ptr().add(p * PANEL)) };
            }
        }
        scores
    }

    /// `out[r] = out[r] · rescale[r] + Σ weights[r][i] · values[i]` over the first `count` positions, in order, for `W`
    /// panels of the outputs from number `first` on. If `ASK` says so, it asks for the same panels of the next tile's
    /// values on the way.
    ///
    /// # Safety
    /// The tile is still there; outputs and values have these panels.
    #[inline(always)]
    pub(super) unsafe fn accumulate<S: Simd, const R: usize, const W: usize, const ASK: bool>(
        &self,
        s: S,
        (weights, count): (&[[f32; TILE]; R], usize),
        rescale: [f32; R],
        (outputs, first): ([*mut f32; R], usize),
        next: &Self,
    ) {
        let mut sums = [[s.panel_splat(0.0); W]; R];
        for r in 0..R {
            let rescale = s.panel_splat(rescale[r]);
            for w in 0..W {
                // SAFETY: forwarded.
                let old = unsafe { s.panel_load(outputs[r].add(first + w * PANEL)) };
                sums[r][w] = s.panel_mul_add(old, rescale, sums[r][w]);
            }
        }
        for i in 0..count.min(TILE) {
            let mut values = [s.panel_splat(0.0); W];
            for w in 0..W {
                // SAFETY: forwarded.
                values[w] = unsafe { s.panel_load(self.values[i].add(first + w * PANEL)) };
                if ASK {
                    s.prefetch(next.values[i].wrapping_add(first + w * PANEL).cast());
                }
            }
            for r in 0..R {
                let weight = s.panel_splat(weights[r][i]);
                for w in 0..W {
                    sums[r][w] = s.panel_mul_add(weight, values[w], sums[r][w]);
                }
            }
        }
        for r in 0..R {
            for w in 0..W {
                // SAFETY: forwarded.
                unsafe { s.panel_store(sums[r][w], outputs[r].add(first + w * PANEL)) };
            }
        }
    }
}
