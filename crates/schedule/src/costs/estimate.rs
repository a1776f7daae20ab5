//! What a step of a size takes, followed through measurements that are held up by others of the machine.

/// Measurements that the first estimate of a size is the median of.
pub(super) const FIRST: usize = 5;
/// Measurements before an estimate is used at all.
const ENOUGH: usize = 2;
/// Measurements after which a size has gone stale.
pub(super) const STALE: u64 = 64;
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
pub(super) const CLIP: f64 = 0.5;
/// A share of an estimate that is so little that two measurements of it prove the estimate wrong: work is held up, and never
/// hurried.
const PROVEN: f64 = 0.6;
/// Measurements of which the least counts.
const RECENT: usize = 4;
/// How much less than estimated a time may be that rests on one measurement, as a share. What is hoped for is tried,
/// and what is tried is known: without it, a size that was slow by chance would never be looked at again.
const HOPE: f64 = 0.2;
/// Measurements of others after which one's own count for half.
const FADE: f64 = 512.0;

/// An estimate that follows its measurements.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Estimate {
    pub(super) ns: f64,
    /// Mean error of late, with its sign and without.
    error: f64,
    spread: f64,
    /// How far it was moved along with others since it was measured, as a factor.
    moved: f64,
    recent: [f64; RECENT],
    first: [f64; FIRST],
    pub(super) count: usize,
    /// The measurement that it saw last, of all.
    pub(super) seen: u64,
}

impl Estimate {
    /// Whether a measurement says that the world has changed since the last: it is far less. Far more may be chance.
    pub(super) fn is_outdated(&self, ns: f64, now: u64) -> bool {
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

    /// What it is at most, if that is far less: two of the last few measurements say so.
    fn proof(&self) -> Option<f64> {
        let mut recent = self.recent;
        recent.sort_unstable_by(f64::total_cmp);
        (recent[1] < PROVEN * self.ns).then_some(recent[1])
    }

    /// Takes a measurement in; returns the factor by which the estimate changed.
    pub(super) fn observe(&mut self, ns: f64, now: u64) -> f64 {
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
        } else if let Some(proof) = self.proof() {
            self.ns = proof;
            (self.error, self.spread) = (0.0, CLIP / 2.0);
            let known = std::mem::replace(&mut self.count, FIRST) > 2 * FIRST;
            self.seen = now;
            return if known { proof / before } else { 1.0 };
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
    pub(super) fn follow(&mut self, change: f64, now: u64) {
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
    pub(super) fn weight(&self, now: u64) -> f64 {
        self.count as f64 / (1.0 + (now - self.seen) as f64 / FADE)
    }

    /// What it may well be: the less is known, the less.
    pub(super) fn hoped(&self, now: u64) -> f64 {
        self.ns * (1.0 - (HOPE / self.weight(now).sqrt()).min(0.5))
    }

    pub(super) fn known(&self) -> bool {
        self.count >= ENOUGH
    }
}
