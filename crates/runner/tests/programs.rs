//! A step's program is a function of its shape: what a device captured once, it can replay for every later step of
//! that shape.

use paceline_device::Recorder;
use paceline_models::{CacheSizes, Decoder, Eagle3};
use paceline_runner::{
    Chain, DeviceRunner, HeadProposer, ModelProposer, NgramProposer, Proposer, RunnerConfig,
};
use paceline_schedule::StepRunner;
use paceline_testkit::{FIXTURES, Fixture, random_eagle3, storyteller};
use paceline_types::{
    Admission, BlockId, DraftBudget, DraftSource, PlanRow, Pooling, RowConstraint, SamplingParams, SlotId,
    SnapshotId, SnapshotPlan, StepPlan, TokenMask, Work,
};
use paceline_weights::Checkpoint;
use std::sync::Arc;

const CONFIG: RunnerConfig = RunnerConfig {
    slots: 8,
    tokens: 64,
    samples: 64,
    blocks: 128,
    blocks_per_slot: 16,
    block_size: 16,
    snapshots: 4,
    drafts: 3,
    masks: 8,
    depth: 2,
};

const CACHES: CacheSizes = CacheSizes {
    blocks: CONFIG.blocks,
    block_size: CONFIG.block_size,
    slots: CONFIG.slots,
    drafts: CONFIG.drafts,
    snapshots: CONFIG.snapshots,
};

fn admission(slot: u32, params: SamplingParams, restore: Option<SnapshotId>) -> Admission {
    Admission {
        slot: SlotId(slot),
        generation: slot + 3,
        params: Arc::new(params),
        prompt_tokens: 9,
        cached_tokens: 0,
        max_length: 40 + slot as usize,
        min_length: 0,
        stop_tokens: vec![slot],
        restore,
    }
}

fn prefill(slot: u32, start: usize, tokens: Vec<u32>, snapshot: Option<SnapshotPlan>) -> PlanRow {
    let work = Work::Prefill {
        start,
        tokens,
        last: true,
        following: None,
        prompt_logprobs: false,
    };
    let new_blocks = vec![(start as u32 / 16, BlockId(slot * 7 + 1))];
    PlanRow {
        slot: SlotId(slot),
        generation: slot + 3,
        work,
        new_blocks,
        snapshot,
        // Not equal from row to row; the most is the same in all steps.
        propose: DraftBudget {
            ngram: slot as usize % 3,
            neural: start / 16 % 2,
        },
        show_drafts: false,
        constraint: None,
    }
}

fn verify(slot: u32, drafts: usize, generation: u32) -> PlanRow {
    PlanRow {
        slot: SlotId(slot),
        generation,
        work: Work::Verify { drafts },
        new_blocks: vec![],
        snapshot: None,
        propose: DraftBudget {
            ngram: drafts % 2,
            neural: drafts,
        },
        show_drafts: false,
        constraint: None,
    }
}

/// Steps of 17 to 32 tokens whose plan rows want at most 3 drafts, and otherwise as different as they can be: in
/// their number of plan rows, of tokens and of rows of logits, and in what these are.
fn steps() -> [StepPlan; 3] {
    let hot = SamplingParams {
        temperature: 1.3,
        top_k: 5,
        logprobs: Some(3),
        ..SamplingParams::default()
    };
    let penalised = SamplingParams {
        frequency_penalty: 0.5,
        ..SamplingParams::default()
    };
    let saved = Some(SnapshotPlan {
        position: 4,
        id: SnapshotId(1),
    });
    [
        StepPlan {
            step: 1,
            admissions: vec![
                admission(0, hot.clone(), None),
                admission(1, penalised, Some(SnapshotId(2))),
            ],
            rows: vec![
                verify(2, 2, 9),
                verify(3, 3, 1),
                prefill(0, 0, vec![1; 7], saved),
                prefill(1, 32, vec![5; 4], None),
            ],
        },
        StepPlan {
            step: 2,
            admissions: vec![],
            rows: vec![verify(0, 3, 3), prefill(7, 16, vec![200; 28], None)],
        },
        StepPlan {
            step: 3,
            admissions: vec![admission(5, hot, None)],
            rows: vec![
                verify(7, 2, 0),
                verify(6, 3, 9),
                verify(3, 0, 9),
                verify(2, 1, 9),
                prefill(5, 0, vec![3; 10], None),
                prefill(4, 48, vec![8; 1], None),
                prefill(1, 0, vec![8; 3], None),
            ],
        },
    ]
}

/// Who drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drafter {
    Nobody,
    Ngram,
    /// The model's own head, or a random one.
    Head,
    /// The model itself.
    Model,
    Chain,
}

