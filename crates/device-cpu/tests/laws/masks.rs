//! Masks: a choice is one of the mask, drawn as if nothing else existed; log-probabilities know of no mask. Drafts that a
//! plan gives take the place of the slot's own.

use crate::harness::{bits, devices, numbers, tensor};
use crate::host::Host;
use paceline_device::abi::{
    LIST_WORDS, LogitsRow, Logprobs, PlanMessage, PlanRow, RequestRow, SamplingRow, Slot, SlotLists,
};
use paceline_device::{
    Backend, Pending, SampleOptions, SampledText, Sampling, SlotLimits, SlotTable, StepLimits, StepTables,
};
use paceline_device_cpu::Cpu;

const VOCABULARY: usize = 101;
const POSITIONS: usize = 3;
const SLOTS: usize = 3;
/// The slots of a step's requests: they stand in another order.
const SLOT_OF: [usize; SLOTS] = [2, 0, 1];

fn slots(cpu: &Cpu) -> SlotTable<Cpu> {
    let limits = SlotLimits {
        slots: SLOTS,
        blocks_per_slot: 4,
        blocks: 4 * SLOTS,
        block_size: 4,
        snapshots: 0,
    };
    SlotTable::new(cpu, limits).unwrap()
}

fn step(cpu: &Cpu) -> StepTables<Cpu> {
    let limits = StepLimits {
        tokens: 16,
        requests: SLOTS,
        samples: SLOTS * POSITIONS,
        blocks_per_request: 4,
        block_size: 4,
    };
    StepTables::new(cpu, limits).unwrap()
}

/// A mask per slot and position; each has a token at least.
fn masks() -> Vec<Vec<bool>> {
    let mask = |row: usize| {
        let share = [0.9, 0.0, -0.9][row % 3];
        let mut mask: Vec<bool> = numbers((5, 1, row), VOCABULARY, 1.0)
            .iter()
            .map(|number| *number > share)
            .collect();
        mask[row * 7 % VOCABULARY] = true;
        mask
    };
    (0..SLOTS * POSITIONS).map(mask).collect()
}

/// A mask as the host writes it.
fn words(mask: &[bool]) -> Vec<u32> {
    let word = |bits: &[bool]| {
        bits.iter()
            .enumerate()
            .fold(0, |word, (at, bit)| word | u32::from(*bit) << at)
    };
    mask.chunks(32).map(word).collect()
}

/// A plan with the masks of all slots.
fn plan() -> PlanMessage {
    let all: Vec<Vec<u32>> = masks().iter().map(|mask| words(mask)).collect();
    let mut message = PlanMessage::new(VOCABULARY.div_ceil(32));
    for slot in SLOT_OF {
        let row = PlanRow {
            slot: slot as u32,
            kind: PlanRow::VERIFY,
            count: POSITIONS as i32 - 1,
            flags: PlanRow::MASKED,
            ..PlanRow::default()
        };
        let own = &all[slot * POSITIONS..][..POSITIONS];
        message.push(row, [], own.iter().map(Vec::as_slice));
    }
    message
}

/// The rows of logits: all of slot 0, of slot 1 and of slot 2.
fn logits_rows(temperature: f32, masked: bool) -> Vec<LogitsRow> {
    let row = |at: usize| {
        let slot = at / POSITIONS;
        let request = SLOT_OF.iter().position(|of| *of == slot).unwrap();
        LogitsRow {
            position: (5 + at % POSITIONS) as i32,
            request: request as i32,
            mask: i32::from(masked) * (1 + request * POSITIONS + at % POSITIONS) as i32,
            sampling: SamplingRow {
                temperature,
                top_p: 0.95,
                top_k: 0,
                min_p: 0.0,
                seed: 77.into(),
                logprobs: 2,
            },
            ..LogitsRow::default()
        }
    };
    (0..SLOTS * POSITIONS).map(row).collect()
}

/// The choices from these logits, with or without masks, and what is reported.
fn run(
    cpu: &Cpu,
    logits: &[f32],
    temperature: f32,
    (masked, min_length): (bool, i32),
) -> Vec<(i32, Logprobs)> {
    let (slots, step) = (slots(cpu), step(cpu));
    let samples = SLOTS * POSITIONS;
    let state = Slot {
        min_length,
        ..Slot::default()
    };
    cpu.write(&slots.state, &[state; SLOTS]);
    // Every token is a stop token, so that none may come before the minimum length.
    let stops: Vec<u32> = (0..VOCABULARY as u32).collect();
    let mut lists = SlotLists::encode(&stops, &[], &[]);
    lists.resize(LIST_WORDS, 0);
    cpu.write(&slots.lists, &lists.repeat(SLOTS));
    cpu.write(&step.samples.live, &[samples as i32]);
    let requests = SLOT_OF.map(|slot| RequestRow {
        slot: slot as i32,
        ..RequestRow::default()
    });
    cpu.write(&step.request_rows, &requests);
    cpu.write(&step.logits_rows, &logits_rows(temperature, masked));
    let plan = cpu.buffer_from(plan().encode(1)).unwrap();
    let tokens = cpu.buffer(samples).unwrap();
    let logprobs = cpu.buffer(samples).unwrap();
    let sampling = Sampling {
        step: &step,
        options: Some(SampleOptions {
            slots: &slots,
            plan: &plan,
        }),
        text: SampledText::Step,
        tokens: &tokens,
        logprobs: &logprobs,
    };
    cpu.sample(&tensor(cpu, &step.samples, logits, VOCABULARY), sampling);
    let tokens = cpu.read(&tokens, samples).wait().unwrap();
    let reported = cpu.read(&logprobs, samples).wait().unwrap();
    tokens.into_iter().zip(reported).collect()
}

