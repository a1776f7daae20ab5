//! What is planned for drafts: asked for a step ahead, within each request's limit, and never at another's cost.

use crate::parts::{self, request};
use paceline_schedule::{
    CheckedRequest, Choice, DraftPolicy, FixedDrafts, RequestId, RequestView, RowDrafts, Scheduler,
    SchedulerConfig, Stage, StepCosts, StepTimes,
};
use paceline_types::{DraftBudget, DraftSource, RowEnd, RowOutput, StepOutput, StepPlan, Work};
use std::sync::{Arc, Mutex};

fn config(num_blocks: usize) -> SchedulerConfig {
    SchedulerConfig {
        num_blocks,
        blocks_per_request: num_blocks,
        drafts: 7,
        ..parts::CONFIG
    }
}

/// Every row has as many drafts as it may, and accepts so many of them.
fn output(plan: &StepPlan, accepted: usize) -> StepOutput {
    let row = |work: &Work| {
        let (tokens, drafted) = match work {
            Work::Prefill { last, .. } => (usize::from(*last), 0),
            Work::Verify { drafts } => (1 + accepted.min(*drafts), *drafts),
            Work::Embed { .. } => (0, 0),
        };
        RowOutput {
            tokens: vec![5; tokens],
            drafted,
            source: (drafted > 0).then_some(DraftSource::Neural),
            ..RowOutput::default()
        }
    };
    StepOutput {
        step: plan.step,
        rows: plan.rows.iter().map(|planned| row(&planned.work)).collect(),
        device_ns: (1_000, 3_000),
        draft_ns: 500,
        draft_passes: 1,
    }
}

fn step(scheduler: &mut Scheduler, accepted: usize) -> StepPlan {
    let plan = scheduler.plan(0).expect("there is work");
    scheduler.collect(&plan, output(&plan, accepted));
    scheduler.check_integrity();
    plan
}

fn both(drafts: usize) -> DraftBudget {
    DraftBudget {
        ngram: drafts,
        neural: drafts,
    }
}

fn verified(plan: &StepPlan) -> Vec<usize> {
    let drafts = plan.rows.iter().map(|row| match row.work {
        Work::Verify { drafts } => drafts,
        Work::Prefill { .. } | Work::Embed { .. } => 0,
    });
    drafts.collect()
}

#[test]
fn the_end_of_a_prompt_asks_for_the_drafts_of_the_first_decode() {
    let mut scheduler = Scheduler::new(config(100));
    scheduler.add(request(1, 100, 200)).expect("it fits");
    let first = step(&mut scheduler, 0);
    // The drafter sees the prompt's first piece, and there is nothing to look up behind it.
    assert_eq!(first.rows[0].propose, DraftBudget { ngram: 0, neural: 7 });
    let last = step(&mut scheduler, 0);
    assert!(matches!(last.rows[0].work, Work::Prefill { last: true, .. }));
    assert_eq!(last.rows[0].propose, both(7));
    assert_eq!(verified(&step(&mut scheduler, 0)), [7]);
}

#[test]
fn drafts_keep_to_the_limit_of_their_request_and_to_its_length() {
    let mut scheduler = Scheduler::new(config(100));
    let limits = [DraftBudget::NONE, DraftBudget { ngram: 2, neural: 0 }, both(15)];
    for (id, speculation) in limits.into_iter().enumerate() {
        let new = request(id as u64, 8, 16);
        scheduler
            .add(CheckedRequest { speculation, ..new })
            .expect("it fits");
    }
    let prompts = step(&mut scheduler, 0);
    let proposed: Vec<DraftBudget> = prompts.rows.iter().map(|row| row.propose).collect();
    assert_eq!(
        proposed,
        [DraftBudget::NONE, DraftBudget { ngram: 2, neural: 0 }, both(6)]
    );
    let decodes = step(&mut scheduler, 0);
    assert_eq!(verified(&decodes), [0, 2, 6]);
    // Of sixteen tokens nine are known; with none accepted it is ten, with room for five drafts and the one behind them.
    assert_eq!(decodes.rows[2].propose, both(5));
}

