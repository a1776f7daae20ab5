//! What the scheduler tells of its requests: where they stand, what they found cached, and how their tokens came.

use crate::parts;
use paceline_cache::{CacheFeed, Changes};
use paceline_schedule::{
    CheckedRequest, Counters, RequestId, RequestOutput, RequestStatus, Scheduler, SchedulerConfig,
    StepOrigins,
};
use paceline_types::{
    DraftSource, FinishReason, RowEnd, RowOutput, SamplingParams, StepOutput, StepPlan, TokenId, Work,
};
use std::sync::Arc;

const CONFIG: SchedulerConfig = SchedulerConfig {
    slots: 1,
    num_blocks: 10,
    blocks_per_request: 10,
    drafts: 3,
    prefix_caching: true,
    ..parts::CONFIG
};

fn request(id: u64, prompt: usize) -> CheckedRequest {
    parts::request(id, prompt, prompt + 30)
}

fn collect(scheduler: &mut Scheduler, plan: &StepPlan, rows: Vec<RowOutput>) -> Vec<RequestOutput> {
    let output = StepOutput {
        step: plan.step,
        rows,
        device_ns: (0, 1_000),
        draft_ns: 0,
        draft_passes: 0,
    };
    let outputs = scheduler.collect(plan, output);
    scheduler.check_integrity();
    outputs
}

/// A step without drafts.
fn step(scheduler: &mut Scheduler, end: Option<RowEnd>) -> Vec<RequestOutput> {
    let plan = scheduler.plan(0).expect("there is work");
    let rows = plan.rows.iter().map(|row| RowOutput {
        tokens: vec![5; usize::from(!matches!(row.work, Work::Prefill { last: false, .. }))],
        end,
        ..RowOutput::default()
    });
    let rows = rows.collect();
    collect(scheduler, &plan, rows)
}

#[test]
fn a_request_is_told_what_its_first_start_found_cached() {
    let mut scheduler = Scheduler::new(CONFIG);
    let cached = |outputs: &[RequestOutput]| {
        outputs
            .iter()
            .map(|output| output.cached_tokens)
            .collect::<Vec<_>>()
    };
    scheduler.add(request(1, 40)).expect("it fits");
    assert_eq!(cached(&step(&mut scheduler, None)), [0]);
    assert_eq!(cached(&step(&mut scheduler, Some(RowEnd::StopToken))), [0]);
    scheduler.add(request(2, 40)).expect("it fits");
    assert_eq!(cached(&step(&mut scheduler, None)), [32]);
    // Pushed out, it finds what it has computed itself: that is nothing that anybody saved it.
    for _ in 0..12 {
        step(&mut scheduler, None);
    }
    let urgent = CheckedRequest {
        priority: -1,
        ..request(3, 40)
    };
    scheduler.add(urgent).expect("it fits");
    assert_eq!(cached(&step(&mut scheduler, Some(RowEnd::StopToken))), [32]);
    assert_eq!(scheduler.counters().preemptions, 1);
    assert_eq!(cached(&step(&mut scheduler, None)), [32]);
    assert!(scheduler.cancel(RequestId(2)));
    assert_eq!(cached(&scheduler.take_deliveries()), [32]);
    let counters = scheduler.counters();
    assert_eq!(
        (counters.prefix_queries, counters.prefix_hits),
        (40 * 3 + 53, 32 * 2 + 48)
    );
}

#[test]
fn whoever_looks_sees_where_every_request_stands() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_batched_tokens: 16,
        ..CONFIG
    });
    assert_eq!((scheduler.statuses(), scheduler.oldest_waiting()), (vec![], None));
    for (id, priority) in [(4, 0), (7, 1), (2, 0)] {
        let new = CheckedRequest {
            priority,
            tenant: 10,
            ..request(id, 20)
        };
        scheduler.add(new).expect("it fits");
    }
    let status = |id: u64, done: Option<usize>, generated_tokens| RequestStatus {
        id: RequestId(id),
        tenant: 10,
        running: done.is_some(),
        prompt_tokens: 20,
        prompt_tokens_done: done.unwrap_or(0),
        generated_tokens,
        max_tokens: 30,
    };
    let waiting = [2, 4, 7].map(|id| status(id, None, 0));
    assert_eq!(scheduler.statuses(), waiting);
    assert_eq!(scheduler.oldest_waiting(), Some(RequestId(4)));
    step(&mut scheduler, None);
    assert_eq!(scheduler.statuses()[1], status(4, Some(16), 0));
    // Of those that wait it is the one that came first, not the one that is next.
    assert_eq!(scheduler.oldest_waiting(), Some(RequestId(7)));
    step(&mut scheduler, None);
    step(&mut scheduler, None);
    let [_, _, last] = waiting;
    assert_eq!(
        scheduler.statuses(),
        [status(2, None, 0), status(4, Some(20), 2), last]
    );
    assert_eq!(
        (scheduler.running(), scheduler.waiting(), scheduler.room()),
        (1, 2, 6)
    );
}

