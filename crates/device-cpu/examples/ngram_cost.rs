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

use paceline_device::{
    Accept, Backend, NgramIndex, Pending, Prepare, ProposeNgram, SlotLimits, SlotTable, StepLimits,
    StepTables, plan, record, slot,
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
    record: CpuBuffer<i32>,
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
        let words = plan::HEADER + plan::ADMISSION + 3 + per_slot * plan::BLOCK + slots * plan::ROW + PIECE;
        let memory = "memory for the bench";
        Self {
            slots: SlotTable::new(&cpu, limits).expect(memory),
            step: StepTables::new(&cpu, step_limits).expect(memory),
            index: NgramIndex::new(&cpu, limits.blocks * BLOCK, LENGTHS).expect(memory),
            plan: cpu.buffer(words).expect(memory),
            tokens: cpu.buffer(slots).expect(memory),
            record: cpu.buffer(record::HEADER + slots * record::ROW).expect(memory),
            cpu,
            repetitive,
        }
    }

    /// Gives a slot its text up to `length`, and the token behind it.
    fn fill(&self, index: usize, length: usize) {
        let mut state = [0; slot::INTS];
        state[slot::GENERATION] = 1;
        state[slot::MAX_LENGTH] = i32::MAX;
        state[slot::RESTORE] = -1;
        let blocks = self.slots.limits.blocks_per_slot;
        for start in (0..length).step_by(PIECE) {
            let end = length.min(start + PIECE);
            let mut words = vec![0; plan::HEADER];
            if start == 0 {
                words[plan::ADMISSIONS] = 1;
                words.extend([index as i32, 3]);
                words.extend(state);
                words.extend([0; 3]);
                words[plan::BLOCKS] = blocks as i32;
                // Slots take turns in getting blocks.
                let block = |place: usize| (place * self.slots.limits.slots + index) as i32;
                words.extend((0..blocks).flat_map(|place| [index as i32, place as i32, block(place)]));
            }
            words[plan::ROWS] = 1;
            words[plan::TOKENS] = (end - start) as i32;
            let mut row = row(index);
            row[plan::ROW_START] = start as i32;
            row[plan::ROW_COUNT] = (end - start) as i32;
            row[plan::ROW_FLAGS] = if end == length { plan::SAMPLE_LAST } else { 0 };
            words.extend(row);
            words.extend((start..end).map(|position| token(index, position, self.repetitive)));
            self.run(&words, &[token(index, end, self.repetitive)]);
        }
    }

    /// One more token for every slot, all of which have `known`.
    fn decode(&self, known: usize) {
        let slots = self.slots.limits.slots;
        let mut words = vec![0; plan::HEADER];
        words[plan::ROWS] = slots as i32;
        for index in 0..slots {
            let mut row = row(index);
            row[plan::ROW_KIND] = plan::VERIFY;
            row[plan::ROW_NGRAM] = DRAFTS;
            words.extend(row);
        }
        let chosen: Vec<i32> = (0..slots)
            .map(|index| token(index, known, self.repetitive))
            .collect();
        self.run(&words, &chosen);
    }

    fn run(&self, words: &[i32], chosen: &[i32]) {
        let Self {
            plan, slots, step, ..
        } = self;
        self.cpu.write(plan, words);
        self.cpu.write(&self.tokens, chosen);
        self.cpu.prepare(Prepare { plan, slots, step });
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
    }

    /// Drafts that the slots hold now, and how many of them are what comes next.
    fn drafts(&self, known: usize) -> (usize, usize) {
        let words = self.slots.limits.slots * slot::INTS;
        let state = self
            .cpu
            .read(&self.slots.state, words)
            .wait()
            .expect("the device works");
        let (mut all, mut right) = (0, 0);
        for (index, row) in state.chunks(slot::INTS).enumerate() {
            assert_eq!(row[slot::LENGTH] as usize, known, "slot {index}");
            let drafts = &row[slot::DRAFTS..][..row[slot::DRAFT_COUNT] as usize];
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
fn row(index: usize) -> [i32; plan::ROW] {
    let mut words = [0; plan::ROW];
    words[plan::ROW_SLOT] = index as i32;
    words[plan::ROW_GENERATION] = 1;
    words[plan::ROW_FOLLOWING] = -1;
    words[plan::ROW_SNAPSHOT_AT] = -1;
    words
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize, default: usize| {
        let argument = arguments.get(place);
        argument.map_or(default, |text| text.parse().expect("a number"))
    };
    let (length, steps, slots) = (number(0, 1024), number(2, 200), number(3, 256));
    let repetitive = arguments.get(1).is_some_and(|text| text == "repetitive");
    let bench = Bench::new(slots, length + steps + 1, repetitive);
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
