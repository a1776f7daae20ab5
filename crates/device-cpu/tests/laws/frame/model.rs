//! What a step's frame should do, in terms of lists of tokens, beside the device that does it.

use super::plan::{Admission, Row, Work};
use crate::host::Host;
use paceline_device::abi::{
    BlockUpdate, LogitsRow, PlanMessage, PlanRow, RecordRow, RequestRow, SamplingRow, Slot, TokenRow,
};
use paceline_device::{Accept, Backend, Element, Pending, SlotLimits, SlotTable, StepLimits, StepTables};
use paceline_device_cpu::{Cpu, CpuBuffer, CpuOptions, Instructions};

const BLOCK: usize = 4;
const BLOCKS_PER_SLOT: usize = 32;
/// What the history holds where nobody wrote.
const UNTOUCHED: i32 = -77;

/// A slot as a list of tokens.
#[derive(Clone, Default)]
struct Known {
    generation: u32,
    tokens: Vec<i32>,
    /// Where the tokens that this owner ran begin.
    cached: usize,
    /// Where the recurrent state stands.
    state_at: usize,
    drafts: Vec<i32>,
    finished: bool,
    max_length: usize,
    stops: Vec<i32>,
    restore: i32,
    sampling: SamplingRow,
    blocks: usize,
}

/// The tables that a step should have.
#[derive(Default, Debug, PartialEq)]
struct Tables {
    tokens: Vec<TokenRow>,
    requests: Vec<RequestRow>,
    logits: Vec<LogitsRow>,
}

/// A device and the model beside it.
pub(crate) struct Bench {
    cpu: Cpu,
    slots: SlotTable<Cpu>,
    step: StepTables<Cpu>,
    host: Host,
    message: PlanMessage,
    tokens: CpuBuffer<i32>,
    known: Vec<Known>,
    restores: Vec<i32>,
}

impl Bench {
    pub(crate) const SLOTS: usize = 4;

    pub(crate) fn new() -> Self {
        let cpu = Cpu::new(CpuOptions {
            threads: 1,
            instructions: Instructions::Portable,
        });
        // Block 0 is what tables point to before they are told; nobody owns it.
        let limits = SlotLimits {
            slots: Self::SLOTS,
            blocks_per_slot: BLOCKS_PER_SLOT,
            blocks: 1 + Self::SLOTS * BLOCKS_PER_SLOT,
            block_size: BLOCK,
            snapshots: 0,
        };
        let slots = SlotTable::new(&cpu, limits).unwrap();
        cpu.write(&slots.history, &vec![UNTOUCHED; limits.blocks * BLOCK]);
        let tokens = Self::SLOTS * 16 + 64;
        let step = StepTables::new(
            &cpu,
            StepLimits {
                tokens,
                requests: 8,
                samples: tokens,
                blocks_per_request: BLOCKS_PER_SLOT,
                block_size: BLOCK,
            },
        );
        Self {
            slots,
            step: step.unwrap(),
            host: Host::without_records(&cpu, 8, 4096),
            message: PlanMessage::new(0),
            tokens: cpu.buffer(tokens).unwrap(),
            known: vec![Known::default(); Self::SLOTS],
            restores: Vec::new(),
            cpu,
        }
    }

    pub(crate) fn finished(&self, slot: usize) -> bool {
        self.known[slot].finished
    }

    /// The restores of the last step's rows.
    pub(crate) fn restores(&self) -> &[i32] {
        &self.restores
    }

    /// Gives a slot drafts, as a drafter would on the device.
    pub(crate) fn draft(&mut self, index: usize, drafts: &[i32]) {
        self.known[index].drafts = drafts.to_vec();
        let mut state = self.read(&self.slots.state, Self::SLOTS);
        let slot = &mut state[index];
        slot.draft_count = drafts.len() as i32;
        slot.source = Slot::FROM_NEURAL;
        slot.drafts = [-1; _];
        slot.drafts[..drafts.len()].copy_from_slice(drafts);
        self.cpu.write(&self.slots.state, &state);
    }

    fn read<T: Element>(&self, buffer: &CpuBuffer<T>, len: usize) -> Vec<T> {
        self.cpu.read(buffer, len).wait().unwrap()
    }