/// What request 1 is told.
fn origins(
    decode: bool,
    tokens: usize,
    source: Option<DraftSource>,
    (accepted, rejected): (usize, &[TokenId]),
) -> Vec<(RequestId, StepOrigins)> {
    let origins = StepOrigins {
        decode,
        tokens,
        source,
        accepted,
        rejected: rejected.to_vec(),
    };
    vec![(RequestId(1), origins)]
}

/// Four drafts were verified, and one of each source accepted.
fn check_counts(counters: &Counters) {
    let sources = [counters.ngram, counters.neural, counters.grammar];
    let sources = sources.map(|source| (source.drafted, source.accepted));
    assert_eq!(sources, [(3, 1), (1, 1), (0, 0)]);
    assert_eq!(
        (
            counters.drafts_verified,
            counters.drafts_accepted,
            counters.draft_rows
        ),
        (4, 2, 2)
    );
    assert_eq!(counters.accepted_by_position[..2], [2, 0]);
    assert_eq!(counters.wasted_tokens, 2);
}

/// A request that asks sees how each of its tokens came, once, and costs those that do not ask nothing.
#[test]
fn how_tokens_came_is_told_to_those_that_ask() {
    let mut scheduler = Scheduler::new(SchedulerConfig { slots: 2, ..CONFIG });
    let asking = CheckedRequest {
        params: Arc::new(SamplingParams {
            origins: true,
            ..SamplingParams::default()
        }),
        ..request(1, 8)
    };
    scheduler.add(asking).expect("it fits");
    scheduler.add(request(2, 8)).expect("it fits");
    let made = |tokens: &[TokenId], source| (tokens.to_vec(), Some(source));
    let plan = scheduler.plan(0).expect("there is work");
    let shown = |plan: &StepPlan| plan.rows.iter().map(|row| row.show_drafts).collect::<Vec<_>>();
    assert_eq!(shown(&plan), [true, false]);
    let chosen = RowOutput {
        tokens: vec![5],
        ..RowOutput::default()
    };
    let first = RowOutput {
        made: made(&[6, 7, 8], DraftSource::Ngram),
        ..chosen.clone()
    };
    collect(&mut scheduler, &plan, vec![first, chosen.clone()]);
    assert_eq!(scheduler.take_origins(), origins(false, 1, None, (0, &[])));
    assert_eq!(scheduler.take_origins(), []);
    // One of the drafts is what the model chooses, and the next is not.
    let plan = scheduler.plan(0).expect("there is work");
    assert_eq!(shown(&plan), [true, false]);
    let second = RowOutput {
        tokens: vec![6, 9],
        drafted: 3,
        source: Some(DraftSource::Ngram),
        made: made(&[1], DraftSource::Neural),
        ..RowOutput::default()
    };
    collect(&mut scheduler, &plan, vec![second, chosen.clone()]);
    let expected = origins(true, 2, Some(DraftSource::Ngram), (1, &[7, 8]));
    assert_eq!(scheduler.take_origins(), expected);
    let plan = scheduler.plan(0).expect("there is work");
    let third = RowOutput {
        tokens: vec![1, 4],
        drafted: 1,
        source: Some(DraftSource::Neural),
        end: Some(RowEnd::StopToken),
        ..RowOutput::default()
    };
    collect(&mut scheduler, &plan, vec![third, chosen.clone()]);
    assert_eq!(
        scheduler.take_origins(),
        origins(true, 2, Some(DraftSource::Neural), (1, &[]))
    );
    // The one that asks has gone.
    let plan = scheduler.plan(0).expect("there is work");
    collect(&mut scheduler, &plan, vec![chosen]);
    assert_eq!(scheduler.take_origins(), []);
    check_counts(&scheduler.counters());
}

/// An ending that no step reports is delivered once, whether or not the request had a slot.
#[test]
fn endings_by_the_caller_are_told_once() {
    let mut scheduler = Scheduler::new(CONFIG);
    scheduler.add(request(1, 8)).expect("it fits");
    scheduler.add(request(2, 8)).expect("it fits");
    step(&mut scheduler, None);
    assert!(scheduler.stop(RequestId(1)));
    assert!(scheduler.cancel(RequestId(2)));
    assert!(!scheduler.is_idle());
    let endings: Vec<_> = scheduler
        .take_deliveries()
        .iter()
        .map(|output| (output.id.0, output.finish))
        .collect();
    let expected = [(1, Some(FinishReason::Stop)), (2, Some(FinishReason::Cancelled))];
    assert_eq!(endings, expected);
    assert_eq!(scheduler.take_deliveries(), []);
    assert!(scheduler.is_idle());
    assert!(scheduler.plan(0).is_none());
}

#[test]
fn a_feed_hears_of_the_blocks_that_requests_leave() {
    let mut scheduler = Scheduler::new(CONFIG);
    let (feed, mut changes) = (CacheFeed::new(|| ()), Changes::default());
    scheduler.tell_cache_changes(feed.clone());
    scheduler.add(request(1, 40)).expect("it fits");
    step(&mut scheduler, None);
    feed.take(&mut changes);
    assert_eq!(changes.len(), 2);
}
