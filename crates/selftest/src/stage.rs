//! What surrounds a step on a device: slots, rings, tables and the record, with the host's end of them.

use crate::compare::{Limit, Output};
use crate::rig::Rig;
use paceline_device::abi::{
    DraftsMade, LogitsRow, Logprobs, PlanLimits, PlanMessage, Record, RecordHeader, RecordLimits, Slot,
    SlotLists, TokenRow,
};
use paceline_device::{
    Accept, Backend, DeviceError, FreePlaces, Pending, PoolTable, Prepare, Publish, RingPlace, SlotLimits,
    SlotTable, StepLimits, StepRecord, StepRings, StepTables,
};
use std::cell::{Cell, RefCell};

/// Requests at a time.
pub(crate) const SLOTS: usize = 6;
pub(crate) const BLOCKS_PER_SLOT: usize = 20;
pub(crate) const SNAPSHOTS: usize = 2 * SLOTS;
/// Tokens and rows of logits of a step.
pub(crate) const TOKENS: usize = 160;
/// Token ids.
pub(crate) const VOCABULARY: usize = 12;
/// Words of a mask: ids of a larger vocabulary have bits, too.
pub(crate) const MASK_WORDS: usize = 3;
/// Elements of a state that is pooled.
pub(crate) const WIDTH: usize = 24;
/// Places of the rings.
const DEPTH: usize = 3;

/// A device with slots.
pub(crate) struct Stage<'a, B: Backend> {
    pub(crate) rig: &'a Rig<'a, B>,
    pub(crate) slots: SlotTable<B>,
    pub(crate) step: StepTables<B>,
    pub(crate) rings: StepRings<B>,
    pub(crate) plan: B::Buffer<i32>,
    pub(crate) record: StepRecord<B>,
    /// What the model chooses.
    pub(crate) tokens: B::Buffer<i32>,
    pub(crate) logprobs: B::Buffer<Logprobs>,
    pub(crate) pooled: PoolTable<B>,
    /// The host's part. Programs hold on to the rest of the stage.
    places: RefCell<FreePlaces>,
    steps: Cell<u64>,
}

impl<'a, B: Backend> Stage<'a, B> {
    pub(crate) fn new(rig: &'a Rig<'a, B>, block_size: usize) -> Result<Self, DeviceError> {
        let device = rig.device;
        let limits = SlotLimits {
            slots: SLOTS,
            blocks_per_slot: BLOCKS_PER_SLOT,
            blocks: SLOTS * BLOCKS_PER_SLOT,
            block_size,
            snapshots: SNAPSHOTS,
        };
        let slots = SlotTable::new(device, limits)?;
        let plan_words = PlanLimits {
            slots: SLOTS,
            tokens: TOKENS,
            block_size,
            blocks: limits.blocks,
            masks: TOKENS,
            mask_words: MASK_WORDS,
        };
        let record_words = RecordLimits {
            rows: SLOTS,
            samples: TOKENS,
            embedding_width: WIDTH,
        };
        let (plan_words, record_words) = (plan_words.words(), record_words.words());
        Ok(Self {
            step: tables(rig, &slots)?,
            rings: StepRings::new(device, DEPTH, (plan_words, record_words))?,
            plan: device.buffer(plan_words)?,
            record: StepRecord::new(device, SLOTS)?,
            tokens: device.buffer(TOKENS)?,
            logprobs: device.buffer(TOKENS)?,
            pooled: PoolTable::new(device, SLOTS, WIDTH)?,
            places: RefCell::new(FreePlaces::new(DEPTH)),
            steps: Cell::new(0),
            slots,
            rig,
        })
    }

