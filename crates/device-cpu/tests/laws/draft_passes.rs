//! The passes of neural drafters: which tokens they run over, at which positions, from which states, and what becomes of
//! the tokens that they choose.

use crate::harness::{bits, live_rows, tensor};
use paceline_device::abi::{
    LIST_WORDS, PlanMessage, PlanRow, RecordHeader, RecordRow, RequestRow, Slot, SlotLists, TokenRow,
};
use paceline_device::{
    Backend, DraftForward, GatherStates, KeepBlockEnds, Pending, PrepareDrafts, SlotLimits, SlotTable,
    StepLimits, StepRecord, StepTables, TakeDrafts,
};
use paceline_device_cpu::{Cpu, CpuBuffer, CpuOptions, Instructions};

const SLOTS: usize = 4;
const BLOCK: usize = 8;
const BLOCKS_PER_SLOT: usize = 4;
const STOP: i32 = 99;

/// A verify row of slot 0 with two drafts, one of which held; the end of a prompt in slot 1, which begins with a block; a
/// piece of a prompt in slot 2; a row of slot 3 that the drafter does not see.
struct Scene {
    cpu: Cpu,
    plan: CpuBuffer<i32>,
    slots: SlotTable<Cpu>,
    step: StepTables<Cpu>,
    record: StepRecord<Cpu>,
    source: CpuBuffer<i32>,
}

/// What a pass runs over.
#[derive(Debug, PartialEq)]
struct Layout {
    /// Per request row.
    counts: Vec<i32>,
    ids: Vec<i32>,
    positions: Vec<i32>,
    sources: Vec<i32>,
    /// Token row, position and request row of what is sampled.
    samples: Vec<(i32, i32, i32)>,
}

fn tables(cpu: &Cpu, slots: &SlotTable<Cpu>) -> StepTables<Cpu> {
    let limits = StepLimits {
        tokens: 32,
        requests: SLOTS,
        samples: 16,
        blocks_per_request: BLOCKS_PER_SLOT,
        block_size: BLOCK,
    };
    let mut tables = StepTables::new(cpu, limits).unwrap();
    tables.block_table = slots.block_table.clone();
    tables
}

impl Scene {
    fn new() -> Self {
        let cpu = Cpu::new(CpuOptions {
            threads: 1,
            instructions: Instructions::Portable,
        });
        let limits = SlotLimits {
            slots: SLOTS,
            blocks_per_slot: BLOCKS_PER_SLOT,
            blocks: SLOTS * BLOCKS_PER_SLOT,
            block_size: BLOCK,
            snapshots: 2,
        };
        let slots = SlotTable::new(&cpu, limits).unwrap();
        let table: Vec<i32> = (0..(SLOTS * BLOCKS_PER_SLOT) as i32).rev().collect();
        cpu.write(&slots.block_table, &table);
        let mut lists = SlotLists::encode(&[STOP as u32], &[], &[]);
        lists.resize(LIST_WORDS, 0);
        cpu.write(&slots.lists, &lists.repeat(SLOTS));
        let scene = Self {
            plan: cpu.buffer(256).unwrap(),
            step: tables(&cpu, &slots),
            record: StepRecord::new(&cpu, SLOTS).unwrap(),
            source: cpu.buffer(32).unwrap(),
            slots,
            cpu,
        };
        scene.write_states();
        scene.write_plan([3, 2, 3, 0]);
        scene.write_step();
        scene
    }

    /// Slots as `accept` leaves them.
    fn write_states(&self) {
        let slots = [(12, 42, 0), (18, 51, 16), (4, 0, 0), (9, 7, 0)];
        let state = slots.map(|(length, newest, state_at)| Slot {
            length,
            newest,
            state_at,
            draft_state_at: state_at,
            max_length: 30,
            ..Slot::default()
        });
        self.cpu.write(&self.slots.state, &state);
    }

