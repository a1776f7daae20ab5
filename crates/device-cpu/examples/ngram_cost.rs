//! What drafting from the slots' own texts costs per step, by the length of the texts.
//!
//! ```text
//! cargo build --release -p paceline-device-cpu --example ngram_cost
//! target/release/examples/ngram_cost LENGTH random|repetitive STEPS [SLOTS]
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect='*ops::ngram::propose' \
//!     target/release/examples/ngram_cost 8192 random 200
//! ```
//!
//! Fills slots with texts of LENGTH tokens, then runs steps that give each slot one more token and four drafts that
//! nobody takes. Callgrind counts the instructions of the operation alone; what a step costs is the count with 200 steps
//! less the count with none, by 200. A random text finds nothing; of a repetitive one the longest n-gram is found.

use paceline_device::abi::{
    AdmissionWords, BlockUpdate, PlanHeader, PlanMessage, PlanRow, RecordHeader, Slot, SlotLists,
};
use paceline_device::{
    Accept, Backend, FreePlaces, NgramIndex, Pending, Prepare, ProposeNgram, SlotLimits, SlotTable,
    StepLimits, StepRecord, StepRings, StepTables,
};
use paceline_device_cpu::{Cpu, CpuBuffer, CpuOptions, Instructions};
use std::time::Instant;

const BLOCK: usize = 16;
const PIECE: usize = NgramIndex::<Cpu>::PER_STEP;
const LENGTHS: (usize, usize) = (2, 4);
const DRAFTS: i32 = 4;
const VOCABULARY: u64 = 50_000;
/// Tokens after which a repetitive text repeats itself.
const PERIOD: usize = 300;
/// Steps in flight.
const DEPTH: usize = 2;

