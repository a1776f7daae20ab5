//! What a request's options do to its logits before a token is chosen: biases, penalties, a minimum length, bad
//! words and masks.
//!
//! The text that a row of logits follows is the slot's history and, behind it, the request's tokens of this step
//! up to the row, drafts among them: a verified position sees what it would see in plain decoding. Where drafts are
//! being made, the slot's newest token and its drafts so far take the place of the step's tokens, so a drafter
//! chooses by the same rules. A token's logit is changed by its own options alone and in one order, so nothing
//! depends on the order in which tokens are visited.

use paceline_device::SampledText;
use paceline_device::abi::{LogitsRow, Plan, RequestRow, Slot, SlotLists, TokenRow};

/// The slots and the part of a step's tables that says what each row of logits follows.
#[derive(Clone, Copy)]
pub(crate) struct Options<'a> {
    pub(crate) state: &'a [Slot],
    pub(crate) lists: &'a [i32],
    pub(crate) block_table: &'a [i32],
    pub(crate) history: &'a [i32],
    pub(crate) blocks_per_slot: usize,
    pub(crate) block_size: usize,
    /// What stands behind the history.
    pub(crate) text: SampledText,
    /// Has the masks.
    pub(crate) plan: Plan<'a>,
    pub(crate) requests: &'a [RequestRow],
    pub(crate) tokens: &'a [TokenRow],
}

/// The options of one row of logits that change something.
pub(super) struct RowOptions<'a> {
    /// Biases and bad words.
    lists: SlotLists<'a>,
    penalties: Option<Penalties>,
    /// Stop tokens that must not be chosen yet.
    barred: &'a [i32],
    /// A bit per token that may be chosen.
    mask: Option<&'a [i32]>,
    text: Text<'a>,
}

struct Penalties {
    repetition: f32,
    presence: f32,
    frequency: f32,
    /// Where the prompt ends.
    prompt: usize,
}

/// The tokens before a position.
struct Text<'a> {
    blocks: &'a [i32],
    history: &'a [i32],
    block_size: usize,
    /// Where the tokens that are not in the history start.
    start: usize,
    /// How many of those there are.
    behind: usize,
    recent: Recent<'a>,
}

/// Tokens that are not in the history.
#[derive(Clone, Copy)]
enum Recent<'a> {
    /// Those of the step.
    Step(&'a [TokenRow]),
    /// The slot's newest and its drafts.
    Drafts(&'a Slot),
}

impl Recent<'_> {
    fn token(self, place: usize) -> i32 {
        match self {
            Self::Step(tokens) => tokens[place].id,
            Self::Drafts(slot) => slot.pending_token(place),
        }
    }
}

/// Memory that a thread changes logits in.
#[derive(Default)]
pub(super) struct Scratch {
    logits: Vec<f32>,
    /// Per token: twice its occurrences in the text, plus 1 if it occurs at all. All zero between rows.
    counts: Vec<u32>,
}

impl<'a> Options<'a> {
    /// What applies to a row of logits, if anything.
    pub(super) fn of(&self, row: &LogitsRow) -> Option<RowOptions<'a>> {
        let (position, request) = (row.position as usize, &self.requests[row.request as usize]);
        let index = request.slot as usize;
        let state = &self.state[index];
        let lists = SlotLists::of(self.lists, index);
        let barred = if row.position < state.min_length {
            lists.stop_tokens()
        } else {
            &[]
        };
        let penalties = Penalties::of(state);
        let mask = usize::try_from(row.mask - 1)
            .ok()
            .map(|mask| self.plan.mask(mask));
        let plain =
            barred.is_empty() && lists.biases().next().is_none() && lists.bad_words().next().is_none();
        if plain && penalties.is_none() && mask.is_none() {
            return None;
        }
        let (start, recent) = match self.text {
            SampledText::Step => {
                let tokens = &self.tokens[request.first_token as usize..];
                (tokens[0].position, Recent::Step(tokens))
            }
            SampledText::Drafts => (state.length - 1, Recent::Drafts(state)),
        };
        let start = (start as usize).min(position);
        let blocks = &self.block_table[index * self.blocks_per_slot..][..self.blocks_per_slot];
        Some(RowOptions {
            lists,
            penalties,
            barred,
            mask,
            text: Text {
                blocks,
                history: self.history,
                block_size: self.block_size,
                start,
                behind: position - start,
                recent,
            },
        })
    }
}

impl Penalties {
    /// The penalties of a slot, unless they change nothing.
    fn of(state: &Slot) -> Option<Self> {
        let penalties = Self {
            repetition: state.repetition_penalty,
            presence: state.presence_penalty,
            frequency: state.frequency_penalty,
            prompt: state.prompt_length as usize,
        };
        (penalties.repeats() || penalties.presence != 0.0 || penalties.frequency != 0.0).then_some(penalties)
    }

