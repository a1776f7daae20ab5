//! The Mamba2 state space recurrence, on the grid.

use super::grid::{self, Recurrence, Rule};
use super::vector::softplus;
use crate::pool::Pool;
use crate::simd::Simd;
use crate::storage::In;

/// What decays and steps of time come from.
#[derive(Clone, Copy)]
pub(crate) struct Space<'a> {
    pub(crate) dt: In<'a>,
    pub(crate) decay: &'a [f32],
    pub(crate) skip: &'a [f32],
    pub(crate) dt_bias: &'a [f32],
    pub(crate) dt_limits: (f32, f32),
}

/// Advances the states of all requests by their tokens: keys are `B`, queries `C`, values `x`.
pub(crate) fn state_space(pool: &Pool, args: &Recurrence<'_, Space<'_>>) {
    grid::recur(pool, args);
}

impl Rule for Space<'_> {
    const CORRECTS: bool = false;

    #[inline(always)]
    fn key<S: Simd>(_: S, key: &[f32], out: &mut [f32]) {
        out.copy_from_slice(key);
    }

    #[inline(always)]
    fn query<S: Simd>(_: S, query: &[f32], out: &mut [f32]) {
        out.copy_from_slice(query);
    }

    fn factors(&self, row: usize, head: usize) -> (f32, f32) {
        let (least, most) = self.dt_limits;
        let dt = softplus(self.dt.row(row)[head] + self.dt_bias[head])
            .max(least)
            .min(most);
        (dt * self.decay[head], dt)
    }

    fn skip(&self, head: usize) -> f32 {
        self.skip[head]
    }
}
