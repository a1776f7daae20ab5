//! A step's plan: everything the host tells the device about it, in one array of words.

use super::{LIST_WORDS, Slot, Wide, take};
use paceline_types::MAX_DRAFTS;

words! {
    /// The front of a plan. The sections follow it in the order of their counts.
    pub struct PlanHeader {
        /// Number of the step, counted from 1 by the host that submits it.
        pub step: Wide,
        /// [`AdmissionWords`] of requests that take over a slot.
        pub admissions: u32,
        /// [`BlockUpdate`]s.
        pub block_updates: u32,
        /// [`PlanRow`]s.
        pub rows: u32,
        /// Tokens of all plan rows together: those of prefill rows and given drafts.
        pub tokens: u32,
        /// Words of the admissions' lists.
        pub list_words: u32,
        /// Masks.
        pub masks: u32,
        /// Words of a mask, a bit per token, lowest token in the lowest bit.
        pub mask_words: u32,
    }
}

words! {
    /// A request's start in a slot.
    pub struct AdmissionWords {
        /// The slot.
        pub slot: u32,
        /// Its lists in the plan's list words: where they begin.
        pub first_list: u32,
        /// And how long they are.
        pub list_words: u32,
        /// What the slot is set to.
        pub state: Slot,
    }
}

words! {
    /// An entry of a slot's block table.
    pub struct BlockUpdate {
        /// The slot.
        pub slot: u32,
        /// Index in its table.
        pub index: u32,
        /// The block.
        pub block: u32,
    }
}

words! {
    /// One request's part in a step.
    pub struct PlanRow {
        /// Its slot.
        pub slot: u32,
        /// The owner of the slot it is meant for.
        pub generation: u32,
        /// [`PREFILL`](Self::PREFILL) or [`VERIFY`](Self::VERIFY).
        pub kind: i32,
        /// Of a prefill row: position of its first token.
        pub start: i32,
        /// Of a prefill row: its tokens. Of a verify row: most drafts.
        pub count: i32,
        /// The bits below.
        pub flags: i32,
        /// Of a prefill row: the known token after its last one, or -1.
        pub following: i32,
        /// Its first token among the plan's: of a prefill row, and of one with given drafts.
        pub first_token: u32,
        /// Its first mask among the plan's.
        pub first_mask: u32,
        /// Position whose recurrent state is to be saved, a multiple of [`paceline_types::STATE_GRID`], or -1. The row that
        /// stores that state saves it.
        pub snapshot_at: i32,
        /// Where it is saved.
        pub snapshot: i32,
        /// Most drafts wanted behind the plan row from the slot's own text.
        pub ngram: i32,
        /// Most drafts wanted behind the plan row from the neural drafter; with 0 it does not see the plan row.
        pub neural: i32,
        /// Of a plan row with given drafts: where they came from, as in [`Slot::source`].
        pub source: i32,
    }

    /// A plan row of known tokens.
    const PREFILL = 0;
    /// A plan row of the newest token and its drafts.
    const VERIFY = 1;

    /// Of a prefill row: choose the token after the last one.
    const SAMPLE_LAST = 1;
    /// Of a prefill row: report log-probabilities of the known tokens that follow.
    const SAMPLE_ALL = 2;
    /// Of a verify row: the drafts are those of the plan, among its tokens, and not those of the slot.
    const GIVEN = 4;
    /// Choices are confined to the plan row's masks: the first to the first mask, and so on.
    const MASKED = 8;
    /// Of a prefill row: add the states to the slot's sum.
    const POOL_SUM = 16;
    /// Of a prefill row: give the mean of all states in the sum.
    const POOL_MEAN = 32;
    /// Of a prefill row: give the last state.
    const POOL_LAST = 64;
    /// Tell the host of the drafts made behind the plan row.
    const SHOW_DRAFTS = 128;
}

impl PlanRow {
    /// Whether a flag is set.
    pub fn is(&self, flag: i32) -> bool {
        self.flags & flag != 0
    }

    /// Whether it chooses the next token, if it runs at all.
    pub fn chooses(&self) -> bool {
        self.kind == Self::VERIFY || self.is(Self::SAMPLE_LAST)
    }

    /// Whether it completes a vector.
    pub fn embeds(&self) -> bool {
        self.is(Self::POOL_MEAN | Self::POOL_LAST)
    }

    /// One more than the mask of its choice `place`, or 0.
    pub fn mask(&self, place: usize) -> i32 {
        if self.is(Self::MASKED) {
            (self.first_mask as usize + place) as i32 + 1
        } else {
            0
        }
    }
}

/// A plan as a device reads it.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// What follows, in numbers.
    pub header: &'a PlanHeader,
    /// Requests that take over a slot.
    pub admissions: &'a [AdmissionWords],
    /// New entries of block tables.
    pub block_updates: &'a [BlockUpdate],
    /// What to compute.
    pub rows: &'a [PlanRow],
    /// Tokens of plan rows.
    pub tokens: &'a [i32],
    /// Lists of admissions.
    pub lists: &'a [i32],
    masks: &'a [i32],
}

impl<'a> Plan<'a> {
    /// The plan at the front of `words`; `None` if they end before it does.
    pub fn parse(mut words: &'a [i32]) -> Option<Self> {
        let header = take::<PlanHeader>(&mut words, 1)?.first()?;
        Some(Self {
            header,
            admissions: take(&mut words, header.admissions)?,
            block_updates: take(&mut words, header.block_updates)?,
            rows: take(&mut words, header.rows)?,
            tokens: take(&mut words, header.tokens)?,
            lists: take(&mut words, header.list_words)?,
            masks: take(&mut words, header.masks.checked_mul(header.mask_words)?)?,
        })
    }