const DRAFTERS: [Drafter; 5] = [
    Drafter::Nobody,
    Drafter::Ngram,
    Drafter::Head,
    Drafter::Model,
    Drafter::Chain,
];

fn load(recorder: &Recorder, checkpoint: &Checkpoint) -> Decoder<Recorder> {
    paceline_models::load(recorder, checkpoint, None, &|_| {}).expect("the fixture loads")
}

fn head(
    recorder: &Recorder,
    model: &mut Decoder<Recorder>,
    checkpoint: &Checkpoint,
) -> Box<dyn Proposer<Recorder>> {
    let head: Box<dyn paceline_models::DraftHead<Recorder>> = if let Some(own) = model.mtp.take() {
        Box::new(own)
    } else {
        let files = random_eagle3(checkpoint, None, 1);
        Box::new(Eagle3::load(recorder, &files, model, None, &|_| {}).expect("the head fits"))
    };
    Box::new(HeadProposer::new((recorder, model), head, &CONFIG).expect("nothing is allocated"))
}

fn runner(recorder: &Recorder, checkpoint: &Checkpoint, drafter: Drafter) -> DeviceRunner<Recorder> {
    let mut model = load(recorder, checkpoint);
    let ngram = || NgramProposer::new(recorder, &CONFIG, (2, 4)).expect("nothing is allocated");
    let proposer: Option<Box<dyn Proposer<Recorder>>> = match drafter {
        Drafter::Nobody => None,
        Drafter::Ngram => Some(Box::new(ngram())),
        Drafter::Head => Some(head(recorder, &mut model, checkpoint)),
        Drafter::Model => {
            let drafter = load(recorder, checkpoint);
            Some(Box::new(
                ModelProposer::new(recorder, drafter, &CONFIG).expect("nothing is allocated"),
            ))
        }
        Drafter::Chain => Some(Box::new(Chain::new(
            ngram(),
            head(recorder, &mut model, checkpoint),
        ))),
    };
    let runner = DeviceRunner::new(recorder.clone(), model, CONFIG).expect("nothing is allocated");
    match proposer {
        Some(proposer) => runner.with_proposer(proposer),
        None => runner,
    }
}

/// The recorded programs of some steps.
fn programs(checkpoint: &Checkpoint, drafter: Drafter, steps: &[StepPlan]) -> Vec<Vec<String>> {
    let recorder = Recorder::new();
    let mut runner = runner(&recorder, checkpoint, drafter);
    let record = |step: &StepPlan| {
        recorder.take_log();
        run(&mut runner, step);
        recorder.take_log()
    };
    steps.iter().map(record).collect()
}

fn run(runner: &mut DeviceRunner<Recorder>, step: &StepPlan) {
    let flight = runner.submit(step).expect("nothing runs");
    let output = runner.collect(flight).expect("the record is one of its plan");
    assert_eq!(output.rows.len(), step.rows.len());
}

fn checkpoints() -> Vec<(&'static str, Checkpoint)> {
    let fixtures = FIXTURES
        .iter()
        .map(|name| (*name, Fixture::read(name).checkpoint()));
    fixtures.chain([("storyteller", storyteller())]).collect()
}

/// Each is recorded by a runner of its own: nothing is replayed here that another step recorded.
#[test]
fn steps_of_one_shape_record_one_program() {
    for (name, checkpoint) in checkpoints() {
        for drafter in DRAFTERS {
            let [first, second, third] =
                steps().map(|step| programs(&checkpoint, drafter, &[step]).remove(0));
            assert!(first.len() > 10, "{name}: {} operations", first.len());
            assert_eq!(first, second, "{name} {drafter:?}");
            assert_eq!(first, third, "{name} {drafter:?}");
        }
    }
}

/// Steps of the same shape as those of [`steps`], up to 32 tokens with prompts and three draft forwards, that are filled in
/// other ways: drafts of decodes, tokens of prompts.
fn fillings() -> Vec<StepPlan> {
    let step = |(verified, chunks): (&[usize], &[usize])| {
        let decodes = (0..)
            .zip(verified)
            .map(|(slot, drafts)| verify(slot, *drafts, 4 + slot));
        let prompts = (5..)
            .zip(chunks)
            .map(|(slot, tokens)| prefill(slot, 16, vec![slot; *tokens], None));
        StepPlan {
            step: 1,
            admissions: vec![admission(5, SamplingParams::default(), None)],
            rows: decodes.chain(prompts).collect(),
        }
    };
    let fillings: [(&[usize], &[usize]); 6] = [
        (&[3], &[13]),
        (&[3], &[28]),
        (&[3, 0, 1, 2, 3], &[1, 1, 1]),
        (&[3, 3, 3, 3, 3], &[1, 4, 7]),
        (&[3, 3], &[9]),
        (&[2, 3], &[1, 24]),
    ];
    fillings.map(step).into()
}

