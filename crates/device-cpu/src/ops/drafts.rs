//! Passes of neural drafters: what they run over, and what becomes of the tokens they choose.
//!
//! Request rows are those of the step, so a row of one pass is found in the next; rows that take no part have no
//! tokens.

use super::prepare::{SlotViews, TableViews};
use paceline_device::DraftForward;
use paceline_device::abi::{
    LogitsRow, Plan, PlanRow, RecordHeader, RecordRow, RequestRow, Slot, SlotLists, TokenRow,
};

/// Tables that are read: the step's, or those of the draft forward before.
pub(crate) struct StepViews<'a> {
    pub(crate) tokens: &'a [TokenRow],
    pub(crate) requests: &'a [RequestRow],
}

/// Views of [`prepare`].
pub(crate) struct Layout<'a> {
    pub(crate) pass: DraftForward,
    pub(crate) plan: Plan<'a>,
    pub(crate) slots: SlotViews<'a>,
    pub(crate) step: StepViews<'a>,
    pub(crate) before: Option<StepViews<'a>>,
    pub(crate) header: &'a mut RecordHeader,
    pub(crate) record: &'a [RecordRow],
    pub(crate) draft: TableViews<'a>,
    pub(crate) source: &'a mut [i32],
}

/// Lays out a draft forward; see [`paceline_device::PrepareDrafts`].
pub(crate) fn prepare(mut layout: Layout<'_>) {
    let plan = layout.plan;
    layout.draft.clear(plan.rows.len());
    for (request, row) in plan.rows.iter().enumerate() {
        layout.open_row(request, row);
        if layout.step.requests[request].token_count > 0 {
            match layout.pass {
                DraftForward::Behind => layout.behind(request, row),
                DraftForward::Along { recurrent } => layout.along(request, row, recurrent),
                DraftForward::Again { place } => layout.again(request, row, place),
                DraftForward::Ahead { place } => layout.ahead(request, row, place),
            }
        }
    }
    layout.header.draft_forwards += i32::from(*layout.draft.live_tokens > 0);
}

