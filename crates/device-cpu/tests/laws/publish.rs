//! Plans in and records out: what becomes of a plan that is not the step's, what a record consists of, and which place it
//! is in.

use crate::harness::{bits, numbers, tensor};
use crate::host::{Host, Room};
use paceline_device::abi::{
    Alternative, BlockUpdate, DraftsMade, LogitsRow, Logprobs, PlanHeader, PlanMessage, PlanRow, Record,
    RecordHeader, RecordLimits, RecordRow, RequestRow, SamplingRow, Slot, SlotLists, TokenRow, Wide,
};
use paceline_device::{
    Accept, Backend, Pending, PoolStates, PoolTable, Publish, RingPlace, SlotLimits, SlotTable, StepLimits,
    StepTables,
};
use paceline_device_cpu::{Cpu, CpuBuffer, CpuOptions, Instructions};
use paceline_types::MAX_DRAFTS;
use proptest::prelude::*;
use std::collections::VecDeque;

const SLOTS: usize = 4;
const BLOCK: usize = 4;
const BLOCKS_PER_SLOT: usize = 8;
/// What the program is shaped for; the tables have room for twice that.
const ROWS: usize = SLOTS;
const TOKENS: usize = 32;
const PLAN_WORDS: usize = 2048;

/// A device with slots and a program of everything but a model.
struct Scene {
    cpu: Cpu,
    slots: SlotTable<Cpu>,
    step: StepTables<Cpu>,
    host: Host,
    sampled: CpuBuffer<i32>,
    logprobs: CpuBuffer<Logprobs>,
    pooled: PoolTable<Cpu>,
}

/// All that a plan can change.
#[derive(Debug, PartialEq)]
struct Contents {
    state: Vec<Slot>,
    lists: Vec<i32>,
    block_table: Vec<i32>,
    history: Vec<i32>,
    drafter_saved: Vec<i32>,
    tokens: Vec<TokenRow>,
    requests: Vec<RequestRow>,
    logits: Vec<LogitsRow>,
}

impl Scene {
    fn new(depth: usize, width: usize) -> Self {
        let cpu = Cpu::new(CpuOptions {
            threads: 1,
            instructions: Instructions::Portable,
        });
        let slot_limits = SlotLimits {
            slots: SLOTS,
            blocks_per_slot: BLOCKS_PER_SLOT,
            blocks: SLOTS * BLOCKS_PER_SLOT,
            block_size: BLOCK,
            snapshots: 2,
        };
        let limits = StepLimits {
            tokens: 2 * TOKENS,
            requests: 2 * ROWS,
            samples: 2 * TOKENS,
            blocks_per_request: BLOCKS_PER_SLOT,
            block_size: BLOCK,
        };
        let record_limits = RecordLimits {
            rows: ROWS,
            samples: TOKENS,
            embedding_width: width,
        };
        let room = Room {
            depth,
            plan_words: PLAN_WORDS,
            record_words: record_limits.words(),
            rows: 2 * ROWS,
        };
        let slots = SlotTable::new(&cpu, slot_limits).unwrap();
        let blocks: Vec<i32> = (0..(SLOTS * BLOCKS_PER_SLOT) as i32).collect();
        cpu.write(&slots.block_table, &blocks);
        let tables = StepTables::new(&cpu, limits).unwrap();
        Self {
            slots,
            step: tables.with_buckets(TOKENS, ROWS, TOKENS),
            host: Host::new(&cpu, room),
            sampled: cpu.buffer(2 * TOKENS).unwrap(),
            logprobs: cpu.buffer(2 * TOKENS).unwrap(),
            pooled: PoolTable::new(&cpu, SLOTS, width).unwrap(),
            cpu,
        }
    }

