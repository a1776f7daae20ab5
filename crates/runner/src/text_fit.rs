//! Whether the texts of a step have few tokens outside the part of the vocabulary that drafts can be chosen among.
//!
//! The first tokens of a vocabulary are its frequent ones, but not in every language: of a text in the script that a
//! vocabulary was extended by, most tokens come last. A draft that cannot be named cannot be right, so such texts are drafted for
//! with the whole output matrix. What a text is like, its own tokens tell: those of the prompt, then those that came.

use paceline_models::DraftScope;
use paceline_types::{PlanRow, SlotId, TokenId};

/// Where more of the texts' tokens than this are outside, the part costs more drafts than it saves time.
const MOST_OUTSIDE: f32 = 0.1;
/// Tokens of a text that its share is of: the last ones count.
const WINDOW: f32 = 256.0;

/// The texts of all slots, as far as they were seen.
pub(crate) struct TextFit {
    /// Tokens of the part.
    part: TokenId,
    slots: Vec<Share>,
}

/// Of the tokens of a text, those outside the part.
#[derive(Clone, Copy, Default)]
struct Share {
    outside: f32,
    /// Tokens that were seen, up to the window.
    tokens: f32,
}

impl TextFit {
    pub(crate) fn new(part: usize, slots: usize) -> Self {
        Self {
            part: part as TokenId,
            slots: vec![Share::default(); slots],
        }
    }

    /// Another request has the slot.
    pub(crate) fn forget(&mut self, slot: SlotId) {
        self.slots[slot.0 as usize] = Share::default();
    }

    /// The next tokens of a slot's text.
    pub(crate) fn see(&mut self, slot: SlotId, tokens: &[TokenId]) {
        let share = &mut self.slots[slot.0 as usize];
        for token in tokens {
            share.tokens = (share.tokens + 1.0).min(WINDOW);
            let outside = f32::from(u8::from(*token >= self.part));
            share.outside += (outside - share.outside) / share.tokens;
        }
    }

    /// What suits the plan rows that want drafts, taken together.
    pub(crate) fn scope(&self, rows: &[PlanRow]) -> DraftScope {
        let drafting = rows.iter().filter(|row| row.propose.neural > 0);
        let shares = drafting.map(|row| self.slots[row.slot.0 as usize].outside);
        let (sum, count) = shares.fold((0.0, 0.0), |(sum, count), share| (sum + share, count + 1.0));
        if sum > MOST_OUTSIDE * count {
            DraftScope::Whole
        } else {
            DraftScope::Part
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_types::{DraftBudget, Work};

    fn row(slot: u32, neural: usize) -> PlanRow {
        PlanRow {
            slot: SlotId(slot),
            generation: 1,
            work: Work::Verify { drafts: 0 },
            new_blocks: Vec::new(),
            snapshot: None,
            propose: DraftBudget { ngram: 0, neural },
            show_drafts: false,
            constraint: None,
        }
    }

    #[test]
    fn texts_of_the_first_tokens_are_drafted_for_with_the_part() {
        let mut fit = TextFit::new(100, 3);
        fit.see(SlotId(0), &[1, 99, 7, 7, 7, 7, 7, 7, 7, 7, 7]);
        fit.see(SlotId(1), &[100, 5, 2000, 150]);
        assert_eq!(fit.scope(&[row(0, 3)]), DraftScope::Part);
        assert_eq!(fit.scope(&[row(1, 3)]), DraftScope::Whole);
        // All that draft count, and nobody else.
        assert_eq!(fit.scope(&[row(0, 3), row(1, 1)]), DraftScope::Whole);
        assert_eq!(fit.scope(&[row(0, 3), row(1, 0)]), DraftScope::Part);
        fit.forget(SlotId(1));
        assert_eq!(fit.scope(&[row(1, 3)]), DraftScope::Part);
    }

    #[test]
    fn a_text_that_changes_is_known_by_its_last_tokens() {
        let mut fit = TextFit::new(100, 1);
        fit.see(SlotId(0), &[7; 500]);
        assert_eq!(fit.scope(&[row(0, 1)]), DraftScope::Part);
        fit.see(SlotId(0), &[700; 40]);
        assert_eq!(fit.scope(&[row(0, 1)]), DraftScope::Whole);
        fit.see(SlotId(0), &[7; 500]);
        assert_eq!(fit.scope(&[row(0, 1)]), DraftScope::Part);
    }
}
