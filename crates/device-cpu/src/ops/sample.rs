//! Chooses a token per row of logits.
//!
//! Noise is Gumbel noise keyed by seed, position and token, so the draw is an argmax. Most tokens cannot win it:
//! `-ln(-ln(1-w)) <= -ln(w)`, so a token whose uniform number `w` exceeds `e^(score - best)` is passed over
//! without a logarithm, and tokens whose every such bound is below the smallest `w` without any random bits.
//! Tokens are looked at in groups, whose random bits are made at once; only lanes that have a chance are then looked at one by
//! one. A bound that is too large costs time and changes nothing, so a group has one for the best before it.

use super::candidates::{self, Boundary, Candidate};
use super::options::{Options, Scratch};
use super::pieces;
use super::vector::load_padded;
use crate::philox::{philox4x32, philox4x32_lanes};
use crate::pool::Pool;
use crate::simd::{Instructions, Kernel, LANES, Simd};
use crate::storage::{In, Storage};
use paceline_device::abi::{Alternative, LogitsRow, Logprobs, MAX_LOGPROBS, SamplingRow};
use std::cell::RefCell;

/// Views of [`sample`].
#[derive(Clone, Copy)]
pub(crate) struct Draws<'a> {
    pub(crate) logits: In<'a>,
    pub(crate) rows: &'a [LogitsRow],
    pub(crate) options: Option<Options<'a>>,
    pub(crate) tokens: &'a Storage<i32>,
    pub(crate) logprobs: &'a Storage<Logprobs>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Slack that covers the rounding of the bound on the noise.
const MARGIN: f32 = 0.01;

/// Counters whose random bits are made at once, and the tokens that they are for.
const QUADS: usize = 16;
const GROUP: usize = 4 * QUADS;

/// The smallest uniform number, 2^-33.
const SMALLEST: f32 = 1.164_153_2e-10;

/// One token, and log-probabilities where asked, per row.
pub(crate) fn sample(pool: &Pool, args: &Draws<'_>) {
    let drawn = args.rows[..args.logits.rows]
        .iter()
        .filter(|row| row.sampling.temperature > 0.0);
    let total_ns = (args.logits.rows + 3 * drawn.count()) * args.logits.columns / 2;
    pieces(pool, args.logits.rows, total_ns, |row| {
        sample_row(pool.instructions(), args, row);
    });
}

fn sample_row(instructions: Instructions, args: &Draws<'_>, row: usize) {
    let logits = args.logits.row(row);
    let max = instructions.run(Largest(logits));
    assert!(
        max.is_some_and(|max| max > f32::NEG_INFINITY),
        "sample: the logits of row {row} are not finite numbers"
    );
    let max = max.unwrap_or_default();
    let logits_row = &args.rows[row];
    let token = match logits_row.known {
        0 => args.choose(instructions, logits_row, (logits, max)),
        known => known as u32 - 1,
    };
    let wanted = logits_row.sampling.logprobs;
    // SAFETY: every row belongs to one piece.
    unsafe { args.tokens.slice_mut(row..row + 1) }.fill(token as i32);
    if let Ok(wanted) = usize::try_from(wanted) {
        // SAFETY: as above.
        let out = unsafe { &mut args.logprobs.slice_mut(row..row + 1)[0] };
        report(instructions, logits, max, (token, wanted.min(MAX_LOGPROBS)), out);
    }
}

impl Draws<'_> {
    /// Chooses from the logits as the request's options change them.
    fn choose(&self, instructions: Instructions, row: &LogitsRow, (logits, max): (&[f32], f32)) -> u32 {
        let LogitsRow {
            position,
            sampling: parameters,
            ..
        } = row;
        let position = *position;
        let options = self.options.and_then(|options| options.of(row));
        let Some(options) = options else {
            return choose(instructions, (logits, max), position, parameters);
        };
        SCRATCH.with_borrow_mut(|scratch| {
            let changed = options.apply(logits, scratch);
            if let Some(max) = instructions
                .run(Largest(changed))
                .filter(|max| *max > f32::NEG_INFINITY)
            {
                return choose(instructions, (changed, max), position, parameters);
            }
            // Nothing is allowed, so everything is, but for what a mask says.
            let changed = options.without(logits, scratch);
            match instructions.run(Largest(changed)) {
                Some(max) if max > f32::NEG_INFINITY => first_of(changed, max),
                _ => first_of(logits, max),
            }
        })
    }
}

fn choose(
    instructions: Instructions,
    (logits, max): (&[f32], f32),
    position: i32,
    parameters: &SamplingRow,
) -> u32 {
    let first = first_of(logits, max);
    if parameters.temperature <= 0.0 {
        return first;
    }
    let row = Row {
        logits,
        max,
        first,
        temperature: parameters.temperature,
        floor: parameters.min_p.max(0.0).ln(),
        noise: Noise::new(parameters.seed.into(), position),
    };
    row.draw(instructions, parameters)
}

