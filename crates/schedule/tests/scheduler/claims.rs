//! What the scheduler and the pipeline promise, each shown on its smallest case, with the scripted device.

use crate::sim::scenario::Scenario;
use crate::sim::text::Limits;
use crate::sim::world::World;
use paceline_schedule::{
    CheckedRequest, GroupId, Pipeline, RealClock, RecurrentConfig, RequestId, RunnerFault, Scheduler,
    SchedulerConfig, StepRunner,
};
use paceline_types::{FinishReason, StepOutput, StepPlan, TokenId};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

fn config() -> SchedulerConfig {
    SchedulerConfig {
        slots: 4,
        max_batched_tokens: 64,
        max_step_ns: None,
        max_samples: 64,
        max_masks: 64,
        block_size: 16,
        num_blocks: 300,
        blocks_per_request: 200,
        max_waiting: 8,
        drafts: 0,
        recurrent: None,
        prefix_caching: true,
    }
}

fn hybrid(interval: usize) -> SchedulerConfig {
    let snapshots = 32;
    SchedulerConfig {
        recurrent: Some(RecurrentConfig { snapshots, interval }),
        ..config()
    }
}

fn world(config: SchedulerConfig, depth: usize) -> World {
    World::new(Scenario::quiet(1, config, depth))
}

/// Tokens that are different for every `kind` from the first on.
fn text(kind: u32, len: usize) -> Vec<TokenId> {
    (0..len as u32).map(|i| (i * 7 + kind * 3 + i / 5) % 20).collect()
}

fn hits(world: &World) -> u64 {
    world.pipeline.scheduler().counters().prefix_hits
}

#[test]
fn a_long_prompt_never_keeps_a_stream_from_its_next_token() {
    for depth in 1..=4 {
        let mut world = world(config(), depth);
        let stream = world.ask(&text(1, 20), 300);
        while world.tally.steps < 10 {
            world.turn();
        }
        let prompt = world.ask(&text(2, 2_000), 20);
        let (mut steps, mut answered) = (0, false);
        while !answered {
            let stepped = world.turn();
            if stepped.collected.is_some() {
                let to = |id: RequestId| {
                    stepped
                        .request_outputs
                        .iter()
                        .any(|request_output| request_output.id == id)
                };
                assert!(to(stream), "the stream waited");
                answered = to(prompt);
                steps += 1;
            }
        }
        // 63 tokens of the prompt per step, and the steps that were in flight when it came.
        assert!(steps <= 2_000_usize.div_ceil(63) + depth, "{steps} steps");
        world.drain();
    }
}

#[test]
fn prompts_are_paced_beside_a_stream_and_nowhere_else() {
    let config = SchedulerConfig {
        max_batched_tokens: 512,
        max_step_ns: Some(1),
        ..config()
    };
    let mut world = world(config, 2);
    let mut steps_of = |prompt: Vec<TokenId>| {
        let before = world.tally.steps;
        let prompt = world.ask(&prompt, 20);
        while !world
            .turn()
            .request_outputs
            .iter()
            .any(|request_output| request_output.id == prompt)
        {}
        world.tally.steps - before
    };
    let alone = steps_of(text(1, 2_000));
    assert!(alone <= 2_000 / 512 + 2, "{alone} steps");
    // The first one decodes now, and the machine is slower than can be asked for: 32 tokens a step.
    let beside = steps_of(text(2, 320));
    assert!((10..=12).contains(&beside), "{beside} steps");
    world.drain();
}

#[test]
fn the_first_repeat_of_a_prompt_hits_with_and_without_recurrent_state() {
    for config in [config(), hybrid(4096)] {
        let mut world = world(config, 2);
        world.serve(&text(1, 100), 1);
        assert_eq!(hits(&world), 0);
        world.serve(&text(1, 100), 1);
        assert_eq!(hits(&world), 96);
        // Whole blocks, and never the last token.
        world.serve(&text(1, 96), 1);
        assert_eq!(
            hits(&world),
            96 + 80 * u64::from(world.scenario.config.recurrent.is_none())
        );
    }
}

#[test]
fn the_next_turn_starts_at_the_newest_block_of_the_last() {
    for (drafts, depth) in [(0, 1), (0, 2), (0, 4), (3, 1), (3, 2), (3, 3), (4, 4)] {
        for seed in 0..40 {
            let config = SchedulerConfig {
                drafts,
                ..hybrid(4096)
            };
            let mut world = World::new(Scenario::quiet(seed, config, depth));
            let (mut turn, last) = world.serve(&text(1, 30), 40 + seed as usize);
            // The last row folded the tokens known before it.
            let folded = turn.len() - last;
            turn.extend([1, 2, 3, 4, 5]);
            world.serve(&turn, 1);
            assert_eq!(
                hits(&world) as usize,
                folded / 16 * 16,
                "drafts {drafts}, depth {depth}, seed {seed}"
            );
        }
    }
}