    /// The plan, with the drafts that its rows want of the drafter.
    fn write_plan(&self, neural: [i32; SLOTS]) {
        let verify = |count: i32| PlanRow {
            kind: PlanRow::VERIFY,
            count,
            following: -1,
            ..PlanRow::default()
        };
        let prefill = |start: i32, count: i32| PlanRow {
            kind: PlanRow::PREFILL,
            start,
            count,
            ..PlanRow::default()
        };
        let end = PlanRow {
            flags: PlanRow::SAMPLE_LAST,
            following: -1,
            ..prefill(16, 1)
        };
        let piece = PlanRow {
            following: 64,
            ..prefill(0, 4)
        };
        let rows = [
            (verify(2), vec![]),
            (end, vec![50]),
            (piece, vec![60, 61, 62, 63]),
            (verify(0), vec![]),
        ];
        let mut message = PlanMessage::new(0);
        for (slot, ((row, tokens), neural)) in rows.into_iter().zip(neural).enumerate() {
            let slot = slot as u32;
            message.push(PlanRow { slot, neural, ..row }, tokens, []);
        }
        self.cpu.write(&self.plan, message.encode(1));
    }

    fn write_step(&self) {
        let requests = [
            (2, 0, &[(40, 9), (41, 10), (49, 11)][..]),
            (0, 16, &[(50, 16)]),
            (0, 0, &[(60, 0), (61, 1), (62, 2), (63, 3)]),
            (0, 0, &[(6, 7)]),
        ];
        let (mut token_rows, mut request_rows) = (Vec::new(), Vec::new());
        for (request, (drafts, state_end, tokens)) in requests.into_iter().enumerate() {
            let request = request as i32;
            request_rows.push(RequestRow {
                first_token: token_rows.len() as i32,
                token_count: tokens.len() as i32,
                slot: request,
                drafts,
                state_end,
                ..RequestRow::default()
            });
            token_rows.extend(tokens.iter().map(|(id, position)| TokenRow {
                id: *id,
                position: *position,
                request,
            }));
        }
        self.cpu.write(&self.step.tokens.live, &[9]);
        self.cpu.write(&self.step.requests.live, &[4]);
        self.cpu.write(&self.step.token_rows, &token_rows);
        self.cpu.write(&self.step.request_rows, &request_rows);
        let chosen = [&[41, 42][..], &[51], &[], &[7]].map(|tokens| {
            let mut row = RecordRow {
                count: tokens.len() as i32,
                tokens: [-1; _],
                ..RecordRow::default()
            };
            row.tokens[..tokens.len()].copy_from_slice(tokens);
            row
        });
        self.cpu.write(&self.record.header, &[RecordHeader::default()]);
        self.cpu.write(&self.record.rows, &chosen);
    }

    fn prepare(&self, pass: DraftForward, before: Option<&StepTables<Cpu>>) -> (StepTables<Cpu>, Layout) {
        let draft = tables(&self.cpu, &self.slots);
        self.cpu.prepare_drafts(PrepareDrafts {
            pass,
            plan: &self.plan,
            slots: &self.slots,
            step: &self.step,
            record: &self.record,
            before,
            draft: &draft,
            source: &self.source,
        });
        let live = |counter: &CpuBuffer<i32>| self.cpu.read(counter, 1).wait().unwrap()[0] as usize;
        let (tokens, samples) = (live(&draft.tokens.live), live(&draft.samples.live));
        let requests = self.requests(&draft);
        let rows = self.cpu.read(&draft.token_rows, tokens).wait().unwrap();
        let of_requests = (0_i32..).zip(&requests);
        let of_requests = of_requests.flat_map(|(index, row)| row.tokens().map(move |_| index));
        assert!(rows.iter().map(|row| row.request).eq(of_requests), "{rows:?}");
        let logits = self.cpu.read(&draft.logits_rows, samples).wait().unwrap();
        let layout = Layout {
            counts: requests.iter().map(|row| row.token_count).collect(),
            ids: rows.iter().map(|row| row.id).collect(),
            positions: rows.iter().map(|row| row.position).collect(),
            sources: self.cpu.read(&self.source, tokens).wait().unwrap(),
            samples: logits
                .iter()
                .map(|row| (row.token, row.position, row.request))
                .collect(),
        };
        (draft, layout)
    }

