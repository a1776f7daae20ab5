//! Drafts from the slots' own texts.

use super::prepare::SlotViews;
use crate::cpu::Cpu;
use paceline_device::NgramIndex;
use paceline_device::abi::{Plan, PlanRow, RequestRow, Slot, SlotLists};
use std::ops::Range;

const WAYS: usize = NgramIndex::<Cpu>::WAYS;
const SAME: usize = NgramIndex::<Cpu>::SAME;
const LONGEST: usize = NgramIndex::<Cpu>::LONGEST;
const PER_STEP: usize = NgramIndex::<Cpu>::PER_STEP;

/// Views of [`propose`].
pub(crate) struct Proposal<'a> {
    pub(crate) plan: Plan<'a>,
    pub(crate) slots: SlotViews<'a>,
    pub(crate) requests: &'a [RequestRow],
    pub(crate) index: Index<'a>,
    pub(crate) chain_min: usize,
}

/// Indexes what the step made known and writes drafts; see [`paceline_device::ProposeNgram`].
// Not inlined, so that an instruction counter can tell it from the rest of a step.
#[inline(never)]
pub(crate) fn propose(mut proposal: Proposal<'_>) {
    let plan = proposal.plan;
    for (row, request) in plan.rows.iter().zip(proposal.requests) {
        if request.token_count > 0 && proposal.slots.of(row).generation == row.generation {
            proposal.row(row);
        }
    }
}

impl Proposal<'_> {
    fn row(&mut self, row: &PlanRow) {
        let index = row.slot as usize;
        let slots = &mut self.slots;
        let state = &mut slots.state[index];
        let text = Text {
            blocks: &slots.block_table[index * slots.blocks_per_slot..][..slots.blocks_per_slot],
            history: slots.history,
            block_size: slots.block_size,
            stored: (state.length as usize).saturating_sub(usize::from(row.chooses())),
            newest: state.newest,
        };
        // A cursor past the text is one at its end: there is nothing to enter yet.
        let done = state.indexed.max(0) as usize;
        if done < text.stored {
            let end = text.stored.min(done + PER_STEP);
            self.index.enter(&text, done..end);
            state.indexed = end as i32;
        }
        let room = state.max_length - state.length - 1;
        let most = usize::try_from(row.ngram.min(room)).unwrap_or(0);
        let most = most.min(state.drafts.len());
        if !row.chooses() || state.finished != 0 || most == 0 {
            return;
        }
        let shortest = if row.neural > 0 { self.chain_min } else { 0 };
        let Some(position) = self.index.latest_of_longest(&text, shortest) else {
            return;
        };
        let stops = SlotLists::of(slots.lists, index).stop_tokens();
        let count = continue_text(&text, position + 1, stops, &mut state.drafts[..most]);
        if count > 0 {
            state.draft_count = count as i32;
            state.source = Slot::FROM_NGRAM;
        }
    }
}

/// Fills `drafts` with what stands in the text from `start` on, and behind its end with the drafts themselves, up to
/// a stop token. Returns how many there are.
fn continue_text(text: &Text<'_>, start: usize, stops: &[i32], drafts: &mut [i32]) -> usize {
    for place in 0..drafts.len() {
        let position = start + place;
        let token = match position.checked_sub(text.stored + 1) {
            Some(earlier) => drafts[earlier],
            None => text.token(position),
        };
        if token < 0 || stops.contains(&token) {
            return place;
        }
        drafts[place] = token;
    }
    drafts.len()
}

/// The known tokens of a slot.
struct Text<'a> {
    blocks: &'a [i32],
    history: &'a [i32],
    block_size: usize,
    /// Tokens in the history. The newest stands behind them, if one was chosen.
    stored: usize,
    newest: i32,
}

impl Text<'_> {
    fn token(&self, position: usize) -> i32 {
        if position >= self.stored {
            return self.newest;
        }
        let block = self.blocks[position / self.block_size] as usize;
        self.history[block * self.block_size + position % self.block_size]
    }

    /// The tokens before `end`, the last one first: `count` of them, or as many as there are.
    fn before(&self, end: usize, count: usize) -> [i32; LONGEST] {
        let mut tokens = [0; LONGEST];
        for (back, token) in tokens.iter_mut().take(count.min(end)).enumerate() {
            *token = self.token(end - 1 - back);
        }
        tokens
    }
}

/// The index, for writing.
pub(crate) struct Index<'a> {
    buckets: &'a mut [[Entry; WAYS]],
    min: usize,
    max: usize,
}

