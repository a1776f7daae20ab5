//! Which drafts hold, and what that makes of the slots.

use super::prepare::SlotViews;
use paceline_device::abi::{Plan, PlanRow, RecordRow, RequestRow, SlotLists};

/// Views of [`accept`].
pub(crate) struct Outcome<'a> {
    pub(crate) plan: Plan<'a>,
    pub(crate) slots: SlotViews<'a>,
    pub(crate) requests: &'a [RequestRow],
    pub(crate) sampled: &'a [i32],
    pub(crate) record: &'a mut [RecordRow],
}

/// Advances the slots and writes the record; see [`paceline_device::Accept`].
pub(crate) fn accept(mut outcome: Outcome<'_>) {
    let (mut first_sample, mut first_logprobs) = (0, 0);
    let plan = outcome.plan;
    for (request, row) in plan.rows.iter().enumerate() {
        let samples = outcome.row(request, row, (first_sample, first_logprobs));
        first_sample += samples;
        if outcome.slots.of(row).sampling.logprobs >= 0 {
            first_logprobs += samples;
        }
    }
}

impl Outcome<'_> {
    /// Settles one plan row and returns how many rows of logits it had.
    fn row(
        &mut self,
        request: usize,
        row: &PlanRow,
        (first_sample, first_logprobs): (usize, usize),
    ) -> usize {
        let RequestRow {
            token_count,
            drafts,
            snapshot_at,
            ..
        } = self.requests[request];
        let chooses = token_count > 0 && row.chooses();
        let samples = if row.kind == PlanRow::VERIFY || row.is(PlanRow::SAMPLE_ALL) {
            token_count as usize
        } else {
            usize::from(chooses)
        };
        self.record[request] = RecordRow {
            count: 0,
            ended: 0,
            snapshot: i32::from(snapshot_at > 0),
            drafted: drafts,
            source: if drafts > 0 { self.slots.of(row).source } else { 0 },
            first_logprobs: first_logprobs as i32,
            tokens: [-1; _],
        };
        if chooses {
            let first_choice = first_sample + samples - 1 - drafts as usize;
            self.settle(request, row, first_choice, drafts as usize);
        }
        samples
    }

    /// The accept rule: a draft holds iff it is what the model chose in its place.
    fn settle(&mut self, request: usize, row: &PlanRow, first_choice: usize, drafts: usize) {
        let chosen = &self.sampled[first_choice..=first_choice + drafts];
        let stops = SlotLists::of(self.slots.lists, row.slot as usize).stop_tokens();
        let state = &mut self.slots.state[row.slot as usize];
        let held = state.drafts.iter().zip(chosen).take(drafts);
        let accepted = held.take_while(|(draft, choice)| draft == choice).count();
        let length = state.length;
        let mut count = (accepted + 1).min((state.max_length - length).max(0) as usize);
        let stop = chosen[..count].iter().position(|token| stops.contains(token));
        count = stop.map_or(count, |place| place + 1);
        let ended = match stop {
            Some(_) => RecordRow::STOPPED,
            None if length + count as i32 >= state.max_length => RecordRow::FULL,
            None => 0,
        };
        let out = &mut self.record[request];
        out.count = count as i32;
        out.ended = ended;
        out.tokens[..count].copy_from_slice(&chosen[..count]);
        state.length = length + count as i32;
        state.draft_count = 0;
        state.source = 0;
        state.finished = i32::from(ended != 0);
        let Some((newest, run)) = chosen[..count].split_last() else {
            return;
        };
        state.newest = *newest;
        for (offset, token) in run.iter().enumerate() {
            *self.slots.token(row.slot as usize, length as usize + offset) = *token;
        }
    }
}