#[test]
fn a_generated_text_is_saved_at_every_interval() {
    let mut world = world(hybrid(32), 2);
    let (text, _) = world.serve(&text(1, 20), 200);
    world.serve(&text[..100], 1);
    assert_eq!(hits(&world), 96);
}

#[test]
fn a_branch_point_seen_twice_is_saved_for_the_third() {
    let mut world = world(hybrid(4096), 2);
    let shared = text(1, 64);
    for (kind, expected) in [(2, 0), (3, 0), (4, 64), (5, 128)] {
        let prompt: Vec<TokenId> = shared.iter().copied().chain(text(kind, 20)).collect();
        world.serve(&prompt, 1);
        assert_eq!(hits(&world), expected, "tail {kind}");
    }
}

#[test]
fn a_row_reaches_one_point_to_save_at_and_misses_none() {
    let config = SchedulerConfig {
        max_batched_tokens: 512,
        ..hybrid(16)
    };
    let mut world = world(config, 2);
    world.serve(&text(1, 100), 1);
    let counters = world.pipeline.scheduler().counters();
    assert_eq!(counters.snapshots_published, 6);
    assert_eq!(counters.snapshots_written, 6);
}

#[test]
fn siblings_run_only_the_end_of_their_prompt() {
    for config in [config(), hybrid(4096)] {
        for prefix_caching in [true, false] {
            let mut world = world(
                SchedulerConfig {
                    prefix_caching,
                    ..config.clone()
                },
                3,
            );
            for _ in 0..4 {
                let limits = Limits::length(130);
                world.add(&text(1, 100), limits, 0, |new, _| new.group = Some(GroupId(9)));
            }
            world.drain();
            assert_eq!(hits(&world), 3 * 96);
            world.serve(&text(1, 100), 1);
            assert_eq!(hits(&world), if prefix_caching { 4 * 96 } else { 3 * 96 });
        }
    }
}

#[test]
fn the_next_of_a_group_leads_when_the_leader_goes() {
    let mut world = world(config(), 2);
    let mut members = Vec::new();
    for _ in 0..3 {
        let limits = Limits::length(1_010);
        members.extend(world.add(&text(1, 1_000), limits, 0, |new, _| new.group = Some(GroupId(9))));
    }
    world.turn();
    world.turn();
    assert_eq!(world.pipeline.scheduler().running(), 1);
    world.cancel(members[0]);
    world.drain();
    // What the first had computed when it went is not lost: 64 tokens were collected by then.
    assert_eq!(hits(&world), 64 + 992);
}

#[test]
fn an_urgent_request_pushes_out_the_less_urgent_and_nobody_else() {
    let one_slot = SchedulerConfig { slots: 1, ..config() };
    for (priority, pushed_out) in [(-1, 1), (0, 0), (1, 0)] {
        let mut world = world(one_slot.clone(), 2);
        let first = world.ask(&text(1, 40), 50);
        for _ in 0..10 {
            world.turn();
        }
        let second = world.add(&text(2, 40), Limits::length(60), priority, |_, _| {});
        let mut ended = Vec::new();
        while !world.pipeline.is_idle() {
            let request_outputs = world.turn().request_outputs;
            ended.extend(
                request_outputs
                    .iter()
                    .filter(|d| d.finish.is_some())
                    .map(|d| d.id),
            );
        }
        let expected = if pushed_out == 1 {
            [second, Some(first)]
        } else {
            [Some(first), second]
        };
        assert_eq!(ended.into_iter().map(Some).collect::<Vec<_>>(), expected);
        assert_eq!(world.pipeline.scheduler().counters().preemptions, pushed_out);
    }
}

#[test]
fn the_first_to_come_is_never_pushed_out_by_the_later_ones() {
    for depth in 1..=4 {
        let tight = SchedulerConfig {
            num_blocks: 12,
            ..config()
        };
        let mut world = world(tight, depth);
        let asked: Vec<RequestId> = (0..4).map(|kind| world.ask(&text(kind, 20), 150)).collect();
        let mut ended = Vec::new();
        while !world.pipeline.is_idle() {
            let request_outputs = world.turn().request_outputs;
            ended.extend(
                request_outputs
                    .iter()
                    .filter(|d| d.finish.is_some())
                    .map(|d| d.id),
            );
            world.pipeline.scheduler().check_integrity();
        }
        assert_eq!(ended, asked, "in order of arrival");
        let admitted = &world.pipeline.runner().admitted;
        assert_eq!(admitted.iter().filter(|name| **name == asked[0].0).count(), 1);
        assert!(world.pipeline.scheduler().counters().preemptions > 0);
    }
}

