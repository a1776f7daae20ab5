//! The passes of neural drafters: which tokens they run over, at which positions, from which states, and what becomes of
//! the tokens that they choose.

use crate::harness::{bits, live_rows, tensor};
use paceline_device::{
    Backend, DraftForward, GatherStates, KeepBlockEnds, LIST_INTS, Pending, PrepareDrafts, SlotLimits,
    SlotTable, StepLimits, StepTables, TakeDrafts, plan, record, slot,
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
    record: CpuBuffer<i32>,
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
        let mut lists = vec![0; SLOTS * LIST_INTS];
        for list in lists.chunks_mut(LIST_INTS) {
            list[..2].copy_from_slice(&[1, STOP]);
        }
        cpu.write(&slots.lists, &lists);
        let scene = Self {
            plan: cpu.buffer(256).unwrap(),
            step: tables(&cpu, &slots),
            record: cpu.buffer(record::HEADER + SLOTS * record::ROW).unwrap(),
            source: cpu.buffer(32).unwrap(),
            slots,
            cpu,
        };
        scene.write_states();
        scene.write_plan();
        scene.write_step();
        scene
    }

    /// Slots as `accept` leaves them.
    fn write_states(&self) {
        let mut state = vec![0; SLOTS * slot::INTS];
        for (index, (length, newest, pending)) in [(12, 42, 1), (18, 51, 0), (4, 0, 0), (9, 7, 0)]
            .into_iter()
            .enumerate()
        {
            let row = &mut state[index * slot::INTS..][..slot::INTS];
            row[slot::LENGTH] = length;
            row[slot::NEWEST] = newest;
            row[slot::PENDING] = pending;
            row[slot::MAX_LENGTH] = 30;
        }
        self.cpu.write(&self.slots.state, &state);
    }

    fn write_plan(&self) {
        let mut words = vec![0; plan::HEADER];
        words[plan::ROWS] = SLOTS as i32;
        for (index, kind, start, count, flags, following, neural) in [
            (0, plan::VERIFY, 0, 2, 0, -1, 3),
            (1, plan::PREFILL, 16, 1, plan::SAMPLE_LAST, -1, 2),
            (2, plan::PREFILL, 0, 4, 0, 64, 3),
            (3, plan::VERIFY, 0, 0, 0, -1, 0),
        ] {
            let mut row = [0; plan::ROW];
            row[plan::ROW_SLOT] = index;
            row[plan::ROW_KIND] = kind;
            row[plan::ROW_START] = start;
            row[plan::ROW_COUNT] = count;
            row[plan::ROW_FLAGS] = flags;
            row[plan::ROW_FOLLOWING] = following;
            row[plan::ROW_NEURAL] = neural;
            words.extend(row);
        }
        self.cpu.write(&self.plan, &words);
    }

    fn write_step(&self) {
        let columns: [(&CpuBuffer<i32>, &[i32]); 9] = [
            (&self.step.tokens.live, &[9]),
            (&self.step.requests.live, &[4]),
            (&self.step.ids, &[40, 41, 49, 50, 60, 61, 62, 63, 6]),
            (&self.step.positions, &[9, 10, 11, 16, 0, 1, 2, 3, 7]),
            (&self.step.request_of, &[0, 0, 0, 1, 2, 2, 2, 2, 3]),
            (&self.step.first_token, &[0, 3, 4, 8]),
            (&self.step.token_count, &[3, 1, 4, 1]),
            (&self.step.state_slot, &[0, 1, 2, 3]),
            (&self.step.drafts, &[2, 0, 0, 0]),
        ];
        for (buffer, values) in columns {
            self.cpu.write(buffer, values);
        }
        let mut words = vec![-1; record::HEADER + SLOTS * record::ROW];
        words[record::PASSES] = 0;
        for (index, tokens) in [&[41, 42][..], &[51], &[], &[7]].into_iter().enumerate() {
            let row = &mut words[record::HEADER + index * record::ROW..][..record::ROW];
            row[record::COUNT] = tokens.len() as i32;
            row[record::TOKENS..][..tokens.len()].copy_from_slice(tokens);
        }
        self.cpu.write(&self.record, &words);
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
        let read = |buffer: &CpuBuffer<i32>, len: usize| self.cpu.read(buffer, len).wait().unwrap();
        let tokens = read(&draft.tokens.live, 1)[0] as usize;
        let samples = read(&draft.samples.live, 1)[0] as usize;
        let rows = read(&draft.sample_token, samples).into_iter();
        let layout = Layout {
            counts: read(&draft.token_count, SLOTS),
            ids: read(&draft.ids, tokens),
            positions: read(&draft.positions, tokens),
            sources: read(&self.source, tokens),
            samples: rows
                .zip(read(&draft.sample_position, samples))
                .zip(read(&draft.sample_request, samples))
                .map(|((token, position), request)| (token, position, request))
                .collect(),
        };
        (draft, layout)
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
        let state = self
            .cpu
            .read(&self.slots.state, SLOTS * slot::INTS)
            .wait()
            .unwrap();
        let row = &state[index * slot::INTS..][..slot::INTS];
        let count = row[slot::DRAFT_COUNT] as usize;
        (row[slot::DRAFTS..][..count].to_vec(), row[slot::SOURCE])
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
    assert_eq!(scene.drafts(0), (vec![43], slot::FROM_NEURAL));
    assert_eq!(scene.drafts(1), (vec![52, 53], slot::FROM_NEURAL));
    assert_eq!(scene.drafts(3), (vec![], 0));
}