/// Each is captured by a runner that has seen no other step: how many plan rows, tokens and logits rows carry data is no
/// part of the program.
#[test]
fn what_a_step_is_filled_with_does_not_change_its_program() {
    let count = |of: fn(&StepPlan) -> usize| fillings().iter().map(of).collect::<Vec<_>>();
    assert_eq!(count(|step| step.rows.len()), [2, 2, 8, 8, 3, 4]);
    assert_eq!(count(StepPlan::tokens), [17, 32, 17, 32, 17, 32]);
    assert_eq!(count(StepPlan::samples), [5, 5, 17, 23, 9, 9]);
    for (name, checkpoint) in checkpoints() {
        for drafter in [Drafter::Nobody, Drafter::Model, Drafter::Chain] {
            let fresh =
                |step: &StepPlan| programs(&checkpoint, drafter, std::slice::from_ref(step)).remove(0);
            let expected = fresh(&steps()[0]);
            for step in &fillings() {
                let (rows, tokens) = (step.rows.len(), step.tokens());
                assert!(
                    fresh(step) == expected,
                    "{name} {drafter:?}: {rows} plan rows with {tokens} tokens have another program"
                );
            }
        }
    }
}

/// A runner that has recorded a program launches it again, and no other.
#[test]
fn a_recorded_program_is_used_again() {
    let checkpoint = storyteller();
    let recorder = Recorder::new();
    let mut runner = runner(&recorder, &checkpoint, Drafter::Chain);
    for step in &steps() {
        run(&mut runner, step);
    }
    assert_eq!(runner.programs().captured(), 1);
    runner.warm_up().expect("nothing runs");
    let all = runner.programs().shapes().len();
    assert_eq!(runner.programs().captured(), all);
    for step in &steps() {
        run(&mut runner, step);
    }
    assert_eq!(runner.programs().captured(), all);
    assert_eq!(runner.programs().captured_late(), 0);
}

/// Steps with every kind of plan row: prompts, decodes, drafts or none, constraints, log-probabilities of chosen and of
/// known tokens, vectors.
fn every_kind_of_step() -> Vec<StepPlan> {
    let [first, second, mut third] = steps();
    third.rows.truncate(1);
    let mut plain = first.clone();
    for row in &mut plain.rows {
        row.propose = DraftBudget::NONE;
    }
    let known = SamplingParams {
        prompt_logprobs: Some(2),
        logprobs: Some(1),
        ..SamplingParams::default()
    };
    let mut scored = prefill(0, 0, vec![4; 9], None);
    if let Work::Prefill { prompt_logprobs, .. } = &mut scored.work {
        *prompt_logprobs = true;
    }
    let embed = |slot, pooling, last| PlanRow {
        work: Work::Embed {
            start: 0,
            tokens: vec![2; 5],
            last,
            pooling,
        },
        propose: DraftBudget::NONE,
        ..prefill(slot, 0, vec![], None)
    };
    let mut constrained = verify(3, 2, 1);
    constrained.constraint = Some(RowConstraint {
        drafts: vec![1, 2],
        source: Some(DraftSource::Grammar),
        masks: vec![TokenMask::new(vec![u32::MAX; 8]); 3].into(),
    });
    let others = StepPlan {
        step: 9,
        admissions: vec![admission(0, known, None)],
        rows: vec![
            constrained,
            scored,
            embed(4, Pooling::Mean, true),
            embed(5, Pooling::Last, true),
            embed(6, Pooling::Mean, false),
        ],
    };
    vec![first, second, third, plain, others]
}

/// Everything a step needs exists after the warm-up, whatever its shape and whoever drafts.
#[test]
fn nothing_is_allocated_after_start_up() {
    for (name, checkpoint) in checkpoints() {
        for drafter in DRAFTERS {
            let recorder = Recorder::new();
            let mut runner = runner(&recorder, &checkpoint, drafter);
            runner.warm_up().expect("nothing runs");
            let before = recorder.allocations();
            for step in &every_kind_of_step() {
                run(&mut runner, step);
            }
            assert_eq!(recorder.allocations(), before, "{name} {drafter:?}");
            assert_eq!(runner.programs().captured_late(), 0, "{name} {drafter:?}");
        }
    }
}

