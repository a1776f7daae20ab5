//! From a plan and the slots to the tables of a step.

use paceline_device::abi::{LIST_WORDS, LogitsRow, Plan, PlanRow, RequestRow, Slot, TokenRow};
use paceline_types::on_state_grid;

/// Views of [`prepare`]. All but the plan are written.
pub(crate) struct Frame<'a> {
    pub(crate) plan: Plan<'a>,
    pub(crate) slots: SlotViews<'a>,
    pub(crate) tables: TableViews<'a>,
}

/// The slots, for writing.
pub(crate) struct SlotViews<'a> {
    pub(crate) state: &'a mut [Slot],
    pub(crate) lists: &'a mut [i32],
    pub(crate) block_table: &'a mut [i32],
    pub(crate) history: &'a mut [i32],
    pub(crate) drafter_saved: &'a mut [i32],
    pub(crate) blocks_per_slot: usize,
    pub(crate) block_size: usize,
}

impl SlotViews<'_> {
    /// The slot of a plan row.
    pub(crate) fn of(&mut self, row: &PlanRow) -> &mut Slot {
        &mut self.state[row.slot as usize]
    }

    /// The place of a position's token id.
    pub(crate) fn token(&mut self, slot: usize, position: usize) -> &mut i32 {
        let block = self.block_table[slot * self.blocks_per_slot + position / self.block_size];
        let place = block as usize * self.block_size + position % self.block_size;
        let blocks = self.history.len() / self.block_size;
        let found = self.history.get_mut(place);
        found.unwrap_or_else(|| panic!("position {position} lies in block {block} of {blocks}"))
    }
}

/// A step's tables, for writing.
pub(crate) struct TableViews<'a> {
    pub(crate) live_tokens: &'a mut i32,
    pub(crate) live_requests: &'a mut i32,
    pub(crate) live_samples: &'a mut i32,
    pub(crate) tokens: &'a mut [TokenRow],
    pub(crate) requests: &'a mut [RequestRow],
    pub(crate) logits: &'a mut [LogitsRow],
}

impl TableViews<'_> {
    /// Empties the tables, but for request rows that are to be written.
    pub(crate) fn clear(&mut self, requests: usize) {
        *self.live_tokens = 0;
        *self.live_samples = 0;
        *self.live_requests = requests as i32;
    }

    /// Adds a token row and returns its index.
    pub(crate) fn push_token(&mut self, row: TokenRow) -> usize {
        let index = *self.live_tokens as usize;
        self.tokens[index] = row;
        *self.live_tokens += 1;
        index
    }

    pub(crate) fn push_logits(&mut self, row: LogitsRow) {
        self.logits[*self.live_samples as usize] = row;
        *self.live_samples += 1;
    }
}

/// Fills the tables; see [`paceline_device::Prepare`].
pub(crate) fn prepare(mut frame: Frame<'_>) {
    frame.apply_admissions();
    frame.apply_blocks();
    let plan = frame.plan;
    frame.tables.clear(plan.rows.len());
    for (request, row) in plan.rows.iter().enumerate() {
        if row.kind == PlanRow::PREFILL {
            frame.prefill(request, row);
        } else {
            if row.is(PlanRow::GIVEN) {
                frame.give_drafts(row);
            }
            frame.verify(request, row);
        }
    }
}

