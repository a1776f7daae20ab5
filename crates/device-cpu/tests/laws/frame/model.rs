//! What a step's frame should do, in terms of lists of tokens, beside the device that does it.

use super::plan::{Admission, Row, Work};
use paceline_device::{
    Accept, Backend, Pending, Prepare, SlotLimits, SlotTable, StepLimits, StepTables, plan, record, slot,
};
use paceline_device_cpu::{Cpu, CpuBuffer, CpuOptions, Instructions};

const BLOCK: usize = 4;
const BLOCKS_PER_SLOT: usize = 32;
/// What the history holds where nobody wrote.
const UNTOUCHED: i32 = -77;

/// A slot as a list of tokens.
#[derive(Clone, Default)]
struct Known {
    generation: i32,
    tokens: Vec<i32>,
    /// Where the tokens that this owner ran begin.
    cached: usize,
    /// Tokens folded into the recurrent state.
    folded: usize,
    drafts: Vec<i32>,
    finished: bool,
    max_length: usize,
    stops: Vec<i32>,
    restore: i32,
    blocks: usize,
}

/// The tables that a step should have, one vector per table.
#[derive(Default, Debug, PartialEq)]
struct Tables {
    ids: Vec<i32>,
    positions: Vec<i32>,
    request_of: Vec<i32>,
    first_token: Vec<i32>,
    token_count: Vec<i32>,
    state_slot: Vec<i32>,
    replay: Vec<i32>,
    drafts: Vec<i32>,
    snapshot_after: Vec<i32>,
    restore: Vec<i32>,
    sample_token: Vec<i32>,
    sample_position: Vec<i32>,
    sample_request: Vec<i32>,
    sample_known: Vec<i32>,
}

