//! What steps cost, as measured: time by tokens run, and time per draft forward of a neural drafter.
//!
//! Machines are shared and noisy, so nothing here believes a single measurement. What a step costs is the time that it
//! takes when nothing holds it up: others on the machine slow all work down in proportion, but hold up a short step less
//! often than a long one, so times with their waits say little of how sizes compare. So what counts as measured is the
//! least of the last few measurements of a size. It starts with the median of its first few, and later ones count for no more
//! than half again the time expected. What is not measured for long moves along with what is measured, so that a machine
//! that slows down does not make other sizes look cheap.

mod curve;

use crate::times::StepTimes;
use curve::{Curve, Point};

/// Sizes have a place each up to 8 and four per doubling from there.
const PLACES: usize = 64;
const OCTAVE: usize = 4;
/// Measurements that the first estimate of a size is the median of.
const FIRST: usize = 5;
/// Measurements before an estimate is used at all.
const ENOUGH: usize = 2;
/// Measurements after which a size has gone stale.
const STALE: u64 = 64;
/// Measurements of others after which a size moves along with them in full.
const ALONG: f64 = 16.0;
/// A share of the time expected that is too little to be chance.
const OUTDATED: f64 = 0.6;
/// A mean error of late that is no chance, as a share.
const CHANGED: f64 = 0.05;
/// How far it moves before it is forgotten.
const FAR: f64 = 1.3;
/// Measurements that an estimate remembers, as long as they are off either way; when they agree that it is wrong, it
/// follows fast.
const MEMORY: usize = 128;
const FAST: f64 = 1.0 / 4.0;
/// How fast the errors are averaged that tell one from the other.
const ERRORS: f64 = 1.0 / 16.0;
/// How far from the estimate a measurement can be and still count in full.
const CLIP: f64 = 0.5;
/// Measurements of which the least counts.
const RECENT: usize = 4;
/// How much less than estimated a time may be that rests on one measurement, as a share. What is hoped for is tried,
/// and what is tried is known: without it, a size that was slow by chance would never be looked at again.
const HOPE: f64 = 0.2;
/// How much a token may well cost behind the largest size that was measured, as a share of what it costs before it: steps take the
/// time of weights first and of tokens later, but as often in stairs, and who stands before one does not see the next.
const HOPED_SLOPE: f64 = 0.5;
/// Measurements of others after which one's own count for half.
const FADE: f64 = 512.0;

/// An estimate that follows its measurements.
#[derive(Clone, Copy, Debug, Default)]
struct Estimate {
    ns: f64,
    /// Mean error of late, with its sign and without.
    error: f64,
    spread: f64,
    /// How far it was moved along with others since it was measured, as a factor.
    moved: f64,
    recent: [f64; RECENT],
    first: [f64; FIRST],
    count: usize,
    /// The measurement that it saw last, of all.
    seen: u64,
}

impl Estimate {
    /// Whether a measurement says that the world has changed since the last: it is far less. Far more may be chance.
    fn is_outdated(&self, ns: f64, now: u64) -> bool {
        self.count > 0 && now - self.seen > STALE && ns < OUTDATED * self.ns
    }

    /// The least of a measurement and those before it.
    fn least(&mut self, ns: f64) -> f64 {
        if self.count == 0 {
            self.recent = [f64::INFINITY; RECENT];
        }
        self.recent.rotate_right(1);
        self.recent[0] = ns;
        self.recent.into_iter().fold(ns, f64::min)
    }

    /// Takes a measurement in; returns the factor by which the estimate changed.
    fn observe(&mut self, ns: f64, now: u64) -> f64 {
        // Nothing takes no time: errors are relative.
        let (ns, before) = (self.least(ns.max(1.0)), self.ns);
        let off = ns / before - 1.0;
        if self.count >= FIRST && now - self.seen > STALE && off > CLIP {
            // By chance or not: start again, and the next one tells.
            self.count = 0;
        }
        self.moved = 1.0;
        if self.count < FIRST {
            self.first[self.count] = ns;
            self.count += 1;
            let first = &mut self.first[..self.count];
            first.sort_unstable_by(f64::total_cmp);
            self.ns = first[(self.count - 1) / 2];
            self.spread = CLIP / 2.0;
        } else {
            let off = off.clamp(-CLIP, CLIP);
            self.error += ERRORS * (off - self.error);
            self.spread += ERRORS * (off.abs() - self.spread);
            let agreed = self.error / self.spread.max(f64::MIN_POSITIVE);
            let follow = (FAST * agreed.powi(4)).max(1.0 / (self.count + 1) as f64);
            self.count = (self.count + 1).min(MEMORY - 1);
            self.ns += follow * off * before;
        }
        self.seen = now;
        // Others need to follow where the machine has changed, not where an estimate gets better.
        let changed = self.count > 2 * FIRST && self.error.abs() > CHANGED.max(self.spread / 2.0);
        if changed { self.ns / before } else { 1.0 }
    }