/// The text of a slot, position by position.
fn token(slot: usize, position: usize, repetitive: bool) -> i32 {
    let position = if repetitive { position % PERIOD } else { position };
    let name = ((slot as u64) << 32 | position as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (name ^ (name >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    ((mixed >> 33) % VOCABULARY) as i32
}

struct Bench {
    cpu: Cpu,
    slots: SlotTable<Cpu>,
    step: StepTables<Cpu>,
    index: NgramIndex<Cpu>,
    plan: CpuBuffer<i32>,
    tokens: CpuBuffer<i32>,
    rings: StepRings<Cpu>,
    record: StepRecord<Cpu>,
    places: FreePlaces,
    /// Steps so far.
    steps: u64,
    message: PlanMessage,
    repetitive: bool,
}

impl Bench {
    fn new(slots: usize, length: usize, repetitive: bool) -> Self {
        let cpu = Cpu::new(CpuOptions {
            threads: 1,
            instructions: Instructions::detect(),
        });
        let per_slot = length.div_ceil(BLOCK);
        let limits = SlotLimits {
            slots,
            blocks_per_slot: per_slot,
            blocks: slots * per_slot,
            block_size: BLOCK,
            snapshots: 0,
        };
        let step_limits = StepLimits {
            tokens: PIECE.max(slots),
            requests: slots,
            samples: slots,
            blocks_per_request: per_slot,
            block_size: BLOCK,
        };
        let words = PlanHeader::WORDS
            + AdmissionWords::WORDS
            + 3
            + per_slot * BlockUpdate::WORDS
            + slots * PlanRow::WORDS
            + PIECE;
        let memory = "memory for the bench";
        Self {
            slots: SlotTable::new(&cpu, limits).expect(memory),
            step: StepTables::new(&cpu, step_limits).expect(memory),
            index: NgramIndex::new(&cpu, limits.blocks * BLOCK, LENGTHS).expect(memory),
            plan: cpu.buffer(words).expect(memory),
            tokens: cpu.buffer(slots).expect(memory),
            rings: StepRings::new(&cpu, DEPTH, (words, RecordHeader::WORDS)).expect(memory),
            record: StepRecord::new(&cpu, slots).expect(memory),
            places: FreePlaces::new(DEPTH),
            steps: 0,
            message: PlanMessage::new(0),
            cpu,
            repetitive,
        }
    }

    /// Gives a slot its text up to `length`, and the token behind it.
    fn fill(&mut self, index: usize, length: usize) {
        for start in (0..length).step_by(PIECE) {
            let end = length.min(start + PIECE);
            if start == 0 {
                self.admit(index);
            }
            let last = end == length;
            let row = PlanRow {
                kind: PlanRow::PREFILL,
                start: start as i32,
                count: (end - start) as i32,
                flags: i32::from(last) * PlanRow::SAMPLE_LAST,
                ..row(index)
            };
            let repetitive = self.repetitive;
            let tokens = (start..end).map(|position| token(index, position, repetitive));
            self.message.push(row, tokens, []);
            self.run(&[token(index, end, repetitive)]);
        }
    }

    /// Gives a slot to a request, with the next step.
    fn admit(&mut self, index: usize) {
        let state = Slot {
            generation: 1,
            max_length: i32::MAX,
            restore: -1,
            ..Slot::default()
        };
        let lists = SlotLists::encode(&[], &[], &[]);
        self.message.admit(index as u32, state, &lists);
        let SlotLimits {
            slots,
            blocks_per_slot,
            ..
        } = self.slots.limits;
        for place in 0..blocks_per_slot {
            self.message.update_block(BlockUpdate {
                slot: index as u32,
                index: place as u32,
                // Slots take turns in getting blocks.
                block: (place * slots + index) as u32,
            });
        }
    }

    /// One more token for every slot, all of which have `known`.
    fn decode(&mut self, known: usize) {
        let slots = self.slots.limits.slots;
        for index in 0..slots {
            let row = PlanRow {
                kind: PlanRow::VERIFY,
                ngram: DRAFTS,
                ..row(index)
            };
            self.message.push(row, [], []);
        }
        let chosen: Vec<i32> = (0..slots)
            .map(|index| token(index, known, self.repetitive))
            .collect();
        self.run(&chosen);
    }

    /// Runs a step with the plan that was written, and waits for it.
    fn run(&mut self, chosen: &[i32]) {
        let place = self.places.take().expect("no step is in flight");
        self.steps += 1;
        let words = self.message.encode(self.steps);
        self.cpu.post(&self.rings.plans, &place, words);
        self.message.clear();
        let Self {
            plan, slots, step, ..
        } = &*self;
        self.cpu.write(&self.tokens, chosen);
        self.cpu.prepare(Prepare {
            rings: &self.rings,
            plan,
            slots,
            step,
            record: &self.record,
        });
        self.cpu.accept(Accept {
            plan,
            slots,
            step,
            tokens: &self.tokens,
            record: &self.record,
        });
        self.cpu.propose_ngram(ProposeNgram {
            plan,
            slots,
            step,
            index: &self.index,
            chain_min: 0,
        });
        let header = self.cpu.read(&self.record.header, 1).wait();
        let header = header.expect("the device works")[0];
        assert_eq!((u64::from(header.step), header.error), (self.steps, 0));
        self.places.put_back(place);
    }

    /// Drafts that the slots hold now, and how many of them are what comes next.
    fn drafts(&self, known: usize) -> (usize, usize) {
        let state = self.cpu.read(&self.slots.state, self.slots.limits.slots).wait();
        let (mut all, mut right) = (0, 0);
        for (index, slot) in state.expect("the device works").iter().enumerate() {
            assert_eq!(slot.length as usize, known, "slot {index}");
            let drafts = &slot.drafts[..slot.draft_count as usize];
            all += drafts.len();
            let next = |place: usize| token(index, known + place, self.repetitive);
            right += (0..drafts.len())
                .filter(|place| drafts[*place] == next(*place))
                .count();
        }
        (all, right)
    }
}

/// A row of a slot with nothing to do.
fn row(index: usize) -> PlanRow {
    PlanRow {
        slot: index as u32,
        generation: 1,
        following: -1,
        snapshot_at: -1,
        ..PlanRow::default()
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize, default: usize| {
        let argument = arguments.get(place);
        argument.map_or(default, |text| text.parse().expect("a number"))
    };
    let (length, steps, slots) = (number(0, 1024), number(2, 200), number(3, 256));
    let repetitive = arguments.get(1).is_some_and(|text| text == "repetitive");
    let mut bench = Bench::new(slots, length + steps + 1, repetitive);
    for index in 0..slots {
        bench.fill(index, length);
    }
    let known = length + 1;
    let before = bench.drafts(known);
    assert_eq!(before, (0, 0), "none were asked for");
    let start = Instant::now();
    for done in 0..steps {
        bench.decode(known + done);
    }
    let (drafts, right) = bench.drafts(known + steps);
    let each = start.elapsed().as_secs_f64() * 1e6 / steps.max(1) as f64;
    let bytes = NgramIndex::<Cpu>::bytes(1 << 20, LENGTHS) >> 20;
    println!(
        "{slots} slots of {length} tokens, {steps} steps: {each:.1} µs per step with prepare and accept; {drafts} \
         drafts behind the last one, {right} of them right; the index has {bytes} bytes per token"
    );
}
