//! The frame of a step, prepare and accept, against a naive model of its contract: a slot is a list of tokens, and
//! every table and every record follows from that list.

mod model;
mod plan;

use model::Bench;
use paceline_device::abi::{PlanRow, RecordRow};
use plan::{Admission, Row, Work};
use proptest::prelude::*;

const WINDOWS: [usize; 7] = [0, 1, 2, 3, 5, 8, 15];
const STOP: i32 = 90;

/// A slot that has run a prompt of `prompt` tokens and holds the token after it.
fn decoding(slot: usize, prompt: usize, max_length: usize) -> Bench {
    let mut bench = Bench::new();
    let rows = prefill_of(&mut bench, slot, prompt, max_length);
    assert_eq!(rows[0].count, 1);
    bench
}

fn prefill_of(bench: &mut Bench, slot: usize, prompt: usize, max_length: usize) -> Vec<RecordRow> {
    let admission = Admission::new(slot, 7, max_length, &[STOP]);
    bench.step(
        &[admission],
        &[Row::prefill(slot, 7, 0, prompt, PlanRow::SAMPLE_LAST)],
    )
}

fn drafts(count: usize) -> Vec<i32> {
    (0..count as i32).map(|place| 20 + place).collect()
}

fn tokens(row: &RecordRow) -> &[i32] {
    &row.tokens[..row.count as usize]
}

#[test]
fn every_acceptance_count_yields_one_token_more() {
    for window in WINDOWS {
        for agree in 0..=window {
            let mut bench = decoding(1, 9, 100);
            bench.draft(1, &drafts(window));
            let rows = bench.step(&[], &[Row::verify(1, 7, window, agree)]);
            assert_eq!(rows[0].count, agree as i32 + 1, "{agree} of {window}");
            assert_eq!(rows[0].drafted, window as i32);
            assert_eq!(&tokens(&rows[0])[..agree], &drafts(window)[..agree]);
            // The next step folds what was accepted and goes on behind it, whatever was rejected.
            bench.draft(1, &drafts(window));
            bench.step(&[], &[Row::verify(1, 7, window, window)]);
        }
    }
}

#[test]
fn a_stop_token_ends_the_text_unless_it_comes_after_a_rejected_draft() {
    for window in WINDOWS {
        for agree in 0..=window {
            for place in 0..=window {
                let mut bench = decoding(2, 5, 100);
                let mut window_drafts = drafts(window);
                if place < window && place != agree {
                    window_drafts[place] = STOP;
                }
                bench.draft(2, &window_drafts);
                let mut row = Row::verify(2, 7, window, agree);
                // The first token that is not a draft's, or the one behind them all.
                row.fresh = if place == agree { STOP } else { 50 };
                let rows = bench.step(&[], &[row]);
                let stopped = place <= agree;
                let expected = if stopped { place } else { agree } + 1;
                assert_eq!(rows[0].count, expected as i32, "{window} {agree} {place}");
                assert_eq!(
                    rows[0].ended,
                    i32::from(stopped) * RecordRow::STOPPED,
                    "{window} {agree} {place}"
                );
                let later = bench.step(&[], &[Row::verify(2, 7, window, 0)]);
                assert_eq!(later[0].count, i32::from(!stopped));
            }
        }
    }
}

#[test]
fn the_length_limit_cuts_the_window_and_ends_the_request() {
    for window in WINDOWS {
        for room in 1..=window + 2 {
            let mut bench = decoding(0, 6, 7 + room);
            bench.draft(0, &drafts(window));
            let rows = bench.step(&[], &[Row::verify(0, 7, window, window)]);
            // There is no use in a draft behind which nothing may follow.
            assert_eq!(rows[0].drafted, window.min(room - 1) as i32);
            let count = (window + 1).min(room);
            assert_eq!(rows[0].count, count as i32);
            let full = count == room;
            assert_eq!(rows[0].ended, i32::from(full) * RecordRow::FULL);
            let later = bench.step(&[], &[Row::verify(0, 7, window, 0)]);
            assert_eq!(later[0].count, i32::from(!full));
        }
    }
}

#[test]
fn no_more_drafts_are_run_than_planned() {
    for held in WINDOWS {
        for planned in WINDOWS {
            let mut bench = decoding(3, 4, 100);
            bench.draft(3, &drafts(held));
            let rows = bench.step(&[], &[Row::verify(3, 7, planned, 15)]);
            assert_eq!(rows[0].drafted, held.min(planned) as i32);
            // What was cut off is not a draft of the next step.
            let later = bench.step(&[], &[Row::verify(3, 7, 15, 0)]);
            assert_eq!(later[0].drafted, 0);
        }
    }
}

