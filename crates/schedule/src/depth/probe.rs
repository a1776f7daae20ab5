//! When to try again what was given up.
//!
//! A request that drafts less than it might tries one more draft for a few plan rows, first soon and then ever more
//! rarely while nothing comes of it. What all of these trials together may cost is a fixed small share of the
//! device's time.

use crate::costs::StepCosts;
use crate::request::RequestId;

/// Plan rows of a trial.
const ROWS: u8 = 4;
/// Plan rows between trials.
const SHORTEST: u32 = 32;
const LONGEST: u32 = 1024;
/// Plan rows that are waited for the outcome, which comes with the steps in flight.
const PATIENCE: u32 = 12;
/// Share of the device's time.
const SHARE: f64 = 0.006;
/// Where a trial costs little, plan rows between trials grow only until a request's trials cost this share of its
/// time.
const CHEAP: f64 = 0.005;
/// Least that a token costs, as a share of a step.
const LEAST: f64 = 0.01;
/// Most that can be saved up, in steps.
const SAVED: f64 = 64.0;

/// What trials may cost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    ns: f64,
    /// Time of one more token in a step.
    token: f64,
    pass: f64,
    /// Time of plain decoding, of a step and per request.
    step: f64,
    row: f64,
    /// Passes of the neural drafter that run anyway.
    draft_forwards: usize,
}

impl Budget {
    /// A step begins that runs so many draft forwards of the neural drafter because they pay; the one before was asked for
    /// `excess` draft forwards more than that.
    pub(super) fn begin_step(
        &mut self,
        costs: &StepCosts,
        rows: usize,
        (draft_forwards, excess): (usize, usize),
    ) {
        self.draft_forwards = draft_forwards;
        self.ns -= self.pass * excess as f64;
        let (few, more) = (rows as f64, rows as f64 * 2.0 + 4.0);
        let plain = costs.time(few);
        // Noise can make a token look free, and what is free would be tried all the time.
        let least = plain * LEAST.min(0.25 / few);
        self.token = ((costs.time(more) - plain) / (more - few)).max(least);
        self.pass = costs.pass(rows);
        (self.step, self.row) = (plain, plain / few);
    }

    /// A step is done. What counts is the time of plain decoding, as trials are priced by it: a step that was held up by
    /// others of the machine has not earned more.
    pub(super) fn earn(&mut self) {
        self.ns = (self.ns + SHARE * self.step).min(SAVED * self.step);
    }

    /// What a trial of one more draft than `depth` costs: its tokens, and its draft forwards.
    fn price(&self, depth: usize, neural: bool) -> (f64, f64) {
        let more_passes = if neural {
            (depth + 1).saturating_sub(self.draft_forwards)
        } else {
            0
        };
        // Look-ups go on until the outcome is known.
        let rows = f64::from(if neural { ROWS } else { ROWS + 2 });
        (rows * self.token, rows * self.pass * more_passes as f64)
    }

    /// Pays for a trial, if there is enough. Passes are paid for when they run: others may share them.
    fn pay(&mut self, depth: usize, neural: bool) -> bool {
        let (tokens, draft_forwards) = self.price(depth, neural);
        let affordable = tokens + draft_forwards <= self.ns;
        if affordable {
            self.ns -= tokens;
        }
        affordable
    }

    /// A trial that leads to something was no loss.
    fn refund(&mut self, depth: usize, neural: bool) {
        self.ns += self.price(depth, neural).0;
    }

    /// Longest that it is worth waiting between trials.
    fn longest(&self, depth: usize, neural: bool) -> u32 {
        let (tokens, draft_forwards) = self.price(depth, neural);
        let rows = (tokens + draft_forwards) / (CHEAP * self.row).max(1.0);
        (rows as u32).clamp(SHORTEST, LONGEST)
    }
}

/// A request's trials of one source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    /// Plan rows until the next trial, or until its outcome is looked at.
    wait: u32,
    interval: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    /// `ask` plan rows are to ask for more than `from` drafts, and the outcomes of `awaited` plan rows are not there
    /// yet.
    Trying {
        from: usize,
        ask: u8,
        awaited: u8,
    },
}

impl Probe {
    pub(super) fn new(id: RequestId) -> Self {
        Self {
            wait: SHORTEST + stagger(id, SHORTEST),
            interval: SHORTEST,
            state: State::Idle,
        }
    }

    /// Starts a trial at once, whatever it costs.
    pub(super) fn start(&mut self, from: usize) {
        self.state = State::Trying {
            from,
            ask: ROWS,
            awaited: ROWS,
        };
        self.wait = PATIENCE;
    }

    pub(super) fn trying(&self) -> bool {
        self.state != State::Idle
    }

    /// A plan row is planned that would have `depth` drafts of at most `most`. Returns how many it should have, and
    /// whether a trial begins with it.
    pub(super) fn plan(
        &mut self,
        (id, neural): (RequestId, bool),
        (depth, most): (usize, usize),
        budget: &mut Budget,
    ) -> (usize, bool) {
        self.wait = self.wait.saturating_sub(1);
        if let State::Trying { from, ask, awaited } = self.state {
            // A look-up that finds nothing costs nothing, so it goes on until something is found.
            let over = awaited == 0 || (neural && ask == 0 && self.wait == 0);
            if !over {
                let asking = !neural || ask > 0;
                self.state = State::Trying {
                    from,
                    ask: ask.saturating_sub(1),
                    awaited,
                };
                let wanted = if asking { depth.max(from + 1) } else { depth };
                return (wanted.min(most), false);
            }
            self.interval = if depth > from {
                budget.refund(from, neural);
                SHORTEST
            } else {
                (2 * self.interval).min(budget.longest(depth, neural))
            };
            self.state = State::Idle;
            self.wait = self.interval + stagger(id, self.interval / 4);
        }
        if self.wait > 0 || depth >= most || !budget.pay(depth, neural) {
            return (depth, false);
        }
        self.start(depth);
        (depth + 1, true)
    }

    /// A plan row of the source is done that verified `drafted` drafts.
    pub(super) fn observe(&mut self, drafted: usize) {
        if let State::Trying { from, awaited, .. } = &mut self.state
            && drafted > *from
        {
            *awaited = awaited.saturating_sub(1);
        }
    }
}

/// Different for requests that arrive one after the other, so that their trials do not coincide.
fn stagger(id: RequestId, within: u32) -> u32 {
    let spread = (id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32;
    spread % within.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left of 1000 after a trial of one draft more than none, behind which there are `depth`.
    fn left_after_a_trial(neural: bool, depth: usize) -> u64 {
        let mut budget = Budget {
            ns: 1000.0,
            token: 10.0,
            row: 100.0,
            ..Budget::default()
        };
        let (id, mut probe) = (RequestId(0), Probe::new(RequestId(0)));
        let mut plan = |probe: &mut Probe, depth| probe.plan((id, neural), (depth, 4), &mut budget);
        assert!((0..1000).any(|_| plan(&mut probe, 0) == (1, true)), "no trial");
        for _ in 0..ROWS {
            probe.observe(1);
        }
        assert_eq!(plan(&mut probe, depth), (depth, false));
        budget.ns as u64
    }

    /// Else a request that drafts less than it might would learn so once, and not again for want of budget.
    #[test]
    fn a_trial_that_leads_to_more_drafts_is_paid_back() {
        for (neural, rows) in [(true, ROWS), (false, ROWS + 2)] {
            let left = [left_after_a_trial(neural, 1), left_after_a_trial(neural, 0)];
            assert_eq!(left, [1000, 1000 - 10 * u64::from(rows)], "neural: {neural}");
        }
    }
}