    fn contents(&self) -> Contents {
        let (cpu, slots, step) = (&self.cpu, &self.slots, &self.step);
        let SlotLimits {
            blocks, snapshots, ..
        } = slots.limits;
        let lists = SLOTS * paceline_device::abi::LIST_WORDS;
        Contents {
            state: cpu.read(&slots.state, SLOTS).wait().unwrap(),
            lists: cpu.read(&slots.lists, lists).wait().unwrap(),
            block_table: cpu
                .read(&slots.block_table, SLOTS * BLOCKS_PER_SLOT)
                .wait()
                .unwrap(),
            history: cpu.read(&slots.history, blocks * BLOCK).wait().unwrap(),
            drafter_saved: cpu.read(&slots.drafter_saved, snapshots).wait().unwrap(),
            tokens: cpu.read(&step.token_rows, 2 * TOKENS).wait().unwrap(),
            requests: cpu.read(&step.request_rows, 2 * ROWS).wait().unwrap(),
            logits: cpu.read(&step.logits_rows, 2 * TOKENS).wait().unwrap(),
        }
    }

    fn accept(&self) {
        self.cpu.accept(Accept {
            plan: &self.host.plan,
            slots: &self.slots,
            step: &self.step,
            tokens: &self.sampled,
            record: &self.host.record,
        });
    }

    fn publish(&self) {
        self.cpu.publish(Publish {
            rings: &self.host.rings,
            plan: &self.host.plan,
            slots: &self.slots,
            step: &self.step,
            record: &self.host.record,
            logprobs: &self.logprobs,
            pooled: &self.pooled,
        });
    }

    /// Enqueues a step, whatever plan is in its place.
    fn enqueue(&self) {
        self.host.enqueue_prepare(&self.slots, &self.step);
        self.accept();
        self.cpu.mark_drafting(&self.host.record);
        self.publish();
    }

    fn arrive(&self, place: &RingPlace) -> Vec<i32> {
        let arrival = self.cpu.arrival(&self.host.rings.records, place);
        arrival.wait().unwrap()
    }

    /// A step that goes on with slot 0, which gets one token.
    fn decode(&mut self, message: &mut PlanMessage, token: i32) {
        let place = self.host.next_place();
        self.host.post(&place, message);
        self.cpu.write(&self.sampled, &[token]);
        self.enqueue();
        let words = self.arrive(&place);
        self.host.places.put_back(place);
        let record = Record::parse(&words).unwrap();
        assert_eq!(u64::from(record.header.step), self.host.steps);
        assert_eq!((record.header.error, record.header.rows), (0, 1));
        assert_eq!((record.rows[0].count, record.rows[0].tokens[0]), (1, token));
    }

    /// Runs a step whose place holds what the device has to refuse.
    fn refuse(&mut self, words: Option<&[i32]>, error: i32) {
        let before = self.contents();
        let place = self.host.next_place();
        if let Some(words) = words {
            self.cpu.post(&self.host.rings.plans, &place, words);
        }
        self.cpu.write(&self.sampled, &[99; TOKENS]);
        self.enqueue();
        let found = self.arrive(&place);
        self.host.places.put_back(place);
        let record = Record::parse(&found).unwrap();
        let expected = RecordHeader {
            step: self.host.steps.into(),
            error,
            begin: record.header.begin,
            drafting: record.header.drafting,
            end: record.header.end,
            embedding_width: self.pooled.width as u32,
            ..RecordHeader::default()
        };
        assert_eq!(*record.header, expected, "no rows, nor anything else");
        assert_eq!(found.len(), RecordHeader::WORDS);
        assert_eq!(self.contents(), before, "a refused plan changed something");
        let counters = [&self.step.tokens, &self.step.requests, &self.step.samples];
        for rows in counters {
            assert_eq!(self.cpu.read(&rows.live, 1).wait().unwrap(), [0]);
        }
    }
}

/// A row of slot 0's owner.
fn verify() -> PlanRow {
    PlanRow {
        generation: 7,
        kind: PlanRow::VERIFY,
        snapshot_at: -1,
        ..PlanRow::default()
    }
}

fn one_row(row: PlanRow) -> PlanMessage {
    let mut message = PlanMessage::new(0);
    message.push(row, [], []);
    message
}

