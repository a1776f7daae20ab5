//! Chooses experts for each row.

use super::split;
use super::vector::{load_part, sigmoid, store_part};
use crate::pool::Pool;
use crate::simd::{Kernel, LANES, Simd};
use crate::storage::{In, Out, Storage};

/// How logits become scores and weights.
#[derive(Clone, Copy)]
pub(crate) enum Scores<'a> {
    /// Softmax over all experts.
    Softmax { renormalise: bool },
    /// Sigmoid per expert; see [`paceline_device::RouteScores::Sigmoid`].
    Sigmoid {
        bias: &'a [f32],
        groups: usize,
        kept_groups: usize,
        renormalise: bool,
        scale: f32,
    },
}

/// Views of [`route`].
#[derive(Clone, Copy)]
pub(crate) struct Route<'a> {
    pub(crate) logits: In<'a>,
    pub(crate) scores: Scores<'a>,
    pub(crate) ids: &'a Storage<i32>,
    pub(crate) weights: Out<'a>,
    /// Experts of a row by score.
    pub(crate) chosen: usize,
    /// Whether the last logit is the gate of one more expert, which every row has behind them.
    pub(crate) shared: bool,
}

/// Added to the sum of chosen sigmoids before dividing by it.
const SUM_EPS: f32 = 1e-20;

/// The `chosen` best experts of each row and their weights, best first, lower ids first among equals.
pub(crate) fn route(pool: &Pool, args: Route<'_>) {
    split(pool, args.weights.rows, 4 * args.logits.columns, |rows| {
        let mut best = Vec::new();
        let mut scratch = vec![0.0; args.logits.columns - usize::from(args.shared)];
        for row in rows {
            let logits = args.logits.row(row);
            assert!(
                logits.iter().all(|logit| !logit.is_nan()),
                "route: the logits of row {row} are not numbers"
            );
            let (logits, gate) = logits.split_at(logits.len() - usize::from(args.shared));
            let places = args.chosen + gate.len();
            // SAFETY: every row belongs to one piece.
            let (weights, ids) = unsafe {
                let ids = args.ids.slice_mut(row * places..(row + 1) * places);
                (args.weights.row(row), ids)
            };
            let (weights, shared_weight) = weights.split_at_mut(args.chosen);
            let (ids, shared_id) = ids.split_at_mut(args.chosen);
            if let ([gate], [weight], [id]) = (gate, shared_weight, shared_id) {
                (*weight, *id) = (sigmoid(*gate), logits.len() as i32);
            }
            match args.scores {
                Scores::Softmax { renormalise } => {
                    choose(logits, args.chosen, &mut best);
                    pool.instructions().run(Softmax(logits, &mut scratch));
                    take(&best, &scratch, ids, weights);
                    if renormalise {
                        divide_by_sum(weights, 0.0);
                    }
                }
                Scores::Sigmoid { .. } => by_sigmoid(&args, logits, &mut scratch, (ids, weights)),
            }
        }
    });
}

fn by_sigmoid(
    args: &Route<'_>,
    logits: &[f32],
    scratch: &mut [f32],
    (ids, weights): (&mut [i32], &mut [f32]),
) {
    let Scores::Sigmoid {
        bias,
        groups,
        kept_groups,
        renormalise,
        scale,
    } = args.scores
    else {
        return;
    };
    let mut best = Vec::new();
    for ((score, logit), bias) in scratch.iter_mut().zip(logits).zip(bias) {
        *score = sigmoid(*logit) + bias;
    }
    if kept_groups < groups {
        let size = logits.len() / groups;
        let strengths: Vec<f32> = scratch
            .chunks(size)
            .map(|group| best_two(group, &mut best))
            .collect();
        choose(&strengths, kept_groups, &mut best);
        for (index, group) in scratch.chunks_mut(size).enumerate() {
            if !best.contains(&index) {
                group.fill(f32::NEG_INFINITY);
            }
        }
    }
    choose(scratch, args.chosen, &mut best);
    for (score, logit) in scratch.iter_mut().zip(logits) {
        *score = sigmoid(*logit);
    }
    take(&best, scratch, ids, weights);
    if renormalise {
        divide_by_sum(weights, SUM_EPS);
    }
    for weight in weights {
        *weight *= scale;
    }
}

fn best_two(group: &[f32], best: &mut Vec<usize>) -> f32 {
    choose(group, 2.min(group.len()), best);
    best.iter().map(|index| group[*index]).sum()
}

/// Indices of the `count` largest scores, largest first, lower indices first among equals.
fn choose(scores: &[f32], count: usize, best: &mut Vec<usize>) {
    best.clear();
    for (index, score) in scores.iter().enumerate() {
        if best.len() == count {
            if best.last().is_none_or(|worst| *score <= scores[*worst]) {
                continue;
            }
            best.pop();
        }
        // Later indices go behind equal scores.
        let place = best.partition_point(|other| scores[*other] >= *score);
        best.insert(place, index);
    }
}

fn take(best: &[usize], scores: &[f32], ids: &mut [i32], weights: &mut [f32]) {
    for ((index, id), weight) in best.iter().zip(ids).zip(weights) {
        *id = *index as i32;
        *weight = scores[*index];
    }
}

fn divide_by_sum(weights: &mut [f32], eps: f32) {
    let sum = weights.iter().sum::<f32>() + eps;
    for weight in weights {
        *weight /= sum;
    }
}

/// Softmax of the first slice into the second.
struct Softmax<'a>(&'a [f32], &'a mut [f32]);

impl Kernel for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self(logits, out) = self;
        let max = logits
            .iter()
            .fold(f32::NEG_INFINITY, |max, logit| max.max(*logit));
        let mut sum = 0.0;
        for (logits, out) in logits.chunks(LANES).zip(out.chunks_mut(LANES)) {
            store_part(s, s.exp(s.sub(load_part(s, logits), s.splat(max))), out);
            for value in &*out {
                sum += value;
            }
        }
        for out in out.chunks_mut(LANES) {
            store_part(s, s.div(load_part(s, out), s.splat(sum)), out);
        }
    }
}