/// A device and the model beside it.
pub(crate) struct Bench {
    cpu: Cpu,
    slots: SlotTable<Cpu>,
    step: StepTables<Cpu>,
    plan: CpuBuffer<i32>,
    tokens: CpuBuffer<i32>,
    record: CpuBuffer<i32>,
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
            plan: cpu.buffer(4096).unwrap(),
            tokens: cpu.buffer(tokens).unwrap(),
            record: cpu.buffer(record::HEADER + 8 * record::ROW).unwrap(),
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
        let mut state = self.read(&self.slots.state, Self::SLOTS * slot::INTS);
        let row = &mut state[index * slot::INTS..][..slot::INTS];
        row[slot::DRAFT_COUNT] = drafts.len() as i32;
        row[slot::SOURCE] = slot::FROM_NEURAL;
        row[slot::DRAFTS..].fill(-1);
        row[slot::DRAFTS..][..drafts.len()].copy_from_slice(drafts);
        self.cpu.write(&self.slots.state, &state);
    }

    fn read(&self, buffer: &CpuBuffer<i32>, len: usize) -> Vec<i32> {
        self.cpu.read(buffer, len).wait().unwrap()
    }

    /// Runs a step on the device and on the model, compares all there is, and returns the rows of the record.
    pub(crate) fn step(&mut self, admissions: &[Admission], rows: &[Row]) -> Vec<Vec<i32>> {
        for admission in admissions {
            self.known[admission.slot] = Known {
                generation: admission.generation,
                max_length: admission.max_length,
                stops: admission.stops.clone(),
                restore: admission.restore,
                ..Known::default()
            };
        }
        let words = self.encode(admissions, rows);
        self.cpu.write(&self.plan, &words);
        self.cpu.prepare(Prepare {
            plan: &self.plan,
            slots: &self.slots,
            step: &self.step,
        });
        let mut expected = Tables::default();
        for (request, row) in rows.iter().enumerate() {
            expected.open(request, row, &mut self.known[row.slot]);
        }
        assert_eq!(self.tables(rows.len()), expected);
        assert!(
            expected.ids.iter().all(|id| *id >= 0),
            "no token is a placeholder"
        );
        self.restores.clone_from(&expected.restore);
        let sampled: Vec<i32> = expected
            .sample_request
            .iter()
            .enumerate()
            .map(|(sample, request)| {
                let first = expected.sample_request.iter().position(|r| r == request).unwrap();
                self.known[rows[*request as usize].slot].choice(&rows[*request as usize], sample - first)
            })
            .collect();
        self.cpu.write(&self.tokens, &sampled);
        self.cpu.accept(Accept {
            plan: &self.plan,
            slots: &self.slots,
            step: &self.step,
            tokens: &self.tokens,
            record: &self.record,
        });
        self.settle(rows, &expected, &sampled)
    }

    /// Compares record, slots and history with the model's and returns the record's rows.
    fn settle(&mut self, rows: &[Row], tables: &Tables, sampled: &[i32]) -> Vec<Vec<i32>> {
        let words = self.read(&self.record, record::HEADER + rows.len() * record::ROW);
        let found = words[record::HEADER..].chunks(record::ROW);
        let mut first = 0;
        for (request, (row, found)) in rows.iter().zip(found.clone()).enumerate() {
            let samples = tables
                .sample_request
                .iter()
                .filter(|r| **r == request as i32)
                .count();
            let choices = &sampled[first..first + samples];
            let known = &mut self.known[row.slot];
            let (chosen, ended) = known.accept(row, tables.token_count[request] > 0, choices);
            let mut expected = vec![-1; record::ROW];
            expected[record::COUNT] = chosen.len() as i32;
            expected[record::ENDED] = ended;
            expected[record::SNAPSHOT] = i32::from(tables.snapshot_after[request] > 0);
            expected[record::DRAFTED] = tables.drafts[request];
            expected[record::FIRST_SAMPLE] = first as i32;
            expected[record::SOURCE] = if tables.drafts[request] > 0 {
                slot::FROM_NEURAL
            } else {
                0
            };
            expected[record::TOKENS..][..chosen.len()].copy_from_slice(&chosen);
            assert_eq!(found, expected, "row {request}");
            first += samples;
        }
        let rows = found.map(<[i32]>::to_vec).collect();
        self.check_slots();
        rows
    }

    fn check_slots(&self) {
        let state = self.read(&self.slots.state, Self::SLOTS * slot::INTS);
        let history = self.read(&self.slots.history, (1 + Self::SLOTS * BLOCKS_PER_SLOT) * BLOCK);
        assert_eq!(
            history[..BLOCK],
            [UNTOUCHED; BLOCK],
            "a block that nobody was given was written"
        );
        for (index, known) in self.known.iter().enumerate() {
            let row = &state[index * slot::INTS..][..slot::INTS];
            assert_eq!(row[slot::GENERATION], known.generation);
            assert_eq!(row[slot::LENGTH], known.tokens.len() as i32);
            assert_eq!(row[slot::FINISHED] != 0, known.finished);
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
            ids: self.read(&step.ids, tokens),
            positions: self.read(&step.positions, tokens),
            request_of: self.read(&step.request_of, tokens),
            first_token: self.read(&step.first_token, rows),
            token_count: self.read(&step.token_count, rows),
            state_slot: self.read(&step.state_slot, rows),
            replay: self.read(&step.replay, rows),
            drafts: self.read(&step.drafts, rows),
            snapshot_after: self.read(&step.snapshot_after, rows),
            restore: self.read(&step.restore, rows),
            sample_token: self.read(&step.sample_token, samples),
            sample_position: self.read(&step.sample_position, samples),
            sample_request: self.read(&step.sample_request, samples),
            sample_known: self.read(&step.sample_known, samples),
        }
    }

    /// The plan as words. Blocks are announced no earlier than a row needs them.
    fn encode(&mut self, admissions: &[Admission], rows: &[Row]) -> Vec<i32> {
        let mut words = vec![0; plan::HEADER];
        words[plan::ADMISSIONS] = admissions.len() as i32;
        for admission in admissions {
            words.extend(admission.encode());
        }
        for row in rows {
            let known = &mut self.known[row.slot];
            let end = match &row.work {
                _ if !known.serves(row) => 0,
                Work::Prefill { start, tokens, .. } => start + tokens.len(),
                Work::Verify { planned } => (known.tokens.len() + planned).min(known.max_length - 1),
            };
            for index in known.blocks..end.div_ceil(BLOCK) {
                words.extend([row.slot as i32, index as i32, block(row.slot, index)]);
                words[plan::BLOCKS] += 1;
                known.blocks = index + 1;
            }
        }
        words[plan::ROWS] = rows.len() as i32;
        words.extend(rows.iter().flat_map(Row::encode));
        for row in rows {
            if let Work::Prefill { tokens, .. } = &row.work {
                words.extend(tokens);
            }
        }
        words
    }
}

