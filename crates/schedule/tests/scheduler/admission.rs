//! Who gets a slot and when: not before there is room for it, not at the price of those that run, and not later than it can.

use crate::parts;
use paceline_schedule::{CheckedRequest, GroupId, Scheduler, SchedulerConfig};
use paceline_types::{RowEnd, RowOutput, StepOutput, StepPlan, Work};

const CONFIG: SchedulerConfig = SchedulerConfig {
    max_batched_tokens: 512,
    ..parts::CONFIG
};

fn request(id: u64, (prompt, length): (usize, usize), priority: i32) -> CheckedRequest {
    CheckedRequest {
        priority,
        ..parts::request(id, prompt, prompt + length)
    }
}

fn add(scheduler: &mut Scheduler, id: u64, sizes: (usize, usize), priority: i32) {
    scheduler.add(request(id, sizes, priority)).expect("it fits");
}

/// A step in which every row that may chooses a token; those of slots in `ending` end. Who is admitted is part of it.
fn step(scheduler: &mut Scheduler, ending: &[u32]) -> StepPlan {
    let plan = scheduler.plan(0).expect("there is work");
    assert_eq!(plan.admissions.len(), scheduler.admissions().len());
    let rows = plan.rows.iter().map(|row| RowOutput {
        tokens: vec![5; usize::from(!matches!(row.work, Work::Prefill { last: false, .. }))],
        end: ending.contains(&row.slot.0).then_some(RowEnd::StopToken),
        ..RowOutput::default()
    });
    let output = StepOutput {
        step: plan.step,
        rows: rows.collect(),
        device_ns: (0, 1_000 * plan.tokens() as u64),
        draft_ns: 0,
        draft_passes: 0,
    };
    scheduler.collect(&plan, output);
    scheduler.check_integrity();
    plan
}

fn admitted(scheduler: &Scheduler) -> Vec<u64> {
    scheduler.admissions().iter().map(|id| id.0).collect()
}

/// One that is let in earlier would hold blocks that it has no use for, and miss what others compute meanwhile.
#[test]
fn nobody_gets_a_slot_in_a_step_that_has_no_token_left_for_it() {
    for (max_batched_tokens, max_step_ns) in [(33, None), (512, Some(1))] {
        let mut scheduler = Scheduler::new(SchedulerConfig {
            max_batched_tokens,
            max_step_ns,
            ..CONFIG
        });
        add(&mut scheduler, 1, (4, 100), 0);
        step(&mut scheduler, &[]);
        // 32 tokens of prompts beside the stream, by the one limit and by the other.
        add(&mut scheduler, 2, (64, 100), 0);
        add(&mut scheduler, 3, (64, 100), 0);
        let running: Vec<usize> = (0..4)
            .map(|_| {
                step(&mut scheduler, &[]);
                scheduler.running()
            })
            .collect();
        assert_eq!(running[..2], [2, 2], "{max_step_ns:?}");
        assert_eq!(running[2..], [3, 3], "{max_step_ns:?}");
    }
}

/// A newcomer that fits, but would be pushed out by the next block of one that runs, waits for it.
#[test]
fn a_newcomer_leaves_a_block_to_those_that_run() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        num_blocks: 4,
        blocks_per_request: 4,
        ..CONFIG
    });
    add(&mut scheduler, 1, (30, 8), 0);
    step(&mut scheduler, &[]);
    add(&mut scheduler, 2, (30, 8), 0);
    // Two blocks are free, and the first one comes to its third.
    for _ in 0..4 {
        step(&mut scheduler, &[]);
        assert_eq!(scheduler.running(), 1);
    }
    step(&mut scheduler, &[0]);
    step(&mut scheduler, &[]);
    assert_eq!(admitted(&scheduler), [2]);
    assert_eq!(scheduler.counters().preemptions, 0);
}

/// One of a better priority need not: whoever is in its way goes.
#[test]
fn an_urgent_newcomer_takes_the_last_block() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        num_blocks: 4,
        blocks_per_request: 4,
        ..CONFIG
    });
    add(&mut scheduler, 1, (20, 8), 0);
    step(&mut scheduler, &[]);
    add(&mut scheduler, 2, (20, 8), -1);
    step(&mut scheduler, &[]);
    assert_eq!(admitted(&scheduler), [2]);
    // Both fit as they are.
    assert_eq!(scheduler.running(), 2);
    assert_eq!(scheduler.counters().preemptions, 0);
}

#[test]
fn an_urgent_newcomer_gets_the_blocks_of_the_less_urgent_and_of_nobody_else() {
    // Held by those that run, with their priorities; needed by the newcomer of priority 1, and how many are pushed out.
    for (held, needed, pushed_out) in [
        ([(3, 0), (5, 5)], 6, 1),
        ([(3, 5), (5, 5)], 6, 1),
        ([(3, 5), (5, 5)], 9, 2),
        // What is held by one of its own priority is out of reach.
        ([(5, 1), (3, 5)], 6, 0),
        ([(5, 0), (3, 5)], 6, 0),
    ] {
        let mut scheduler = Scheduler::new(SchedulerConfig {
            num_blocks: 10,
            blocks_per_request: 10,
            ..CONFIG
        });
        for (id, (blocks, priority)) in (1..).zip(held) {
            add(&mut scheduler, id, (16 * blocks - 8, 8), priority);
        }
        step(&mut scheduler, &[]);
        assert_eq!(scheduler.running(), 2);
        add(&mut scheduler, 3, (16 * needed - 8, 8), 1);
        step(&mut scheduler, &[]);
        let expected: &[u64] = if pushed_out > 0 { &[3] } else { &[] };
        let preemptions = scheduler.counters().preemptions;
        assert_eq!(
            (admitted(&scheduler).as_slice(), preemptions),
            (expected, pushed_out),
            "{held:?}"
        );
    }
}

/// The members of a group wait for the prompt that the first of them computes, and not for its text.
#[test]
fn siblings_start_as_soon_as_their_prompt_is_computed() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_batched_tokens: 32,
        ..CONFIG
    });
    for id in 1..=3 {
        let new = CheckedRequest {
            group: Some(GroupId(9)),
            ..request(id, (64, 100), 0)
        };
        scheduler.add(new).expect("it fits");
    }
    let started: Vec<Vec<u64>> = (0..3)
        .map(|_| {
            step(&mut scheduler, &[]);
            admitted(&scheduler)
        })
        .collect();
    assert_eq!(started, [vec![1], vec![], vec![2, 3]]);
}

/// That the first in the queue needs more blocks than there are is remembered of it, and not of whoever comes before it later.
#[test]
fn one_that_does_not_fit_keeps_nobody_back_that_comes_before_it() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        num_blocks: 10,
        blocks_per_request: 10,
        ..CONFIG
    });
    add(&mut scheduler, 1, (120, 8), -2);
    step(&mut scheduler, &[]);
    add(&mut scheduler, 2, (70, 8), 0);
    step(&mut scheduler, &[]);
    assert_eq!(scheduler.running(), 1);
    add(&mut scheduler, 3, (8, 8), -1);
    step(&mut scheduler, &[]);
    assert_eq!(admitted(&scheduler), [3]);
    // It comes in as soon as its blocks are there.
    step(&mut scheduler, &[0]);
    step(&mut scheduler, &[]);
    assert_eq!(admitted(&scheduler), [2]);
}
