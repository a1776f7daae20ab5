//! Requests in front of the sampler: texts in blocks, in the step and in drafts, and everything that one may ask for.

use crate::rig::Rig;
use paceline_device::abi::{
    LIST_WORDS, LogitsRow, PlanMessage, PlanRow, RequestRow, SamplingRow, Slot, SlotLists, TokenRow,
};
use paceline_device::{Backend, DeviceError, SampledText, SlotLimits, SlotTable, StepLimits, StepTables};
use paceline_testkit::Random;

const BLOCK_SIZE: usize = 8;
const BLOCKS_PER_SLOT: usize = 12;

/// Factors of parameters that leave room for rounding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nudge {
    pub(crate) temperature: f32,
    pub(crate) top_p: f32,
    pub(crate) min_p: f32,
}

impl Nudge {
    pub(crate) const NONE: Self = Self {
        temperature: 1.0,
        top_p: 1.0,
        min_p: 1.0,
    };

    /// Each parameter a little smaller, the same, or a little larger.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        const NEAR: [f32; 3] = [1.0 - 4e-6, 1.0, 1.0 + 4e-6];
        NEAR.into_iter().flat_map(|temperature| {
            NEAR.into_iter().flat_map(move |top_p| {
                NEAR.into_iter().map(move |min_p| Self {
                    temperature,
                    top_p,
                    min_p,
                })
            })
        })
    }
}

/// Random requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene {
    pub(crate) vocabulary: usize,
    /// Tokens that have a logit, the first: options and texts may name others.
    pub(crate) logits: usize,
    /// Rows of logits, at least.
    pub(crate) rows: usize,
    /// What the text before a row is.
    pub(crate) text: SampledText,
    /// All rows are greedy and ask for nothing else.
    pub(crate) plain: bool,
    pub(crate) nudge: Nudge,
}

/// A request before its choices.
pub(crate) struct Request {
    text: Vec<i32>,
    /// Where the step's tokens begin.
    start: usize,
    drafts: Vec<i32>,
    slot: Slot,
    lists: Vec<i32>,
    masks: Vec<Vec<u32>>,
    rows: Vec<LogitsRow>,
}

impl Request {
    pub(crate) fn rows(&self) -> &[LogitsRow] {
        &self.rows
    }
}

impl Scene {
    pub(crate) fn mask_words(&self) -> usize {
        self.vocabulary.div_ceil(32)
    }

    pub(crate) fn requests(&self, seed: u64) -> Vec<Request> {
        let mut random = Random::new(seed, &format!("scene of {}", self.vocabulary));
        let mut requests: Vec<Request> = Vec::new();
        while requests.iter().map(|request| request.rows.len()).sum::<usize>() < self.rows {
            requests.push(self.request(&mut random));
        }
        requests
    }

    fn request(&self, random: &mut Random) -> Request {
        // Few different tokens, so that they repeat.
        let few = self.vocabulary.min(40);
        let mut tokens = |len: usize| -> Vec<i32> { (0..len).map(|_| random.below(few) as i32).collect() };
        let (text, drafts) = (tokens(70), tokens(6));
        let text = text[..5 + random.below(65)].to_vec();
        let drafts = drafts[..random.below(7)].to_vec();
        let sampling = self.sampling(random);
        let mut slot = Slot {
            length: text.len() as i32,
            max_length: 1000,
            prompt_length: random.below(text.len()) as i32,
            newest: text[text.len() - 1],
            draft_count: drafts.len() as i32,
            sampling,
            ..Slot::default()
        };
        slot.drafts[..drafts.len()].copy_from_slice(&drafts);
        let asks = !self.plain && !random.once_in(4);
        if asks {
            slot.repetition_penalty = *random.pick(&[0.0, 1.0, 1.3, 0.8]);
            slot.presence_penalty = *random.pick(&[0.0, 0.4, -0.5]);
            slot.frequency_penalty = *random.pick(&[0.0, 0.25, 0.7]);
            slot.min_length = random.below(80) as i32;
        }
        let lists = if asks { self.lists(random) } else { vec![0, 0, 0] };
        let places = match self.text {
            SampledText::Step => 0..=drafts.len(),
            // A draft forward samples behind all the drafts there are.
            SampledText::Drafts => drafts.len()..=drafts.len(),
        };
        let masked = asks && self.text == SampledText::Step && random.once_in(3);
        let masks = places.clone().filter(|_| masked).map(|_| self.mask(random));
        let masks: Vec<Vec<u32>> = masks.collect();
        let rows = places.map(|place| LogitsRow {
            position: (text.len() + place) as i32,
            known: if !self.plain && random.once_in(8) {
                1 + random.below(self.logits) as i32
            } else {
                0
            },
            mask: i32::from(masked),
            sampling,
            ..LogitsRow::default()
        });
        let rows = rows.collect();
        Request {
            start: random.below(text.len()),
            text,
            drafts,
            slot,
            lists,
            masks,
            rows,
        }
    }

