//! The programs of a runner: a set that is known before the first request.

use crate::{RowsRead, RunnerConfig};
use paceline_device::Backend;
use paceline_models::DraftScope;
use paceline_types::MAX_DRAFTS;
use std::collections::BTreeMap;
use std::time::Duration;

/// The shape a program is captured for. What a program does depends on nothing else: how many tokens, requests and rows
/// of logits carry data, it finds out when it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shape {
    /// Most tokens. Most requests and rows of logits follow from it.
    pub tokens: usize,
    /// Draft forwards of the neural drafter.
    pub draft_forwards: usize,
    /// Whether there may be prompts among the plan rows: without, each has its newest token and drafts.
    pub prompts: bool,
    /// The tokens that the neural drafter chooses among.
    pub scope: DraftScope,
}

/// What capturing the programs at start took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramReport {
    /// Programs.
    pub programs: usize,
    /// Time.
    pub time: Duration,
    /// Bytes of scratch, which all of them share.
    pub scratch: u64,
}

/// All programs that steps can need, and those of them that were captured.
pub struct ProgramSet<B: Backend> {
    /// Largest first.
    shapes: Vec<Shape>,
    captured: BTreeMap<Shape, B::Program>,
    config: RunnerConfig,
    neural: Option<RowsRead>,
    /// All are there.
    complete: bool,
    late: usize,
}

impl<B: Backend> ProgramSet<B> {
    /// The programs of a runner, with or without a neural drafter, and by what that one reads.
    pub(crate) fn new(config: &RunnerConfig, neural: Option<RowsRead>) -> Self {
        let mut set = Self {
            shapes: Vec::new(),
            captured: BTreeMap::new(),
            config: *config,
            neural,
            complete: false,
            late: 0,
        };
        let mut forwards: Vec<usize> = (0..=config.drafts)
            .map(|drafts| set.draft_forwards(drafts))
            .collect();
        forwards.dedup();
        let mut tokens: Vec<usize> = (0..usize::BITS)
            .map(|bits| bucket(1 << bits, config.tokens))
            .collect();
        tokens.dedup();
        // A step without prompts has no more than the newest token and the drafts of every slot.
        let decodes = bucket(config.slots * (1 + config.drafts), config.tokens);
        for tokens in tokens.into_iter().rev() {
            for draft_forwards in forwards.iter().rev().copied() {
                for prompts in [true, false] {
                    if prompts || tokens <= decodes {
                        let scopes = set.scopes(draft_forwards, prompts);
                        set.shapes.extend(scopes.iter().map(|scope| Shape {
                            tokens,
                            draft_forwards,
                            prompts,
                            scope: *scope,
                        }));
                    }
                }
            }
        }
        set
    }

    /// All shapes, the largest first.
    pub fn shapes(&self) -> &[Shape] {
        &self.shapes
    }

    /// Programs captured so far.
    pub fn captured(&self) -> usize {
        self.captured.len()
    }

    /// Programs captured after the start.
    pub fn captured_late(&self) -> usize {
        self.late
    }

    /// The smallest program that holds a step. Where it has the choice, it drafts in the `preferred` scope.
    pub(crate) fn shape(
        &self,
        tokens: usize,
        wanted_drafts: usize,
        prompts: bool,
        preferred: DraftScope,
    ) -> Shape {
        let draft_forwards = self.draft_forwards(wanted_drafts);
        let scopes = self.scopes(draft_forwards, prompts);
        Shape {
            tokens: bucket(tokens, self.config.tokens),
            draft_forwards,
            prompts,
            scope: if scopes.contains(&preferred) {
                preferred
            } else {
                scopes[0]
            },
        }
    }