/// A slot with a token to go on from.
fn known(generation: u32) -> Slot {
    Slot {
        generation,
        length: 1,
        max_length: (BLOCKS_PER_SLOT * BLOCK) as i32,
        restore: -1,
        newest: 3,
        sampling: SamplingRow {
            logprobs: -1,
            ..SamplingRow::default()
        },
        ..Slot::default()
    }
}

fn admission() -> PlanMessage {
    let mut message = one_row(verify());
    message.admit(0, known(7), &SlotLists::encode(&[], &[], &[]));
    message
}

/// A plan that would change a bit of everything.
fn busy_plan() -> PlanMessage {
    let mut message = one_row(verify());
    message.admit(1, known(8), &SlotLists::encode(&[1, 2], &[(3, 0.5)], &[]));
    message.update_block(BlockUpdate {
        slot: 0,
        index: 0,
        block: 30,
    });
    let prefill = PlanRow {
        slot: 1,
        generation: 8,
        kind: PlanRow::PREFILL,
        count: 3,
        flags: PlanRow::SAMPLE_ALL | PlanRow::SHOW_DRAFTS,
        ..PlanRow::default()
    };
    message.push(prefill, [11, 12, 13], []);
    message
}

#[test]
fn the_plan_of_another_step_changes_nothing_and_the_next_step_runs() {
    let mut scene = Scene::new(2, 3);
    scene.decode(&mut admission(), 40);
    let others: [fn(u64) -> u64; 6] = [
        |step| step - 1,
        |step| step - 2,
        |step| step + 1,
        |step| step + (1 << 32),
        |_| 0,
        |_| u64::MAX,
    ];
    for (turn, other) in others.into_iter().enumerate() {
        let step = other(scene.host.steps + 1);
        let words = busy_plan().encode(step).to_vec();
        scene.refuse(Some(&words), RecordHeader::WRONG_STEP);
        // The plan of an earlier step, where nothing was written.
        scene.refuse(None, RecordHeader::WRONG_STEP);
        scene.decode(&mut one_row(verify()), 41 + turn as i32);
    }
    // Under the right number it does change something.
    let place = scene.host.next_place();
    scene.host.post(&place, &mut busy_plan());
    let before = scene.contents();
    scene.enqueue();
    let words = scene.arrive(&place);
    let record = Record::parse(&words).unwrap();
    assert_eq!((record.header.error, record.rows.len()), (0, 2));
    let after = scene.contents();
    assert!(before.state != after.state && before.lists != after.lists);
    assert!(before.block_table != after.block_table && before.history != after.history);
}

#[test]
fn a_plan_that_the_program_has_no_room_for_changes_nothing_and_the_next_step_runs() {
    let mut scene = Scene::new(2, 3);
    scene.decode(&mut admission(), 40);
    let prefill = |count: usize| PlanRow {
        generation: 7,
        kind: PlanRow::PREFILL,
        count: count as i32,
        ..PlanRow::default()
    };
    let mut plans = Vec::new();
    let mut rows = busy_plan();
    (2..=ROWS).for_each(|_| rows.push(verify(), [], []));
    plans.push(rows);
    let mut tokens = busy_plan();
    tokens.push(prefill(TOKENS - 3), vec![1; TOKENS - 3], []);
    plans.push(tokens);
    let mut drafts = busy_plan();
    for _ in 0..2 {
        let count = MAX_DRAFTS as i32;
        drafts.push(PlanRow { count, ..verify() }, [], []);
    }
    plans.push(drafts);
    for (turn, mut plan) in plans.into_iter().enumerate() {
        let words = plan.encode(scene.host.steps + 1).to_vec();
        scene.refuse(Some(&words), RecordHeader::BAD_PLAN);
        scene.decode(&mut one_row(verify()), 41 + turn as i32);
    }
    // Four rows of logits: one of the verify row, three of the prompt.
    let tables = scene.step.clone();
    scene.step = tables.with_buckets(TOKENS, ROWS, 3);
    let words = busy_plan().encode(scene.host.steps + 1).to_vec();
    scene.refuse(Some(&words), RecordHeader::BAD_PLAN);
    scene.step = tables;
    // As many rows and tokens as there is room for.
    let mut full = one_row(verify());
    full.push(prefill(TOKENS - 3), vec![1; TOKENS - 3], []);
    (2..ROWS).for_each(|_| full.push(verify(), [], []));
    let place = scene.host.next_place();
    scene.host.post(&place, &mut full);
    scene.enqueue();
    let words = scene.arrive(&place);
    let record = Record::parse(&words).unwrap();
    assert_eq!((record.header.error, record.rows.len()), (0, ROWS));
}