#[test]
fn rows_of_a_finished_slot_or_another_owner_do_nothing_and_keep_the_packing() {
    let mut bench = decoding(0, 5, 6 + 1);
    for slot in 1..3 {
        prefill_of(&mut bench, slot, 4 + slot, 60);
        bench.draft(slot, &drafts(3));
    }
    let full = bench.step(&[], &[Row::verify(0, 7, 0, 0)]);
    assert_eq!(full[0].ended, RecordRow::FULL);
    let rows = bench.step(
        &[],
        &[
            Row::verify(0, 7, 3, 0),
            Row::verify(1, 7, 3, 2),
            Row::prefill(2, 6, 0, 5, PlanRow::SAMPLE_ALL | PlanRow::SAMPLE_LAST),
            Row::verify(3, 7, 3, 3),
            Row::verify(2, 7, 3, 3),
        ],
    );
    let counts: Vec<i32> = rows.iter().map(|row| row.count).collect();
    assert_eq!(counts, [0, 3, 0, 0, 4]);
    let firsts: Vec<i32> = rows.iter().map(|row| row.first_logprobs).collect();
    assert_eq!(firsts, [0, 0, 4, 4, 4]);
    assert!(
        [0, 2, 3]
            .iter()
            .all(|row| rows[*row].tokens.iter().all(|t| *t == -1))
    );
}

#[test]
fn log_probabilities_are_counted_where_they_are_asked_for() {
    let mut bench = Bench::new();
    let admissions = [0, -1, 20, -1].into_iter().enumerate().map(|(slot, logprobs)| {
        let mut admission = Admission::new(slot, 7, 60, &[]);
        admission.sampling.logprobs = logprobs;
        admission
    });
    let prefill = |slot, flags| Row::prefill(slot, 7, 0, 5, flags);
    let rows = bench.step(
        &admissions.collect::<Vec<_>>(),
        &[
            prefill(1, PlanRow::SAMPLE_ALL),
            prefill(0, PlanRow::SAMPLE_ALL),
            prefill(3, PlanRow::SAMPLE_LAST),
            prefill(2, PlanRow::SAMPLE_LAST),
        ],
    );
    assert!(rows.iter().map(|row| row.first_logprobs).eq([0, 0, 5, 5]));
    for slot in 2..4 {
        bench.draft(slot, &drafts(3));
    }
    let rows = bench.step(
        &[],
        &[
            Row::verify(2, 7, 3, 1),
            Row::verify(3, 7, 3, 2),
            Row::verify(2, 6, 3, 0),
            Row::prefill(0, 7, 5, 2, PlanRow::SAMPLE_LAST),
        ],
    );
    assert!(rows.iter().map(|row| row.first_logprobs).eq([0, 4, 4, 4]));
}

#[test]
fn an_admission_and_another_slots_verify_share_a_step() {
    let mut bench = decoding(1, 17, 80);
    bench.draft(1, &drafts(5));
    let newcomer = Admission::new(0, 3, 40, &[STOP]);
    let rows = bench.step(
        &[newcomer],
        &[
            Row::verify(1, 7, 5, 4),
            Row::prefill(0, 3, 0, 11, PlanRow::SAMPLE_LAST),
        ],
    );
    assert_eq!((rows[0].count, rows[1].count), (5, 1));
    // The first step after a prompt, with drafts at once.
    bench.draft(0, &drafts(8));
    let rows = bench.step(&[], &[Row::verify(0, 3, 8, 8), Row::verify(1, 7, 5, 0)]);
    assert_eq!((rows[0].count, rows[1].count), (9, 1));
}

#[test]
fn a_cached_start_runs_the_rest_from_its_state_and_uses_that_state_once() {
    let mut bench = Bench::new();
    let mut admission = Admission::new(2, 5, 70, &[]);
    admission.restore = 3;
    bench.step(&[admission], &[Row::prefill(2, 5, 32, 6, 0)]);
    assert_eq!(bench.restores(), [4]);
    bench.step(&[], &[Row::prefill(2, 5, 38, 4, PlanRow::SAMPLE_LAST)]);
    assert_eq!(bench.restores(), [0]);
    bench.draft(2, &drafts(3));
    bench.step(&[], &[Row::verify(2, 5, 3, 3)]);
    assert_eq!(bench.restores(), [0]);
}

#[test]
fn a_state_is_saved_exactly_when_certain_tokens_reach_its_position() {
    // Of a window only accepted drafts and the newest token are certain, and they are when the next row runs.
    for (window, prompt) in [0, 1, 3, 8, 15].into_iter().flat_map(|window| {
        let prompts = [3, 12, 13, 14, 15, 16, 27];
        prompts.into_iter().map(move |prompt| (window, prompt))
    }) {
        for agree in 0..=window {
            for position in [0, 16, 32, 48] {
                let mut bench = decoding(1, prompt, 100);
                bench.draft(1, &drafts(window));
                bench.step(&[], &[Row::verify(1, 7, window, agree)]);
                bench.draft(1, &drafts(window));
                let mut row = Row::verify(1, 7, window, window);
                row.snapshot = Some((position, 2));
                let rows = bench.step(&[], &[row]);
                let before = prompt as i32 + 1;
                let known = before + 1 + agree as i32;
                let reached = position > before && position <= known;
                assert_eq!(
                    rows[0].snapshot,
                    i32::from(reached),
                    "{window} {prompt} {agree} {position}"
                );
            }
        }
    }
    for position in [0, 16, 32, 48, 64] {
        let mut bench = Bench::new();
        let mut row = Row::prefill(0, 1, 16, 33, PlanRow::SAMPLE_LAST);
        row.snapshot = Some((position, 1));
        let mut admission = Admission::new(0, 1, 90, &[]);
        admission.restore = 1;
        let rows = bench.step(&[admission], &[row]);
        assert_eq!(rows[0].snapshot, i32::from([32, 48].contains(&position)));
    }
}