    fn sampling(&self, random: &mut Random) -> SamplingRow {
        let vocabulary = self.vocabulary as u32;
        if self.plain {
            return SamplingRow {
                top_p: 1.0,
                logprobs: 1,
                ..SamplingRow::default()
            };
        }
        let Nudge {
            temperature,
            top_p,
            min_p,
        } = self.nudge;
        SamplingRow {
            temperature: random.pick(&[0.0, 0.3, 0.8, 1.0, 1.5]) * temperature,
            top_p: match random.pick(&[1.0_f32, 1.0, 0.95, 0.7, 0.2]) {
                whole if *whole >= 1.0 => 1.0,
                part => part * top_p,
            },
            top_k: *random.pick(&[0, 0, 1, 5, 40, vocabulary - 1, vocabulary]),
            min_p: random.pick(&[0.0, 0.0, 0.02, 0.3]) * min_p,
            seed: random.bits().into(),
            logprobs: *random.pick(&[-1, 0, 3, 20]),
        }
    }

    /// Stop tokens, biases and bad words, some of them outside the vocabulary.
    fn lists(&self, random: &mut Random) -> Vec<i32> {
        let few = self.vocabulary.min(60);
        let mut any = |count: usize| -> Vec<u32> { (0..count).map(|_| random.below(few) as u32).collect() };
        let (stops, biased, words) = (any(5), any(30), any(200));
        let biases: Vec<(u32, f32)> = biased
            .into_iter()
            .take(random.below(31))
            .map(|token| (token, random.number(4.0)))
            .collect();
        let mut bad_words = Vec::new();
        let mut rest = words.as_slice();
        for _ in 0..random.below(50) {
            let (word, others) = rest.split_at(1 + random.below(3));
            bad_words.push(word.to_vec());
            rest = others;
        }
        bad_words.push(vec![self.vocabulary as u32 + 7]);
        SlotLists::encode(&stops[..random.below(6)], &biases, &bad_words)
    }

    /// Much of the vocabulary, little of it, or one token.
    fn mask(&self, random: &mut Random) -> Vec<u32> {
        let kind = random.below(3);
        let mut mask: Vec<u32> = (0..self.mask_words())
            .map(|_| match kind {
                0 => random.bits() as u32,
                1 => (random.bits() & random.bits() & random.bits() & random.bits()) as u32,
                _ => 0,
            })
            .collect();
        let token = random.below(self.vocabulary);
        mask[token / 32] |= 1 << (token % 32);
        // Bits behind the vocabulary stand for no token.
        let behind = self.mask_words() * 32 - self.vocabulary;
        if let Some(last) = mask.last_mut() {
            *last &= u32::MAX >> behind;
        }
        mask
    }
}

/// Requests on a device.
pub(crate) struct Sampler<'a, B: Backend> {
    rig: &'a Rig<'a, B>,
    pub(crate) slots: SlotTable<B>,
    pub(crate) step: StepTables<B>,
    pub(crate) plan: B::Buffer<i32>,
    scene: Scene,
}

impl<'a, B: Backend> Sampler<'a, B> {
    pub(crate) fn new(rig: &'a Rig<'a, B>, scene: Scene, requests: &[Request]) -> Result<Self, DeviceError> {
        let device = rig.device;
        let count = requests.len();
        let limits = SlotLimits {
            slots: count,
            blocks_per_slot: BLOCKS_PER_SLOT,
            blocks: count * BLOCKS_PER_SLOT,
            block_size: BLOCK_SIZE,
            snapshots: 0,
        };
        let tokens = requests
            .iter()
            .map(|request| request.text.len() + request.drafts.len());
        let step_limits = StepLimits {
            tokens: tokens.sum(),
            requests: count,
            samples: requests.iter().map(|request| request.rows.len()).sum(),
            blocks_per_request: BLOCKS_PER_SLOT,
            block_size: BLOCK_SIZE,
        };
        let sampler = Self {
            slots: SlotTable::new(device, limits)?,
            step: StepTables::new(device, step_limits)?,
            plan: device.buffer(sampler_words(requests, scene.mask_words()))?,
            scene,
            rig,
        };
        sampler.write_slots(requests);
        Ok(sampler)
    }