/// A row that is planned while another one is in flight does not know how many drafts that one will accept. Near the limit
/// on the length it still asks for as many as there is room for if none is.
#[test]
fn drafts_behind_steps_in_flight_have_room_for_none_accepted() {
    let mut scheduler = Scheduler::new(config(100));
    scheduler.add(request(1, 8, 20)).expect("it fits");
    step(&mut scheduler, 0);
    let first = scheduler.plan(0).expect("there is work");
    assert_eq!(verified(&first), [7]);
    // Nine tokens are known. With all seven drafts it would be seventeen, with none it is ten.
    let second = scheduler.plan(0).expect("there is work");
    assert_eq!(verified(&second), [2]);
    assert_eq!(second.rows[0].propose, both(7));
    let third = scheduler.plan(0);
    assert!(third.is_none(), "it may be complete: {third:?}");
    scheduler.collect(&first, output(&first, 0));
    scheduler.collect(&second, output(&second, 0));
    // Eleven are known: one more row, and seven drafts behind it.
    let fourth = scheduler.plan(0).expect("there is work");
    assert_eq!(verified(&fourth), [7]);
    assert_eq!(fourth.rows[0].propose, both(7));
}

/// Drafts and prompts share what a step has left behind the tokens that are due: neither takes it all.
#[test]
fn drafts_leave_half_of_a_tight_step_to_prompts() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_batched_tokens: 16,
        max_samples: 16,
        max_masks: 64,
        ..config(100)
    });
    for (id, prompt) in [(1, 4), (2, 4), (3, 100)] {
        scheduler.add(request(id, prompt, 200)).expect("it fits");
    }
    step(&mut scheduler, 0);
    let mixed = step(&mut scheduler, 0);
    // Of sixteen tokens three are due, and half of the others are drafts.
    assert_eq!(verified(&mixed), [6, 0, 0]);
    assert_eq!(mixed.rows[2].work.tokens(), 8);
}

#[test]
fn proposals_take_the_blocks_that_are_free_and_push_nobody_out() {
    // Two blocks each, and one more.
    let mut scheduler = Scheduler::new(config(5));
    for id in 0..2 {
        scheduler.add(request(id, 25, 70)).expect("it fits");
    }
    let prompts = step(&mut scheduler, 0);
    // 25 tokens, the one chosen, 7 drafts: the first reaches a third block, the second has room for 6.
    assert_eq!(prompts.rows[0].propose, both(7));
    assert_eq!(prompts.rows[1].propose, both(6));
    for _ in 0..5 {
        let plan = step(&mut scheduler, 0);
        assert_eq!(plan.rows.len(), 2);
    }
    assert_eq!(scheduler.counters().preemptions, 0);
}

#[test]
fn a_policy_that_thinks_again_has_fewer_drafts_verified_than_made() {
    struct Fickle;
    impl DraftPolicy for Fickle {
        fn choose(&mut self, request: &RequestView) -> Choice {
            assert!(request.stage == Stage::Decode || request.ready == 0);
            Choice {
                verify: 1,
                propose: both(5),
            }
        }
    }
    let mut scheduler = Scheduler::with_policy(config(100), Box::new(Fickle));
    scheduler.add(request(1, 8, 100)).expect("it fits");
    assert_eq!(step(&mut scheduler, 0).rows[0].propose, both(5));
    assert_eq!(verified(&step(&mut scheduler, 0)), [1]);
}

/// What a policy was told.
#[derive(Default)]
struct Heard {
    rows: Vec<(RequestId, RowDrafts)>,
    steps: Vec<StepTimes>,
    begun: Vec<usize>,
    forgotten: Vec<RequestId>,
}

struct Listener(Arc<Mutex<Heard>>);