    /// Runs a step on the device and on the model, compares all there is, and returns the rows of the record.
    pub(crate) fn step(&mut self, admissions: &[Admission], rows: &[Row]) -> Vec<RecordRow> {
        for admission in admissions {
            self.known[admission.slot] = Known {
                generation: admission.generation,
                max_length: admission.max_length,
                stops: admission.stops.clone(),
                restore: admission.restore,
                sampling: admission.sampling,
                ..Known::default()
            };
        }
        self.write_plan(admissions, rows);
        self.host.prepare(&mut self.message, &self.slots, &self.step);
        let mut expected = Tables::default();
        for (request, row) in rows.iter().enumerate() {
            expected.open(request, row, &mut self.known[row.slot]);
        }
        assert_eq!(self.tables(rows.len()), expected);
        assert!(
            expected.tokens.iter().all(|row| row.id >= 0),
            "no token is a placeholder"
        );
        self.restores = expected.requests.iter().map(|row| row.restore).collect();
        let sampled: Vec<i32> = expected
            .logits
            .iter()
            .enumerate()
            .map(|(sample, LogitsRow { request, .. })| {
                let first = expected.logits.iter().position(|row| row.request == *request);
                let row = &rows[*request as usize];
                self.known[row.slot].choice(row, sample - first.unwrap())
            })
            .collect();
        self.cpu.write(&self.tokens, &sampled);
        self.cpu.accept(Accept {
            plan: &self.host.plan,
            slots: &self.slots,
            step: &self.step,
            tokens: &self.tokens,
            record: &self.host.record,
        });
        self.settle(rows, &expected, &sampled)
    }

    /// Compares record, slots and history with the model's and returns the record's rows.
    fn settle(&mut self, rows: &[Row], tables: &Tables, sampled: &[i32]) -> Vec<RecordRow> {
        let record = self.read(&self.host.record.rows, rows.len());
        let (mut first, mut first_logprobs) = (0, 0);
        for (request, (row, found)) in rows.iter().zip(&record).enumerate() {
            let table = &tables.requests[request];
            let own = tables.logits.iter().filter(|row| row.request == request as i32);
            let samples = own.count();
            let choices = &sampled[first..first + samples];
            let known = &mut self.known[row.slot];
            let (chosen, ended) = known.accept(row, table.token_count > 0, choices);
            let mut expected = RecordRow {
                count: chosen.len() as i32,
                ended,
                snapshot: i32::from(table.snapshot_at > 0),
                drafted: table.drafts,
                source: i32::from(table.drafts > 0) * Slot::FROM_NEURAL,
                first_logprobs,
                tokens: [-1; _],
            };
            expected.tokens[..chosen.len()].copy_from_slice(&chosen);
            assert_eq!(*found, expected, "row {request}");
            first += samples;
            if known.sampling.logprobs >= 0 {
                first_logprobs += samples as i32;
            }
        }
        self.check_slots();
        record
    }

    fn check_slots(&self) {
        let state = self.read(&self.slots.state, Self::SLOTS);
        let history = self.read(&self.slots.history, (1 + Self::SLOTS * BLOCKS_PER_SLOT) * BLOCK);
        assert_eq!(
            history[..BLOCK],
            [UNTOUCHED; BLOCK],
            "a block that nobody was given was written"
        );
        for (index, known) in self.known.iter().enumerate() {
            let slot = &state[index];
            assert_eq!(slot.generation, known.generation);
            assert_eq!(slot.length, known.tokens.len() as i32);
            assert_eq!(slot.finished != 0, known.finished);
            for position in known.cached..known.tokens.len().saturating_sub(1) {
                let place = block(index, position / BLOCK) as usize * BLOCK + position % BLOCK;
                assert_eq!(
                    history[place], known.tokens[position],
                    "slot {index}, position {position}"
                );
            }
        }
    }

    fn tables(&self, rows: usize) -> Tables {
        let live = |counter: &CpuBuffer<i32>| self.read(counter, 1)[0] as usize;
        let step = &self.step;
        let (tokens, samples) = (live(&step.tokens.live), live(&step.samples.live));
        assert_eq!(
            live(&step.requests.live),
            rows,
            "every plan row has a request row"
        );
        Tables {
            tokens: self.read(&step.token_rows, tokens),
            requests: self.read(&step.request_rows, rows),
            logits: self.read(&step.logits_rows, samples),
        }
    }

    /// Writes the plan. Blocks are announced no earlier than a row needs them.
    fn write_plan(&mut self, admissions: &[Admission], rows: &[Row]) {
        self.message.clear();
        for admission in admissions {
            admission.write(&mut self.message);
        }
        for row in rows {
            let known = &mut self.known[row.slot];
            let end = match &row.work {
                _ if !known.serves(row) => 0,
                Work::Prefill { start, tokens, .. } => start + tokens.len(),
                Work::Verify { planned } => (known.tokens.len() + planned).min(known.max_length - 1),
            };
            for index in known.blocks..end.div_ceil(BLOCK) {
                self.message.update_block(BlockUpdate {
                    slot: row.slot as u32,
                    index: index as u32,
                    block: block(row.slot, index),
                });
                known.blocks = index + 1;
            }
        }
        for row in rows {
            row.write(&mut self.message);
        }
    }
}

/// Blocks of a slot are scattered; block 0 is nobody's.
fn block(slot: usize, index: usize) -> u32 {
    1 + ((BLOCKS_PER_SLOT - 1 - index) * Bench::SLOTS + slot) as u32
}

