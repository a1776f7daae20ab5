//! A host at random: admits requests, cuts their prompts, verifies windows, comes too late, asks for everything that a
//! plan row can ask for.

use crate::stage::{BLOCKS_PER_SLOT, MASK_WORDS, SLOTS, SNAPSHOTS, TOKENS, VOCABULARY};
use paceline_device::abi::{
    BlockUpdate, LogitsRow, Logprobs, PlanMessage, PlanRow, SamplingRow, Slot, SlotLists, TokenRow,
};
use paceline_testkit::Random;
use paceline_types::{MAX_DRAFTS, STATE_GRID};

/// What a request is after.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Text,
    Mean,
    Last,
}

/// Where the host is with a slot.
#[derive(Clone)]
struct Owner {
    generation: u32,
    purpose: Purpose,
    prompt: Vec<i32>,
    /// Tokens of the prompt that were planned.
    planned: usize,
    /// Its blocks, so that they can be handed to another.
    blocks: Vec<u32>,
}

/// The host.
pub(crate) struct Player {
    random: Random,
    block_size: usize,
    owners: Vec<Option<Owner>>,
    free_blocks: Vec<u32>,
    /// Snapshots that no row of the plan names yet: rows of a step run at the same time, so each has its own.
    free_snapshots: Vec<i32>,
    pub(crate) message: PlanMessage,
}

/// A snapshot of those that are free.
fn snapshot(random: &mut Random, free: &mut Vec<i32>) -> i32 {
    free.swap_remove(random.below(SNAPSHOTS) % free.len())
}

/// A plan row with its tokens and masks.
type Row = (PlanRow, Vec<i32>, Vec<Vec<u32>>);

impl Player {
    pub(crate) fn new(random: Random, block_size: usize) -> Self {
        Self {
            random,
            block_size,
            owners: vec![None; SLOTS],
            free_blocks: (0..(SLOTS * BLOCKS_PER_SLOT) as u32).collect(),
            free_snapshots: Vec::new(),
            message: PlanMessage::new(MASK_WORDS),
        }
    }

    /// Writes the plan of a step, given what the slots hold before it.
    pub(crate) fn plan(&mut self, states: &[Slot]) {
        self.message.clear();
        self.free_snapshots = (0..SNAPSHOTS as i32).collect();
        let first = self.random.below(SLOTS);
        for offset in 0..SLOTS {
            let slot = (first + offset) % SLOTS;
            if self.random.once_in(5) {
                continue;
            }
            let (mut row, tokens, masks) = self.row(slot, &states[slot]);
            row.slot = slot as u32;
            let masks = masks.iter().map(Vec::as_slice);
            self.message.push(row, tokens, masks);
        }
    }

    fn row(&mut self, slot: usize, state: &Slot) -> Row {
        let ended = self.owners[slot]
            .as_ref()
            .is_none_or(|owner| owner.purpose != Purpose::Text && owner.planned == owner.prompt.len());
        let afresh = self.random.once_in(if state.finished != 0 { 2 } else { 25 });
        if ended || afresh {
            self.admit(slot);
        } else if self.random.once_in(12) {
            return self.stale_row(slot);
        }
        let Some(owner) = self.owners[slot].clone() else {
            return Row::default();
        };
        let mut row = if owner.planned < owner.prompt.len() {
            self.prefill(slot, &owner)
        } else {
            self.verify(&owner)
        };
        if self.random.once_in(2) {
            row.0.snapshot_at = (self.random.below(6) * STATE_GRID) as i32;
            row.0.snapshot = snapshot(&mut self.random, &mut self.free_snapshots);
        }
        row
    }

