//! How likely drafts are accepted, by their place in the chain.

use paceline_types::MAX_DRAFTS;

/// Trials that an expectation counts for at least. What others have tried counts for an eighth.
const EXPECTED: f32 = 2.0;
/// Trials after which older ones fade.
const MEMORY: f32 = 32.0;
const LONG_MEMORY: f32 = 64.0;
/// What is expected of a drafter that has not been tried.
const HOPE: f32 = 0.75;
/// Bad luck that is too bad to be luck: the text is another now.
const SURPRISE: f32 = 0.01;
/// A request teaches others with so many of its first plan rows, and of its later trials: whoever goes on drafting is
/// the better for it, and counting only those would promise too much to newcomers.
const LESSONS: u8 = 16;
const LESSONS_OF_TRIAL: u8 = 4;

/// Of one source: the chance of each draft, given that those before it were accepted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    chance: [f32; MAX_DRAFTS],
    trials: [f32; MAX_DRAFTS],
    /// The chance of the present run of plan rows without an accepted draft.
    luck: f32,
    /// Plan rows that others may still learn from.
    lessons: u8,
}

impl Chain {
    /// Of a source that has not been tried.
    pub(super) fn untried() -> Self {
        Self {
            chance: [HOPE; MAX_DRAFTS],
            trials: [EXPECTED; MAX_DRAFTS],
            luck: 1.0,
            lessons: 0,
        }
    }

    /// Of a request that has not tried it; others have.
    pub(super) fn expecting(others: &Self) -> Self {
        Self {
            chance: others.chance,
            trials: others.trials.map(|trials| (trials / 8.0).max(EXPECTED)),
            luck: 1.0,
            lessons: LESSONS,
        }
    }

    /// Takes in a row of which `drafted` drafts were verified and `accepted` accepted: the first of the others was tried too.
    pub(super) fn observe(&mut self, drafted: usize, accepted: usize, everyone: Option<&mut Self>) {
        let tried = drafted.min(accepted + 1).min(MAX_DRAFTS);
        if let Some(everyone) = everyone.filter(|_| self.lessons > 0) {
            self.lessons -= 1;
            for place in 0..tried {
                everyone.learn(place, place < accepted, LONG_MEMORY);
            }
        }
        self.luck = match accepted {
            0 => self.luck * (1.0 - self.chance[0]),
            _ => 1.0,
        };
        if self.luck < SURPRISE {
            self.trials[0] = self.trials[0].min(1.0);
            self.luck = 1.0;
        }
        for place in 0..tried {
            self.learn(place, place < accepted, MEMORY);
        }
    }

    fn learn(&mut self, place: usize, accepted: bool, memory: f32) {
        let trials = (self.trials[place] + 1.0).min(memory);
        let outcome = f32::from(u8::from(accepted));
        self.trials[place] = trials;
        self.chance[place] += (outcome - self.chance[place]) / trials;
    }

    /// Lets new trials at a place and behind it count for more than old ones.
    pub(super) fn doubt(&mut self, from: usize) {
        self.lessons = self.lessons.max(LESSONS_OF_TRIAL);
        for trials in self.trials.iter_mut().skip(from) {
            *trials = trials.min(EXPECTED);
        }
    }

    /// Lets new trials count for more than so many old ones.
    pub(super) fn doubt_all(&mut self, trials: f32) {
        for known in &mut self.trials {
            *known = known.min(trials);
        }
    }

    /// The chance that the drafts up to each place are all accepted.
    pub(super) fn reach(&self, most: usize) -> impl Iterator<Item = f32> + '_ {
        self.chance.iter().take(most).scan(1.0, |all, chance| {
            *all *= chance;
            Some(*all)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_converge_to_the_share_accepted_and_follow_a_change() {
        let mut chain = Chain::untried();
        for row in 0..400 {
            chain.observe(3, [3, 1, 3, 0][row % 4], None);
        }
        let reach: Vec<f32> = chain.reach(4).collect();
        assert!(
            (reach[0] - 0.75).abs() < 0.08 && (reach[2] - 0.5).abs() < 0.08,
            "{reach:?}"
        );
        for _ in 0..100 {
            chain.observe(3, 0, None);
        }
        assert!(chain.reach(1).all(|chance| chance < 0.02));
        chain.doubt(0);
        for _ in 0..4 {
            chain.observe(1, 1, None);
        }
        assert!(chain.reach(1).all(|chance| chance > 0.6));
    }

    #[test]
    fn drafts_behind_a_rejected_one_were_not_tried() {
        let mut chain = Chain::untried();
        for _ in 0..50 {
            chain.observe(8, 1, None);
        }
        assert!(chain.chance[0] > 0.95 && chain.chance[1] < 0.1);
        assert!((chain.chance[2] - HOPE).abs() < 1e-6);
    }

    #[test]
    fn others_learn_from_a_requests_beginning() {
        let mut everyone = Chain::untried();
        let mut chain = Chain::expecting(&everyone);
        for row in 0..500 {
            chain.observe(1, usize::from(row >= 16), Some(&mut everyone));
        }
        assert!(everyone.chance[0] < 0.15, "{}", everyone.chance[0]);
    }
}
