//! Depth control: as many drafts as pay, none included.
//!
//! Per request and source it keeps the chance of each draft of a chain ([`acceptance`]); what steps cost is measured
//! ([`StepCosts`]); each step's threshold is where expected tokens per time are greatest ([`board`]); and what was
//! given up is tried again, by requests ([`probe`]) and by newcomers ([`scouting`]). The threshold of a step is found from the requests of the step planned before
//! it, so that each request is looked at once per step.

mod acceptance;
mod board;
mod probe;
mod scouting;
#[cfg(test)]
mod tests;

use crate::costs::StepCosts;
use crate::policy::{Choice, DraftPolicy, RequestView, RowDrafts, Stage};
use crate::request::RequestId;
use crate::scheduler::ById;
use crate::times::StepTimes;
use acceptance::{Chain, Differences};
use board::{Board, Verdict};
use paceline_types::{DraftBudget, DraftSource};
use probe::{Budget, Probe};
use scouting::Scouting;

/// Steps after which plain decoding is measured again, and how often then: it is what drafts are held against, so it must be
/// known as well as they are.
const REFRESH: u64 = 1024;
const REFRESHED: u64 = 4;
/// Steps between looks at what a newcomer can expect.
const LOOK: u64 = 16;
/// Trials that what is known of newcomers counts for when a scout sets out: else they would have to be many to be believed.
const DOUBTED: f32 = 8.0;
/// How fast the chance that a look-up finds something follows, and what is expected of it where none was made.
const FOLLOW: f32 = 1.0 / 16.0;
const FOLLOW_ALL: f32 = 1.0 / 128.0;
const UNTRIED_LOOKUP: f32 = 0.5;

/// Chooses each request's depth so that tokens per time are greatest, and so that speculation never costs.
pub struct DepthControl {
    /// What is expected of a request that has not tried: by source, and the chance that a look-up finds something.
    everyone: [Chain; 2],
    differ: [Differences; 2],
    found: f32,
    /// Most drafts that a request could ever ask for, by source: none of a source that there is not.
    most: [usize; 2],
    requests: ById<Box<Record>>,
    board: Board,
    verdict: Verdict,
    /// For requests that are not on the board yet.
    newcomer: Verdict,
    looked: Option<u64>,
    scouting: Scouting,
    /// Nothing is verified in this step, to learn what plain decoding takes.
    plain: bool,
    refreshed: u64,
    budget: Budget,
    /// Passes of the neural drafter asked for in the step being planned.
    draft_forwards: usize,
    steps: u64,
}

/// What is known of a request.
struct Record {
    chains: [Chain; 2],
    /// What was expected of the first draft of each source, before it taught others anything.
    expected: [f32; 2],
    probes: [Probe; 2],
    /// The chance that a look-up finds something.
    found: f32,
    /// What its plan rows in flight may find.
    asked: Asked,
    /// The neural drafter has not seen its prompt: what it drafts says nothing about other requests.
    blind: bool,
    /// It tries the neural drafter though newcomers do not.
    scout: bool,
}

impl Record {
    fn new(
        id: RequestId,
        (everyone, differ): (&[Chain; 2], &[Differences; 2]),
        (found, scout): (f32, bool),
    ) -> Self {
        let chains = std::array::from_fn(|source| Chain::expecting(&everyone[source], differ[source]));
        Self {
            expected: chains.each_ref().map(Chain::first),
            chains,
            probes: [Probe::new(id); 2],
            found,
            asked: Asked::default(),
            blind: false,
            scout,
        }
    }

    /// Whether how it fares with a source says something about other requests.
    fn teaches(&self, source: usize) -> bool {
        source == NGRAM || !self.blind
    }
}

/// The sources that were asked for drafts, for the newest plan row to come and for those in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    next: [bool; 2],
    /// By source: a bit per plan row, the newest lowest.
    rows: [u32; 2],
    len: u32,
}

impl Asked {
    /// A plan row is planned that verifies drafts, or none, with others wanted behind it.
    fn plan(&mut self, verifies: bool, depths: [usize; 2]) {
        for (source, depth) in depths.into_iter().enumerate() {
            self.rows[source] = self.rows[source] << 1 | u32::from(self.next[source] && verifies);
            self.next[source] = depth > 0;
        }
        self.len += 1;
    }

