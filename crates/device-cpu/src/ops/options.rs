//! What a request's options do to its logits before a token is chosen: biases, penalties, a minimum length, bad
//! words and masks.
//!
//! The text that a row of logits follows is the slot's history and, behind it, the request's tokens of this step
//! up to the row, drafts among them: a verified position sees what it would see in plain decoding. Where drafts are
//! being made, the slot's newest token and its drafts so far take the place of the step's tokens, so a drafter
//! chooses by the same rules. A token's logit is changed by its own options alone and in one order, so nothing
//! depends on the order in which tokens are visited.

use paceline_device::{LIST_INTS, SampledText, slot};

/// The slots and the part of a step's tables that says what each row of logits follows.
#[derive(Clone, Copy)]
pub(crate) struct Options<'a> {
    pub(crate) state: &'a [i32],
    pub(crate) lists: &'a [i32],
    pub(crate) block_table: &'a [i32],
    pub(crate) history: &'a [i32],
    pub(crate) blocks_per_slot: usize,
    pub(crate) block_size: usize,
    /// What stands behind the history.
    pub(crate) text: SampledText,
    /// `[slots, mask_positions, mask_words]`.
    pub(crate) masks: &'a [i32],
    pub(crate) mask_positions: usize,
    pub(crate) mask_words: usize,
    /// Per row of logits: one more than its mask, or 0.
    pub(crate) mask: &'a [i32],
    /// Per row of logits.
    pub(crate) request: &'a [i32],
    /// Per request row.
    pub(crate) state_slot: &'a [i32],
    /// Per request row.
    pub(crate) first_token: &'a [i32],
    /// Per token.
    pub(crate) ids: &'a [i32],
    /// Per token.
    pub(crate) positions: &'a [i32],
}

/// The options of one row of logits that change something.
pub(super) struct RowOptions<'a> {
    /// Tokens and what is added to their logits, f32 by their bits.
    biases: &'a [[i32; 2]],
    penalties: Option<Penalties>,
    /// Stop tokens that must not be chosen yet.
    barred: &'a [i32],
    /// Lengths, each followed by the tokens of a word.
    bad_words: &'a [i32],
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
    recent: &'a [i32],
}

/// Memory that a thread changes logits in.
#[derive(Default)]
pub(super) struct Scratch {
    logits: Vec<f32>,
    /// Per token: twice its occurrences in the text, plus 1 if it occurs at all. All zero between rows.
    counts: Vec<u32>,
}

impl<'a> Options<'a> {
    /// What applies to a row of logits that chooses the token at `position`, if anything.
    pub(super) fn of(&self, sample: usize, position: usize) -> Option<RowOptions<'a>> {
        let request = self.request[sample] as usize;
        let index = self.state_slot[request] as usize;
        let state = &self.state[index * slot::INTS..][..slot::INTS];
        let (stops, rest) = counted(&self.lists[index * LIST_INTS..][..LIST_INTS], 1);
        let (biases, rest) = counted(rest, 2);
        let bad_words = words(rest);
        let barred = if position < state[slot::MIN_LENGTH] as usize {
            stops
        } else {
            &[]
        };
        let penalties = Penalties::of(state);
        let mask = self.mask_of(sample, index);
        let plain = biases.is_empty() && barred.is_empty() && bad_words.is_empty();
        if plain && penalties.is_none() && mask.is_none() {
            return None;
        }
        let (biases, _) = biases.as_chunks();
        let (start, recent) = match self.text {
            SampledText::Step => {
                let first = self.first_token[request] as usize;
                (self.positions[first], &self.ids[first..])
            }
            // Drafts stand right behind the newest token.
            SampledText::Drafts => (state[slot::LENGTH] - 1, &state[slot::NEWEST..]),
        };
        let start = (start as usize).min(position);
        let blocks = &self.block_table[index * self.blocks_per_slot..][..self.blocks_per_slot];
        Some(RowOptions {
            biases,
            penalties,
            barred,
            bad_words,
            mask,
            text: Text {
                blocks,
                history: self.history,
                block_size: self.block_size,
                start,
                recent: &recent[..position - start],
            },
        })
    }
}

impl<'a> Options<'a> {
    fn mask_of(&self, sample: usize, index: usize) -> Option<&'a [i32]> {
        let place = usize::try_from(self.mask[sample] - 1).ok()?;
        let row = index * self.mask_positions + place;
        Some(&self.masks[row * self.mask_words..][..self.mask_words])
    }
}

/// The entries of the list that `words` starts with, `size` words each, and what is behind them.
fn counted(words: &[i32], size: usize) -> (&[i32], &[i32]) {
    words[1..].split_at(words[0] as usize * size)
}

/// The words of the list of words that `list` starts with.
fn words(list: &[i32]) -> &[i32] {
    let mut end = 1;
    for _ in 0..list[0] {
        end += 1 + list[end] as usize;
    }
    &list[1..end]
}

impl Penalties {
    /// The penalties of a slot, unless they change nothing.
    fn of(state: &[i32]) -> Option<Self> {
        let float = |at: usize| f32::from_bits(state[at] as u32);
        let penalties = Self {
            repetition: float(slot::REPETITION_PENALTY),
            presence: float(slot::PRESENCE_PENALTY),
            frequency: float(slot::FREQUENCY_PENALTY),
            prompt: state[slot::PROMPT_LENGTH] as usize,
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
        for [token, bias] in self.biases {
            if let Some(logit) = place(changed, *token) {
                *logit += f32::from_bits(*bias as u32);
            }
        }
        if let Some(penalties) = &self.penalties {
            self.penalise(penalties, changed, counts);
        }
        for token in self.barred {
            bar(changed, *token);
        }
        let mut rest = self.bad_words;
        while let Some((length, words)) = rest.split_first() {
            let (word, others) = words.split_at(*length as usize);
            rest = others;
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
        self.start + self.recent.len()
    }

    fn token(&self, position: usize) -> i32 {
        if position >= self.start {
            return self.recent[position - self.start];
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
        for (offset, token) in self.recent.iter().enumerate() {
            visit(self.start + offset, *token);
        }
    }
}
