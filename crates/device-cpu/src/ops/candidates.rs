//! The tokens that top-k, top-p and min-p leave, found by selection rather than by sorting the vocabulary.

use super::sample::{Row, SumExp};
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

/// What is left of a row. Never empty: the most likely token always stays.
pub(super) fn survivors(
    instructions: Instructions,
    row: &Row<'_>,
    top_k: Option<usize>,
    top_p: Option<f32>,
) -> Vec<Candidate> {
    let mut list = match (top_k, top_p) {
        (Some(k), _) => best(instructions, row.logits, k),
        (None, top_p) => likely(instructions, row, top_p.unwrap_or(1.0)),
    };
    list.retain_mut(|candidate| {
        let scaled = row.scaled(candidate.logit);
        candidate.mass = scaled.exp();
        scaled >= row.floor
    });
    if let Some(top_p) = top_p {
        let total = match top_k {
            Some(_) => list.iter().map(|candidate| f64::from(candidate.mass)).sum(),
            None => f64::from(total_mass(instructions, row)),
        };
        let kept = nucleus(&mut list, f64::from(top_p) * total);
        list.truncate(kept);
    }
    list
}

fn total_mass(instructions: Instructions, row: &Row<'_>) -> f32 {
    instructions.run(SumExp {
        logits: row.logits,
        max: row.max,
        temperature: row.temperature,
        floor: row.floor,
    })
}

/// Moves the smallest most likely set whose mass reaches `target` to the front and returns its size.
fn nucleus(list: &mut [Candidate], target: f64) -> usize {
    const SORTED: usize = 64;
    let (mut start, mut end, mut before) = (0, list.len(), 0.0);
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

/// The tokens among which the smallest set with `top_p` of the mass must lie: the others are so unlikely that
/// all of them together have less than the rest of the mass.
fn likely(instructions: Instructions, row: &Row<'_>, top_p: f32) -> Vec<Candidate> {
    let left_out = (1.0 - top_p).max(0.0) * total_mass(instructions, row) * 0.5;
    let least = (left_out / row.logits.len() as f32).ln().max(row.floor);
    // A little lower than exact; the floor is applied exactly afterwards.
    let slack = 1e-3 + row.max.abs() * 1e-6;
    let mut list = Vec::new();
    instructions.run(Collect {
        logits: row.logits,
        least: least.mul_add(row.temperature * 1.001, row.max - slack),
        list: &mut list,
    });
    list
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

/// Collects logits that are at least `least`.
struct Collect<'a> {
    logits: &'a [f32],
    least: f32,
    list: &'a mut Vec<Candidate>,
}

impl Kernel for Collect<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (index, block) in self.logits.chunks(BLOCK).enumerate() {
            if block_max(s, block) < self.least {
                continue;
            }
            for (i, logit) in block.iter().enumerate() {
                if *logit >= self.least {
                    self.list.push(candidate(*logit, index * BLOCK + i));
                }
            }
        }
    }
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