#[test]
fn a_plan_that_ends_behind_its_place_changes_nothing_and_the_next_step_runs() {
    let mut scene = Scene::new(2, 0);
    scene.decode(&mut admission(), 40);
    let long: [fn(&mut PlanHeader); 8] = [
        |header| header.admissions = u32::MAX,
        |header| header.block_updates = u32::MAX / 3,
        |header| header.rows = 1 << 30,
        |header| header.tokens = PLAN_WORDS as u32,
        |header| header.list_words = u32::MAX,
        |header| (header.masks, header.mask_words) = (u32::MAX, 2),
        |header| (header.masks, header.mask_words) = (1 << 16, 1 << 16),
        |header| (header.masks, header.mask_words) = (2, PLAN_WORDS as u32 / 2),
    ];
    for (turn, lengthen) in long.into_iter().enumerate() {
        let mut words = busy_plan().encode(scene.host.steps + 1).to_vec();
        let (header, _) = words.split_at_mut(PlanHeader::WORDS);
        lengthen(&mut bytemuck::cast_slice_mut(header)[0]);
        scene.refuse(Some(&words), RecordHeader::BAD_PLAN);
        scene.decode(&mut one_row(verify()), 41 + turn as i32);
    }
}

#[test]
fn a_record_is_in_the_place_of_its_step_and_places_come_round_in_order() {
    for depth in [1, 2, 4] {
        let mut scene = Scene::new(depth, 0);
        scene.cpu.begin_capture();
        scene.enqueue();
        let program = scene.cpu.end_capture();
        let check = |scene: &mut Scene, (step, place): (u64, RingPlace)| {
            assert_eq!(place.index() as u64, (step - 1) % depth as u64);
            let words = scene.arrive(&place);
            let record = Record::parse(&words).unwrap();
            let mut row = RecordRow {
                count: 1,
                tokens: [-1; _],
                ..RecordRow::default()
            };
            row.tokens[0] = 100 + step as i32;
            assert_eq!((u64::from(record.header.step), record.header.error), (step, 0));
            assert_eq!(record.rows, [row]);
            scene.host.places.put_back(place);
        };
        let mut in_flight: VecDeque<(u64, RingPlace)> = VecDeque::new();
        let steps = 4 * depth as u64 + 3;
        for step in 1..=steps {
            if in_flight.len() == depth {
                assert!(scene.host.places.take().is_none(), "all places are taken");
                let oldest = in_flight.pop_front().unwrap();
                check(&mut scene, oldest);
            }
            let place = scene.host.next_place();
            let mut message = if step == 1 { admission() } else { one_row(verify()) };
            scene.host.post(&place, &mut message);
            scene.cpu.write(&scene.sampled, &[100 + step as i32]);
            scene.cpu.launch(&program);
            in_flight.push_back((step, place));
        }
        // When the newest has arrived, the others are still where they were.
        while let Some(newest) = in_flight.pop_back() {
            check(&mut scene, newest);
        }
        let begun = scene.cpu.read(&scene.host.rings.begun, 1).wait().unwrap();
        assert_eq!(begun, [Wide::from(steps)]);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Verify,
    Last,
    All,
    Pool,
    Piece,
}

/// A plan row, and what its slot holds.
#[derive(Clone, Debug)]
struct Draw {
    kind: Kind,
    /// Tokens, or drafts.
    count: usize,
    logprobs: i32,
    shows: bool,
    /// Meant for another owner.
    stale: bool,
    /// What a drafter makes behind the row.
    drafts: Vec<i32>,
}

fn any_draw() -> impl Strategy<Value = Draw> {
    let kind = prop::sample::select(vec![Kind::Verify, Kind::Last, Kind::All, Kind::Pool, Kind::Piece]);
    let flags = (any::<bool>(), prop::bool::weighted(0.2));
    let drafts = prop::collection::vec(0..50_i32, 0..=MAX_DRAFTS);
    let logprobs = prop_oneof![Just(-1), Just(0), 1..=20_i32];
    (kind, 1..=6_usize, logprobs, flags, drafts).prop_map(
        |(kind, count, logprobs, (shows, stale), drafts)| Draw {
            kind,
            count,
            logprobs,
            shows,
            stale,
            drafts,
        },
    )
}

impl Draw {
    /// Rows of logits.
    fn samples(&self) -> usize {
        match self.kind {
            _ if self.stale => 0,
            Kind::Verify => 1 + self.count,
            Kind::Last => 1,
            Kind::All => self.count,
            Kind::Pool | Kind::Piece => 0,
        }
    }

    /// Token rows.
    fn tokens(&self) -> usize {
        match self.kind {
            _ if self.stale => 0,
            Kind::Verify => 1 + self.count,
            _ => self.count,
        }
    }

    fn chooses(&self) -> bool {
        !self.stale && matches!(self.kind, Kind::Verify | Kind::Last)
    }

    /// Adds the row, and an admission that leaves the slot as the row expects it.
    fn write(&self, slot: usize, message: &mut PlanMessage) {
        let mut state = Slot {
            draft_count: self.count as i32,
            drafts: [60; _],
            ..known(7)
        };
        if self.kind != Kind::Verify {
            (state.length, state.draft_count) = (0, 0);
        }
        state.sampling.logprobs = self.logprobs;
        message.admit(slot as u32, state, &SlotLists::encode(&[], &[], &[]));
        let flags = match self.kind {
            Kind::Verify | Kind::Piece => 0,
            Kind::Last => PlanRow::SAMPLE_LAST,
            Kind::All => PlanRow::SAMPLE_ALL,
            Kind::Pool => PlanRow::POOL_LAST,
        };
        let row = PlanRow {
            slot: slot as u32,
            generation: 7 + u32::from(self.stale),
            kind: if self.kind == Kind::Verify {
                PlanRow::VERIFY
            } else {
                PlanRow::PREFILL
            },
            count: self.count as i32,
            flags: flags | (i32::from(self.shows) * PlanRow::SHOW_DRAFTS),
            snapshot_at: -1,
            ..PlanRow::default()
        };
        let tokens = if self.kind == Kind::Verify { 0 } else { self.count };
        message.push(row, vec![5; tokens], []);
    }

    fn drafts_made(&self) -> DraftsMade {
        let mut tokens = [-2; MAX_DRAFTS];
        tokens[..self.drafts.len()].copy_from_slice(&self.drafts);
        DraftsMade {
            count: self.drafts.len() as i32,
            source: i32::from(!self.drafts.is_empty()) * Slot::FROM_NGRAM,
            tokens,
        }
    }
}

/// What stands for the log-probabilities of a row of logits.
fn logprobs_of(step: u64, row: usize) -> Logprobs {
    let alternative = |rank: usize| Alternative {
        token: (100 * row + rank) as i32,
        logprob: -(step as f32) - rank as f32,
    };
    Logprobs {
        chosen: -(row as f32),
        top: std::array::from_fn(alternative),
    }
}

impl Scene {
    /// Runs a step of these rows and returns the states of its tokens and its record.
    fn run(&mut self, rows: &[(usize, &Draw)]) -> (Vec<f32>, Vec<i32>) {
        let place = self.host.next_place();
        let mut message = PlanMessage::new(0);
        for (slot, draw) in rows {
            draw.write(*slot, &mut message);
        }
        self.host.post(&place, &mut message);
        self.host.enqueue_prepare(&self.slots, &self.step);
        self.cpu.write(&self.sampled, &[9; TOKENS]);
        let reported: Vec<Logprobs> = (0..TOKENS).map(|row| logprobs_of(self.host.steps, row)).collect();
        self.cpu.write(&self.logprobs, &reported);
        let width = self.pooled.width;
        let states = numbers((self.host.steps, 0, 0), TOKENS * width, 1.0);
        if width > 0 {
            self.cpu.pool_states(PoolStates {
                plan: &self.host.plan,
                step: &self.step,
                states: &tensor(&self.cpu, &self.step.tokens, &states, width),
                table: &self.pooled,
            });
        }
        self.accept();
        self.cpu.mark_drafting(&self.host.record);
        let mut state = self.cpu.read(&self.slots.state, SLOTS).wait().unwrap();
        for (slot, draw) in rows {
            let DraftsMade {
                count,
                source,
                tokens,
            } = draw.drafts_made();
            let slot = &mut state[*slot];
            (slot.draft_count, slot.source, slot.drafts) = (count, source, tokens);
        }
        self.cpu.write(&self.slots.state, &state);
        self.publish();
        let words = self.arrive(&place);
        self.host.places.put_back(place);
        (states, words)
    }

    /// Compares a record with the rows it is about.
    fn check(&self, rows: &[(usize, &Draw)], states: &[f32], record: &Record<'_>) {
        let (mut first, mut token) = (0, 0);
        let (mut logprobs, mut drafts) = (Vec::new(), Vec::new());
        let mut vectors = record.embeddings();
        for ((_, draw), row) in rows.iter().zip(record.rows) {
            assert_eq!(row.first_logprobs as usize, logprobs.len());
            assert_eq!(row.count, i32::from(draw.chooses()));
            let own = first..first + draw.samples();
            if draw.logprobs >= 0 {
                logprobs.extend(own.map(|row| logprobs_of(self.host.steps, row)));
            }
            drafts.extend(draw.shows.then(|| draw.drafts_made()));
            first += draw.samples();
            token += draw.tokens();
            if draw.kind == Kind::Pool {
                let vector = vectors.next().expect("a vector per row that completes one");
                let state = &states[(token.max(1) - 1) * self.pooled.width..][..self.pooled.width];
                assert!(draw.stale || bits(vector) == bits(state));
            }
        }
        assert!(vectors.next().is_none());
        assert_eq!(bits(record.logprobs), bits(&logprobs));
        assert_eq!(record.drafts, drafts);
        let header = record.header;
        let embeddings = rows.iter().filter(|(_, draw)| draw.kind == Kind::Pool);
        let expected = RecordHeader {
            step: self.host.steps.into(),
            begin: header.begin,
            drafting: header.drafting,
            end: header.end,
            rows: rows.len() as u32,
            logprobs: logprobs.len() as u32,
            drafts: drafts.len() as u32,
            embeddings: embeddings.count() as u32,
            embedding_width: self.pooled.width as u32,
            ..RecordHeader::default()
        };
        assert_eq!(*header, expected);
        let [begin, drafting, end] = [header.begin, header.drafting, header.end].map(u64::from);
        assert!(begin <= drafting && drafting <= end);
        let own = self.cpu.read(&self.host.record.rows, rows.len());
        assert_eq!(record.rows, own.wait().unwrap());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_record_has_the_parts_that_its_rows_ask_for_in_their_order(
        steps in prop::collection::vec(prop::collection::vec(prop::option::weighted(0.8, any_draw()), SLOTS), 1..6),
        embeds in any::<bool>(),
    ) {
        let mut scene = Scene::new(2, if embeds { 3 } else { 0 });
        for (turn, mut step) in steps.into_iter().enumerate() {
            for draw in step.iter_mut().flatten() {
                if !embeds && draw.kind == Kind::Pool {
                    draw.kind = Kind::Piece;
                }
            }
            let slots = (0..SLOTS).map(|offset| (turn + offset) % SLOTS);
            let rows: Vec<(usize, &Draw)> = slots.filter_map(|slot| Some((slot, step[slot].as_ref()?))).collect();
            let (states, words) = scene.run(&rows);
            let record = Record::parse(&words).expect("a whole record");
            prop_assert_eq!(words.len(), record.header.words());
            scene.check(&rows, &states, &record);
        }
    }
}