/// A tag, and one more than a position; 0 for none.
type Entry = [i32; 2];

impl<'a> Index<'a> {
    pub(crate) fn new(entries: &'a mut [i32], (min, max): (usize, usize)) -> Self {
        let buckets = entries.as_chunks_mut().0.as_chunks_mut().0;
        assert!(
            (1..=max).contains(&min) && max <= LONGEST && !buckets.is_empty(),
            "n-grams of {min} to {max} tokens in {} buckets",
            buckets.len()
        );
        Self { buckets, min, max }
    }

    /// Enters the n-grams that end at these positions of a text. The first of them may begin before.
    fn enter(&mut self, text: &Text<'_>, positions: Range<usize>) {
        let beginning = beginning(text);
        let mut last = text.before(positions.start, self.max - 1);
        for position in positions {
            last.copy_within(..LONGEST - 1, 1);
            last[0] = text.token(position);
            let mut hash = beginning;
            for length in 1..=self.max.min(position + 1) {
                hash = mix(hash, last[length - 1]);
                if length >= self.min {
                    put_in_front(
                        &mut self.buckets[place(hash, self.buckets.len())],
                        [tag(hash), position as i32 + 1],
                    );
                }
            }
        }
    }

    /// The last position of the latest earlier occurrence of the longest n-gram that the text ends with, if one of at
    /// least `shortest` tokens occurred.
    fn latest_of_longest(&self, text: &Text<'_>, shortest: usize) -> Option<usize> {
        let suffix = text.before(text.stored + 1, self.max);
        let mut hashes = [0; LONGEST];
        let mut hash = beginning(text);
        for (length, token) in suffix.iter().take(self.max).enumerate() {
            hash = mix(hash, *token);
            hashes[length] = hash;
        }
        // The whole text did not occur before.
        let longest = self.max.min(text.stored);
        (self.min.max(shortest)..=longest)
            .rev()
            .find_map(|length| self.latest(text, &suffix[..length], hashes[length - 1]))
    }

    /// The last position of the latest earlier occurrence of an n-gram, whose last token comes first.
    fn latest(&self, text: &Text<'_>, ngram: &[i32], hash: u64) -> Option<usize> {
        let mut latest = None;
        for [found, end] in &self.buckets[place(hash, self.buckets.len())] {
            if *found != tag(hash) {
                continue;
            }
            // Another text may have got further; a bucket's empty entries are before every text.
            let end = *end as usize;
            let within = end >= ngram.len() && end <= text.stored;
            if within
                && latest < Some(end - 1)
                && (0..ngram.len()).all(|back| text.token(end - 1 - back) == ngram[back])
            {
                latest = Some(end - 1);
            }
        }
        latest
    }
}

/// Makes an entry the newest of its bucket. It takes the place of itself, of nothing, of the oldest of its n-gram if
/// there are many, or of the oldest of all: so a text never loses the latest occurrence to an earlier one, requests
/// that share a beginning have room beside each other, and what is not entered again is pushed out.
fn put_in_front(bucket: &mut [Entry; WAYS], entry: Entry) {
    let mut same = 0;
    let mut replaced = WAYS - 1;
    for (way, other) in bucket.iter().enumerate() {
        same += usize::from(other[0] == entry[0]);
        if *other == entry || other[1] == 0 || (same == SAME && other[0] == entry[0]) {
            replaced = way;
            break;
        }
    }
    bucket.copy_within(..replaced, 1);
    bucket[0] = entry;
}

/// Where the hash of an n-gram begins: requests whose texts have the first block in common find each other's.
fn beginning(text: &Text<'_>) -> u64 {
    mix(0, text.blocks[0])
}

/// The hash with one more word. An n-gram's is made from its last token backwards, so that one pass has those of all
/// lengths.
#[inline(always)]
fn mix(hash: u64, word: i32) -> u64 {
    // The constants are 2^64 over the golden ratio, and something that keeps runs of zeros from staying zero.
    let product = (hash ^ u64::from(word as u32) ^ 0xD6E8_FEB8_0000_0000).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    product ^ (product >> 32)
}

/// The bucket of a hash, from its upper half.
#[inline(always)]
fn place(hash: u64, buckets: usize) -> usize {
    (((hash >> 32) * buckets as u64) >> 32) as usize
}

/// What tells n-grams of a bucket from each other: the lower half of the hash.
#[inline(always)]
fn tag(hash: u64) -> i32 {
    hash as i32
}
