//! What the scheduler passes on: measured times to the throttle, and places for states to those that may have them. If it
//! did not, every token would still be right.

use crate::parts::{self, Free};
use paceline_schedule::{
    CheckedRequest, DepthControl, MaskJob, MaskResult, MaskWorkers, Pipeline, RealClock, RecurrentConfig,
    RequestId, RunnerFault, Scheduler, SchedulerConfig, StepRunner,
};
use paceline_types::{Constraint, DraftSource, RowEnd, RowOutput, StepOutput, StepPlan, Work};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

const CONFIG: SchedulerConfig = SchedulerConfig {
    max_batched_tokens: 512,
    num_blocks: 400,
    ..parts::CONFIG
};

fn request(id: u64, prompt: usize) -> CheckedRequest {
    parts::request(id, prompt, prompt + 100)
}

/// Plans and collects a step whose tokens take a microsecond each.
fn step(scheduler: &mut Scheduler) -> StepPlan {
    let plan = scheduler.plan(0).expect("there is work");
    let row = |work: &Work| RowOutput {
        tokens: vec![5; usize::from(!matches!(work, Work::Prefill { last: false, .. }))],
        ..RowOutput::default()
    };
    let output = StepOutput {
        step: plan.step,
        rows: plan.rows.iter().map(|planned| row(&planned.work)).collect(),
        device_ns: (0, 1_000 * plan.tokens() as u64),
        draft_ns: 0,
        draft_passes: 0,
    };
    scheduler.collect(&plan, output);
    scheduler.check_integrity();
    plan
}

#[test]
fn prompts_beside_streams_get_what_measured_steps_leave_room_for() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_step_ns: Some(101_000),
        ..CONFIG
    });
    scheduler.add(request(1, 8)).expect("it fits");
    for _ in 0..10 {
        step(&mut scheduler);
    }
    scheduler.add(request(2, 1000)).expect("it fits");
    // A step of 101 microseconds: one for the stream's token, a hundred for the prompt's.
    let pieces: Vec<usize> = (0..2)
        .map(|_| step(&mut scheduler).rows[1].work.tokens())
        .collect();
    assert_eq!(pieces, [100, 100]);
}

#[test]
fn half_of_the_places_for_states_stay_for_what_is_worth_keeping() {
    let snapshots = 4;
    let mut scheduler = Scheduler::new(SchedulerConfig {
        recurrent: Some(RecurrentConfig {
            snapshots,
            interval: 1600,
        }),
        prefix_caching: true,
        ..CONFIG
    });
    for id in 0..4 {
        scheduler.add(request(id, 10)).expect("it fits");
    }
    // All four come to the end of their first block while they decode.
    let mut saving = 0;
    for _ in 0..20 {
        let plan = step(&mut scheduler);
        let decodes = plan
            .rows
            .iter()
            .filter(|row| matches!(row.work, Work::Verify { .. }));
        saving = saving.max(decodes.filter(|row| row.snapshot.is_some()).count());
    }
    assert_eq!(saving, snapshots / 2);
}

/// States are saved on the way: a prompt takes the steps that its tokens fill, also where it ends at a point to save at.
#[test]
fn saving_states_takes_no_step_of_its_own() {
    for (prompt, expected) in [
        (512, vec![512]),
        (1024, vec![512, 512]),
        (1030, vec![512, 512, 6]),
    ] {
        let mut scheduler = Scheduler::new(SchedulerConfig {
            recurrent: Some(RecurrentConfig {
                snapshots: 4,
                interval: CONFIG.max_batched_tokens,
            }),
            prefix_caching: true,
            ..CONFIG
        });
        scheduler.add(request(1, prompt)).expect("it fits");
        let pieces: Vec<StepPlan> = expected.iter().map(|_| step(&mut scheduler)).collect();
        let tokens: Vec<usize> = pieces.iter().map(StepPlan::tokens).collect();
        assert_eq!(tokens, expected);
        let first = pieces[0].rows[0].snapshot.expect("a state is saved");
        assert_eq!(first.position, if prompt == 512 { 496 } else { 512 });
    }
}