impl Frame<'_> {
    fn apply_admissions(&mut self) {
        for admission in self.plan.admissions {
            let index = admission.slot as usize;
            self.slots.state[index] = admission.state;
            let lists = self.plan.lists_of(admission);
            self.slots.lists[index * LIST_WORDS..][..LIST_WORDS][..lists.len()].copy_from_slice(lists);
        }
    }

    fn apply_blocks(&mut self) {
        for update in self.plan.block_updates {
            let place = update.slot as usize * self.slots.blocks_per_slot + update.index as usize;
            self.slots.block_table[place] = update.block as i32;
        }
    }

    /// Known tokens: they enter the history, and the slot's length grows up to them.
    fn prefill(&mut self, request: usize, row: &PlanRow) {
        let start = row.start as usize;
        let state = self.slots.of(row);
        let owned = state.runs(row.generation);
        let tokens = if owned { self.plan.tokens_of(row) } else { &[] };
        let mut restore = 0;
        if owned {
            state.length = state.length.max((start + tokens.len()) as i32);
            restore = std::mem::replace(&mut state.restore, -1) + 1;
        }
        if restore > 0 {
            (state.state_at, state.draft_state_at) = (row.start, row.start);
        }
        self.open_row(request, row, (start, tokens.len()), 0);
        self.tables.requests[request].restore = restore;
        for (offset, token) in tokens.iter().enumerate() {
            *self.slots.token(row.slot as usize, start + offset) = *token;
            let token_row = self.push_token(request, *token, start + offset);
            let last = offset + 1 == tokens.len();
            if last && row.is(PlanRow::SAMPLE_LAST) {
                let mask = row.mask(0);
                self.push_logits(request, row, token_row, Pick { known: 0, mask });
            } else if row.is(PlanRow::SAMPLE_ALL) {
                let follower = tokens.get(offset + 1).copied().unwrap_or(row.following);
                let known = follower + 1;
                self.push_logits(request, row, token_row, Pick { known, mask: 0 });
            }
        }
    }

    /// Drafts that the plan brings take the place of the slot's own.
    fn give_drafts(&mut self, row: &PlanRow) {
        let drafts = self.plan.tokens_of(row);
        let state = self.slots.of(row);
        if state.generation == row.generation {
            state.drafts[..drafts.len()].copy_from_slice(drafts);
            state.draft_count = drafts.len() as i32;
            state.source = row.source;
        }
    }

    /// The newest token and its drafts.
    fn verify(&mut self, request: usize, row: &PlanRow) {
        let state = self.slots.of(row);
        if !state.runs(row.generation) || state.length == 0 {
            self.open_row(request, row, (0, 0), 0);
            return;
        }
        let room = (state.max_length - state.length - 1).max(0);
        state.draft_count = state.draft_count.min(row.count).min(room).max(0);
        let state = *state;
        let drafts = state.draft_count as usize;
        let start = state.length as usize - 1;
        self.open_row(request, row, (start, 1 + drafts), drafts);
        *self.slots.token(row.slot as usize, start) = state.newest;
        for place in 0..=drafts {
            let token_row = self.push_token(request, state.pending_token(place), start + place);
            let mask = row.mask(place);
            self.push_logits(request, row, token_row, Pick { known: 0, mask });
        }
    }

    /// Writes a request row. It leaves the state at the last grid position that its certain tokens reach.
    fn open_row(&mut self, request: usize, row: &PlanRow, (start, tokens): (usize, usize), drafts: usize) {
        let state = self.slots.of(row);
        let state_at = state.state_at;
        if tokens > 0 {
            state.state_at = on_state_grid(start + tokens - drafts) as i32;
        }
        let state_end = state.state_at;
        let reached = row.snapshot_at > state_at && row.snapshot_at <= state_end;
        self.tables.requests[request] = RequestRow {
            first_token: *self.tables.live_tokens,
            token_count: tokens as i32,
            slot: row.slot as i32,
            drafts: drafts as i32,
            state_at,
            state_end,
            snapshot_at: if reached { row.snapshot_at } else { 0 },
            snapshot: row.snapshot,
            restore: 0,
        };
    }

    fn push_token(&mut self, request: usize, id: i32, position: usize) -> usize {
        self.tables.push_token(TokenRow {
            id,
            position: position as i32,
            request: request as i32,
        })
    }

    /// The token behind a token row is chosen, or known.
    fn push_logits(&mut self, request: usize, row: &PlanRow, token: usize, pick: Pick) {
        let sampling = self.slots.of(row).sampling;
        let position = self.tables.tokens[token].position + 1;
        self.tables.push_logits(LogitsRow {
            token: token as i32,
            position,
            request: request as i32,
            known: pick.known,
            mask: pick.mask,
            sampling,
        });
    }
}

/// What a row of logits is for: see [`LogitsRow`].
#[derive(Clone, Copy)]
struct Pick {
    known: i32,
    mask: i32,
}