#[test]
fn choices_are_those_of_the_mask_alone_and_scores_know_of_none() {
    let logits: Vec<f32> = (0..SLOTS * POSITIONS)
        .flat_map(|row| numbers((6, 0, row), VOCABULARY, 4.0))
        .collect();
    let masks = masks();
    let barred: Vec<f32> = logits
        .iter()
        .zip(masks.iter().flatten())
        .map(|(logit, allowed)| if *allowed { *logit } else { -1e30 })
        .collect();
    for (name, cpu) in devices() {
        for temperature in [0.0, 0.8] {
            let masked = run(&cpu, &logits, temperature, (true, 0));
            let plain = run(&cpu, &logits, temperature, (false, 0));
            let confined = run(&cpu, &barred, temperature, (false, 0));
            for row in 0..SLOTS * POSITIONS {
                assert_eq!(
                    masked[row].0, confined[row].0,
                    "{name}: row {row} at {temperature}"
                );
                // The chosen token's own score comes first; the most likely ones behind it are the model's.
                assert_eq!(
                    bits(&masked[row].1.top),
                    bits(&plain[row].1.top),
                    "{name}: row {row} at {temperature}"
                );
            }
            assert!(
                (0..9).any(|row| masked[row].0 != plain[row].0),
                "{name}: masks change something"
            );
        }
    }
}

#[test]
fn a_mask_outlives_options_that_leave_nothing_of_it() {
    let logits: Vec<f32> = (0..SLOTS * POSITIONS)
        .flat_map(|row| numbers((8, 0, row), VOCABULARY, 4.0))
        .collect();
    let masks = masks();
    for (name, cpu) in devices() {
        for (row, (token, _)) in run(&cpu, &logits, 0.8, (true, 100)).into_iter().enumerate() {
            let own = &logits[row * VOCABULARY..][..VOCABULARY];
            let best = (0..VOCABULARY)
                .filter(|token| masks[row][*token])
                .max_by(|a, b| own[*a].total_cmp(&own[*b]));
            assert_eq!(Some(token as usize), best, "{name}: row {row}");
        }
    }
}

#[test]
fn given_drafts_take_the_place_of_the_slots_own() {
    let (_, cpu) = devices().remove(0);
    let (slots, step) = (slots(&cpu), step(&cpu));
    let mut state = Slot {
        generation: 4,
        length: 3,
        max_length: 12,
        newest: 50,
        draft_count: 2,
        ..Slot::default()
    };
    state.drafts[..2].copy_from_slice(&[60, 61]);
    cpu.write(&slots.state, &[state; SLOTS]);
    let row = |slot: u32, generation: u32, flags: i32, count: i32| PlanRow {
        slot,
        generation,
        kind: PlanRow::VERIFY,
        flags,
        count,
        source: Slot::FROM_GRAMMAR,
        snapshot_at: -1,
        ..PlanRow::default()
    };
    let all = masks();
    let masks: Vec<Vec<u32>> = all.iter().map(|mask| words(mask)).collect();
    let masks = |range: std::ops::Range<usize>| masks[range].iter().map(Vec::as_slice);
    // One with drafts of its own, one of a former owner, one with given drafts.
    let mut message = PlanMessage::new(VOCABULARY.div_ceil(32));
    message.push(row(0, 4, 0, 2), [], masks(0..0));
    let given = PlanRow::GIVEN | PlanRow::MASKED;
    message.push(row(1, 3, given, 2), [90, 91], masks(0..3));
    message.push(row(2, 4, given, 2), [80, 81], masks(3..6));
    let mut host = Host::without_records(&cpu, SLOTS, 256);
    host.prepare(&mut message, &slots, &step);
    assert_eq!(cpu.read(&step.samples.live, 1).wait().unwrap(), [6]);
    let tokens = cpu.read(&step.token_rows, 6).wait().unwrap();
    let ids: Vec<i32> = tokens.iter().map(|row| row.id).collect();
    assert_eq!(ids, [50, 60, 61, 50, 80, 81]);
    // The masks of the former owner's row come before those of the last one.
    let logits = cpu.read(&step.logits_rows, 6).wait().unwrap();
    let masks: Vec<i32> = logits.iter().map(|row| row.mask).collect();
    assert_eq!(masks, [0, 0, 0, 4, 5, 6]);
    let after = cpu.read(&slots.state, SLOTS).wait().unwrap();
    let sources: Vec<i32> = after.iter().map(|slot| slot.source).collect();
    assert_eq!(sources, [0, 0, Slot::FROM_GRAMMAR]);
}