/// The first of the largest: what greedy rows take.
fn first_of(logits: &[f32], max: f32) -> u32 {
    logits.iter().position(|logit| *logit >= max).unwrap_or_default() as u32
}

/// Log-probabilities of the chosen token and of the `wanted` most likely ones, before temperature.
fn report(
    instructions: Instructions,
    logits: &[f32],
    max: f32,
    (token, wanted): (u32, usize),
    out: &mut Logprobs,
) {
    let sum = instructions.run(SumExp {
        logits,
        max,
        temperature: 1.0,
        floor: f32::NEG_INFINITY,
    });
    let total = max + sum.ln();
    out.chosen = logits[token as usize] - total;
    let mut best = candidates::best(instructions, logits, wanted);
    best.sort_unstable_by(candidates::order);
    for (index, alternative) in out.top.iter_mut().enumerate().take(wanted) {
        // Where the row has fewer possible tokens than asked for, the rest is marked as absent.
        let (token, logit) = best
            .get(index)
            .map_or((-1, f32::NEG_INFINITY), |best| (best.id as i32, best.logit));
        *alternative = Alternative {
            token,
            logprob: logit - total,
        };
    }
}

/// A row that is drawn from.
pub(super) struct Row<'a> {
    pub(super) logits: &'a [f32],
    /// The largest logit.
    pub(super) max: f32,
    /// The lowest token that has it.
    pub(super) first: u32,
    pub(super) temperature: f32,
    /// Smallest `(logit - max) / temperature` that takes part.
    pub(super) floor: f32,
    pub(super) noise: Noise,
}

impl Row<'_> {
    fn draw(&self, instructions: Instructions, parameters: &SamplingRow) -> u32 {
        let top_k = match parameters.top_k as usize {
            0 => None,
            k => Some(k).filter(|k| *k < self.logits.len()),
        };
        let top_p = Some(parameters.top_p).filter(|p| *p < 1.0);
        match (top_k, top_p) {
            (Some(top_k), _) => self.draw_from(&candidates::survivors(instructions, self, top_k, top_p)),
            (None, Some(top_p)) => {
                let boundary = candidates::boundary(instructions, self, top_p);
                instructions.run(DrawAll(self, boundary))
            }
            (None, None) => instructions.run(DrawAll(self, Boundary::NONE)),
        }
    }

    /// `(logit - max) / temperature`.
    pub(super) fn scaled(&self, logit: f32) -> f32 {
        (logit - self.max) / self.temperature
    }

    fn draw_from(&self, candidates: &[Candidate]) -> u32 {
        let mut best = self.opening();
        let mut factor = (MARGIN - best.score).exp();
        for candidate in candidates {
            let w = uniform(self.noise.bits(candidate.id));
            if w <= candidate.mass * factor {
                best.consider(self.scaled(candidate.logit) + gumbel(w), candidate.id);
                factor = (MARGIN - best.score).exp();
            }
        }
        best.id
    }

    /// The most likely token always takes part; its score is a first bound for the others.
    fn opening(&self) -> Best {
        Best {
            score: gumbel(uniform(self.noise.bits(self.first))),
            id: self.first,
        }
    }
}

struct Best {
    score: f32,
    id: u32,
}

impl Best {
    fn consider(&mut self, score: f32, id: u32) {
        if score > self.score || (score >= self.score && id < self.id) {
            *self = Self { score, id };
        }
    }
}

/// Random bits per token.
#[derive(Clone, Copy)]
pub(super) struct Noise {
    key: [u32; 2],
    position: u32,
}

impl Noise {
    fn new(seed: u64, position: i32) -> Self {
        Self {
            key: [seed as u32, (seed >> 32) as u32],
            position: position as u32,
        }
    }

    fn bits(self, token: u32) -> u32 {
        philox4x32([self.position, token / 4, 0, 0], self.key)[token as usize % 4]
    }

    /// The uniform numbers of the tokens of a group.
    #[inline(always)]
    fn of_group(self, group: usize) -> [f32; GROUP] {
        let quads = std::array::from_fn(|quad| (group * QUADS + quad) as u32);
        let words = philox4x32_lanes([[self.position; QUADS], quads, [0; QUADS], [0; QUADS]], self.key);
        std::array::from_fn(|token| uniform(words[token % 4][token / 4]))
    }
}

/// A number in (0, 1), spaced finely near 0, which is where the largest noise comes from.
#[inline(always)]
fn uniform(bits: u32) -> f32 {
    const LARGEST: f32 = 1.0 - f32::EPSILON / 2.0;
    ((bits as f32 + 0.5) * (1.0 / 4_294_967_296.0)).min(LARGEST)
}