    /// Another request takes over a slot, with blocks of its own.
    fn admit(&mut self, slot: usize) {
        let random = &mut self.random;
        let former = self.owners[slot].take();
        let generation = former.as_ref().map_or(1, |owner| owner.generation + 1);
        self.free_blocks
            .extend(former.iter().flat_map(|owner| &owner.blocks));
        let blocks: Vec<u32> = (0..BLOCKS_PER_SLOT)
            .map(|_| {
                let index = random.below(self.free_blocks.len());
                self.free_blocks.swap_remove(index)
            })
            .collect();
        let room = BLOCKS_PER_SLOT * self.block_size;
        let cached = if random.once_in(3) {
            STATE_GRID * (1 + random.below(2))
        } else {
            0
        };
        let prompt = cached + 1 + random.below(40);
        let max_length = (prompt + 1 + random.below(60)).min(room);
        let state = Slot {
            generation,
            max_length: max_length as i32,
            min_length: random.below(max_length) as i32,
            prompt_length: prompt as i32,
            restore: if cached > 0 {
                snapshot(random, &mut self.free_snapshots)
            } else {
                -1
            },
            indexed: if random.once_in(2) { cached as i32 } else { 0 },
            sampling: sampling(random),
            repetition_penalty: 1.0 + random.number(0.3),
            presence_penalty: random.number(1.0),
            frequency_penalty: random.number(1.0),
            ..Slot::default()
        };
        let lists = lists(random);
        self.message.admit(slot as u32, state, &lists);
        for (index, block) in blocks.iter().enumerate() {
            self.message.update_block(BlockUpdate {
                slot: slot as u32,
                index: index as u32,
                block: *block,
            });
        }
        let purpose = *random.pick(&[
            Purpose::Text,
            Purpose::Text,
            Purpose::Text,
            Purpose::Mean,
            Purpose::Last,
        ]);
        self.owners[slot] = Some(Owner {
            generation,
            purpose,
            prompt: text(random, prompt),
            planned: cached,
            blocks,
        });
    }

    /// Late work of the owner before.
    fn stale_row(&mut self, slot: usize) -> Row {
        let generation = self.owners[slot].as_ref().map_or(0, |owner| owner.generation - 1);
        let (mut row, tokens, masks) = if self.random.once_in(2) {
            let count = 1 + self.random.below(9);
            let row = PlanRow {
                kind: PlanRow::PREFILL,
                count: count as i32,
                flags: PlanRow::SAMPLE_ALL | PlanRow::SAMPLE_LAST,
                ..PlanRow::default()
            };
            (row, text(&mut self.random, count), Vec::new())
        } else {
            let row = PlanRow {
                kind: PlanRow::VERIFY,
                count: self.random.below(6) as i32,
                ..PlanRow::default()
            };
            (row, Vec::new(), Vec::new())
        };
        row.generation = generation;
        (row.snapshot_at, row.following) = (-1, -1);
        self.wants(&mut row);
        (row, tokens, masks)
    }

    fn prefill(&mut self, slot: usize, owner: &Owner) -> Row {
        let left = owner.prompt.len() - owner.planned;
        let count = left.min(1 + self.random.below(22));
        let end = owner.planned + count;
        let last = end == owner.prompt.len();
        let mut flags = 0;
        match owner.purpose {
            Purpose::Text if last => flags |= PlanRow::SAMPLE_LAST,
            Purpose::Mean => flags |= PlanRow::POOL_SUM | if last { PlanRow::POOL_MEAN } else { 0 },
            Purpose::Last if last => flags |= PlanRow::POOL_LAST,
            _ => {}
        }
        if owner.purpose == Purpose::Text && self.random.once_in(3) {
            flags |= PlanRow::SAMPLE_ALL;
        }
        let mut row = PlanRow {
            generation: owner.generation,
            kind: PlanRow::PREFILL,
            start: owner.planned as i32,
            count: count as i32,
            flags,
            following: owner.prompt.get(end).copied().unwrap_or(-1),
            snapshot_at: -1,
            ..PlanRow::default()
        };
        let masks = if last && owner.purpose == Purpose::Text {
            self.masks(&mut row, 1)
        } else {
            Vec::new()
        };
        self.wants(&mut row);
        let tokens = owner.prompt[owner.planned..end].to_vec();
        if let Some(owner) = &mut self.owners[slot] {
            owner.planned = end;
        }
        (row, tokens, masks)
    }

    fn verify(&mut self, owner: &Owner) -> Row {
        let count = self.random.below(MAX_DRAFTS + 1);
        let mut row = PlanRow {
            generation: owner.generation,
            kind: PlanRow::VERIFY,
            count: count as i32,
            following: -1,
            snapshot_at: -1,
            ..PlanRow::default()
        };
        let mut given = Vec::new();
        if self.random.once_in(4) {
            row.flags |= PlanRow::GIVEN;
            row.source = Slot::FROM_GRAMMAR;
            given = text(&mut self.random, count);
        }
        let masks = self.masks(&mut row, count + 1);
        self.wants(&mut row);
        (row, given, masks)
    }

