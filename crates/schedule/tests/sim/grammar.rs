//! Constraints whose every answer can be checked, and workers that take their time over them.

use super::rng::{Rng, mix};
use super::text::VOCABULARY;
use paceline_schedule::{MaskJob, MaskResult, MaskWorkers};
use paceline_types::{Constraint, ConstraintError, Matcher, TokenId, TokenMask};
use std::sync::Arc;

/// Allows a text that is known beforehand, and at each position another token beside it.
#[derive(Debug)]
pub struct Grammar {
    /// Prompt and full text.
    pub tokens: Vec<TokenId>,
    pub prompt_len: usize,
    pub seed: u64,
    /// The length at which nothing may follow any more.
    pub last: usize,
    /// It is not complete there, but cannot go on.
    pub dead_end: bool,
}

impl Grammar {
    /// What may come at a position. Both tokens may: the model chooses that of the text.
    pub fn mask(&self, position: usize) -> TokenMask {
        let other = mix(self.seed, position as u64) % VOCABULARY;
        TokenMask::of(
            &[self.tokens[position], other as TokenId],
            VOCABULARY as usize + position % 40,
        )
    }

    /// Where the text ends under it.
    fn end(&self) -> usize {
        self.last.min(self.tokens.len())
    }
}

/// Follows the one text.
struct Follower(Arc<Grammar>, usize);

#[derive(Debug)]
pub struct Shared(pub Arc<Grammar>);

impl Constraint for Shared {
    fn matcher(&self) -> Box<dyn Matcher> {
        Box::new(Follower(Arc::clone(&self.0), self.0.prompt_len))
    }
}

impl Matcher for Follower {
    fn commit(&mut self, tokens: &[TokenId]) -> Result<(), ConstraintError> {
        let Self(grammar, at) = self;
        assert_eq!(
            *tokens,
            grammar.tokens[*at..*at + tokens.len()],
            "a token was committed twice, or never"
        );
        *at += tokens.len();
        assert!(*at <= grammar.end(), "a text goes on behind its end");
        if *at == grammar.last && grammar.dead_end {
            return Err(ConstraintError("a dead end".to_owned()));
        }
        Ok(())
    }

    fn forced(&mut self, most: usize) -> Result<Vec<TokenId>, ConstraintError> {
        let Self(grammar, at) = self;
        let run = (mix(grammar.seed ^ 7, *at as u64) % 12).saturating_sub(6) as usize;
        let end = (*at + run.min(most)).min(grammar.end());
        Ok(grammar.tokens[*at..end].to_vec())
    }

    fn masks(&mut self, drafts: &[TokenId]) -> Result<Vec<TokenMask>, ConstraintError> {
        let Self(grammar, at) = self;
        let mut masks = vec![grammar.mask(*at)];
        for (offset, draft) in drafts.iter().enumerate() {
            let next = *at + offset + 1;
            if grammar.tokens[next - 1] != *draft || next >= grammar.end() {
                break;
            }
            masks.push(grammar.mask(next));
        }
        Ok(masks)
    }

    fn is_finished(&self) -> bool {
        let Self(grammar, at) = self;
        *at == grammar.last && !grammar.dead_end
    }
}

/// Workers that take a few looks for a job, do them in any order and take no more than a few at a time.
pub struct Slow {
    jobs: Vec<MaskJob>,
    most: usize,
    rng: Rng,
}

impl Slow {
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        Self {
            jobs: Vec::new(),
            most: rng.within(1, 4),
            rng,
        }
    }

    fn finish(&mut self) -> Option<MaskResult> {
        let index = (!self.jobs.is_empty()).then(|| self.rng.below(self.jobs.len()))?;
        Some(self.jobs.swap_remove(index).run())
    }
}

impl MaskWorkers for Slow {
    fn start(&mut self, job: MaskJob) -> Option<MaskJob> {
        if self.jobs.len() >= self.most {
            return Some(job);
        }
        self.jobs.push(job);
        None
    }

    fn done(&mut self) -> Option<MaskResult> {
        if self.rng.chance(60) { self.finish() } else { None }
    }

    /// Waiting brings nothing by itself: what is done shows the next time.
    fn wait(&mut self) {}
}
