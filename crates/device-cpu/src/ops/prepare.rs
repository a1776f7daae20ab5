//! From a plan and the slots to the tables of a step.

use paceline_device::{LIST_INTS, SamplingRow, plan, slot};

/// Views of [`prepare`]. All but the plan are written.
pub(crate) struct Frame<'a> {
    pub(crate) plan: &'a [i32],
    pub(crate) slots: SlotViews<'a>,
    pub(crate) tables: TableViews<'a>,
}

/// The slots, for writing.
pub(crate) struct SlotViews<'a> {
    pub(crate) state: &'a mut [i32],
    pub(crate) lists: &'a mut [i32],
    pub(crate) block_table: &'a mut [i32],
    pub(crate) history: &'a mut [i32],
    pub(crate) drafter_saved: &'a mut [i32],
    pub(crate) blocks_per_slot: usize,
    pub(crate) block_size: usize,
}

impl SlotViews<'_> {
    pub(crate) fn row(&mut self, index: usize) -> &mut [i32] {
        &mut self.state[index * slot::INTS..(index + 1) * slot::INTS]
    }

    /// The place of a position's token id.
    pub(crate) fn token(&mut self, index: usize, position: usize) -> &mut i32 {
        let block = self.block_table[index * self.blocks_per_slot + position / self.block_size];
        &mut self.history[block as usize * self.block_size + position % self.block_size]
    }
}

/// The step's tables, for writing.
pub(crate) struct TableViews<'a> {
    pub(crate) live_tokens: &'a mut i32,
    pub(crate) live_requests: &'a mut i32,
    pub(crate) live_samples: &'a mut i32,
    pub(crate) ids: &'a mut [i32],
    pub(crate) positions: &'a mut [i32],
    pub(crate) request_of: &'a mut [i32],
    pub(crate) first_token: &'a mut [i32],
    pub(crate) token_count: &'a mut [i32],
    pub(crate) state_slot: &'a mut [i32],
    pub(crate) replay: &'a mut [i32],
    pub(crate) drafts: &'a mut [i32],
    pub(crate) ahead: &'a mut [i32],
    pub(crate) snapshot_after: &'a mut [i32],
    pub(crate) snapshot_slot: &'a mut [i32],
    pub(crate) restore: &'a mut [i32],
    pub(crate) sample_token: &'a mut [i32],
    pub(crate) sample_position: &'a mut [i32],
    pub(crate) sample_request: &'a mut [i32],
    pub(crate) sample_known: &'a mut [i32],
    pub(crate) sample_mask: &'a mut [i32],
    pub(crate) sampling: &'a mut [i32],
}

/// Fills the tables; see [`paceline_device::Prepare`].
pub(crate) fn prepare(mut frame: Frame<'_>) {
    let rest = frame.apply_admissions(&frame.plan[plan::HEADER..]);
    let rest = frame.apply_blocks(rest);
    let count = frame.plan[plan::ROWS] as usize;
    let (rows, mut tokens) = rest.split_at(count * plan::ROW);
    *frame.tables.live_tokens = 0;
    *frame.tables.live_samples = 0;
    *frame.tables.live_requests = count as i32;
    for (request, row) in rows.chunks_exact(plan::ROW).enumerate() {
        if row[plan::ROW_KIND] == plan::PREFILL {
            let (own, others) = tokens.split_at(row[plan::ROW_COUNT] as usize);
            tokens = others;
            frame.prefill(request, row, own);
        } else if row[plan::ROW_FLAGS] & plan::GIVEN != 0 {
            let (drafts, others) = tokens.split_at(row[plan::ROW_COUNT] as usize);
            tokens = others;
            frame.give_drafts(row, drafts);
            frame.verify(request, row);
        } else {
            frame.verify(request, row);
        }
    }
}

