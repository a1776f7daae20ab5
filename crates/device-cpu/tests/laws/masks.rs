//! Masks: a choice is one of the mask, drawn as if nothing else existed; log-probabilities know of no mask. Drafts that a
//! plan gives take the place of the slot's own.

use crate::harness::{bits, devices, numbers, tensor};
use paceline_device::{
    Backend, LIST_INTS, MaskTable, Pending, Prepare, SAMPLE_FLOATS, Sample, SampledText, SamplingRow,
    SlotLimits, SlotTable, StepLimits, StepTables, plan, slot,
};
use paceline_device_cpu::Cpu;

const VOCABULARY: usize = 101;
const POSITIONS: usize = 3;
const SLOTS: usize = 3;

fn slots(cpu: &Cpu) -> SlotTable<Cpu> {
    let limits = SlotLimits {
        slots: SLOTS,
        blocks_per_slot: 4,
        blocks: 4 * SLOTS,
        block_size: 4,
        snapshots: 0,
    };
    let mut slots = SlotTable::new(cpu, limits).unwrap();
    slots.masks = MaskTable::new(cpu, SLOTS, POSITIONS, VOCABULARY).unwrap();
    slots
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

fn words(masks: &[Vec<bool>]) -> Vec<i32> {
    let word = |bits: &[bool]| {
        bits.iter()
            .enumerate()
            .fold(0, |word, (at, bit)| word | i32::from(*bit) << at)
    };
    masks.iter().flat_map(|mask| mask.chunks(32).map(word)).collect()
}

/// The choices from these logits, with or without masks, and the floats reported.
fn run(
    cpu: &Cpu,
    logits: &[f32],
    temperature: f32,
    (masked, min_length): (bool, i32),
) -> Vec<(i32, Vec<u32>)> {
    let (slots, step) = (slots(cpu), step(cpu));
    let samples = SLOTS * POSITIONS;
    cpu.write(&slots.masks.bits, &words(&masks()));
    let mut state = vec![0; SLOTS * slot::INTS];
    let mut lists = vec![0; SLOTS * LIST_INTS];
    for index in 0..SLOTS {
        state[index * slot::INTS + slot::MIN_LENGTH] = min_length;
        // Every token is a stop token, so that none may come before the minimum length.
        lists[index * LIST_INTS] = VOCABULARY as i32;
        for token in 0..VOCABULARY {
            lists[index * LIST_INTS + 1 + token] = token as i32;
        }
    }
    cpu.write(&slots.state, &state);
    cpu.write(&slots.lists, &lists);
    let row = SamplingRow {
        temperature,
        top_p: 0.95,
        top_k: 0,
        min_p: 0.0,
        seed: 77,
        logprobs: 2,
    };
    let range = |value: fn(usize) -> usize| (0..samples).map(|at| value(at) as i32).collect::<Vec<_>>();
    cpu.write(&step.samples.live, &[samples as i32]);
    // Requests stand in another order than their slots.
    cpu.write(&step.state_slot, &[2, 0, 1]);
    cpu.write(&step.sample_request, &range(|at| [1, 2, 0][at / POSITIONS]));
    cpu.write(&step.sample_position, &range(|at| 5 + at % POSITIONS));
    cpu.write(&step.sampling, &row.encode().repeat(samples));
    if masked {
        cpu.write(&step.sample_mask, &range(|at| 1 + at % POSITIONS));
    }
    let tokens = cpu.buffer(samples).unwrap();
    let logprobs = cpu.buffer(samples * SAMPLE_FLOATS).unwrap();
    cpu.sample(Sample {
        logits: &tensor(cpu, &step.samples, logits, VOCABULARY),
        step: &step,
        slots: Some(&slots),
        text: SampledText::Step,
        tokens: &tokens,
        logprobs: &logprobs,
    });
    let tokens = cpu.read(&tokens, samples).wait().unwrap();
    let floats = cpu.read(&logprobs, samples * SAMPLE_FLOATS).wait().unwrap();
    tokens
        .into_iter()
        .zip(floats.chunks(SAMPLE_FLOATS).map(bits))
        .collect()
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
                    masked[row].1[1..],
                    plain[row].1[1..],
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
    let mut state = vec![0; SLOTS * slot::INTS];
    for index in 0..SLOTS {
        let state = &mut state[index * slot::INTS..][..slot::INTS];
        state[slot::GENERATION] = 4;
        state[slot::LENGTH] = 3;
        state[slot::MAX_LENGTH] = 12;
        state[slot::NEWEST] = 50;
        state[slot::DRAFT_COUNT] = 2;
        state[slot::DRAFTS..][..2].copy_from_slice(&[60, 61]);
    }
    cpu.write(&slots.state, &state);
    let row = |slot: usize, generation: i32, flags: i32, count: i32| {
        let mut row = vec![0; plan::ROW];
        row[plan::ROW_SLOT] = slot as i32;
        row[plan::ROW_GENERATION] = generation;
        row[plan::ROW_KIND] = plan::VERIFY;
        row[plan::ROW_FLAGS] = flags;
        row[plan::ROW_COUNT] = count;
        row[plan::ROW_SOURCE] = slot::FROM_GRAMMAR;
        row[plan::ROW_SNAPSHOT_AT] = -1;
        row
    };
    let mut words = vec![0; plan::HEADER];
    words[plan::ROWS] = 3;
    words[plan::TOKENS] = 5;
    // One with drafts of its own, one of a former owner, one with given drafts.
    words.extend(row(0, 4, 0, 2));
    words.extend(row(1, 3, plan::GIVEN | plan::MASKED, 3));
    words.extend(row(2, 4, plan::GIVEN | plan::MASKED, 2));
    words.extend([90, 91, 92, 80, 81]);
    let plan = cpu.buffer_from(&words).unwrap();
    cpu.prepare(Prepare {
        plan: &plan,
        slots: &slots,
        step: &step,
    });
    assert_eq!(cpu.read(&step.ids, 6).wait().unwrap(), [50, 60, 61, 50, 80, 81]);
    assert_eq!(cpu.read(&step.sample_mask, 6).wait().unwrap(), [0, 0, 0, 1, 2, 3]);
    let after = cpu.read(&slots.state, SLOTS * slot::INTS).wait().unwrap();
    let sources: Vec<i32> = after
        .chunks(slot::INTS)
        .map(|state| state[slot::SOURCE])
        .collect();
    assert_eq!(sources, [0, 0, slot::FROM_GRAMMAR]);
}