    /// Moves along with an estimate that changed by a factor. What was moved far is forgotten: it is not known whether it
    /// went along.
    fn follow(&mut self, change: f64, now: u64) {
        let unseen = (now - self.seen) as f64 / ALONG;
        let change = 1.0 + unseen.min(1.0) * (change - 1.0);
        self.ns *= change;
        self.recent = self.recent.map(|ns| ns * change);
        self.moved *= change;
        if !(1.0 / FAR..FAR).contains(&self.moved) {
            self.count = 0;
        }
    }

    /// Measurements that it rests on; old ones count for less and less.
    fn weight(&self, now: u64) -> f64 {
        self.count as f64 / (1.0 + (now - self.seen) as f64 / FADE)
    }

    /// What it may well be: the less is known, the less.
    fn hoped(&self, now: u64) -> f64 {
        self.ns * (1.0 - (HOPE / self.weight(now).sqrt()).min(0.5))
    }

    fn known(&self) -> bool {
        self.count >= ENOUGH
    }
}

/// What time a step gained or lost by its drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gain {
    /// Time of plain decoding that an accepted draft saves.
    pub per_accepted: f64,
    /// Time that verifying and making drafts took.
    pub cost: f64,
}

impl Gain {
    /// Of the whole step.
    pub fn total(&self, times: &StepTimes) -> f64 {
        self.per_accepted * times.accepted as f64 - self.cost
    }

    /// A row's share: what its accepted drafts saved, less the cost by the drafts that it had verified. Where none
    /// was verified, all decodes share what making some took.
    pub fn share(&self, times: &StepTimes, drafted: usize, accepted: usize) -> f64 {
        let share = if times.drafted > 0 {
            drafted as f64 / times.drafted as f64
        } else {
            1.0 / times.decodes.max(1) as f64
        };
        self.per_accepted * accepted as f64 - self.cost * share
    }
}

/// The measured costs of an engine's steps.
#[derive(Clone, Debug)]
pub struct StepCosts {
    steps: [Estimate; PLACES],
    /// Mean tokens of the steps at a place.
    tokens: [f64; PLACES],
    /// By the logarithm of the plan rows that take part.
    draft_forwards: [Estimate; 16],
    /// Per plan row that wants drafts from its text.
    ngram: Estimate,
    /// Steps that were measured.
    now: u64,
    /// Time by tokens run, and what it may well be.
    curve: Curve,
    hopeful: Curve,
}

impl Default for StepCosts {
    fn default() -> Self {
        Self {
            steps: [Estimate::default(); PLACES],
            tokens: [0.0; PLACES],
            draft_forwards: [Estimate::default(); 16],
            ngram: Estimate::default(),
            now: 0,
            curve: Curve::new(1.0),
            hopeful: Curve::new(HOPED_SLOPE),
        }
    }
}

impl StepCosts {
    /// Takes in what a step took. Steps that run prompts say nothing about decoding.
    pub fn observe(&mut self, times: &StepTimes) {
        if !times.decode_only() || times.device_ns == 0 {
            return;
        }
        self.now += 1;
        self.observe_drafting(times);
        let (at, tokens) = (place(times.tokens()), times.tokens() as f64);
        let mut ns = times.verify_ns() as f64;
        if self.steps[at].count < FIRST {
            self.tokens[at] += (tokens - self.tokens[at]) / (self.steps[at].count + 1) as f64;
        } else {
            // What it would have been at the size that stands for the place.
            ns *= self.time(self.tokens[at]) / self.time(tokens);
        }
        if self.steps[at].is_outdated(ns, self.now) {
            // Then so are the others that nobody has looked at.
            for step in &mut self.steps {
                if self.now - step.seen > STALE {
                    step.count = 0;
                }
            }
        }
        let change = self.steps[at].observe(ns, self.now);
        for (other, step) in self.steps.iter_mut().enumerate() {
            if other != at && step.count > 0 {
                step.follow(change, self.now);
            }
        }
        self.fit();
    }

