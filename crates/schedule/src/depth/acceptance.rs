//! How likely drafts are accepted, by their place in the chain.

use paceline_types::MAX_DRAFTS;

/// Trials that an expectation counts for at least.
const EXPECTED: f32 = 2.0;
/// Trials after which older ones fade.
const MEMORY: f32 = 32.0;
const LONG_MEMORY: f32 = 64.0;
/// What is expected of a drafter that has not been tried.
const HOPE: f32 = 0.75;
/// Bad luck that is too bad to be luck: the text is another now. A request has some hundred plan rows, and what would happen to one
/// of a hundred by chance would happen to most requests.
const SURPRISE: f32 = 0.001;
/// A request teaches others with so many of its first plan rows, and of its later trials: whoever goes on drafting is
/// the better for it, and counting only those would promise too much to newcomers.
const LESSONS: u8 = 16;
const LESSONS_OF_TRIAL: u8 = 4;
/// Plan rows with drafts that make requests comparable.
const COMPARABLE: f32 = 8.0;
/// How fast it is followed how much requests differ, and the least that they may, as a variance.
const FOLLOW: f32 = 1.0 / 16.0;
const LEAST_DIFFERENCE: f32 = 0.002;

/// Of one source: the chance of each draft, given that those before it were accepted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    chance: [f32; MAX_DRAFTS],
    trials: [f32; MAX_DRAFTS],
    /// The chance of the present run of plan rows without an accepted draft.
    luck: f32,
    /// Plan rows that others may still learn from.
    lessons: u8,
    /// Plan rows with drafts, and those of which the first draft was accepted.
    rows: f32,
    hits: f32,
}

/// How much requests differ in how they fare with a source: by how much more than luck explains their shares of accepted first
/// drafts are apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Differences {
    /// Of the shares' squared distances from what was expected, and of what luck explains of them: means of late.
    squares: f32,
    luck: f32,
}

impl Differences {
    /// Before anything is known.
    pub(super) const UNKNOWN: Self = Self {
        squares: 0.04,
        luck: 0.01,
    };

    /// A request has ended of whose first drafts so many were expected to be accepted.
    pub(super) fn learn(&mut self, expected: f32, of: &Chain) {
        if of.rows < COMPARABLE {
            return;
        }
        let off = of.hits / of.rows - expected;
        self.squares += FOLLOW * (off * off - self.squares);
        self.luck += FOLLOW * (expected * (1.0 - expected) / of.rows - self.luck);
    }

    /// Trials of a request that tell as much as what is known of the others.
    fn trials(self, chance: f32) -> f32 {
        let differ = (self.squares - self.luck).max(LEAST_DIFFERENCE);
        (chance * (1.0 - chance) / differ - 1.0).clamp(EXPECTED, MEMORY)
    }
}

impl Chain {
    /// Of a source that has not been tried.
    pub(super) fn untried() -> Self {
        Self {
            chance: [HOPE; MAX_DRAFTS],
            trials: [EXPECTED; MAX_DRAFTS],
            luck: 1.0,
            lessons: 0,
            rows: 0.0,
            hits: 0.0,
        }
    }

    /// Of a request that has not tried it; others have, and differ so much.
    pub(super) fn expecting(others: &Self, differ: Differences) -> Self {
        let most = differ.trials(others.chance[0]);
        Self {
            chance: others.chance,
            trials: others.trials.map(|trials| (trials / 2.0).min(most).max(EXPECTED)),
            luck: 1.0,
            lessons: LESSONS,
            rows: 0.0,
            hits: 0.0,
        }
    }

    /// Takes in a row of which `drafted` drafts were verified and `accepted` accepted: the first of the others was tried too.
    pub(super) fn observe(&mut self, drafted: usize, accepted: usize, everyone: Option<&mut Self>) {
        let tried = drafted.min(accepted + 1).min(MAX_DRAFTS);
        self.rows += 1.0;
        self.hits += f32::from(u8::from(accepted > 0));
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

    /// The chance of the first draft.
    pub(super) fn first(&self) -> f32 {
        self.chance[0]
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

    /// Three drafts refused in a row happen to every other request whose drafts are accepted four times in five.
    #[test]
    fn where_requests_are_alike_a_few_refused_drafts_are_bad_luck_and_where_they_differ_they_tell() {
        let mut everyone = Chain::untried();
        for row in 0..200 {
            everyone.observe(1, usize::from(row % 5 > 0), None);
        }
        let behind_three_refused = |shares: [usize; 2]| {
            let mut differ = Differences::UNKNOWN;
            for request in 0..60 {
                let mut chain = Chain::untried();
                for row in 0..50 {
                    chain.observe(1, usize::from(row % 10 < shares[request % 2]), None);
                }
                differ.learn(0.8, &chain);
            }
            let mut chain = Chain::expecting(&everyone, differ);
            for _ in 0..3 {
                chain.observe(1, 0, None);
            }
            chain.first()
        };
        let (alike, apart) = (behind_three_refused([8, 8]), behind_three_refused([10, 6]));
        assert!(alike > 0.6 && apart < 0.5, "{alike}, {apart}");
        // Few rows tell nothing of how requests differ.
        let (mut differ, mut short) = (Differences::UNKNOWN, Chain::untried());
        (0..3).for_each(|_| short.observe(1, 0, None));
        differ.learn(0.8, &short);
        assert!((differ.squares - Differences::UNKNOWN.squares).abs() < 1e-6);
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
        let mut chain = Chain::expecting(&everyone, Differences::UNKNOWN);
        for row in 0..500 {
            chain.observe(1, usize::from(row >= 16), Some(&mut everyone));
        }
        assert!(everyone.chance[0] < 0.15, "{}", everyone.chance[0]);
    }
}