/// `-ln(-ln(1 - w))`.
fn gumbel(w: f32) -> f32 {
    -(-(-w).ln_1p()).ln()
}

/// The largest logit; `None` if one is NaN or positive infinity.
struct Largest<'a>(&'a [f32]);

impl Kernel for Largest<'_> {
    type Output = Option<f32>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Option<f32> {
        let infinity = s.splat(f32::INFINITY);
        let mut best = [s.splat(f32::NEG_INFINITY); 4];
        // Zero as long as every logit is below infinity; NaN and infinity stay.
        let mut wrong = [s.splat(0.0); 4];
        for block in self.0.chunks(4 * LANES) {
            for (i, lane) in block.chunks(LANES).enumerate() {
                let x = load_padded(s, lane, f32::NEG_INFINITY);
                best[i] = s.max(x, best[i]);
                wrong[i] = s.add(wrong[i], s.select_less(x, infinity, s.splat(0.0), x));
            }
        }
        let wrong = s.add(s.add(wrong[0], wrong[1]), s.add(wrong[2], wrong[3]));
        let best = s.max(s.max(best[0], best[1]), s.max(best[2], best[3]));
        (s.sum(wrong) == 0.0).then(|| s.largest(best))
    }
}

/// `Σ e^((logit - max) / temperature)` over logits not below the floor, in a fixed order.
pub(super) struct SumExp<'a> {
    pub(super) logits: &'a [f32],
    pub(super) max: f32,
    pub(super) temperature: f32,
    pub(super) floor: f32,
}

impl Kernel for SumExp<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let (max, floor) = (s.splat(self.max), s.splat(self.floor));
        let temperature = s.splat(self.temperature);
        let mut sums = [s.splat(0.0); 4];
        for block in self.logits.chunks(4 * LANES) {
            for (i, lane) in block.chunks(LANES).enumerate() {
                let x = load_padded(s, lane, f32::NEG_INFINITY);
                let scaled = s.div(s.sub(x, max), temperature);
                let term = s.select_less(scaled, floor, s.splat(0.0), s.exp(scaled));
                sums[i] = s.add(sums[i], term);
            }
        }
        s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
    }
}

/// Draws from all tokens not below the floor or past the boundary.
struct DrawAll<'a>(&'a Row<'a>, Boundary);

impl Kernel for DrawAll<'_> {
    type Output = u32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> u32 {
        let Self(row, last) = self;
        let mut best = row.opening();
        for (group, logits) in row.logits.chunks(GROUP).enumerate() {
            let (limits, most) = self.limits(s, logits, best.score);
            if most < SMALLEST {
                continue;
            }
            let numbers = row.noise.of_group(group);
            let blocks = limits.as_chunks::<LANES>().0.iter();
            for (block, (limits, numbers)) in blocks.zip(numbers.as_chunks::<LANES>().0).enumerate() {
                if s.largest(s.sub(s.load(limits), s.load(numbers))) < 0.0 {
                    continue;
                }
                for (lane, (limit, number)) in limits.iter().zip(numbers).enumerate() {
                    let id = group * GROUP + block * LANES + lane;
                    if number <= limit && (row.logits[id] > last.logit || id as u32 <= last.id) {
                        best.consider(row.scaled(row.logits[id]) + gumbel(*number), id as u32);
                    }
                }
            }
        }
        best.id
    }
}

impl DrawAll<'_> {
    /// What the uniform numbers of a group's tokens must not exceed to beat a score, and the largest of it; 0 where there is no
    /// token or it takes no part.
    #[inline(always)]
    fn limits<S: Simd>(&self, s: S, logits: &[f32], score: f32) -> ([f32; GROUP], f32) {
        let Self(row, last) = self;
        let (max, floor, temperature) = (s.splat(row.max), s.splat(row.floor), s.splat(row.temperature));
        let mut limits = [0.0; GROUP];
        let mut most = s.splat(0.0);
        for (logits, limits) in logits.chunks(LANES).zip(limits.as_chunks_mut::<LANES>().0) {
            let x = load_padded(s, logits, f32::NEG_INFINITY);
            let scaled = s.div(s.sub(x, max), temperature);
            let limit = s.exp(s.add(scaled, s.splat(MARGIN - score)));
            let limit = s.select_less(scaled, floor, s.splat(0.0), limit);
            let limit = s.select_less(x, s.splat(last.logit), s.splat(0.0), limit);
            most = s.max(limit, most);
            s.store(limit, limits);
        }
        (limits, s.largest(most))
    }
}

#[cfg(all(test, not(loom), target_os = "linux", target_arch = "x86_64"))]
pub(super) mod counts;
#[cfg(test)]
mod tests;