    pub(crate) fn prepare_args(&self) -> Prepare<'_, B> {
        Prepare {
            rings: &self.rings,
            plan: &self.plan,
            slots: &self.slots,
            step: &self.step,
            record: &self.record,
        }
    }

    pub(crate) fn accept_args(&self) -> Accept<'_, B> {
        Accept {
            plan: &self.plan,
            slots: &self.slots,
            step: &self.step,
            tokens: &self.tokens,
            record: &self.record,
        }
    }

    pub(crate) fn publish_args(&self) -> Publish<'_, B> {
        Publish {
            rings: &self.rings,
            plan: &self.plan,
            slots: &self.slots,
            step: &self.step,
            record: &self.record,
            logprobs: &self.logprobs,
            pooled: &self.pooled,
        }
    }

    /// Writes the plan of the next step to its place. With `late`, its number is that of another step.
    pub(crate) fn post(&self, message: &mut PlanMessage, late: bool) -> Result<RingPlace, DeviceError> {
        let number = self.next_number() + u64::from(late);
        self.post_words(message.encode(number))
    }

    /// The number of the next step.
    pub(crate) fn next_number(&self) -> u64 {
        self.steps.get() + 1
    }

    /// Writes words to the place of the next step.
    pub(crate) fn post_words(&self, words: &[i32]) -> Result<RingPlace, DeviceError> {
        self.steps.set(self.steps.get() + 1);
        let place = self.places.borrow_mut().take();
        let place = place.ok_or_else(|| DeviceError::Failed("no place in the rings is free".to_owned()))?;
        self.rig.device.post(&self.rings.plans, &place, words);
        Ok(place)
    }

    /// The tables of the step as it was prepared.
    pub(crate) fn tables(&self, name: &str) -> Result<Vec<Output>, DeviceError> {
        let header = self.header()?;
        let mut outputs = table_outputs(self.rig, name, &self.step)?;
        outputs.push(Output::words(format!("{name}: record"), header));
        Ok(outputs)
    }

    /// The tokens of the step and what rows of logits they have.
    pub(crate) fn rows(&self) -> Result<(Vec<TokenRow>, Vec<LogitsRow>), DeviceError> {
        let (rig, step) = (self.rig, &self.step);
        let tokens = rig.read(&step.token_rows, rig.count(&step.tokens.live)?.min(TOKENS))?;
        let logits = rig.read(&step.logits_rows, rig.count(&step.samples.live)?.min(TOKENS))?;
        Ok((tokens, logits))
    }

    /// What the header says so far, but for the times.
    fn header(&self) -> Result<Vec<i32>, DeviceError> {
        let header = self.rig.read(&self.record.header, 1)?[0];
        Ok(words_of(&header))
    }

    /// Everything about the slots that has a meaning.
    pub(crate) fn slots(&self, name: &str) -> Result<Vec<Output>, DeviceError> {
        let limits = self.slots.limits;
        let mut states = self.rig.read(&self.slots.state, limits.slots)?;
        for slot in &mut states {
            let count = slot.draft_count.clamp(0, slot.drafts.len() as i32) as usize;
            slot.drafts[count..].fill(0);
        }
        let lists = self
            .rig
            .read(&self.slots.lists, limits.slots * paceline_device::abi::LIST_WORDS)?;
        let known: Vec<i32> = (0..limits.slots)
            .flat_map(|slot| listed(SlotLists::of(&lists, slot)))
            .collect();
        let table = limits.slots * limits.blocks_per_slot;
        Ok(vec![
            Output::words(format!("{name}: slots"), bytemuck::cast_slice(&states).to_vec()),
            Output::words(format!("{name}: lists"), known),
            Output::words(
                format!("{name}: block table"),
                self.rig.read(&self.slots.block_table, table)?,
            ),
            Output::words(
                format!("{name}: history"),
                self.rig
                    .read(&self.slots.history, limits.blocks * limits.block_size)?,
            ),
            Output::words(
                format!("{name}: drafter saved"),
                self.rig.read(&self.slots.drafter_saved, limits.snapshots)?,
            ),
        ])
    }

    /// The slots' states.
    pub(crate) fn states(&self) -> Result<Vec<Slot>, DeviceError> {
        self.rig.read(&self.slots.state, SLOTS)
    }

    /// The record of the step that has the place, as it arrives.
    pub(crate) fn collect(&self, name: &str, place: RingPlace) -> Result<Vec<Output>, DeviceError> {
        let arrival = self.rig.device.arrival(&self.rings.records, &place);
        let words = arrival.wait()?;
        self.places.borrow_mut().put_back(place);
        let record = Record::parse(&words)
            .ok_or_else(|| DeviceError::Failed("the record ends before its sections do".to_owned()))?;
        let RecordHeader {
            begin, drafting, end, ..
        } = *record.header;
        let times = [begin, drafting, end].map(u64::from);
        let drafts: Vec<DraftsMade> = record
            .drafts
            .iter()
            .map(|made| {
                let mut made = *made;
                let count = made.count.clamp(0, made.tokens.len() as i32) as usize;
                made.tokens[count..].fill(0);
                made
            })
            .collect();
        let embeddings: Vec<f32> = record.embeddings().flatten().copied().collect();
        Ok(vec![
            Output::words(format!("{name}: header"), words_of(record.header)),
            Output::words(
                format!("{name}: times in order"),
                vec![i32::from(0 < times[0] && times.is_sorted())],
            ),
            Output::words(
                format!("{name}: rows"),
                bytemuck::cast_slice(record.rows).to_vec(),
            ),
            Output::words(
                format!("{name}: log-probabilities"),
                bytemuck::cast_slice(record.logprobs).to_vec(),
            ),
            Output::words(format!("{name}: drafts"), bytemuck::cast_slice(&drafts).to_vec()),
            Output::numbers(format!("{name}: vectors"), embeddings, Limit::Exact),
        ])
    }
}

