//! Which drafts hold, and what that makes of the slots.

use super::prepare::SlotViews;
use paceline_device::{LIST_INTS, plan, record, slot};

/// Views of [`accept`].
pub(crate) struct Outcome<'a> {
    pub(crate) plan: &'a [i32],
    pub(crate) slots: SlotViews<'a>,
    pub(crate) token_count: &'a [i32],
    pub(crate) drafts: &'a [i32],
    pub(crate) snapshot_after: &'a [i32],
    pub(crate) sampled: &'a [i32],
    pub(crate) record: &'a mut [i32],
}

/// Advances the slots and writes the record; see [`paceline_device::Accept`].
pub(crate) fn accept(mut outcome: Outcome<'_>) {
    let rows = outcome.plan[plan::ROWS] as usize;
    outcome.record[record::PASSES] = 0;
    let mut first_sample = 0;
    for (request, row) in plan_rows(outcome.plan)
        .chunks_exact(plan::ROW)
        .take(rows)
        .enumerate()
    {
        first_sample += outcome.row(request, row, first_sample);
    }
}

/// The rows of a plan, which stand behind its admissions and block updates.
pub(crate) fn plan_rows(words: &[i32]) -> &[i32] {
    let mut rest = &words[plan::HEADER..];
    for _ in 0..words[plan::ADMISSIONS] {
        rest = &rest[plan::ADMISSION + rest[1] as usize..];
    }
    &rest[words[plan::BLOCKS] as usize * plan::BLOCK..]
}

impl Outcome<'_> {
    /// Settles one row and returns how many rows of logits it had.
    fn row(&mut self, request: usize, row: &[i32], first_sample: usize) -> usize {
        let tokens = self.token_count[request] as usize;
        let drafts = self.drafts[request] as usize;
        let (samples, choosing) = match row[plan::ROW_KIND] {
            plan::VERIFY => (tokens, tokens > 0),
            _ if row[plan::ROW_FLAGS] & plan::SAMPLE_ALL != 0 => (
                tokens,
                tokens > 0 && row[plan::ROW_FLAGS] & plan::SAMPLE_LAST != 0,
            ),
            _ => {
                let last = tokens > 0 && row[plan::ROW_FLAGS] & plan::SAMPLE_LAST != 0;
                (usize::from(last), last)
            }
        };
        let out = &mut self.record[record::HEADER + request * record::ROW..][..record::ROW];
        out.fill(-1);
        out[record::COUNT] = 0;
        out[record::ENDED] = 0;
        out[record::SNAPSHOT] = i32::from(self.snapshot_after[request] > 0);
        out[record::DRAFTED] = drafts as i32;
        out[record::FIRST_SAMPLE] = first_sample as i32;
        out[record::SOURCE] = if drafts > 0 {
            self.slots.row(row[plan::ROW_SLOT] as usize)[slot::SOURCE]
        } else {
            0
        };
        if choosing {
            let first_choice = first_sample + samples - 1 - drafts;
            self.settle(request, row[plan::ROW_SLOT] as usize, first_choice, drafts);
        }
        samples
    }

    /// The accept rule: a draft holds iff it is what the model chose in its place.
    fn settle(&mut self, request: usize, index: usize, first_choice: usize, drafts: usize) {
        let chosen = &self.sampled[first_choice..=first_choice + drafts];
        let state = self.slots.row(index);
        let held = state[slot::DRAFTS..].iter().zip(chosen).take(drafts);
        let accepted = held.take_while(|(draft, choice)| draft == choice).count();
        let (length, max_length) = (state[slot::LENGTH], state[slot::MAX_LENGTH]);
        let lists = &self.slots.lists[index * LIST_INTS..][..LIST_INTS];
        let stops = &lists[1..=lists[0] as usize];
        let mut count = (accepted + 1).min((max_length - length).max(0) as usize);
        let stop = chosen[..count].iter().position(|token| stops.contains(token));
        count = stop.map_or(count, |place| place + 1);
        let ended = match stop {
            Some(_) => record::STOPPED,
            None if length + count as i32 >= max_length => record::FULL,
            None => 0,
        };
        let out = &mut self.record[record::HEADER + request * record::ROW..][..record::ROW];
        out[record::COUNT] = count as i32;
        out[record::ENDED] = ended;
        out[record::TOKENS..][..count].copy_from_slice(&chosen[..count]);
        let state = self.slots.row(index);
        state[slot::LENGTH] = length + count as i32;
        state[slot::PENDING] = count.saturating_sub(1) as i32;
        state[slot::DRAFT_COUNT] = 0;
        state[slot::SOURCE] = 0;
        state[slot::FINISHED] = i32::from(ended != 0);
        let Some((newest, run)) = chosen[..count].split_last() else {
            return;
        };
        state[slot::NEWEST] = *newest;
        for (offset, token) in run.iter().enumerate() {
            *self.slots.token(index, length as usize + offset) = *token;
        }
    }
}