impl Tables {
    /// Adds a row's tables and runs its certain tokens into the slot.
    fn open(&mut self, request: usize, row: &Row, known: &mut Known) {
        let first = self.tokens.len();
        let serves = known.serves(row);
        let mut run: Vec<i32> = Vec::new();
        let (mut start, mut certain, mut restore) = (0, 0, 0);
        match &row.work {
            _ if !serves => {}
            Work::Prefill {
                start: at, tokens, ..
            } => {
                restore = std::mem::replace(&mut known.restore, -1) + 1;
                if restore > 0 {
                    known.state_at = *at;
                }
                if known.tokens.is_empty() {
                    known.cached = *at;
                    known.tokens = vec![UNTOUCHED; *at];
                }
                known.tokens.extend(tokens);
                run.clone_from(tokens);
                (start, certain) = (*at, tokens.len());
            }
            Work::Verify { planned } => {
                start = known.tokens.len() - 1;
                let room = known.max_length - known.tokens.len() - 1;
                known.drafts.truncate(room.min(*planned));
                run.push(known.tokens[start]);
                run.extend(&known.drafts);
                certain = 1;
            }
        }
        // The state goes to the last multiple of 16 that what is certain reaches.
        let state_at = known.state_at;
        if serves {
            known.state_at = (start + certain) / 16 * 16;
        }
        let passed = state_at as i32 + 1..=known.state_at as i32;
        let saved = row.snapshot.filter(|(at, _)| passed.contains(at));
        self.requests.push(RequestRow {
            first_token: first as i32,
            token_count: run.len() as i32,
            slot: row.slot as i32,
            drafts: (run.len() - certain) as i32,
            state_at: state_at as i32,
            state_end: known.state_at as i32,
            snapshot_at: saved.map_or(0, |(at, _)| at),
            snapshot: row.snapshot.map_or(-1, |(_, snapshot)| snapshot),
            restore,
        });
        for (offset, token) in run.iter().enumerate() {
            self.tokens.push(TokenRow {
                id: *token,
                position: (start + offset) as i32,
                request: request as i32,
            });
            let Some(known_after) = sampled(row, &run, offset) else {
                continue;
            };
            self.logits.push(LogitsRow {
                token: (first + offset) as i32,
                position: (start + offset + 1) as i32,
                request: request as i32,
                known: known_after,
                mask: 0,
                sampling: known.sampling,
            });
        }
    }
}

/// Whether logits are wanted behind a token of a row; then one more than the known token there, or 0.
fn sampled(row: &Row, run: &[i32], offset: usize) -> Option<i32> {
    let Work::Prefill { flags, following, .. } = &row.work else {
        return Some(0);
    };
    let last = offset + 1 == run.len();
    if last && flags & PlanRow::SAMPLE_LAST != 0 {
        return Some(0);
    }
    let next = if last { *following } else { run[offset + 1] };
    (flags & PlanRow::SAMPLE_ALL != 0).then_some(next + 1)
}

impl Known {
    fn serves(&self, row: &Row) -> bool {
        let prefill = matches!(row.work, Work::Prefill { .. });
        self.generation == row.generation && !self.finished && (prefill || !self.tokens.is_empty())
    }

    /// What the model chooses at a row's sampled place. Behind a difference it agrees with the drafts again, which
    /// must not count.
    fn choice(&self, row: &Row, place: usize) -> i32 {
        let draft = match row.work {
            Work::Verify { .. } => self.drafts.get(place).copied(),
            Work::Prefill { .. } => None,
        };
        match draft {
            Some(draft) if place != row.agree => draft,
            Some(draft) if draft == row.fresh => draft + 1,
            _ => row.fresh,
        }
    }

    /// Takes the chosen tokens that hold; returns them and how the request ended.
    fn accept(&mut self, row: &Row, serves: bool, choices: &[i32]) -> (Vec<i32>, i32) {
        let choices = match &row.work {
            _ if !serves => return (Vec::new(), 0),
            Work::Verify { .. } => choices,
            Work::Prefill { flags, .. } if flags & PlanRow::SAMPLE_LAST != 0 => &choices[choices.len() - 1..],
            Work::Prefill { .. } => return (Vec::new(), 0),
        };
        let drafts = match row.work {
            Work::Verify { .. } => std::mem::take(&mut self.drafts),
            Work::Prefill { .. } => Vec::new(),
        };
        let mut taken = Vec::new();
        let mut ended = 0;
        for (place, choice) in choices.iter().enumerate() {
            taken.push(*choice);
            self.tokens.push(*choice);
            if self.stops.contains(choice) {
                ended = RecordRow::STOPPED;
            } else if self.tokens.len() == self.max_length {
                ended = RecordRow::FULL;
            }
            if ended != 0 || drafts.get(place) != Some(choice) {
                break;
            }
        }
        self.finished = ended != 0;
        (taken, ended)
    }
}
