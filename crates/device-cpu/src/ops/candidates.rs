//! The tokens that top-k, top-p and min-p leave, found by selection rather than by sorting the vocabulary.

use super::sample::Row;
use super::vector::load_padded;
use crate::simd::{Instructions, Kernel, LANES, Simd};
use std::cmp::Ordering;

/// A token that may be drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) logit: f32,
    pub(crate) id: u32,
    /// Likelihood relative to the most likely token, after temperature.
    pub(crate) mass: f32,
}

/// Most likely first, lower ids first among equals.
pub(crate) fn order(a: &Candidate, b: &Candidate) -> Ordering {
    let by_logit = b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal);
    by_logit.then(a.id.cmp(&b.id))
}

/// The last token that takes part, in the order of [`order`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Boundary {
    pub(super) logit: f32,
    pub(super) id: u32,
}

impl Boundary {
    /// Everything takes part.
    pub(super) const NONE: Self = Self {
        logit: f32::NEG_INFINITY,
        id: u32::MAX,
    };
}

/// What top-k, min-p and top-p leave of a row. Never empty: the most likely token always stays.
pub(super) fn survivors(
    instructions: Instructions,
    row: &Row<'_>,
    top_k: usize,
    top_p: Option<f32>,
) -> Vec<Candidate> {
    let mut list = best(instructions, row.logits, top_k);
    list.retain_mut(|candidate| {
        let scaled = row.scaled(candidate.logit);
        candidate.mass = scaled.exp();
        scaled >= row.floor
    });
    if let Some(top_p) = top_p {
        let target = f64::from(top_p) * mass(&list);
        let kept = nucleus(&mut list, 0.0, target);
        list.truncate(kept);
    }
    list
}

/// Where the smallest most likely set with `top_p` of the mass ends.
///
/// The mass is first counted in coarse steps of likelihood; only the tokens of the step in which the boundary lies
/// are looked at one by one.
pub(super) fn boundary(instructions: Instructions, row: &Row<'_>, top_p: f32) -> Boundary {
    let steps = instructions.run(Histogram(row));
    let target = f64::from(top_p) * steps.iter().sum::<f64>();
    let mut before = 0.0;
    let mut step = 0;
    while step + 1 < STEPS && before + steps[step] < target {
        before += steps[step];
        step += 1;
    }
    let mut list = Vec::new();
    for (id, logit) in row.logits.iter().enumerate() {
        let scaled = row.scaled(*logit);
        if scaled >= row.floor && step_of(scaled) == step {
            list.push(Candidate {
                mass: scaled.exp(),
                ..candidate(*logit, id)
            });
        }
    }
    let kept = nucleus(&mut list, before, target);
    // An empty step holds no boundary: the mass before it was all there is, up to rounding.
    list.get(kept.wrapping_sub(1))
        .map_or(Boundary::NONE, |last| Boundary {
            logit: last.logit,
            id: last.id,
        })
}

/// Steps of likelihood, the last of which holds everything beyond.
const STEPS: usize = 512;

/// Steps per factor of e.
const STEPS_PER_UNIT: f32 = 25.0;

/// Which step `(logit - max) / temperature` falls into; more likely tokens are never in a later one.
#[inline(always)]
fn step_of(scaled: f32) -> usize {
    // Negative infinity saturates.
    ((scaled * -STEPS_PER_UNIT) as usize).min(STEPS - 1)
}

/// The mass of every step.
struct Histogram<'a>(&'a Row<'a>);

impl Kernel for Histogram<'_> {
    type Output = [f64; STEPS];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> [f64; STEPS] {
        let row = self.0;
        let (max, temperature) = (s.splat(row.max), s.splat(row.temperature));
        let mut steps = [0.0; STEPS];
        for logits in row.logits.chunks(LANES) {
            let x = load_padded(s, logits, f32::NEG_INFINITY);
            let scaled = s.div(s.sub(x, max), temperature);
            let (mut places, mut masses) = ([0.0; LANES], [0.0; LANES]);
            s.store(scaled, &mut places);
            s.store(s.exp(scaled), &mut masses);
            for (scaled, mass) in places.iter().zip(masses) {
                if *scaled >= row.floor {
                    steps[step_of(*scaled)] += f64::from(mass);
                }
            }
        }
        steps
    }
}

/// Moves the smallest most likely set whose mass, with the mass `before` it, reaches `target` to the front, the
/// least likely of them last, and returns its size.
fn nucleus(list: &mut [Candidate], mut before: f64, target: f64) -> usize {
    const SORTED: usize = 64;
    let (mut start, mut end) = (0, list.len());
    // Halve the range that the boundary lies in until it is worth sorting.
    while end - start > SORTED {
        let half = (end - start) / 2;
        list[start..end].select_nth_unstable_by(half, order);
        let mass: f64 = mass(&list[start..start + half]);
        if before + mass >= target {
            end = start + half;
        } else {
            before += mass;
            start += half;
        }
    }
    list[start..end].sort_unstable_by(order);
    for (index, candidate) in list[start..end].iter().enumerate() {
        before += f64::from(candidate.mass);
        if before >= target {
            return start + index + 1;
        }
    }
    end
}

fn mass(list: &[Candidate]) -> f64 {
    list.iter().map(|candidate| f64::from(candidate.mass)).sum()
}

/// The `count` largest logits above negative infinity, in no particular order.
pub(crate) fn best(instructions: Instructions, logits: &[f32], count: usize) -> Vec<Candidate> {
    let mut list = Vec::new();
    if count > 0 {
        instructions.run(Best {
            logits,
            count,
            list: &mut list,
        });
    }
    list
}

/// Logits of a block that is passed over at once.
const BLOCK: usize = 8 * LANES;

#[inline(always)]
fn block_max<S: Simd>(s: S, block: &[f32]) -> f32 {
    let mut best = s.splat(f32::NEG_INFINITY);
    for lane in block.chunks(LANES) {
        best = s.max(load_padded(s, lane, f32::NEG_INFINITY), best);
    }
    s.largest(best)
}

/// Collects the `count` largest logits. Whenever the list has grown to a multiple of that, it is cut back, and
/// from then on only logits above the last one kept matter: later equals have higher ids.
struct Best<'a> {
    logits: &'a [f32],
    count: usize,
    list: &'a mut Vec<Candidate>,
}

impl Kernel for Best<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let room = (4 * self.count).max(4 * BLOCK);
        let mut above = f32::NEG_INFINITY;
        for (index, block) in self.logits.chunks(BLOCK).enumerate() {
            if block_max(s, block) <= above {
                continue;
            }
            for (i, logit) in block.iter().enumerate() {
                if *logit > above {
                    self.list.push(candidate(*logit, index * BLOCK + i));
                }
            }
            if self.list.len() >= room {
                above = cut(self.list, self.count);
            }
        }
        if self.list.len() > self.count {
            cut(self.list, self.count);
        }
    }
}

/// Keeps the best `count` and returns the smallest logit of them.
fn cut(list: &mut Vec<Candidate>, count: usize) -> f32 {
    let (_, last, _) = list.select_nth_unstable_by(count - 1, order);
    let least = last.logit;
    list.truncate(count);
    least
}

fn candidate(logit: f32, id: usize) -> Candidate {
    Candidate {
        logit,
        id: id as u32,
        mass: 0.0,
    }
}