#[test]
fn what_runs_for_requests_that_have_left_is_counted() {
    let mut scheduler = Scheduler::new(CONFIG);
    scheduler.add(request(1, 8)).expect("it fits");
    let plan = scheduler.plan(0).expect("there is work");
    scheduler.cancel(RequestId(1));
    let output = StepOutput {
        step: plan.step,
        rows: vec![RowOutput {
            tokens: vec![5],
            ..RowOutput::default()
        }],
        device_ns: (0, 8_000),
        draft_ns: 0,
        draft_passes: 0,
    };
    scheduler.collect(&plan, output);
    let counters = scheduler.counters();
    assert_eq!((counters.wasted_rows, counters.wasted_tokens), (1, 8));
}

/// A row whose text has ended in the step before runs nothing: it is there for nobody, and costs no token.
#[test]
fn a_row_behind_the_end_of_its_text_wastes_no_tokens() {
    let mut scheduler = Scheduler::new(CONFIG);
    scheduler.add(request(1, 8)).expect("it fits");
    step(&mut scheduler);
    let plans = [(); 2].map(|()| scheduler.plan(0).expect("there is work"));
    let rows = [
        RowOutput {
            tokens: vec![5],
            end: Some(RowEnd::StopToken),
            ..RowOutput::default()
        },
        RowOutput::default(),
    ];
    for (plan, row) in plans.iter().zip(rows) {
        let output = StepOutput {
            step: plan.step,
            rows: vec![row],
            device_ns: (0, 1_000),
            draft_ns: 0,
            draft_passes: 0,
        };
        scheduler.collect(plan, output);
    }
    let counters = scheduler.counters();
    assert_eq!((counters.wasted_rows, counters.wasted_tokens), (1, 0));
    assert_eq!(
        (scheduler.last_step().decodes, scheduler.last_step().tokens()),
        (0, 0)
    );
}

/// What a step with a prompt in it takes is not what its decodes take.
#[test]
fn decodes_are_measured_in_steps_of_their_own() {
    let mut scheduler = Scheduler::new(CONFIG);
    scheduler.add(request(1, 8)).expect("it fits");
    for _ in 0..5 {
        step(&mut scheduler);
    }
    assert!(scheduler.costs().knows(1));
    for id in 2..=6 {
        scheduler.add(request(id, 300)).expect("it fits");
        let plan = step(&mut scheduler);
        assert_eq!(plan.tokens(), 301);
        assert!(scheduler.cancel(RequestId(id)));
    }
    assert!(!scheduler.costs().knows(301));
}

/// A request of a better priority pushes others out to get their room. Where that would not be enough, it waits, and they
/// go on.
#[test]
fn nothing_is_preempted_for_a_request_that_would_not_fit_all_the_same() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        num_blocks: 10,
        blocks_per_request: 10,
        ..CONFIG
    });
    let add = |scheduler: &mut Scheduler, id, prompt, priority| {
        let new = CheckedRequest {
            priority,
            max_length: prompt + 5,
            ..request(id, prompt)
        };
        scheduler.add(new).expect("it fits");
    };
    add(&mut scheduler, 1, 120, 0);
    add(&mut scheduler, 2, 8, 5);
    step(&mut scheduler);
    // Eight blocks are held by the first one, which outranks it; the second one's would not do.
    add(&mut scheduler, 3, 70, 1);
    let plan = step(&mut scheduler);
    assert_eq!(plan.rows.len(), 2);
    assert_eq!(scheduler.counters().preemptions, 0);
}

/// What a step costs without drafts is measured before drafts are verified: nothing could tell what they gain otherwise.
#[test]
fn the_first_decodes_are_plain() {
    let config = SchedulerConfig { drafts: 3, ..CONFIG };
    let mut scheduler = Scheduler::with_policy(config, Box::new(DepthControl::new()));
    scheduler.add(request(1, 8)).expect("it fits");
    step(&mut scheduler);
    let verified: Vec<usize> = (0..20)
        .map(|_| match step(&mut scheduler).rows[0].work {
            Work::Verify { drafts } => drafts,
            _ => panic!("it decodes"),
        })
        .collect();
    assert_eq!(verified[0], 0);
    assert!(verified.iter().any(|drafts| *drafts > 0), "{verified:?}");
}