    /// The scopes that drafts of such steps can have. With prompts, what the output matrix takes is a small part of a step,
    /// and programs for both are not worth their capture.
    fn scopes(&self, draft_forwards: usize, prompts: bool) -> &'static [DraftScope] {
        const WHOLE: DraftScope = DraftScope::Whole;
        const PART: DraftScope = DraftScope::Part;
        match self.neural {
            Some(RowsRead::Part(_)) if draft_forwards > 0 => &[PART],
            Some(RowsRead::PartWhereItFits(_)) if draft_forwards > 0 && !prompts => &[WHOLE, PART],
            _ => &[WHOLE],
        }
    }

    /// The program of a shape, if it was captured.
    pub fn get(&self, shape: Shape) -> Option<&B::Program> {
        self.captured.get(&shape)
    }

    /// Shapes whose programs are not there yet, the largest first.
    pub(crate) fn missing(&self) -> Vec<Shape> {
        let absent = |shape: &&Shape| !self.captured.contains_key(shape);
        self.shapes.iter().filter(absent).copied().collect()
    }

    pub(crate) fn insert(&mut self, shape: Shape, program: B::Program) {
        self.late += usize::from(self.complete);
        self.captured.insert(shape, program);
    }

    /// All are there, in this time and with these bytes of scratch.
    pub(crate) fn complete(&mut self, time: Duration, scratch: u64) -> ProgramReport {
        self.complete = true;
        ProgramReport {
            programs: self.captured.len(),
            time,
            scratch,
        }
    }

    /// Draft forwards that a program has for plan rows that want up to `drafts` drafts from the neural drafter. There
    /// are fewer programs than numbers of draft forwards: one too many finds no plan rows and costs next to nothing.
    fn draft_forwards(&self, drafts: usize) -> usize {
        match drafts {
            _ if self.neural.is_none() => 0,
            0..=4 => drafts,
            5..=6 => 6,
            7..=8 => 8,
            _ => MAX_DRAFTS,
        }
        .min(self.config.drafts)
    }
}

/// Programs are captured for powers of two; a step runs the smallest that holds it.
fn bucket(count: usize, limit: usize) -> usize {
    count.checked_next_power_of_two().unwrap_or(usize::MAX).min(limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_device::Recorder;

    fn config(slots: usize, tokens: usize, drafts: usize) -> RunnerConfig {
        RunnerConfig {
            slots,
            tokens,
            samples: tokens,
            blocks: 8,
            blocks_per_slot: 8,
            block_size: 16,
            snapshots: 0,
            drafts,
            masks: 0,
            depth: 2,
        }
    }

    const SCOPES: [DraftScope; 2] = [DraftScope::Whole, DraftScope::Part];

    /// Whatever a step has, its program is one of the list.
    #[test]
    fn every_step_has_its_program_in_the_list() {
        for (slots, tokens, drafts) in [(1, 1, 0), (3, 20, 5), (16, 512, 3), (8, 100, 15), (64, 64, 7)] {
            for neural in [
                None,
                Some(RowsRead::Whole),
                Some(RowsRead::Part(9)),
                Some(RowsRead::PartWhereItFits(9)),
            ] {
                let set = ProgramSet::<Recorder>::new(&config(slots, tokens, drafts), neural);
                for count in 1..=tokens {
                    for (wanted, scope) in (0..=drafts).flat_map(|wanted| SCOPES.map(|scope| (wanted, scope)))
                    {
                        let prompt = set.shape(count, wanted, true, scope);
                        assert!(set.shapes().contains(&prompt), "{prompt:?}");
                        assert!(prompt.tokens >= count);
                        assert!(neural.is_none() || prompt.draft_forwards >= wanted);
                        let decode = set.shape(count, wanted, false, scope);
                        if count <= slots * (1 + drafts) {
                            assert!(set.shapes().contains(&decode), "{decode:?}");
                        }
                        let expected = match neural {
                            Some(RowsRead::Part(_)) if wanted > 0 => DraftScope::Part,
                            Some(RowsRead::PartWhereItFits(_)) if wanted > 0 => scope,
                            _ => DraftScope::Whole,
                        };
                        assert_eq!(decode.scope, expected, "{neural:?}");
                    }
                }
                let first = set.shapes()[0];
                assert!(set.shapes().iter().all(
                    |shape| shape.tokens <= first.tokens && shape.draft_forwards <= first.draft_forwards
                ));
            }
        }
    }

    /// As many as there are powers of two up to the tokens of a step, times the numbers of draft forwards, twice.
    #[test]
    fn the_list_is_short() {
        let count = |neural| {
            ProgramSet::<Recorder>::new(&config(16, 512, 3), neural)
                .shapes()
                .len()
        };
        // 10 sizes with prompts, 7 without, 4 numbers of draft forwards.
        assert_eq!(count(Some(RowsRead::Whole)), (10 + 7) * 4);
        assert_eq!(count(Some(RowsRead::Part(9))), (10 + 7) * 4);
        // Both scopes for steps that draft and have no prompts.
        assert_eq!(count(Some(RowsRead::PartWhereItFits(9))), (10 + 7) * 4 + 7 * 3);
        assert_eq!(count(None), 10 + 7);
    }
}