impl DraftPolicy for Listener {
    fn begin_step(&mut self, decodes: usize, _costs: &StepCosts) {
        self.0.lock().expect("one thread").begun.push(decodes);
    }

    fn choose(&mut self, request: &RequestView) -> Choice {
        FixedDrafts::any(3).choose(request)
    }

    fn observe_row(&mut self, id: RequestId, drafts: &RowDrafts) {
        self.0.lock().expect("one thread").rows.push((id, *drafts));
    }

    fn observe_step(&mut self, times: &StepTimes) {
        self.0.lock().expect("one thread").steps.push(*times);
    }

    fn forget(&mut self, id: RequestId) {
        self.0.lock().expect("one thread").forgotten.push(id);
    }
}

#[test]
fn a_policy_hears_of_every_row_and_of_what_a_step_really_ran() {
    let heard = Arc::new(Mutex::new(Heard::default()));
    let mut scheduler = Scheduler::with_policy(config(100), Box::new(Listener(Arc::clone(&heard))));
    scheduler.add(request(1, 8, 100)).expect("it fits");
    step(&mut scheduler, 0);
    let plan = scheduler.plan(0).expect("there is work");
    let mut done = output(&plan, 1);
    // Two of the three drafts that there might have been.
    done.rows[0].drafted = 2;
    done.rows[0].end = Some(RowEnd::StopToken);
    let request_outputs = scheduler.collect(&plan, done);
    let heard = heard.lock().expect("one thread");
    assert_eq!(heard.begun, [0, 1]);
    let expected = RowDrafts {
        planned: 3,
        drafted: 2,
        accepted: 1,
        source: Some(DraftSource::Neural),
    };
    assert_eq!(heard.rows, [(RequestId(1), expected)]);
    let times = StepTimes {
        decodes: 1,
        decode_tokens: 3,
        drafted: 2,
        accepted: 1,
        prompt_tokens: 0,
        wanted: (1, 1),
        device_ns: 2_000,
        draft_ns: 500,
        draft_passes: 1,
    };
    assert_eq!(heard.steps[1], times);
    assert_eq!(heard.steps[0].prompt_tokens, 8);
    assert_eq!(heard.forgotten, [RequestId(1)]);
    let report = request_outputs[0]
        .speculation
        .as_ref()
        .expect("the last request_output");
    assert_eq!(
        (report.steps, report.tokens, report.drafted, report.accepted),
        (1, 2, 2, 1)
    );
    assert_eq!((report.accepted_by_position[0], report.wasted), (1, 1));
    assert_eq!(report.mean_length(), Some(2.0));
    let counters = scheduler.counters();
    assert_eq!(
        (
            counters.neural.drafted,
            counters.neural.accepted,
            counters.draft_rows
        ),
        (2, 1, 1)
    );
    assert_eq!(counters.drafted_by_position[..3], [1, 1, 0]);
    assert_eq!((counters.draft_ns, counters.draft_passes), (1_000, 2));
}

/// However much the streams draft, one that waits gets in; one that has no slot or no blocks to wait for costs no drafts.
#[test]
fn drafts_leave_room_for_those_that_wait_for_a_slot() {
    for (slots, prompt, drafts, admitted) in [(2, 4, 3, 1), (1, 4, 7, 0), (2, 70, 7, 0)] {
        let mut scheduler = Scheduler::new(SchedulerConfig {
            slots,
            max_batched_tokens: 8,
            ..config(5)
        });
        scheduler.add(request(1, 4, 70)).expect("it fits");
        step(&mut scheduler, 0);
        assert_eq!(verified(&step(&mut scheduler, 0)), [7]);
        scheduler.add(request(2, prompt, 80)).expect("it fits");
        // What it lacks is found out by trying.
        if prompt > 64 {
            step(&mut scheduler, 0);
        }
        let plan = step(&mut scheduler, 0);
        assert_eq!(
            (verified(&plan)[0], plan.admissions.len()),
            (drafts, admitted),
            "{plan:?}"
        );
    }
}