    /// The oldest plan row is done: the sources that might have had drafts for it.
    fn done(&mut self) -> [bool; 2] {
        self.len = self.len.saturating_sub(1);
        self.rows.map(|row| row >> self.len & 1 == 1)
    }
}

const NGRAM: usize = 0;
const NEURAL: usize = 1;

/// The place of a source in what is kept by source. Nothing is learned of what a grammar forces.
fn index(source: DraftSource) -> Option<usize> {
    match source {
        DraftSource::Ngram => Some(NGRAM),
        DraftSource::Neural => Some(NEURAL),
        DraftSource::Grammar => None,
    }
}

impl Default for DepthControl {
    fn default() -> Self {
        Self {
            everyone: [Chain::untried(), Chain::untried()],
            differ: [Differences::UNKNOWN; 2],
            found: UNTRIED_LOOKUP,
            most: [0; 2],
            requests: ById::default(),
            board: Board::new(),
            verdict: Verdict::HOPEFUL,
            newcomer: Verdict::HOPEFUL,
            looked: None,
            scouting: Scouting::START,
            plain: true,
            refreshed: 0,
            budget: Budget::default(),
            draft_forwards: 0,
            steps: 0,
        }
    }
}

impl DepthControl {
    /// A policy that knows nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// What a request could expect that is like those before it.
    fn look(&mut self, costs: &StepCosts, rows: usize) {
        let mut board = Board::new();
        board.add_row();
        let [ngram, neural] = self.most;
        let found = if ngram == 0 { 0.0 } else { self.found };
        board.add_ngram(found, self.everyone[NGRAM].reach(ngram));
        board.add_neural(1.0 - found, self.everyone[NEURAL].reach(neural));
        self.newcomer = board.decide(costs, rows);
        self.looked = Some(self.steps);
    }

    /// A piece of a prompt: whether the neural drafter is to see it.
    fn choose_prompt(&mut self, request: &RequestView) -> Choice {
        let drafts = self.newcomer.draft_forwards > 0;
        let record = self.meet(request.id);
        let sees = drafts || record.scout;
        record.blind |= !sees;
        Choice {
            verify: 0,
            propose: DraftBudget {
                ngram: 0,
                neural: if sees { request.most.neural } else { 0 },
            },
        }
    }

    /// Makes a record for a request that has none.
    fn meet(&mut self, id: RequestId) -> &mut Record {
        let Self {
            everyone,
            differ,
            found,
            newcomer,
            scouting,
            requests,
            ..
        } = self;
        requests.entry(id).or_insert_with(|| {
            let scout = scouting.arrives(newcomer.draft_forwards > 0);
            if scout {
                everyone[NEURAL].doubt_all(DOUBTED);
            }
            Box::new(Record::new(id, (everyone, differ), (*found, scout)))
        })
    }

    fn choose_drafts(&mut self, request: &RequestView, verdict: Verdict) -> Choice {
        let (id, most, steps_on) = (request.id, request.most, request.stage == Stage::Decode);
        self.meet(id);
        let record = self.requests.get_mut(&id).expect("it was met");
        let [ngram, neural] = &record.chains;
        let caps = [most.ngram, most.neural];
        self.board.add_row();
        let mut depths = [
            verdict.depth(ngram.reach(caps[NGRAM])),
            verdict
                .depth(neural.reach(caps[NEURAL]))
                .min(verdict.draft_forwards),
        ];
        let expected = |source: usize| -> f32 { record.chains[source].reach(depths[source]).sum() };
        let mut found = record.found;
        if caps[NGRAM] == 0 || expected(NEURAL) > expected(NGRAM) {
            // There is nothing to be found, or it would take the place of better drafts.
            depths[NGRAM] = 0;
            found = 0.0;
        }
        self.board.add_ngram(found, ngram.reach(caps[NGRAM]));
        self.board.add_neural(1.0 - found, neural.reach(caps[NEURAL]));
        if !steps_on && depths[NEURAL] == 0 && record.scout {
            record.probes[NEURAL].start(0);
        }
        let worth = depths[NGRAM].max(depths[NEURAL]);
        for source in [NGRAM, NEURAL] {
            let depth = (depths[source], caps[source]);
            let who = (id, source == NEURAL);
            let (depth, begins) = record.probes[source].plan(who, depth, &mut self.budget);
            if begins {
                record.chains[source].doubt(depths[source]);
            }
            depths[source] = depth;
        }
        self.draft_forwards = self.draft_forwards.max(depths[NEURAL]);
        let trying = record.probes.iter().any(Probe::trying);
        let verify = match (self.plain, trying) {
            (true, _) => 0,
            (false, true) => request.ready,
            (false, false) => request.ready.min(worth),
        };
        if !steps_on {
            // A new start: nothing is in flight that it will hear of.
            record.asked = Asked::default();
            record.blind |= depths[NEURAL] == 0;
        }
        record.asked.plan(verify > 0, depths);
        if !steps_on {
            record.asked.len = 0;
        }
        Choice {
            verify,
            propose: DraftBudget {
                ngram: depths[NGRAM],
                neural: depths[NEURAL],
            },
        }
    }
}

