//! Passes of neural drafters: what they run over, and what becomes of the tokens they choose.
//!
//! Request rows are those of the step, so a row of one pass is found in the next; rows that take no part have no
//! tokens.

use super::accept::plan_rows;
use super::prepare::{SlotViews, TableViews};
use paceline_device::{DraftForward, LIST_INTS, SamplingRow, plan, record, slot};

/// Tables that are read: the step's, or those of the pass before.
pub(crate) struct StepViews<'a> {
    pub(crate) ids: &'a [i32],
    pub(crate) positions: &'a [i32],
    pub(crate) first_token: &'a [i32],
    pub(crate) token_count: &'a [i32],
    pub(crate) replay: &'a [i32],
    pub(crate) drafts: &'a [i32],
    pub(crate) snapshot_after: &'a [i32],
    pub(crate) snapshot_slot: &'a [i32],
    pub(crate) restore: &'a [i32],
}

/// Views of [`prepare`].
pub(crate) struct Layout<'a> {
    pub(crate) pass: DraftForward,
    pub(crate) plan: &'a [i32],
    pub(crate) slots: SlotViews<'a>,
    pub(crate) step: StepViews<'a>,
    pub(crate) before: Option<StepViews<'a>>,
    pub(crate) record: &'a mut [i32],
    pub(crate) draft: TableViews<'a>,
    pub(crate) source: &'a mut [i32],
}

/// Lays out a pass; see [`paceline_device::PrepareDrafts`].
pub(crate) fn prepare(mut layout: Layout<'_>) {
    let rows = layout.plan[plan::ROWS] as usize;
    *layout.draft.live_tokens = 0;
    *layout.draft.live_samples = 0;
    *layout.draft.live_requests = rows as i32;
    for (request, row) in plan_rows(layout.plan)
        .chunks_exact(plan::ROW)
        .take(rows)
        .enumerate()
    {
        layout.open_row(request, row);
        if layout.step.token_count[request] > 0 {
            match layout.pass {
                DraftForward::Behind => layout.behind(request, row),
                DraftForward::Along { recurrent } => layout.along(request, row, recurrent),
                DraftForward::Again { place } => layout.again(request, row, place),
                DraftForward::Ahead { place } => layout.ahead(request, row, place),
            }
        }
    }
    layout.record[record::PASSES] += i32::from(*layout.draft.live_tokens > 0);
}

/// Whether a row that ran tokens chose the next one.
fn chooses(row: &[i32]) -> bool {
    row[plan::ROW_KIND] == plan::VERIFY || row[plan::ROW_FLAGS] & plan::SAMPLE_LAST != 0
}