    /// Slots in the order of requests, blocks scattered, nothing useful in the history where the step's tokens are.
    fn write_slots(&self, requests: &[Request]) {
        let (device, count) = (self.rig.device, requests.len());
        let states: Vec<Slot> = requests.iter().map(|request| request.slot).collect();
        let mut lists = vec![0; count * LIST_WORDS];
        let mut block_table = vec![0; count * BLOCKS_PER_SLOT];
        let mut history = vec![3; count * BLOCKS_PER_SLOT * BLOCK_SIZE];
        for (slot, request) in requests.iter().enumerate() {
            lists[slot * LIST_WORDS..][..request.lists.len()].copy_from_slice(&request.lists);
            let blocks = &mut block_table[slot * BLOCKS_PER_SLOT..][..BLOCKS_PER_SLOT];
            for (block, entry) in blocks.iter_mut().enumerate() {
                *entry = ((BLOCKS_PER_SLOT - 1 - block) * count + slot) as i32;
            }
            let stored = match self.scene.text {
                SampledText::Step => request.start,
                SampledText::Drafts => request.text.len() - 1,
            };
            for (position, token) in request.text[..stored].iter().enumerate() {
                let block = blocks[position / BLOCK_SIZE] as usize;
                history[block * BLOCK_SIZE + position % BLOCK_SIZE] = *token;
            }
        }
        device.write(&self.slots.state, &states);
        device.write(&self.slots.lists, &lists);
        device.write(&self.slots.block_table, &block_table);
        device.write(&self.slots.history, &history);
    }

    /// Makes the tables those of a step with some of the requests, the first of which is request `first` of all.
    pub(crate) fn write(&self, first: usize, requests: &[Request]) {
        let (mut tokens, mut rows, mut logits) = (Vec::new(), Vec::new(), Vec::new());
        let mut message = PlanMessage::new(self.scene.mask_words());
        let mut masks = 0;
        for (index, request) in requests.iter().enumerate() {
            let first_token = tokens.len();
            let ids: Vec<i32> = match self.scene.text {
                SampledText::Step => request.text[request.start..]
                    .iter()
                    .chain(&request.drafts)
                    .copied()
                    .collect(),
                // What a draft forward runs over says nothing about the text.
                SampledText::Drafts => vec![1],
            };
            rows.push(RequestRow {
                first_token: first_token as i32,
                token_count: ids.len() as i32,
                slot: (first + index) as i32,
                ..RequestRow::default()
            });
            tokens.extend(ids.into_iter().enumerate().map(|(offset, id)| TokenRow {
                id,
                position: (request.start + offset) as i32,
                request: index as i32,
            }));
            for (place, row) in request.rows.iter().enumerate() {
                let from_end = request.rows.len() - place;
                logits.push(LogitsRow {
                    token: (tokens.len() - from_end) as i32,
                    request: index as i32,
                    mask: if row.mask > 0 { masks + place as i32 + 1 } else { 0 },
                    ..*row
                });
            }
            masks += request.masks.len() as i32;
            message.push(PlanRow::default(), [], request.masks.iter().map(Vec::as_slice));
        }
        let (device, step) = (self.rig.device, &self.step);
        device.write(&step.tokens.live, &[tokens.len() as i32]);
        device.write(&step.requests.live, &[rows.len() as i32]);
        device.write(&step.samples.live, &[logits.len() as i32]);
        device.write(&step.token_rows, &tokens);
        device.write(&step.request_rows, &rows);
        device.write(&step.logits_rows, &logits);
        device.write(&self.plan, message.encode(1));
    }
}

/// Words of a plan with all masks.
fn sampler_words(requests: &[Request], mask_words: usize) -> usize {
    let masks: usize = requests.iter().map(|request| request.masks.len()).sum();
    paceline_device::abi::PlanHeader::WORDS + requests.len() * PlanRow::WORDS + masks * mask_words
}