impl DraftPolicy for DepthControl {
    fn begin_step(&mut self, decodes: usize, costs: &StepCosts) {
        self.steps += 1;
        let before = self.verdict;
        self.plain = decodes > 0 && !costs.knows(decodes);
        if self.plain || decodes == 0 {
            // Drafts are made all the same, so that the drafter misses nothing.
            self.verdict = self.newcomer;
            self.board.clear();
            return;
        }
        if self.looked.is_none_or(|last| self.steps - last >= LOOK) {
            self.look(costs, decodes);
        }
        self.verdict = if self.board.rows() == 0 {
            self.newcomer
        } else {
            self.board.decide(costs, decodes)
        };
        self.board.clear();
        let asked = std::mem::take(&mut self.draft_forwards);
        let draft_forwards = (
            self.verdict.draft_forwards,
            asked.saturating_sub(before.draft_forwards),
        );
        self.budget.begin_step(costs, decodes, draft_forwards);
        let unmeasured = costs.age(decodes).min(self.steps - self.refreshed);
        if self.verdict.levels > 0 && unmeasured > REFRESH {
            self.refreshed = self.steps;
        }
        self.plain = self.steps - self.refreshed < REFRESHED;
    }

    fn choose(&mut self, request: &RequestView) -> Choice {
        let most = [request.most.ngram, request.most.neural];
        self.most = std::array::from_fn(|source| self.most[source].max(most[source]));
        match request.stage {
            Stage::Prompt => self.choose_prompt(request),
            Stage::PromptEnd => self.choose_drafts(request, self.newcomer),
            Stage::Decode => self.choose_drafts(request, self.verdict),
        }
    }

    fn observe_row(&mut self, id: RequestId, drafts: &RowDrafts) {
        let Some(record) = self.requests.get_mut(&id) else {
            return;
        };
        let asked = record.asked.done();
        if drafts.planned == 0 {
            return;
        }
        if asked[NGRAM] {
            let found = f32::from(u8::from(drafts.source == Some(DraftSource::Ngram)));
            record.found += FOLLOW * (found - record.found);
            self.found += FOLLOW_ALL * (found - self.found);
        }
        let source = drafts.source.filter(|_| drafts.drafted > 0).and_then(index);
        let (source, drafted) = match source {
            Some(source) => (source, drafts.drafted),
            // A look-up that found nothing was free. A drafter that ran for nothing was not.
            None if asked[NEURAL] => (NEURAL, 1),
            None => return,
        };
        let everyone = Some(&mut self.everyone[source]).filter(|_| record.teaches(source));
        record.chains[source].observe(drafted, drafts.accepted, everyone);
        record.probes[source].observe(drafted);
    }

    fn observe_step(&mut self, _: &StepTimes) {
        self.budget.earn();
    }

    fn forget(&mut self, id: RequestId) {
        let Some(record) = self.requests.remove(&id) else {
            return;
        };
        for (source, chain) in record.chains.iter().enumerate() {
            if record.teaches(source) {
                self.differ[source].learn(record.expected[source], chain);
            }
        }
    }
}