    fn requests(&self, tables: &StepTables<Cpu>) -> Vec<RequestRow> {
        self.cpu.read(&tables.request_rows, SLOTS).wait().unwrap()
    }

    fn take(&self, draft: &StepTables<Cpu>, place: usize, tokens: &[i32]) {
        let chosen = self.cpu.buffer_from(tokens).unwrap();
        self.cpu.take_drafts(TakeDrafts {
            place,
            slots: &self.slots,
            draft: &draft.with_buckets(32, SLOTS, tokens.len()),
            tokens: &chosen,
        });
    }

    /// Drafts of a slot, and where they came from.
    fn drafts(&self, index: usize) -> (Vec<i32>, i32) {
        let slot = self.cpu.read(&self.slots.state, SLOTS).wait().unwrap()[index];
        (slot.drafts[..slot.draft_count as usize].to_vec(), slot.source)
    }
}

#[test]
fn a_head_runs_behind_the_step_and_then_on_its_own_drafts() {
    let scene = Scene::new();
    let (behind, layout) = scene.prepare(DraftForward::Behind, None);
    // Slot 1 goes on from block 1 of its table, 4·1..: its last token was kept with that block.
    let block = -1 - (15 - 5);
    let expected = Layout {
        counts: vec![2, 2, 4, 0],
        ids: vec![41, 42, 50, 51, 61, 62, 63, 64],
        positions: vec![9, 10, 15, 16, 0, 1, 2, 3],
        sources: vec![0, 1, block, 3, 4, 5, 6, 7],
        samples: vec![(1, 12, 0), (3, 18, 1)],
    };
    assert_eq!(layout, expected);
    scene.take(&behind, 0, &[43, 52]);
    let (again, layout) = scene.prepare(DraftForward::Again { place: 1 }, Some(&behind));
    let expected = Layout {
        counts: vec![1, 1, 0, 0],
        ids: vec![43, 52],
        positions: vec![11, 17],
        sources: vec![1, 3],
        samples: vec![(0, 13, 0), (1, 19, 1)],
    };
    assert_eq!(layout, expected);
    // A stop token is no draft, and ends them; slot 1 wants no more than two.
    scene.take(&again, 1, &[STOP, 53]);
    let (_, layout) = scene.prepare(DraftForward::Again { place: 2 }, Some(&again));
    assert_eq!(layout.counts, [0, 0, 0, 0]);
    assert_eq!(scene.drafts(0), (vec![43], Slot::FROM_NEURAL));
    assert_eq!(scene.drafts(1), (vec![52, 53], Slot::FROM_NEURAL));
    assert_eq!(scene.drafts(3), (vec![], 0));
}

#[test]
fn a_draft_model_runs_along_and_then_ahead() {
    let scene = Scene::new();
    let (along, layout) = scene.prepare(DraftForward::Along { recurrent: true }, None);
    assert_eq!(layout.counts, [3, 1, 4, 0]);
    assert_eq!(layout.ids, [40, 41, 49, 50, 60, 61, 62, 63]);
    assert_eq!(layout.samples, []);
    let read = |tables: &StepTables<Cpu>, field: fn(&RequestRow) -> i32| -> Vec<i32> {
        scene.requests(tables).iter().map(field).collect()
    };
    assert_eq!(read(&along, |row| row.drafts), [2, 0, 0, 0]);
    assert_eq!(read(&along, |row| row.state_at), [0, 16, 0, 0]);
    assert_eq!(read(&along, |row| row.state_end), [0, 16, 0, 0]);
    let (ahead, layout) = scene.prepare(DraftForward::Ahead { place: 0 }, None);
    assert_eq!((layout.ids, layout.positions), (vec![42, 51], vec![11, 17]));
    assert_eq!(layout.samples, [(0, 12, 0), (1, 18, 1)]);
    assert_eq!(read(&ahead, |row| row.state_at), [0, 16, 0, 0]);
    assert_eq!(
        read(&ahead, |row| row.state_end),
        [0, 16, 0, 0],
        "it stays where it is"
    );
    scene.take(&ahead, 0, &[43, 52]);
    let (ahead, layout) = scene.prepare(DraftForward::Ahead { place: 1 }, None);
    assert_eq!((layout.ids, layout.positions), (vec![43, 52], vec![12, 18]));
    assert_eq!(read(&ahead, |row| row.state_at), [0, 16, 0, 0]);
    assert_eq!(read(&ahead, |row| row.state_end), [0, 16, 0, 0]);
}