#[test]
fn a_deadline_ends_a_request_wherever_it_is() {
    let one_slot = SchedulerConfig { slots: 1, ..config() };
    let mut world = world(one_slot, 2);
    for kind in 0..3 {
        world.add(&text(kind, 40), Limits::length(3_000), 0, |new, _| {
            new.deadline = Some(300_000);
        });
    }
    world.drain();
    assert_eq!(world.tally.finished[FinishReason::Deadline as usize], 3);
}

#[test]
fn the_device_idles_between_steps_only_at_depth_one() {
    for depth in 1..=4 {
        let mut world = world(config(), depth);
        for kind in 0..4 {
            world.ask(&text(kind, 100), 200);
        }
        world.drain();
        let totals = world.pipeline.totals();
        assert_eq!(totals.bubble_ns > 0, depth == 1, "{totals:?}");
        assert_eq!((totals.waits.collect, totals.waits.elsewhere), (totals.steps, 0));
    }
}

#[test]
fn a_full_queue_refuses_and_a_request_that_can_never_be_served_is_a_fault() {
    let limits = SchedulerConfig {
        max_waiting: 1,
        num_blocks: 8,
        blocks_per_request: 4,
        ..config()
    };
    let new = |id, prompt: usize, max_length| CheckedRequest {
        id: RequestId(id),
        prompt: text(1, prompt).into(),
        generated: Arc::default(),
        params: Arc::default(),
        stop_tokens: Arc::default(),
        priority: 0,
        deadline: None,
        tenant: 0,
        salt: 0,
        max_length,
        group: None,
        speculation: CheckedRequest::ANY_DRAFTS,
        constraint: None,
        pooling: None,
    };
    let refused = |request: CheckedRequest| {
        let mut empty = Scheduler::new(limits.clone());
        let panic =
            catch_unwind(AssertUnwindSafe(|| empty.add(request))).expect_err("it could never be served");
        *panic.downcast::<String>().expect("a message")
    };
    assert_eq!(refused(new(0, 0, 10)), "request 0 has 0 tokens and room for 10");
    assert_eq!(refused(new(0, 10, 10)), "request 0 has 10 tokens and room for 10");
    assert_eq!(
        refused(new(0, 10, 65)),
        "request 0 may become 65 tokens long, and has no more than 4 blocks"
    );
    let mut scheduler = Scheduler::new(limits.clone());
    assert_eq!(scheduler.add(new(0, 10, 64)), Ok(()));
    let full = scheduler.add(new(1, 10, 64)).expect_err("one waits");
    assert_eq!(full.to_string(), "the queue is full: max_waiting is 1");
    assert!(scheduler.plan(0).is_some());
    assert_eq!(scheduler.add(new(1, 10, 64)), Ok(()));
    assert!(scheduler.cancel(RequestId(0)) && !scheduler.cancel(RequestId(0)));
    scheduler.check_integrity();
}

#[test]
fn a_fault_of_the_device_is_an_error_of_the_step() {
    struct Broken;
    impl StepRunner for Broken {
        type InFlight = ();
        fn submit(&mut self, _plan: &StepPlan) -> Result<(), RunnerFault> {
            Ok(())
        }
        fn collect(&mut self, (): ()) -> Result<StepOutput, RunnerFault> {
            Err(RunnerFault("out of order".into()))
        }
        fn host_waits(&self) -> u64 {
            0
        }
    }
    let mut pipeline = Pipeline::new(Scheduler::new(config()), Broken, RealClock::start(), 1);
    assert!(pipeline.step().expect("nothing to do").is_idle());
    let new = CheckedRequest {
        id: RequestId(1),
        prompt: text(1, 4).into(),
        generated: Arc::default(),
        params: Arc::default(),
        stop_tokens: Arc::default(),
        priority: 0,
        deadline: None,
        tenant: 0,
        salt: 0,
        max_length: 8,
        group: None,
        speculation: CheckedRequest::ANY_DRAFTS,
        constraint: None,
        pooling: None,
    };
    assert_eq!(pipeline.scheduler_mut().add(new), Ok(()));
    let fault = pipeline.step().expect_err("a fault");
    assert_eq!(fault.to_string(), "the device failed: out of order");
}

#[test]
fn the_engine_can_move_to_a_thread() {
    fn moves<T: Send>() {}
    moves::<Scheduler>();
    moves::<RealClock>();
}