impl Layout<'_> {
    /// The tokens that followed those that are certain now. An ended request has its last ones too: a request that goes on
    /// from its blocks finds the head's keys and values complete.
    fn behind(&mut self, request: usize, row: &[i32]) {
        if row[plan::ROW_NEURAL] == 0 {
            return;
        }
        let first = self.step.first_token[request] as usize;
        let out = record::HEADER + request * record::ROW;
        let (count, chosen) = (self.record[out + record::COUNT] as usize, out + record::TOKENS);
        if row[plan::ROW_KIND] == plan::VERIFY {
            for offset in 0..count {
                let token = self.record[chosen + offset];
                self.push_token(request, token, self.step.positions[first + offset]);
                self.source_of_newest(first + offset);
            }
        } else {
            self.end_of_block_before(request, row);
            let last = self.step.token_count[request] as usize - 1;
            for offset in 0..=last {
                let follower = if offset < last {
                    self.step.ids[first + offset + 1]
                } else if count > 0 {
                    self.record[chosen]
                } else {
                    row[plan::ROW_FOLLOWING]
                };
                if follower >= 0 {
                    self.push_token(request, follower, self.step.positions[first + offset]);
                    self.source_of_newest(first + offset);
                }
            }
        }
        if self.wants(row, 0) {
            self.push_sample(request, row, 0);
        }
    }

    /// The last token of the block before a piece of a prompt that begins with a block, and its true follower.
    fn end_of_block_before(&mut self, request: usize, row: &[i32]) {
        let start = row[plan::ROW_START] as usize;
        let block_size = self.slots.block_size;
        if start == 0 || !start.is_multiple_of(block_size) {
            return;
        }
        let table = row[plan::ROW_SLOT] as usize * self.slots.blocks_per_slot;
        let block = self.slots.block_table[table + start / block_size - 1];
        let follower = self.step.ids[self.step.first_token[request] as usize];
        self.push_token(request, follower, start as i32 - 1);
        self.source[*self.draft.live_tokens as usize - 1] = -1 - block;
    }

    /// The step's own tokens, with its rollback, for a model that keeps up with the target.
    fn along(&mut self, request: usize, row: &[i32], recurrent: bool) {
        let snapshot = self.step.snapshot_slot[request];
        let saves = self.step.snapshot_after[request] > 0;
        let restored = self.step.restore[request];
        let unknown = restored > 0 && self.slots.drafter_saved[restored as usize - 1] == 0;
        let state = self.slots.row(row[plan::ROW_SLOT] as usize);
        if recurrent && (row[plan::ROW_NEURAL] == 0 || unknown) {
            state[slot::MISSED] = 1;
        }
        let missed = state[slot::MISSED] != 0;
        if saves {
            self.slots.drafter_saved[snapshot as usize] = i32::from(!missed);
        }
        if row[plan::ROW_NEURAL] == 0 || missed {
            return;
        }
        let first = self.step.first_token[request] as usize;
        for token_row in first..first + self.step.token_count[request] as usize {
            self.push_token(request, self.step.ids[token_row], self.step.positions[token_row]);
        }
        self.draft.replay[request] = self.step.replay[request];
        self.draft.drafts[request] = self.step.drafts[request];
        self.draft.snapshot_after[request] = self.step.snapshot_after[request];
        self.draft.snapshot_slot[request] = snapshot;
        self.draft.restore[request] = restored;
    }

    /// A head's own draft, at the position before it.
    fn again(&mut self, request: usize, row: &[i32], place: usize) {
        let Some(before) = &self.before else { return };
        let rows = before.token_count[request];
        let source = (before.first_token[request] + rows - 1).max(0) as usize;
        if rows == 0 || !self.wants(row, place) {
            return;
        }
        let state = self.slots.row(row[plan::ROW_SLOT] as usize);
        let (token, position) = (
            state[slot::DRAFTS + place - 1],
            state[slot::LENGTH] + place as i32 - 2,
        );
        self.push_token(request, token, position);
        self.source_of_newest(source);
        self.push_sample(request, row, place);
    }

    /// The newest token or the model's own draft, at its own position, on a copy of the state.
    fn ahead(&mut self, request: usize, row: &[i32], place: usize) {
        let state = self.slots.row(row[plan::ROW_SLOT] as usize);
        if state[slot::MISSED] != 0 || !self.wants(row, place) {
            return;
        }
        let state = self.slots.row(row[plan::ROW_SLOT] as usize);
        // Drafts stand right behind the newest token.
        let token = state[slot::NEWEST + place];
        let position = state[slot::LENGTH] + place as i32 - 1;
        let replay = state[slot::PENDING] + place as i32;
        self.push_token(request, token, position);
        self.draft.replay[request] = replay;
        self.draft.drafts[request] = 1;
        self.draft.ahead[request] = 1;
        self.push_sample(request, row, place);
    }

    /// Whether a row that ran wants a draft behind the `place` it has. One behind the last position is of no use.
    fn wants(&mut self, row: &[i32], place: usize) -> bool {
        let state = self.slots.row(row[plan::ROW_SLOT] as usize);
        let own = if place == 0 {
            state[slot::DRAFT_COUNT] == 0
        } else {
            state[slot::DRAFT_COUNT] == place as i32 && state[slot::SOURCE] == slot::FROM_NEURAL
        };
        let room = state[slot::MAX_LENGTH] - state[slot::LENGTH] - 1;
        let place = place as i32;
        chooses(row) && own && state[slot::FINISHED] == 0 && place < row[plan::ROW_NEURAL] && place < room
    }

    /// A request row without tokens.
    fn open_row(&mut self, request: usize, row: &[i32]) {
        let draft = &mut self.draft;
        draft.first_token[request] = *draft.live_tokens;
        draft.token_count[request] = 0;
        draft.state_slot[request] = row[plan::ROW_SLOT];
        for table in [
            &mut *draft.replay,
            &mut *draft.drafts,
            &mut *draft.ahead,
            &mut *draft.snapshot_after,
            &mut *draft.snapshot_slot,
            &mut *draft.restore,
        ] {
            table[request] = 0;
        }
    }

    fn push_token(&mut self, request: usize, token: i32, position: i32) {
        let draft = &mut self.draft;
        let row = *draft.live_tokens as usize;
        draft.ids[row] = token;
        draft.positions[row] = position;
        draft.request_of[row] = request as i32;
        draft.token_count[request] += 1;
        *draft.live_tokens += 1;
    }

    /// Where the hidden state of the token row pushed last comes from.
    fn source_of_newest(&mut self, source: usize) {
        self.source[*self.draft.live_tokens as usize - 1] = source as i32;
    }

    /// The draft behind `place` others is sampled from the token row pushed last.
    fn push_sample(&mut self, request: usize, row: &[i32], place: usize) {
        let state = self.slots.row(row[plan::ROW_SLOT] as usize);
        let mut parameters = [0; SamplingRow::INTS];
        parameters.copy_from_slice(&state[slot::SAMPLING..slot::REPETITION_PENALTY]);
        // Nobody reads the log-probabilities of a draft.
        parameters[SamplingRow::INTS - 1] = -1;
        let position = state[slot::LENGTH] + place as i32;
        let draft = &mut self.draft;
        let sample = *draft.live_samples as usize;
        draft.sample_token[sample] = *draft.live_tokens - 1;
        draft.sample_position[sample] = position;
        draft.sample_request[sample] = request as i32;
        draft.sample_known[sample] = 0;
        draft.sampling[sample * SamplingRow::INTS..][..SamplingRow::INTS].copy_from_slice(&parameters);
        *draft.live_samples += 1;
    }
}

/// Views of [`take`].
pub(crate) struct Chosen<'a> {
    pub(crate) place: usize,
    pub(crate) slots: SlotViews<'a>,
    pub(crate) state_slot: &'a [i32],
    pub(crate) sample_request: &'a [i32],
    /// One per live row of logits.
    pub(crate) tokens: &'a [i32],
}

/// Makes tokens drafts; see [`paceline_device::TakeDrafts`].
pub(crate) fn take(mut chosen: Chosen<'_>) {
    for (token, request) in chosen.tokens.iter().zip(chosen.sample_request) {
        let index = chosen.state_slot[*request as usize] as usize;
        let lists = &chosen.slots.lists[index * LIST_INTS..][..LIST_INTS];
        if lists[1..=lists[0] as usize].contains(token) {
            continue;
        }
        let place = chosen.place;
        let state = chosen.slots.row(index);
        state[slot::DRAFTS + place] = *token;
        state[slot::DRAFT_COUNT] = place as i32 + 1;
        state[slot::SOURCE] = slot::FROM_NEURAL;
    }
}
