//! The choice of depth for all requests at once.
//!
//! A draft is worth verifying if its chance of being accepted is high enough, and how high that is, is the same for
//! all requests of a step: they share its time. So requests put the chances of their drafts on a board, and the
//! step's threshold is where expected tokens per time are greatest, over every threshold and every number of draft forwards
//! of the neural drafter. The chances along a chain never rise, so a threshold cuts each chain at one place. This
//! finds the best of all thresholds however the step time grows, also where it is flat first and steep later; a
//! search along the slope can stop short of that.

use crate::costs::StepCosts;
use paceline_types::MAX_DRAFTS;

/// Thresholds: four per halving of the chance, down to 1 in 32. Below that a draft is not worth the noise in what
/// steps take, whatever it seems to cost.
const LEVELS: usize = 20;

/// Least that a draft costs, as a share of a plain step: noise can make it look free.
const LEAST: f64 = 0.001;

/// The threshold that a chance is at. Lower is better.
pub(super) fn level(chance: f32) -> usize {
    // The leading bits of a float are its logarithm, to a quarter.
    let bits = 1.0_f32.to_bits().saturating_sub(chance.max(0.0).to_bits());
    (bits >> 21) as usize
}

/// What a step decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Verdict {
    /// Chances below this level's are not worth it.
    pub(super) levels: usize,
    /// Passes of the neural drafter.
    pub(super) draft_forwards: usize,
}

impl Verdict {
    /// Before anything is known: what might be worth it, from a single draft forward.
    pub(super) const HOPEFUL: Self = Self {
        levels: LEVELS,
        draft_forwards: 1,
    };

    /// No drafts.
    pub(super) const PLAIN: Self = Self {
        levels: 0,
        draft_forwards: 0,
    };

    /// How much of a chain is worth it.
    pub(super) fn depth(&self, reach: impl Iterator<Item = f32>) -> usize {
        reach.take_while(|chance| level(*chance) < self.levels).count()
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    /// Drafts, each by its chance to be there.
    drafts: f32,
    /// Of these, expected to be accepted.
    accepted: f32,
}

/// The chances of all drafts that requests could have.
#[derive(Clone, Debug)]
pub(super) struct Board {
    rows: usize,
    lookups: usize,
    ngram: [Cell; LEVELS],
    neural: [[Cell; LEVELS]; MAX_DRAFTS],
    /// Deepest chain of the neural drafter.
    draft_forwards: usize,
}

impl Board {
    pub(super) fn new() -> Self {
        Self {
            rows: 0,
            lookups: 0,
            ngram: [Cell::default(); LEVELS],
            neural: [[Cell::default(); LEVELS]; MAX_DRAFTS],
            draft_forwards: 0,
        }
    }