    fn observe_drafting(&mut self, times: &StepTimes) {
        let (ngram, neural) = times.wanted;
        let drafting = times.draft_ns as f64;
        if times.draft_passes > 0 {
            let rest = drafting - self.ngram.ns * ngram as f64;
            let pass = (rest / times.draft_passes as f64).max(0.0);
            self.draft_forwards[doublings(neural)].observe(pass, self.now);
        } else if ngram > 0 {
            self.ngram.observe(drafting / ngram as f64, self.now);
        }
    }

    fn fit(&mut self) {
        let now = self.now;
        let known = || {
            let steps = self.steps.iter().zip(&self.tokens);
            steps.filter(|(step, _)| step.known())
        };
        let point = |tokens: &f64, ns: f64| Point { tokens: *tokens, ns };
        self.curve.points.clear();
        self.hopeful.points.clear();
        for (step, tokens) in known() {
            self.curve.points.push(point(tokens, step.ns));
            self.hopeful.points.push(point(tokens, step.hoped(now)));
        }
        let mut weights = [0.0; PLACES];
        for (weight, (step, _)) in weights.iter_mut().zip(known()) {
            *weight = step.weight(now);
        }
        self.curve.straighten(&weights);
        self.hopeful.straighten(&weights);
    }

    /// Time of a step of decodes that runs `tokens` tokens, without making drafts; 0 if nothing is known.
    pub fn time(&self, tokens: f64) -> f64 {
        self.curve.at(tokens)
    }

    /// What this time may well be: less than [`StepCosts::time`] where little is known.
    pub fn hoped(&self, tokens: f64) -> f64 {
        self.hopeful.at(tokens)
    }

    /// Whether enough is known of a step of `tokens` tokens: it or one within a factor of two has been measured, or
    /// smaller and larger ones have.
    pub fn knows(&self, tokens: usize) -> bool {
        let at = place(tokens);
        let (low, high) = (at.saturating_sub(OCTAVE), (at + OCTAVE).min(PLACES - 1));
        let known = |places: &[Estimate]| places.iter().any(Estimate::known);
        known(&self.steps[low..=high]) || (known(&self.steps[..at]) && known(&self.steps[at..]))
    }

    /// Steps measured since one of `tokens` tokens was.
    pub fn age(&self, tokens: usize) -> u64 {
        self.now - self.steps[place(tokens)].seen
    }

    /// Time of a draft forward for `rows` plan rows; 0 if none was ever measured.
    pub fn pass(&self, rows: usize) -> f64 {
        let at = doublings(rows);
        let known = |place: &usize| self.draft_forwards[*place].known();
        let below = (0..=at).rev().find(known);
        let nearest = below.or_else(|| (at..self.draft_forwards.len()).find(known));
        nearest.map_or(0.0, |place| self.draft_forwards[place].ns)
    }

    /// Time of looking drafts up in one row's text.
    pub fn lookup(&self) -> f64 {
        self.ngram.ns
    }

    /// What a step gained by its drafts, against plain decoding of the same requests. `None` if it made and
    /// verified none, or if too little is known.
    pub fn gain(&self, times: &StepTimes) -> Option<Gain> {
        let drafts = times.drafted > 0 || times.draft_passes > 0;
        if !drafts || times.decodes == 0 || !self.knows(times.decodes) {
            return None;
        }
        let plain = self.time(times.decodes as f64);
        let verify = if times.drafted == 0 {
            0.0
        } else {
            let tokens = times.tokens() as f64;
            self.time(tokens) - self.time(tokens - times.drafted as f64)
        };
        // Whatever held the step up would have done so without drafts, too.
        let slower = if times.decode_only() {
            times.verify_ns() as f64 / self.time(times.tokens() as f64)
        } else {
            1.0
        };
        let slower = slower.clamp(1.0 - CLIP, 1.0 + 2.0 * CLIP);
        Some(Gain {
            per_accepted: slower * plain / times.decodes as f64,
            cost: slower * verify + times.draft_ns as f64,
        })
    }
}