/// What one slot does in one step, as numbers to be interpreted by where the slot is.
#[derive(Clone, Debug)]
struct Draw {
    act: u8,
    count: usize,
    planned: usize,
    agree: usize,
    fresh: i32,
    drafts: Vec<i32>,
    snapshot: Option<(i32, i32)>,
    flags: i32,
}

fn any_draw() -> impl Strategy<Value = Draw> {
    let snapshot = prop::option::weighted(0.4, ((0..5_i32).prop_map(|place| 16 * place), 0..4_i32));
    let drafts = prop::collection::vec(0..12_i32, 0..=15);
    let numbers = (
        0..12_u8,
        1..14_usize,
        0..=15_usize,
        0..=15_usize,
        0..12_i32,
        0..4_i32,
    );
    (numbers, drafts, snapshot).prop_map(|((act, count, planned, agree, fresh, flags), drafts, snapshot)| {
        Draw {
            act,
            count,
            planned,
            agree,
            fresh,
            drafts,
            snapshot,
            flags,
        }
    })
}

/// Where the test is with a slot.
#[derive(Clone, Copy, Default)]
struct Plan {
    generation: u32,
    next: usize,
    decoding: bool,
}

fn interpret(bench: &mut Bench, plans: &mut [Plan], slot: usize, draw: &Draw) -> (Option<Admission>, Row) {
    let own = plans[slot];
    if own.generation > 0 && draw.act == 1 {
        // Late work of an owner before.
        let stale = if draw.flags == 0 {
            Row::prefill(
                slot,
                own.generation - 1,
                own.next,
                draw.count,
                PlanRow::SAMPLE_ALL,
            )
        } else {
            Row::verify(slot, own.generation - 1, draw.planned, draw.agree)
        };
        return (None, stale);
    }
    let fresh_start = own.generation == 0 || draw.act == 0 || (bench.finished(slot) && draw.act < 6);
    let mut admission = None;
    if fresh_start {
        let cached = if draw.act.is_multiple_of(2) {
            0
        } else {
            16 * (1 + draw.planned % 2)
        };
        plans[slot] = Plan {
            generation: own.generation + 1,
            next: cached,
            decoding: false,
        };
        let mut new = Admission::new(
            slot,
            own.generation + 1,
            cached + 30 + draw.agree * 2,
            &[draw.fresh],
        );
        new.restore = if cached > 0 { draw.flags } else { -1 };
        new.sampling.logprobs = draw.count as i32 % 3 - 1;
        admission = Some(new);
    } else if own.decoding {
        bench.draft(slot, &draw.drafts);
        let mut row = Row::verify(slot, own.generation, draw.planned, draw.agree);
        (row.fresh, row.snapshot) = (draw.fresh, draw.snapshot);
        return (None, row);
    }
    let own = &mut plans[slot];
    own.decoding = draw.flags & PlanRow::SAMPLE_LAST != 0 || own.next >= 14;
    let last = if own.decoding { PlanRow::SAMPLE_LAST } else { 0 };
    let flags = (draw.flags & PlanRow::SAMPLE_ALL) | last;
    let count = draw.count.min(5 + draw.count % 2);
    let mut row = Row::prefill(slot, own.generation, own.next, count, flags);
    (row.fresh, row.snapshot) = (draw.fresh, draw.snapshot);
    if let Work::Prefill { following, .. } = &mut row.work {
        *following = if own.decoding { -1 } else { draw.fresh };
    }
    own.next += count;
    (admission, row)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_steps_does_what_lists_of_tokens_say(
        steps in prop::collection::vec(prop::collection::vec(prop::option::weighted(0.8, any_draw()), Bench::SLOTS), 1..25)
    ) {
        let mut bench = Bench::new();
        let mut plans = [Plan::default(); Bench::SLOTS];
        for (turn, step) in steps.iter().enumerate() {
            let (mut admissions, mut rows) = (Vec::new(), Vec::new());
            for offset in 0..Bench::SLOTS {
                let slot = (turn + offset) % Bench::SLOTS;
                if let Some(draw) = &step[slot] {
                    let (admission, row) = interpret(&mut bench, &mut plans, slot, draw);
                    admissions.extend(admission);
                    rows.push(row);
                }
            }
            bench.step(&admissions, &rows);
        }
    }
}