/// Tables for steps of these slots.
pub(crate) fn tables<B: Backend>(
    rig: &Rig<'_, B>,
    slots: &SlotTable<B>,
) -> Result<StepTables<B>, DeviceError> {
    let limits = StepLimits {
        tokens: TOKENS,
        requests: SLOTS,
        samples: TOKENS,
        blocks_per_request: BLOCKS_PER_SLOT,
        block_size: slots.limits.block_size,
    };
    let mut tables = StepTables::new(rig.device, limits)?;
    tables.block_table = slots.block_table.clone();
    Ok(tables)
}

/// The live rows of a step's tables.
pub(crate) fn table_outputs<B: Backend>(
    rig: &Rig<'_, B>,
    name: &str,
    step: &StepTables<B>,
) -> Result<Vec<Output>, DeviceError> {
    let tokens = rig.count(&step.tokens.live)?;
    let requests = rig.count(&step.requests.live)?;
    let samples = rig.count(&step.samples.live)?;
    let live = [tokens, requests, samples].map(|count| count as i32).to_vec();
    let limits = step.limits;
    let token_rows = rig.read(&step.token_rows, tokens.min(limits.tokens))?;
    let request_rows = rig.read(&step.request_rows, requests.min(limits.requests))?;
    let logits_rows = rig.read(&step.logits_rows, samples.min(limits.samples))?;
    Ok(vec![
        Output::words(format!("{name}: live rows"), live),
        Output::words(
            format!("{name}: token rows"),
            bytemuck::cast_slice(&token_rows).to_vec(),
        ),
        Output::words(
            format!("{name}: request rows"),
            bytemuck::cast_slice(&request_rows).to_vec(),
        ),
        Output::words(
            format!("{name}: rows of logits"),
            bytemuck::cast_slice(&logits_rows).to_vec(),
        ),
    ])
}

/// A header without its times.
fn words_of(header: &RecordHeader) -> Vec<i32> {
    let header = RecordHeader {
        begin: 0.into(),
        drafting: 0.into(),
        end: 0.into(),
        ..*header
    };
    bytemuck::cast_slice(&[header]).to_vec()
}

/// Lists as far as they go; what lies behind them means nothing.
fn listed(lists: SlotLists<'_>) -> Vec<i32> {
    let ids = |tokens: &[i32]| tokens.iter().map(|token| *token as u32).collect::<Vec<u32>>();
    let biases: Vec<(u32, f32)> = lists.biases().map(|(token, bias)| (token as u32, bias)).collect();
    let bad_words: Vec<Vec<u32>> = lists.bad_words().map(ids).collect();
    SlotLists::encode(&ids(lists.stop_tokens()), &biases, &bad_words)
}