fn place(tokens: usize) -> usize {
    let tokens = tokens.max(1);
    let doublings = tokens.ilog2() as usize;
    if doublings < 2 {
        return tokens - 1;
    }
    (3 + (doublings - 2) * 4 + ((tokens >> (doublings - 2)) & 3)).min(PLACES - 1)
}

fn doublings(rows: usize) -> usize {
    (rows.max(1).ilog2() as usize).min(15)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(tokens: usize, ns: u64) -> StepTimes {
        StepTimes {
            decodes: 1,
            decode_tokens: tokens,
            drafted: tokens - 1,
            device_ns: ns,
            ..StepTimes::default()
        }
    }

    fn measured(sizes: &[(usize, u64)], times: usize) -> StepCosts {
        let mut costs = StepCosts::default();
        for _ in 0..times {
            for (tokens, ns) in sizes {
                costs.observe(&step(*tokens, *ns));
            }
        }
        costs
    }

    #[test]
    fn places_are_in_order_and_none_is_left_out() {
        let places: Vec<usize> = (1..200_000).map(place).collect();
        assert!(
            places
                .windows(2)
                .all(|pair| pair[1] == pair[0] || pair[1] == pair[0] + 1)
        );
        assert_eq!(places[..9], [0, 1, 2, 3, 4, 5, 6, 7, 7]);
    }

    #[test]
    fn time_never_falls_with_tokens_whatever_was_measured() {
        let costs = measured(&[(1, 900), (2, 1100), (4, 1000), (8, 700), (16, 3000)], 40);
        let mut before = 0.0;
        for tokens in 1..200 {
            let time = costs.time(f64::from(tokens));
            assert!(time >= before, "{tokens} tokens take {time}, fewer {before}");
            before = time;
        }
    }

    #[test]
    fn one_slow_step_does_not_make_a_size_slow() {
        let mut costs = measured(&[(1, 1000), (4, 1200)], 3);
        costs.observe(&step(4, 6000));
        assert!((costs.time(4.0) - 1200.0).abs() < 1.0);
        let mut costs = measured(&[(1, 1000), (4, 1200)], 30);
        costs.observe(&step(4, 600_000));
        assert!(costs.time(4.0) < 1230.0);
    }

    #[test]
    fn a_slower_machine_is_slower_at_sizes_that_nobody_measures() {
        let mut costs = measured(&[(1, 1000), (4, 1200)], 20);
        for _ in 0..2000 {
            costs.observe(&step(1, 1200));
        }
        let ratio = costs.time(4.0) / costs.time(1.0);
        assert!((1.1..1.3).contains(&ratio), "{ratio}");
        for _ in 0..2000 {
            costs.observe(&step(1, 5000));
        }
        assert!(
            costs.time(4.0) > 4000.0 && costs.curve.points.len() == 1,
            "much has changed"
        );
    }

    #[test]
    fn a_size_is_known_when_it_or_its_neighbours_are() {
        let costs = measured(&[(4, 1000), (16, 1200)], 2);
        assert!(costs.knows(2) && costs.knows(4) && costs.knows(9) && costs.knows(31));
        assert!(!costs.knows(64) && !StepCosts::default().knows(1));
        let costs = measured(&[(32, 1000)], 2);
        assert!(!costs.knows(8) && !costs.knows(80));
    }

    #[test]
    fn the_gain_is_the_plain_time_of_accepted_drafts_less_what_drafts_cost() {
        let costs = measured(&[(2, 1000), (6, 1100)], 5);
        let times = StepTimes {
            decodes: 2,
            decode_tokens: 6,
            drafted: 4,
            accepted: 3,
            device_ns: 1250,
            draft_ns: 150,
            draft_passes: 2,
            ..StepTimes::default()
        };
        let gain = costs.gain(&times).expect("both sizes are known");
        assert!((gain.per_accepted - 500.0).abs() < 1e-6);
        assert!((gain.cost - 250.0).abs() < 1e-6);
        assert!((gain.total(&times) - 1250.0).abs() < 1e-6);
        let shares = gain.share(&times, 3, 3) + gain.share(&times, 1, 0);
        assert!((shares - 1250.0).abs() < 1e-6);
    }
}