    pub(super) fn clear(&mut self) {
        self.ngram = [Cell::default(); LEVELS];
        for cells in &mut self.neural[..self.draft_forwards] {
            *cells = [Cell::default(); LEVELS];
        }
        (self.rows, self.lookups, self.draft_forwards) = (0, 0, 0);
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// A request that decodes.
    pub(super) fn add_row(&mut self) {
        self.rows += 1;
    }

    /// Drafts that it has from its text, with the chance that there are any.
    pub(super) fn add_ngram(&mut self, found: f32, reach: impl Iterator<Item = f32>) {
        self.lookups += 1;
        for chance in reach {
            put(&mut self.ngram, found, chance);
        }
    }

    /// Drafts that the neural drafter makes for it, with the chance that there is need for them.
    pub(super) fn add_neural(&mut self, needed: f32, reach: impl Iterator<Item = f32>) {
        for (place, chance) in reach.enumerate() {
            self.draft_forwards = self.draft_forwards.max(place + 1);
            put(&mut self.neural[place], needed, chance);
        }
    }

    /// The threshold and the draft forwards with the most tokens per time, if `rows` requests like these decode.
    pub(super) fn decide(&self, costs: &StepCosts, rows: usize) -> Verdict {
        if self.rows == 0 || rows == 0 {
            return Verdict::PLAIN;
        }
        let plain = rows as f64;
        let scale = plain / self.rows as f64;
        let pass = costs.pass(rows);
        let lookup = costs.lookup() * self.lookups as f64 * scale;
        let least = LEAST.min(0.01 / plain) * costs.hoped(plain);
        let mut best = (plain / costs.hoped(plain), Verdict::PLAIN);
        let mut cells = self.ngram;
        for draft_forwards in 0..=self.draft_forwards {
            if draft_forwards > 0 {
                for (sum, cell) in cells.iter_mut().zip(&self.neural[draft_forwards - 1]) {
                    sum.drafts += cell.drafts;
                    sum.accepted += cell.accepted;
                }
            }
            let drafting = lookup + pass * draft_forwards as f64;
            let (mut drafts, mut accepted) = (0.0, 0.0);
            for (index, cell) in cells.iter().enumerate() {
                if cell.drafts == 0.0 {
                    continue;
                }
                drafts += f64::from(cell.drafts) * scale;
                accepted += f64::from(cell.accepted) * scale;
                let time = costs.hoped(plain + drafts) + least * drafts + drafting;
                let rate = (plain + accepted) / time;
                if rate > best.0 {
                    let levels = index + 1;
                    best = (
                        rate,
                        Verdict {
                            levels,
                            draft_forwards,
                        },
                    );
                }
            }
        }
        best.1
    }
}

fn put(cells: &mut [Cell; LEVELS], weight: f32, chance: f32) {
    if let Some(cell) = cells.get_mut(level(chance)) {
        cell.drafts += weight;
        cell.accepted += weight * chance;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::times::StepTimes;

    /// Costs that follow a law.
    fn costs(law: impl Fn(usize) -> f64, pass: u64) -> StepCosts {
        let mut costs = StepCosts::default();
        for _ in 0..50 {
            for tokens in (1..16).chain((16..600).step_by(8)) {
                costs.observe(&StepTimes {
                    decodes: 1,
                    decode_tokens: tokens,
                    wanted: (0, 1),
                    device_ns: law(tokens) as u64 + pass,
                    draft_ns: pass,
                    draft_passes: 1,
                    ..StepTimes::default()
                });
            }
        }
        costs
    }

    fn chain(chance: f32) -> impl Iterator<Item = f32> {
        (1..=8).map(move |place| chance.powi(place))
    }

    fn board(rows: usize, chance: f32) -> Board {
        let mut board = Board::new();
        for _ in 0..rows {
            board.add_row();
            board.add_neural(1.0, chain(chance));
        }
        board
    }

    #[test]
    fn levels_are_in_order_of_the_chance() {
        let levels: Vec<usize> = (0..=1000).rev().map(|i| level(i as f32 / 1000.0)).collect();
        assert!(levels.windows(2).all(|pair| pair[0] <= pair[1]));
        assert_eq!((level(1.0), level(0.5), level(0.25)), (0, 4, 8));
        assert!(level(0.0) > LEVELS);
    }

    #[test]
    fn the_verdict_is_the_best_depth_of_all() {
        for (rows, chance, slope, pass) in [
            (1, 0.8, 100.0, 300),
            (1, 0.8, 100.0, 3000),
            (4, 0.9, 20.0, 500),
            (16, 0.6, 400.0, 100),
            (64, 0.7, 30.0, 2000),
        ] {
            // Flat as long as weights are what takes the time, and then by the token.
            let law = |tokens: usize| 10_000.0_f64.max(slope * tokens as f64);
            let rate = |depth: usize| {
                let accepted: f32 = chain(chance).take(depth).sum();
                let tokens = rows as f64 * (1.0 + f64::from(accepted));
                tokens / (law(rows * (1 + depth)) + (pass * depth as u64) as f64)
            };
            let best = (0..=8).map(rate).fold(0.0, f64::max);
            let verdict = board(rows, chance).decide(&costs(law, pass), rows);
            let depth = verdict.depth(chain(chance)).min(verdict.draft_forwards);
            assert!(
                rate(depth) > 0.99 * best,
                "{rows} {chance} {slope} {pass}: {depth}"
            );
        }
    }

    #[test]
    fn good_and_bad_requests_of_a_step_get_their_own_depths() {
        let costs = costs(|tokens| 10_000.0 + 300.0 * tokens as f64, 10);
        let mut board = board(8, 0.9);
        for _ in 0..8 {
            board.add_row();
            board.add_neural(1.0, chain(0.02));
        }
        let verdict = board.decide(&costs, 16);
        assert!(verdict.depth(chain(0.9)) >= 6, "{verdict:?}");
        assert_eq!(verdict.depth(chain(0.02)), 0);
    }
}