impl<'a> Frame<'a> {
    fn apply_admissions(&mut self, mut rest: &'a [i32]) -> &'a [i32] {
        for _ in 0..self.plan[plan::ADMISSIONS] {
            let (index, lists) = (rest[0] as usize, rest[1] as usize);
            self.slots.row(index).copy_from_slice(&rest[2..plan::ADMISSION]);
            let list = &rest[plan::ADMISSION..plan::ADMISSION + lists];
            self.slots.lists[index * LIST_INTS..][..lists].copy_from_slice(list);
            rest = &rest[plan::ADMISSION + lists..];
        }
        rest
    }

    fn apply_blocks(&mut self, rest: &'a [i32]) -> &'a [i32] {
        let (updates, rest) = rest.split_at(self.plan[plan::BLOCKS] as usize * plan::BLOCK);
        for update in updates.chunks_exact(plan::BLOCK) {
            let place = update[0] as usize * self.slots.blocks_per_slot + update[1] as usize;
            self.slots.block_table[place] = update[2];
        }
        rest
    }

    /// Known tokens: they enter the history, and the slot's length grows up to them.
    fn prefill(&mut self, request: usize, row: &[i32], tokens: &[i32]) {
        let index = row[plan::ROW_SLOT] as usize;
        let start = row[plan::ROW_START] as usize;
        let state = self.slots.row(index);
        let owned = state[slot::GENERATION] == row[plan::ROW_GENERATION] && state[slot::FINISHED] == 0;
        let tokens = if owned { tokens } else { &[] };
        let end = start + tokens.len();
        let mut restore = 0;
        if owned {
            state[slot::LENGTH] = state[slot::LENGTH].max(end as i32);
            state[slot::PENDING] = 0;
            restore = std::mem::replace(&mut state[slot::RESTORE], -1) + 1;
        }
        let first = self.open_row(request, row, (start, tokens.len()), (0, 0));
        self.tables.restore[request] = restore;
        for (offset, token) in tokens.iter().enumerate() {
            *self.slots.token(index, start + offset) = *token;
            self.push_token(request, *token, start + offset);
        }
        if tokens.is_empty() {
            return;
        }
        let flags = row[plan::ROW_FLAGS];
        let last = tokens.len() - 1;
        for offset in 0..tokens.len() {
            let follower = tokens
                .get(offset + 1)
                .copied()
                .unwrap_or(row[plan::ROW_FOLLOWING]);
            let token = (index, first + offset);
            if offset == last && flags & plan::SAMPLE_LAST != 0 {
                let mask = mask_of(row, 0);
                self.push_sample(request, token, start + offset + 1, Pick { known: 0, mask });
            } else if flags & plan::SAMPLE_ALL != 0 {
                let known = follower + 1;
                self.push_sample(request, token, start + offset + 1, Pick { known, mask: 0 });
            }
        }
    }

    /// Drafts that the plan brings take the place of the slot's own.
    fn give_drafts(&mut self, row: &[i32], drafts: &[i32]) {
        let state = self.slots.row(row[plan::ROW_SLOT] as usize);
        if state[slot::GENERATION] == row[plan::ROW_GENERATION] {
            state[slot::DRAFTS..][..drafts.len()].copy_from_slice(drafts);
            state[slot::DRAFT_COUNT] = drafts.len() as i32;
            state[slot::SOURCE] = row[plan::ROW_SOURCE];
        }
    }

    /// The newest token and its drafts.
    fn verify(&mut self, request: usize, row: &[i32]) {
        let index = row[plan::ROW_SLOT] as usize;
        let state = self.slots.row(index);
        let owned = state[slot::GENERATION] == row[plan::ROW_GENERATION] && state[slot::FINISHED] == 0;
        let length = state[slot::LENGTH] as usize;
        if !owned || length == 0 {
            self.open_row(request, row, (0, 0), (0, 0));
            return;
        }
        let replay = state[slot::PENDING];
        let room = (state[slot::MAX_LENGTH] - state[slot::LENGTH] - 1).max(0);
        let drafts = state[slot::DRAFT_COUNT]
            .min(row[plan::ROW_COUNT])
            .min(room)
            .max(0);
        state[slot::DRAFT_COUNT] = drafts;
        let newest = state[slot::NEWEST];
        let mut window = [0; slot::INTS - slot::DRAFTS];
        window.copy_from_slice(&state[slot::DRAFTS..]);
        let start = length - 1;
        let first = self.open_row(request, row, (start, 1 + drafts as usize), (replay, drafts));
        *self.slots.token(index, start) = newest;
        self.push_token(request, newest, start);
        for (offset, draft) in window[..drafts as usize].iter().enumerate() {
            self.push_token(request, *draft, length + offset);
        }
        for offset in 0..=drafts as usize {
            let mask = mask_of(row, offset);
            self.push_sample(
                request,
                (index, first + offset),
                length + offset,
                Pick { known: 0, mask },
            );
        }
    }

    /// Writes a request row and returns its first token row.
    fn open_row(
        &mut self,
        request: usize,
        row: &[i32],
        (start, tokens): (usize, usize),
        (replay, drafts): (i32, i32),
    ) -> usize {
        let tables = &mut self.tables;
        let first = *tables.live_tokens as usize;
        tables.first_token[request] = first as i32;
        tables.token_count[request] = tokens as i32;
        tables.state_slot[request] = row[plan::ROW_SLOT];
        tables.replay[request] = replay;
        tables.drafts[request] = drafts;
        tables.ahead[request] = 0;
        tables.restore[request] = 0;
        // The state stands `replay` tokens before the first one.
        let folds = row[plan::ROW_SNAPSHOT_AT] - (start as i32 - replay);
        let reached = tokens > 0 && folds > 0 && folds <= replay + tokens as i32 - drafts;
        tables.snapshot_after[request] = if reached { folds } else { 0 };
        tables.snapshot_slot[request] = row[plan::ROW_SNAPSHOT];
        first
    }

    fn push_token(&mut self, request: usize, token: i32, position: usize) {
        let tables = &mut self.tables;
        let row = *tables.live_tokens as usize;
        tables.ids[row] = token;
        tables.positions[row] = position as i32;
        tables.request_of[row] = request as i32;
        *tables.live_tokens += 1;
    }

    fn push_sample(&mut self, request: usize, (index, token): (usize, usize), position: usize, pick: Pick) {
        let mut parameters = [0; SamplingRow::INTS];
        parameters.copy_from_slice(&self.slots.row(index)[slot::SAMPLING..slot::REPETITION_PENALTY]);
        let tables = &mut self.tables;
        let row = *tables.live_samples as usize;
        tables.sample_token[row] = token as i32;
        tables.sample_position[row] = position as i32;
        tables.sample_request[row] = request as i32;
        tables.sample_known[row] = pick.known;
        tables.sample_mask[row] = pick.mask;
        tables.sampling[row * SamplingRow::INTS..][..SamplingRow::INTS].copy_from_slice(&parameters);
        *tables.live_samples += 1;
    }
}

/// What a row of logits is for: see [`paceline_device::StepTables`].
#[derive(Clone, Copy)]
struct Pick {
    known: i32,
    mask: i32,
}

/// One more than the mask for choice `place` of a row, or 0.
fn mask_of(row: &[i32], place: usize) -> i32 {
    if row[plan::ROW_FLAGS] & plan::MASKED == 0 {
        0
    } else {
        place as i32 + 1
    }
}