impl Layout<'_> {
    /// The tokens that followed those that are certain now. An ended request has its last ones too: a request that goes on
    /// from its blocks finds the head's keys and values complete.
    fn behind(&mut self, request: usize, row: &PlanRow) {
        if row.neural == 0 {
            return;
        }
        let tokens = self.step.requests[request].tokens();
        let RecordRow {
            count,
            tokens: chosen,
            ..
        } = self.record[request];
        if row.kind == PlanRow::VERIFY {
            for (token_row, token) in tokens.zip(&chosen[..count as usize]) {
                self.push_token(request, *token, self.step.tokens[token_row].position);
                self.source_of_newest(token_row);
            }
        } else {
            self.end_of_block_before(request, row);
            let last = tokens.end - 1;
            for token_row in tokens {
                let follower = if token_row < last {
                    self.step.tokens[token_row + 1].id
                } else if count > 0 {
                    chosen[0]
                } else {
                    row.following
                };
                if follower >= 0 {
                    self.push_token(request, follower, self.step.tokens[token_row].position);
                    self.source_of_newest(token_row);
                }
            }
        }
        if self.wants(row, 0) {
            self.push_sample(request, row, 0);
        }
    }

    /// The last token of the block before a piece of a prompt that begins with a block, and its true follower.
    fn end_of_block_before(&mut self, request: usize, row: &PlanRow) {
        let start = row.start as usize;
        let block_size = self.slots.block_size;
        if start == 0 || !start.is_multiple_of(block_size) {
            return;
        }
        let table = row.slot as usize * self.slots.blocks_per_slot;
        let block = self.slots.block_table[table + start / block_size - 1];
        let follower = self.step.tokens[self.step.requests[request].first_token as usize].id;
        self.push_token(request, follower, start as i32 - 1);
        self.source[*self.draft.live_tokens as usize - 1] = -1 - block;
    }

    /// The step's own tokens, with its rollback, for a model that keeps up with the target.
    fn along(&mut self, request: usize, row: &PlanRow, recurrent: bool) {
        let step = self.step.requests[request];
        let unknown = step.restore > 0 && self.slots.drafter_saved[step.restore as usize - 1] == 0;
        let state = self.slots.of(row);
        if recurrent && (row.neural == 0 || unknown) {
            state.draft_state_at = -1;
        }
        let state_at = state.draft_state_at;
        let missed = state_at < 0;
        if !missed {
            state.draft_state_at = step.state_end;
        }
        if step.snapshot_at > 0 {
            self.slots.drafter_saved[step.snapshot as usize] = i32::from(!missed);
        }
        if row.neural == 0 || missed {
            return;
        }
        for token_row in step.tokens() {
            let TokenRow { id, position, .. } = self.step.tokens[token_row];
            self.push_token(request, id, position);
        }
        let own = self.draft.requests[request];
        self.draft.requests[request] = RequestRow {
            first_token: own.first_token,
            token_count: own.token_count,
            state_at,
            ..step
        };
    }

    /// A head's own draft, at the position before it.
    fn again(&mut self, request: usize, row: &PlanRow, place: usize) {
        let Some(before) = &self.before else { return };
        let Some(source) = before.requests[request].tokens().last() else {
            return;
        };
        if !self.wants(row, place) {
            return;
        }
        let state = self.slots.of(row);
        let (token, position) = (state.drafts[place - 1], state.length + place as i32 - 2);
        self.push_token(request, token, position);
        self.source_of_newest(source);
        self.push_sample(request, row, place);
    }

    /// The newest token or the model's own draft, at its own position. The state stays where it is.
    fn ahead(&mut self, request: usize, row: &PlanRow, place: usize) {
        let state = *self.slots.of(row);
        if state.draft_state_at < 0 || !self.wants(row, place) {
            return;
        }
        let position = state.length + place as i32 - 1;
        self.push_token(request, state.pending_token(place), position);
        let own = &mut self.draft.requests[request];
        (own.state_at, own.state_end) = (state.draft_state_at, state.draft_state_at);
        own.drafts = 1;
        self.push_sample(request, row, place);
    }

    /// Whether a row that ran wants a draft behind the `place` it has. One behind the last position is of no use.
    fn wants(&mut self, row: &PlanRow, place: usize) -> bool {
        let state = self.slots.of(row);
        let place = place as i32;
        let own = match place {
            0 => state.draft_count == 0,
            _ => state.draft_count == place && state.source == Slot::FROM_NEURAL,
        };
        let room = state.max_length - state.length - 1;
        row.chooses() && own && state.finished == 0 && place < row.neural && place < room
    }

    /// A request row without tokens.
    fn open_row(&mut self, request: usize, row: &PlanRow) {
        self.draft.requests[request] = RequestRow {
            first_token: *self.draft.live_tokens,
            slot: row.slot as i32,
            ..RequestRow::default()
        };
    }

    fn push_token(&mut self, request: usize, id: i32, position: i32) {
        self.draft.push_token(TokenRow {
            id,
            position,
            request: request as i32,
        });
        self.draft.requests[request].token_count += 1;
    }

    /// Where the hidden state of the token row pushed last comes from.
    fn source_of_newest(&mut self, source: usize) {
        self.source[*self.draft.live_tokens as usize - 1] = source as i32;
    }

    /// The draft behind `place` others is sampled from the token row pushed last. Nobody reads its log-probabilities,
    /// and no plan has a mask for it.
    fn push_sample(&mut self, request: usize, row: &PlanRow, place: usize) {
        let state = self.slots.of(row);
        let mut sampling = state.sampling;
        sampling.logprobs = -1;
        let position = state.length + place as i32;
        self.draft.push_logits(LogitsRow {
            token: *self.draft.live_tokens - 1,
            position,
            request: request as i32,
            known: 0,
            mask: 0,
            sampling,
        });
    }
}

/// Views of [`take`].
pub(crate) struct Chosen<'a> {
    pub(crate) place: usize,
    pub(crate) slots: SlotViews<'a>,
    pub(crate) requests: &'a [RequestRow],
    /// The live ones.
    pub(crate) logits: &'a [LogitsRow],
    pub(crate) tokens: &'a [i32],
}

/// Makes tokens drafts; see [`paceline_device::TakeDrafts`].
pub(crate) fn take(chosen: &mut Chosen<'_>) {
    for (token, row) in chosen.tokens.iter().zip(chosen.logits) {
        let index = chosen.requests[row.request as usize].slot as usize;
        if SlotLists::of(chosen.slots.lists, index)
            .stop_tokens()
            .contains(token)
        {
            continue;
        }
        let state = &mut chosen.slots.state[index];
        state.drafts[chosen.place] = *token;
        state.draft_count = chosen.place as i32 + 1;
        state.source = Slot::FROM_NEURAL;
    }
}