#[test]
fn a_recurrent_draft_model_that_missed_tokens_is_left_alone() {
    let scene = Scene::new();
    scene.prepare(DraftForward::Along { recurrent: true }, None);
    // Slot 3 was not seen; that it is wanted now is too late.
    scene.write_plan([3, 2, 3, 3]);
    let (_, layout) = scene.prepare(DraftForward::Along { recurrent: true }, None);
    assert_eq!(layout.counts, [3, 1, 4, 0]);
    let (_, layout) = scene.prepare(DraftForward::Ahead { place: 0 }, None);
    assert_eq!(layout.counts, [1, 1, 0, 0]);
    // One without states has nothing to lose.
    let scene = Scene::new();
    scene.prepare(DraftForward::Along { recurrent: false }, None);
    scene.write_plan([3, 2, 3, 3]);
    let (_, layout) = scene.prepare(DraftForward::Along { recurrent: false }, None);
    assert_eq!(layout.counts, [3, 1, 4, 1]);
}

#[test]
fn drafts_from_the_text_leave_nothing_to_the_neural_drafter() {
    let scene = Scene::new();
    let mut state = scene.cpu.read(&scene.slots.state, SLOTS).wait().unwrap();
    state[0].draft_count = 2;
    state[0].source = Slot::FROM_NGRAM;
    scene.cpu.write(&scene.slots.state, &state);
    let (behind, layout) = scene.prepare(DraftForward::Behind, None);
    assert_eq!(layout.counts, [2, 2, 4, 0], "it sees the tokens all the same");
    assert_eq!(layout.samples, [(3, 18, 1)]);
    scene.take(&behind, 0, &[52]);
    assert_eq!(scene.drafts(0), (vec![0, 0], Slot::FROM_NGRAM));
}

#[test]
fn states_at_the_ends_of_blocks_are_kept_and_found() {
    let scene = Scene::new();
    let cpu = &scene.cpu;
    let columns = 5;
    let table: Vec<f32> = (0..9 * columns).map(|i| i as f32 + 1.0).collect();
    let states = tensor(cpu, &live_rows(cpu, 9), &table, columns);
    let kept = cpu.buffer::<f32>(SLOTS * BLOCKS_PER_SLOT * columns).unwrap();
    cpu.keep_block_ends(KeepBlockEnds {
        states: &states,
        step: &scene.step,
        kept: &kept,
    });
    // Of all the step's tokens only that of slot 3, at position 7, is the last of its block, the first of the slot's table.
    let block = 15 - 3 * BLOCKS_PER_SLOT as i32;
    let all = cpu.read(&kept, SLOTS * BLOCKS_PER_SLOT * columns).wait().unwrap();
    let written: Vec<usize> = (0..all.len() / columns)
        .filter(|block| all[block * columns..][..columns].iter().any(|x| *x != 0.0))
        .collect();
    assert_eq!(written, [block as usize]);
    let mut out = cpu.tensor(&live_rows(cpu, 3), columns).unwrap();
    let source = cpu.buffer_from(&[2, -1 - block, 0]).unwrap();
    cpu.gather_states(GatherStates {
        states: &states,
        kept: &kept,
        source: &source,
        out: &mut out,
    });
    let found = cpu.read_tensor(&out).wait().unwrap();
    let row = |row: usize| table[row * columns..][..columns].to_vec();
    assert_eq!(bits(&found), bits(&[row(2), row(8), row(0)].concat()));
}