#[test]
fn a_draft_model_runs_along_and_then_ahead() {
    let scene = Scene::new();
    let (along, layout) = scene.prepare(DraftForward::Along { recurrent: true }, None);
    assert_eq!(layout.counts, [3, 1, 4, 0]);
    assert_eq!(layout.ids, [40, 41, 49, 50, 60, 61, 62, 63]);
    assert_eq!(layout.samples, []);
    let read = |buffer: &CpuBuffer<i32>| scene.cpu.read(buffer, SLOTS).wait().unwrap();
    assert_eq!(read(&along.drafts), [2, 0, 0, 0]);
    let (ahead, layout) = scene.prepare(DraftForward::Ahead { place: 0 }, None);
    assert_eq!((layout.ids, layout.positions), (vec![42, 51], vec![11, 17]));
    assert_eq!(layout.samples, [(0, 12, 0), (1, 18, 1)]);
    assert_eq!(read(&ahead.replay), [1, 0, 0, 0]);
    assert_eq!(read(&ahead.ahead), [1, 1, 0, 0]);
    scene.take(&ahead, 0, &[43, 52]);
    let (ahead, layout) = scene.prepare(DraftForward::Ahead { place: 1 }, None);
    assert_eq!((layout.ids, layout.positions), (vec![43, 52], vec![12, 18]));
    assert_eq!(read(&ahead.replay), [2, 1, 0, 0]);
}

#[test]
fn a_recurrent_draft_model_that_missed_tokens_is_left_alone() {
    let scene = Scene::new();
    scene.prepare(DraftForward::Along { recurrent: true }, None);
    // Slot 3 was not seen; that it is wanted now is too late.
    let mut words = scene.cpu.read(&scene.plan, 256).wait().unwrap();
    words[plan::HEADER + 3 * plan::ROW + plan::ROW_NEURAL] = 3;
    scene.cpu.write(&scene.plan, &words);
    let (_, layout) = scene.prepare(DraftForward::Along { recurrent: true }, None);
    assert_eq!(layout.counts, [3, 1, 4, 0]);
    let (_, layout) = scene.prepare(DraftForward::Ahead { place: 0 }, None);
    assert_eq!(layout.counts, [1, 1, 0, 0]);
    // One without states has nothing to lose.
    let scene = Scene::new();
    scene.prepare(DraftForward::Along { recurrent: false }, None);
    scene.cpu.write(&scene.plan, &words);
    let (_, layout) = scene.prepare(DraftForward::Along { recurrent: false }, None);
    assert_eq!(layout.counts, [3, 1, 4, 1]);
}

#[test]
fn drafts_from_the_text_leave_nothing_to_the_neural_drafter() {
    let scene = Scene::new();
    let mut state = scene
        .cpu
        .read(&scene.slots.state, SLOTS * slot::INTS)
        .wait()
        .unwrap();
    state[slot::DRAFT_COUNT] = 2;
    state[slot::SOURCE] = slot::FROM_NGRAM;
    scene.cpu.write(&scene.slots.state, &state);
    let (behind, layout) = scene.prepare(DraftForward::Behind, None);
    assert_eq!(layout.counts, [2, 2, 4, 0], "it sees the tokens all the same");
    assert_eq!(layout.samples, [(3, 18, 1)]);
    scene.take(&behind, 0, &[52]);
    assert_eq!(scene.drafts(0), (vec![0, 0], slot::FROM_NGRAM));
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