    /// Masks for every choice, now and then.
    fn masks(&mut self, row: &mut PlanRow, count: usize) -> Vec<Vec<u32>> {
        if !self.random.once_in(4) {
            return Vec::new();
        }
        row.flags |= PlanRow::MASKED;
        (0..count)
            .map(|_| (0..MASK_WORDS).map(|_| self.random.bits() as u32).collect())
            .collect()
    }

    /// What a row wants behind it.
    fn wants(&mut self, row: &mut PlanRow) {
        if self.random.once_in(3) {
            row.flags |= PlanRow::SHOW_DRAFTS;
        }
        row.ngram = self.random.below(MAX_DRAFTS + 1) as i32;
        row.neural = self.random.below(4) as i32;
    }

    /// What the model chooses: often the draft that comes next, so that windows are accepted in part.
    pub(crate) fn choices(&mut self, tokens: &[TokenRow], logits: &[LogitsRow]) -> Vec<i32> {
        let mut choices: Vec<i32> = logits
            .iter()
            .map(|row| {
                let place = row.token as usize;
                let next = tokens.get(place + 1).filter(|next| next.request == row.request);
                match next {
                    Some(next) if !self.random.once_in(4) => next.id,
                    // Few different ones, so that the text repeats itself.
                    _ => self.random.below(VOCABULARY / 3) as i32,
                }
            })
            .collect();
        choices.resize(TOKENS, 0);
        choices
    }

    /// Any tokens.
    pub(crate) fn any_tokens(&mut self) -> Vec<i32> {
        text(&mut self.random, TOKENS)
    }

    /// Any log-probabilities.
    pub(crate) fn logprobs(&mut self) -> Vec<Logprobs> {
        let numbers: Vec<f32> = self.random.numbers(TOKENS * Logprobs::WORDS, 9.0);
        bytemuck::cast_slice(&numbers).to_vec()
    }

    /// Drafts for some slots, as any drafter might leave them.
    pub(crate) fn draft(&mut self, states: &mut [Slot]) {
        for slot in states {
            if self.random.once_in(3) || slot.finished != 0 {
                continue;
            }
            let count = self.random.below(MAX_DRAFTS + 1);
            slot.drafts[..count].copy_from_slice(&text(&mut self.random, count));
            slot.draft_count = count as i32;
            slot.source = Slot::FROM_NEURAL;
        }
    }
}

/// Tokens that repeat, and runs of them that do.
fn text(random: &mut Random, len: usize) -> Vec<i32> {
    let mut text: Vec<i32> = Vec::with_capacity(len);
    while text.len() < len {
        if text.len() > 8 && random.once_in(6) {
            let start = random.below(text.len() - 8);
            let run = text[start..start + 1 + random.below(8)].to_vec();
            text.extend(run);
        } else {
            text.push(random.below(VOCABULARY) as i32);
        }
    }
    text.truncate(len);
    text
}

fn sampling(random: &mut Random) -> SamplingRow {
    SamplingRow {
        temperature: random.number(1.0).max(0.0),
        top_p: 0.9,
        top_k: random.below(9) as u32,
        min_p: 0.01,
        seed: random.bits().into(),
        logprobs: random.below(5) as i32 - 1,
    }
}

/// Stop tokens, biases and bad words.
fn lists(random: &mut Random) -> Vec<i32> {
    let any = |random: &mut Random| random.below(VOCABULARY) as u32;
    let stops: Vec<u32> = (0..random.below(3)).map(|_| any(random)).collect();
    let biases: Vec<(u32, f32)> = (0..random.below(6))
        .map(|_| (any(random), random.number(2.0)))
        .collect();
    let bad_words: Vec<Vec<u32>> = (0..random.below(6))
        .map(|_| (0..=random.below(3)).map(|_| any(random)).collect())
        .collect();
    SlotLists::encode(&stops, &biases, &bad_words)
}