    /// A slot without a repetition penalty holds 0, which is none.
    fn repeats(&self) -> bool {
        self.repetition > 0.0 && self.repetition.to_bits() != 1_f32.to_bits()
    }

    /// The logit of a token that is known; `count` times in the text.
    fn apply(&self, mut logit: f32, count: u32) -> f32 {
        if self.repeats() {
            logit = if logit > 0.0 {
                logit / self.repetition
            } else {
                logit * self.repetition
            };
        }
        if count > 0 {
            logit -= count as f32 * self.frequency + self.presence;
        }
        logit
    }
}

impl RowOptions<'_> {
    /// The changed logits.
    pub(super) fn apply<'s>(&self, logits: &[f32], scratch: &'s mut Scratch) -> &'s [f32] {
        let Scratch {
            logits: changed,
            counts,
        } = scratch;
        changed.clear();
        changed.extend_from_slice(logits);
        for (token, bias) in self.lists.biases() {
            if let Some(logit) = place(changed, token) {
                *logit += bias;
            }
        }
        if let Some(penalties) = &self.penalties {
            self.penalise(penalties, changed, counts);
        }
        for token in self.barred {
            bar(changed, *token);
        }
        for word in self.lists.bad_words() {
            if let Some((last, before)) = word.split_last()
                && self.text.ends_with(before)
            {
                bar(changed, *last);
            }
        }
        if let Some(mask) = self.mask {
            confine(changed, mask);
        }
        changed
    }

    /// What to take if the options leave nothing: everything, or all of the mask.
    pub(super) fn without<'s>(&self, logits: &[f32], scratch: &'s mut Scratch) -> &'s [f32] {
        let changed = &mut scratch.logits;
        changed.clear();
        changed.extend_from_slice(logits);
        if let Some(mask) = self.mask {
            confine(changed, mask);
        }
        changed
    }

    fn penalise(&self, penalties: &Penalties, logits: &mut [f32], counts: &mut Vec<u32>) {
        if counts.len() < logits.len() {
            counts.resize(logits.len(), 0);
        }
        // Tokens without a logit are counted nowhere: no visit below would clear their counts for the rows that come.
        let counts = &mut counts[..logits.len()];
        self.text.for_each(|position, token| {
            if let Some(count) = place(counts, token) {
                *count = (*count | 1) + 2 * u32::from(position >= penalties.prompt);
            }
        });
        // The first visit to a token settles it and clears its count.
        self.text.for_each(|_, token| {
            if let (Some(count), Some(logit)) = (place(counts, token), place(logits, token))
                && *count > 0
            {
                *logit = penalties.apply(*logit, *count / 2);
                *count = 0;
            }
        });
    }
}

/// A token's element; tokens outside the vocabulary have none.
fn place<T>(per_token: &mut [T], token: i32) -> Option<&mut T> {
    per_token.get_mut(usize::try_from(token).ok()?)
}

fn bar(logits: &mut [f32], token: i32) {
    if let Some(logit) = place(logits, token) {
        *logit = f32::NEG_INFINITY;
    }
}

/// Bars what a mask does not allow. Tokens that it does not reach are barred, too.
fn confine(logits: &mut [f32], mask: &[i32]) {
    let words = mask.iter().copied().chain(std::iter::repeat(0));
    for (logits, word) in logits.chunks_mut(32).zip(words) {
        if word == 0 {
            logits.fill(f32::NEG_INFINITY);
            continue;
        }
        for (bit, logit) in logits.iter_mut().enumerate() {
            if word >> bit & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

impl Text<'_> {
    fn len(&self) -> usize {
        self.start + self.behind
    }

    fn token(&self, position: usize) -> i32 {
        if position >= self.start {
            return self.recent.token(position - self.start);
        }
        let block = self.blocks[position / self.block_size] as usize;
        self.history[block * self.block_size + position % self.block_size]
    }

    fn ends_with(&self, tokens: &[i32]) -> bool {
        let Some(first) = self.len().checked_sub(tokens.len()) else {
            return false;
        };
        let mut own = (first..self.len()).map(|position| self.token(position));
        tokens.iter().all(|token| own.next() == Some(*token))
    }

    /// Every position and its token, in order.
    fn for_each(&self, mut visit: impl FnMut(usize, i32)) {
        for (index, block) in self.blocks.iter().enumerate() {
            let first = index * self.block_size;
            if first >= self.start {
                break;
            }
            let tokens = &self.history[*block as usize * self.block_size..];
            let live = self.block_size.min(self.start - first);
            for (offset, token) in tokens[..live].iter().enumerate() {
                visit(first + offset, *token);
            }
        }
        for place in 0..self.behind {
            visit(self.start + place, self.recent.token(place));
        }
    }
}