#[test]
fn drafting_is_part_of_the_program() {
    let checkpoint = storyteller();
    let count = |drafter| programs(&checkpoint, drafter, &steps()[..1])[0].len();
    let [nobody, ngram, head, model, chain] = DRAFTERS.map(count);
    assert_eq!(ngram, nobody + 1);
    assert_eq!(chain, head + 1);
    assert!(nobody < head && head < model);
}

/// What the drafter does not see must not be left to whatever the blocks held before, and what it could have seen is kept,
/// in steps that make no drafts as in those that do. What these operations are for is shown in `drafts.rs`.
#[test]
fn neural_drafters_clear_and_keep_in_every_step() {
    let operations = |checkpoint: &Checkpoint, drafter, name: &str| {
        let [drafting, mut plain, _] = steps();
        for row in &mut plain.rows {
            row.propose = DraftBudget::NONE;
        }
        let programs = programs(checkpoint, drafter, &[drafting, plain]);
        let count = |program: &Vec<String>| {
            let named = |line: &&String| line.split(' ').next() == Some(name);
            program.iter().filter(named).count()
        };
        (count(&programs[0]), count(&programs[1]))
    };
    let llama = Fixture::read("llama").checkpoint();
    let layers = load(&Recorder::new(), &llama)
        .caches(&Recorder::new(), &CACHES)
        .expect("nothing is allocated");
    let layers = layers.kv.len();
    assert!(layers > 1);
    assert_eq!(operations(&llama, Drafter::Model, "clear_kv"), (layers, layers));
    assert_eq!(operations(&llama, Drafter::Model, "keep_block_ends"), (0, 0));
    for checkpoint in [llama, storyteller()] {
        assert_eq!(operations(&checkpoint, Drafter::Head, "clear_kv"), (1, 1));
        assert_eq!(operations(&checkpoint, Drafter::Head, "keep_block_ends"), (1, 1));
        assert_eq!(operations(&checkpoint, Drafter::Ngram, "clear_kv"), (0, 0));
    }
}

/// A step runs what its shape needs and no more: a piece of a prompt that chooses no token has one draft forward however
/// many drafts are wanted behind it. Rows of logits are found by the device: a step that chooses nothing has none.
#[test]
fn programs_do_no_work_that_no_row_needs() {
    let checkpoint = storyteller();
    let piece = |neural, last| {
        let mut row = prefill(0, 0, vec![1; 16], None);
        row.propose = DraftBudget { ngram: 0, neural };
        let Work::Prefill { last: ends, .. } = &mut row.work else {
            panic!("it is a piece of a prompt");
        };
        *ends = last;
        StepPlan {
            step: 1,
            admissions: vec![],
            rows: vec![row],
        }
    };
    let operations = |step: StepPlan, name: &str| {
        let program = programs(&checkpoint, Drafter::Head, &[step]).remove(0);
        let named = |line: &&String| line.split(' ').next() == Some(name);
        program.iter().filter(named).count()
    };
    assert_eq!(operations(piece(3, false), "prepare_drafts"), 1);
    assert_eq!(operations(piece(3, true), "prepare_drafts"), 3);
    assert_eq!(operations(piece(0, true), "prepare_drafts"), 0);
    assert_eq!(
        operations(piece(0, false), "sample"),
        operations(piece(0, true), "sample")
    );
    assert_eq!(operations(piece(0, true), "pool_states"), 1);
    let decode = StepPlan {
        step: 1,
        admissions: vec![],
        rows: vec![verify(0, 0, 3)],
    };
    assert_eq!(operations(decode, "pool_states"), 0);
}

#[test]
fn steps_of_other_shapes_record_other_programs() {
    let checkpoint = storyteller();
    let [base, mut more_tokens, mut fewer_tokens] = steps();
    more_tokens.rows.push(prefill(3, 0, vec![8; 20], None));
    fewer_tokens.rows.truncate(4);
    // As many tokens, with and without a prompt.
    let mut no_prompts = fewer_tokens.clone();
    no_prompts.rows.push(verify(5, 0, 1));
    fewer_tokens.rows.push(prefill(4, 48, vec![8; 1], None));
    let mut fewer_drafts = base.clone();
    for row in &mut fewer_drafts.rows {
        row.propose.neural = row.propose.neural.min(1);
    }
    let steps = [base, more_tokens, fewer_tokens, no_prompts, fewer_drafts];
    let programs = programs(&checkpoint, Drafter::Chain, &steps);
    for (index, program) in programs.iter().enumerate() {
        for (other, another) in programs.iter().enumerate().skip(index + 1) {
            assert_ne!(program, another, "{index} {other}");
        }
    }
}