    /// The lists of an admission.
    pub fn lists_of(&self, admission: &AdmissionWords) -> &'a [i32] {
        &self.lists[admission.first_list as usize..][..admission.list_words as usize]
    }

    /// The tokens of a prefill row, or the drafts given to a verify row.
    pub fn tokens_of(&self, row: &PlanRow) -> &'a [i32] {
        &self.tokens[row.first_token as usize..][..row.count as usize]
    }

    /// A mask of the plan.
    pub fn mask(&self, index: usize) -> &'a [i32] {
        let words = self.header.mask_words as usize;
        &self.masks[index * words..][..words]
    }

    /// Words of the whole plan.
    pub fn words(&self) -> usize {
        let Self {
            admissions,
            block_updates,
            rows,
            tokens,
            lists,
            masks,
            ..
        } = self;
        PlanHeader::WORDS
            + admissions.len() * AdmissionWords::WORDS
            + block_updates.len() * BlockUpdate::WORDS
            + rows.len() * PlanRow::WORDS
            + tokens.len()
            + lists.len()
            + masks.len()
    }
}

/// A plan that is being written. It is kept from step to step, so that writing one takes no memory.
#[derive(Clone, Debug, Default)]
pub struct PlanMessage {
    admissions: Vec<AdmissionWords>,
    block_updates: Vec<BlockUpdate>,
    rows: Vec<PlanRow>,
    tokens: Vec<i32>,
    lists: Vec<i32>,
    masks: Vec<i32>,
    mask_words: usize,
    words: Vec<i32>,
}

impl PlanMessage {
    /// An empty plan whose masks have `mask_words` words each.
    pub fn new(mask_words: usize) -> Self {
        Self {
            mask_words,
            ..Self::default()
        }
    }

    /// Forgets what was written.
    pub fn clear(&mut self) {
        self.admissions.clear();
        self.block_updates.clear();
        self.rows.clear();
        self.tokens.clear();
        self.lists.clear();
        self.masks.clear();
    }

    /// Adds an admission with its lists, see [`super::SlotLists`].
    pub fn admit(&mut self, slot: u32, state: Slot, lists: &[i32]) {
        self.admissions.push(AdmissionWords {
            slot,
            first_list: self.lists.len() as u32,
            list_words: lists.len() as u32,
            state,
        });
        self.lists.extend_from_slice(lists);
    }

    /// Adds an entry of a block table.
    pub fn update_block(&mut self, update: BlockUpdate) {
        self.block_updates.push(update);
    }

    /// Adds a plan row with its tokens (or given drafts) and its masks; masks that are too short allow nothing behind
    /// their end. Fills in where they stand.
    pub fn push<'m>(
        &mut self,
        row: PlanRow,
        tokens: impl IntoIterator<Item = i32>,
        masks: impl IntoIterator<Item = &'m [u32]>,
    ) {
        let first_token = self.tokens.len() as u32;
        let first_mask = self.masks.len().checked_div(self.mask_words).unwrap_or(0) as u32;
        self.rows.push(PlanRow {
            first_token,
            first_mask,
            ..row
        });
        self.tokens.extend(tokens);
        for mask in masks {
            let own = mask.iter().map(|word| *word as i32);
            let padded = own.chain(std::iter::repeat(0)).take(self.mask_words);
            self.masks.extend(padded);
        }
    }

    /// The plan of step `step` as one array.
    pub fn encode(&mut self, step: u64) -> &[i32] {
        let header = PlanHeader {
            step: step.into(),
            admissions: self.admissions.len() as u32,
            block_updates: self.block_updates.len() as u32,
            rows: self.rows.len() as u32,
            tokens: self.tokens.len() as u32,
            list_words: self.lists.len() as u32,
            masks: self.masks.len().checked_div(self.mask_words).unwrap_or(0) as u32,
            mask_words: self.mask_words as u32,
        };
        self.words.clear();
        self.words.extend_from_slice(bytemuck::cast_slice(&[header]));
        self.words
            .extend_from_slice(bytemuck::cast_slice(&self.admissions));
        self.words
            .extend_from_slice(bytemuck::cast_slice(&self.block_updates));
        self.words.extend_from_slice(bytemuck::cast_slice(&self.rows));
        self.words.extend_from_slice(&self.tokens);
        self.words.extend_from_slice(&self.lists);
        self.words.extend_from_slice(&self.masks);
        &self.words
    }
}

/// How large a plan can get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanLimits {
    /// Requests that can be on the device at a time: most admissions and plan rows.
    pub slots: usize,
    /// Tokens of a step.
    pub tokens: usize,
    /// Tokens of a block.
    pub block_size: usize,
    /// Blocks in all: a request that is admitted brings all of its own.
    pub blocks: usize,
    /// Masks of all plan rows together.
    pub masks: usize,
    /// Words of a mask.
    pub mask_words: usize,
}

impl PlanLimits {
    /// Words of the largest plan.
    pub const fn words(&self) -> usize {
        // Blocks of the tokens that are run and of the drafts behind them; one more where those begin inside a block.
        let growth = (self.tokens + self.slots * MAX_DRAFTS).div_ceil(self.block_size) + 2 * self.slots;
        PlanHeader::WORDS
            + self.slots * (AdmissionWords::WORDS + LIST_WORDS + PlanRow::WORDS)
            + (growth + self.blocks) * BlockUpdate::WORDS
            + self.tokens
            + self.masks * self.mask_words
    }
}