/// Blocks of a slot are scattered; block 0 is nobody's.
fn block(slot: usize, index: usize) -> i32 {
    1 + ((BLOCKS_PER_SLOT - 1 - index) * Bench::SLOTS + slot) as i32
}

impl Tables {
    /// Adds a row's tables and runs its certain tokens into the slot.
    fn open(&mut self, request: usize, row: &Row, known: &mut Known) {
        let first = self.ids.len();
        let serves = known.serves(row);
        let mut run: Vec<i32> = Vec::new();
        let (mut start, mut certain, mut restore) = (0, 0, 0);
        match &row.work {
            _ if !serves => {}
            Work::Prefill {
                start: at, tokens, ..
            } => {
                restore = std::mem::replace(&mut known.restore, -1) + 1;
                if known.tokens.is_empty() {
                    (known.cached, known.folded) = (*at, *at);
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
        let folded = known.folded;
        let replay = if serves { start - folded } else { 0 };
        let end = if serves { start + certain } else { 0 };
        if serves {
            known.folded = end;
        }
        let saved = row
            .snapshot
            .filter(|(at, _)| serves && *at > folded as i32 && *at <= end as i32);
        self.first_token.push(first as i32);
        self.token_count.push(run.len() as i32);
        self.state_slot.push(row.slot as i32);
        self.replay.push(replay as i32);
        self.drafts.push((run.len() - certain) as i32);
        self.snapshot_after
            .push(saved.map_or(0, |(at, _)| at - folded as i32));
        self.restore.push(restore);
        for (offset, token) in run.iter().enumerate() {
            self.ids.push(*token);
            self.positions.push((start + offset) as i32);
            self.request_of.push(request as i32);
            let Some(known_after) = sampled(row, &run, offset) else {
                continue;
            };
            self.sample_token.push((first + offset) as i32);
            self.sample_position.push((start + offset + 1) as i32);
            self.sample_request.push(request as i32);
            self.sample_known.push(known_after);
        }
    }
}

/// Whether logits are wanted behind a token of a row; then one more than the known token there, or 0.
fn sampled(row: &Row, run: &[i32], offset: usize) -> Option<i32> {
    let Work::Prefill { flags, following, .. } = &row.work else {
        return Some(0);
    };
    let last = offset + 1 == run.len();
    if last && flags & plan::SAMPLE_LAST != 0 {
        return Some(0);
    }
    let next = if last { *following } else { run[offset + 1] };
    (flags & plan::SAMPLE_ALL != 0).then_some(next + 1)
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
            Work::Prefill { flags, .. } if flags & plan::SAMPLE_LAST != 0 => &choices[choices.len() - 1..],
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
                ended = record::STOPPED;
            } else if self.tokens.len() == self.max_length {
                ended = record::FULL;
            }
            if ended != 0 || drafts.get(place) != Some(choice) {
                break;
            }
        }
        self.finished = ended != 0;
        (taken, ended)
    }
}