/// Where every step verifies drafts, the time of plain steps would be remembered and never measured again, and the machine
/// may have changed meanwhile.
#[test]
fn plain_steps_are_measured_again_now_and_then() {
    let config = SchedulerConfig {
        drafts: 3,
        num_blocks: 1500,
        blocks_per_request: 1500,
        ..CONFIG
    };
    let mut scheduler = Scheduler::with_policy(config, Box::new(DepthControl::new()));
    let new = CheckedRequest {
        max_length: 20_000,
        ..request(1, 8)
    };
    scheduler.add(new).expect("it fits");
    let mut plain = Vec::new();
    for number in 0..3000 {
        let plan = scheduler.plan(0).expect("there is work");
        let (tokens, drafted) = match plan.rows[0].work {
            Work::Verify { drafts } => (1 + drafts, drafts),
            _ => (1, 0),
        };
        if drafted == 0 {
            plain.push(number);
        }
        let row = RowOutput {
            tokens: vec![5; tokens],
            drafted,
            source: (drafted > 0).then_some(DraftSource::Neural),
            ..RowOutput::default()
        };
        let output = StepOutput {
            step: plan.step,
            rows: vec![row],
            device_ns: (0, 10_000 + 100 * tokens as u64),
            draft_ns: 300,
            draft_passes: 1,
        };
        scheduler.collect(&plan, output);
    }
    let later = plain.iter().filter(|number| **number > 500).count();
    assert!((1..10).contains(&later), "{plain:?}");
}

/// A device and a worker that say when they are asked for something.
struct Told(Sender<&'static str>);

impl StepRunner for Told {
    type InFlight = StepPlan;

    fn submit(&mut self, plan: &StepPlan) -> Result<StepPlan, RunnerFault> {
        self.0.send("submit").expect("the test reads");
        Ok(plan.clone())
    }

    fn collect(&mut self, plan: StepPlan) -> Result<StepOutput, RunnerFault> {
        self.0.send("wait").expect("the test reads");
        Ok(StepOutput {
            step: plan.step,
            rows: vec![RowOutput::default(); plan.rows.len()],
            device_ns: (0, 1),
            draft_ns: 0,
            draft_passes: 0,
        })
    }

    fn host_waits(&self) -> u64 {
        0
    }
}

impl MaskWorkers for Told {
    fn start(&mut self, _: MaskJob) -> Option<MaskJob> {
        self.0.send("masks").expect("the test reads");
        None
    }

    fn done(&mut self) -> Option<MaskResult> {
        None
    }

    fn wait(&mut self) {}
}

/// The first mask of a text is computed while the device runs its prompt: its worker has the job before the host waits.
#[test]
fn masks_are_computed_while_the_device_runs() {
    let (sender, events) = channel();
    let scheduler = Scheduler::new(CONFIG);
    let pipeline = Pipeline::new(scheduler, Told(sender.clone()), RealClock::start(), 1);
    let mut pipeline = pipeline.with_mask_workers(Box::new(Told(sender)));
    let new = CheckedRequest {
        constraint: Some(Arc::new(Free)),
        ..request(1, 40)
    };
    pipeline.scheduler_mut().add(new).expect("it fits");
    pipeline.step().expect("the device works");
    let events: Vec<&str> = events.try_iter().collect();
    assert_eq!(events, ["submit", "masks", "wait"]);
}

/// Three constrained requests and two masks per step: the one that finds no room comes first in the next, so that none
/// falls behind, and one without a constraint is in every step.
#[test]
fn requests_whose_masks_do_not_fit_take_turns() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_masks: 2,
        ..CONFIG
    });
    for id in 1..=3 {
        let constraint: Arc<dyn Constraint> = Arc::new(Free);
        let confined = CheckedRequest {
            constraint: Some(constraint),
            ..request(id, 4)
        };
        scheduler.add(confined).expect("it fits");
    }
    scheduler.add(request(4, 4)).expect("it fits");
    let mut rows = [0; 4];
    for _ in 0..40 {
        while let Some(job) = scheduler.next_mask_job() {
            scheduler.take_masks(job.run());
        }
        for row in step(&mut scheduler).rows {
            rows[row.slot.0 as usize] += usize::from(matches!(row.work, Work::Verify { .. }));
        }
    }
    rows.sort_unstable();
    assert!(rows[0] >= 24 && rows[2] - rows[0] <= 1, "{rows:?}");
    assert!(rows[3] >= 38, "{rows:?}");
}
