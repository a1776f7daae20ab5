//! What a step runs depends on its shape alone: a device may capture it once and replay it for any contents.

use paceline_device::abi::SamplingRow;
use paceline_device::{Recorder, StepLimits};
use paceline_models::{DraftHead, Eagle3};
use paceline_testkit::{FIXTURES, Fixture, random_eagle3};
use paceline_testkit::{Program, SampleRow, StepRow, Stepper, StepperConfig};
use paceline_types::TokenId;
use paceline_weights::Checkpoint;

const LIMITS: StepLimits = StepLimits {
    tokens: 64,
    requests: 4,
    samples: 8,
    blocks_per_request: 16,
    block_size: 16,
};

fn runner(recorder: &Recorder, fixture: &Fixture) -> Stepper<Recorder> {
    runner_with_head(recorder, fixture, None)
}

/// A runner with a draft head of its own files.
fn runner_with_head(recorder: &Recorder, fixture: &Fixture, head: Option<&Checkpoint>) -> Stepper<Recorder> {
    let model = paceline_models::load(recorder, &fixture.checkpoint(), None, &|_| {})
        .unwrap_or_else(|e| panic!("{}: {e}", fixture.name));
    let head = head.map(|head| {
        let head = Eagle3::load(recorder, head, &model, None, &|_| {}).unwrap();
        Box::new(head) as Box<dyn DraftHead<Recorder>>
    });
    let config = StepperConfig {
        limits: LIMITS,
        blocks: 64,
        slots: 8,
    };
    Stepper::with_head(recorder.clone(), model, head, config).unwrap()
}

/// One request of a step.
struct Request {
    slot: usize,
    tokens: Vec<TokenId>,
    first_position: usize,
    blocks: Vec<u32>,
    samples: Vec<SampleRow>,
}

/// A step of 17 to 32 tokens of two requests, with three or four positions to sample.
fn step_of(variant: u32) -> Vec<Request> {
    let lengths = [[20, 1], [9, 9], [1, 30], [16, 16]][variant as usize % 4];
    let params = |row: usize| SamplingRow {
        temperature: variant as f32 * 0.3,
        top_p: 1.0 - 0.1 * variant as f32,
        top_k: variant * 7,
        min_p: 0.01 * variant as f32,
        seed: (u64::from(variant) << 40 | row as u64).into(),
        logprobs: variant as i32 - 1,
    };
    let request = |index: usize| {
        let length = lengths[index];
        let wanted = if length == 1 { 0..1 } else { length - 2..length };
        Request {
            slot: (variant as usize + 3 * index) % 8,
            tokens: (0..length as u32).map(|i| (i * 7 + variant * 31) % 256).collect(),
            first_position: variant as usize * 11 * index,
            blocks: (0..16)
                .map(|block| (block * 5 + variant + 16 * index as u32) % 64)
                .collect(),
            samples: wanted
                .map(|token| SampleRow {
                    token,
                    params: params(token),
                })
                .collect(),
        }
    };
    (0..2).map(request).collect()
}

/// What a step launches.
fn launched(
    recorder: &Recorder,
    runner: &mut Stepper<Recorder>,
    program: Program,
    requests: &[Request],
) -> Vec<String> {
    let rows: Vec<StepRow<'_>> = requests
        .iter()
        .map(|request| StepRow {
            slot: request.slot,
            tokens: &request.tokens,
            first_position: request.first_position,
            blocks: &request.blocks,
            samples: &request.samples,
        })
        .collect();
    recorder.take_log();
    runner.submit(program, &rows).unwrap();
    recorder.take_log()
}

fn programs(runner: &Stepper<Recorder>) -> Vec<Program> {
    if runner.head().is_some() {
        vec![Program::Model, Program::Draft, Program::DraftAgain]
    } else {
        vec![Program::Model]
    }
}

/// Programs of a model, and of a head if there is one, from steps with all kinds of contents.
fn assert_independent_of_contents(fixture: &Fixture, head: Option<&Checkpoint>) {
    let name = &fixture.name;
    let recorder = Recorder::new();
    let mut first = runner_with_head(&recorder, fixture, head);
    for program in programs(&first) {
        let expected = launched(&recorder, &mut first, program, &step_of(0));
        assert!(expected.len() > 10, "{name}: {} operations", expected.len());
        for variant in 1..4 {
            // Replayed by a runner that has captured it, and captured anew from other contents.
            let replayed = launched(&recorder, &mut first, program, &step_of(variant));
            assert_eq!(replayed, expected, "{name}, {program:?}: replayed");
        }
    }
    for variant in 1..4 {
        let (one, other) = (Recorder::new(), Recorder::new());
        let mut captured = runner_with_head(&one, fixture, head);
        let mut anew = runner_with_head(&other, fixture, head);
        for program in programs(&captured) {
            let expected = launched(&one, &mut captured, program, &step_of(0));
            let found = launched(&other, &mut anew, program, &step_of(variant));
            assert_eq!(
                found, expected,
                "{name}, {program:?}: captured from step {variant}"
            );
        }
    }
}

#[test]
fn contents_of_a_step_change_nothing_in_its_program() {
    for name in FIXTURES {
        let fixture = Fixture::read(name);
        assert_independent_of_contents(&fixture, None);
        let head = random_eagle3(&fixture.checkpoint(), Some(&[1, 5, 6]), 4);
        assert_independent_of_contents(&fixture, Some(&head));
    }
}

#[test]
fn steps_of_other_shapes_are_other_programs() {
    for name in FIXTURES {
        let fixture = Fixture::read(name);
        let recorder = Recorder::new();
        let mut runner = runner(&recorder, &fixture);
        let base = launched(&recorder, &mut runner, Program::Model, &step_of(0));

        let mut fewer_tokens = step_of(0);
        fewer_tokens[0].tokens.truncate(10);
        for sample in &mut fewer_tokens[0].samples {
            sample.token = 9;
        }
        let mut fewer_samples = step_of(0);
        fewer_samples[0].samples.clear();
        let mut no_samples = step_of(0);
        for request in &mut no_samples {
            request.samples.clear();
        }
        let mut seen = vec![base];
        for step in [fewer_tokens, fewer_samples, no_samples] {
            let other = launched(&recorder, &mut runner, Program::Model, &step);
            assert!(!seen.contains(&other), "{name}: two shapes, one program");
            seen.push(other);
        }
    }
}

#[test]
fn programs_of_one_shape_from_another_are_not_mixed_up() {
    let fixture = Fixture::read("qwen3_5");
    let recorder = Recorder::new();
    let mut runner = runner(&recorder, &fixture);
    let wide = launched(&recorder, &mut runner, Program::Model, &step_of(0));
    let narrow = launched(&recorder, &mut runner, Program::Model, &step_of(0)[1..]);
    let draft = launched(&recorder, &mut runner, Program::Draft, &step_of(0));
    assert_ne!(wide, narrow);
    assert_ne!(wide, draft);
    let again = launched(&recorder, &mut runner, Program::Model, &step_of(2));
    assert_eq!(again, wide);
    let again = launched(&recorder, &mut runner, Program::Model, &step_of(0)[1..]);
    assert_eq!(again, narrow);
}
