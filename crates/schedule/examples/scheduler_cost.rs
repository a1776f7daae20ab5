//! What the scheduler costs the host per decode step, by running requests and by context length.
//!
//! `cargo run --release -p paceline-schedule --example scheduler_cost`. With drafts, depth control chooses how many of
//! seven at most, of which four are accepted now and then. Under an instruction counter, give one pair
//! of numbers, running requests and context length, to run that case alone.

use paceline_schedule::{
    CheckedRequest, DepthControl, DraftPolicy, FixedDrafts, RecurrentConfig, RequestId, Scheduler,
    SchedulerConfig,
};
use paceline_types::{DraftSource, RowOutput, SamplingParams, StepOutput, StepPlan, Work};
use std::sync::Arc;
use std::time::{Duration, Instant};

const STEPS: u32 = 2_000;
const BLOCK_SIZE: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    Recurrent,
    Drafts,
}

fn scheduler(running: usize, context: usize, kind: Kind) -> Scheduler {
    let max_length = context + 10 * STEPS as usize;
    let blocks = max_length.div_ceil(BLOCK_SIZE);
    let config = SchedulerConfig {
        slots: running,
        max_batched_tokens: 8192,
        max_step_ns: None,
        max_samples: 8192,
        max_masks: 64,
        block_size: BLOCK_SIZE,
        num_blocks: blocks * (running + 1),
        blocks_per_request: blocks,
        max_waiting: running,
        drafts: if kind == Kind::Drafts { 7 } else { 0 },
        recurrent: (kind == Kind::Recurrent).then_some(RecurrentConfig {
            snapshots: 4 * running,
            interval: 4096,
        }),
        prefix_caching: true,
    };
    let policy: Box<dyn DraftPolicy> = match kind {
        Kind::Drafts => Box::new(DepthControl::new()),
        Kind::Plain | Kind::Recurrent => Box::new(FixedDrafts::any(0)),
    };
    let mut scheduler = Scheduler::with_policy(config, policy);
    for id in 0..running as u64 {
        let prompt: Vec<u32> = (0..context as u32).map(|i| i ^ id as u32).collect();
        let new = CheckedRequest {
            id: RequestId(id),
            prompt: prompt.into(),
            generated: Arc::default(),
            params: Arc::new(SamplingParams::default()),
            stop_tokens: [0].into(),
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
        assert_eq!(scheduler.add(new), Ok(()));
    }
    scheduler
}

/// Every row does what it can; of its drafts, up to four are accepted.
fn output(plan: &StepPlan) -> StepOutput {
    let row = |row: &paceline_types::PlanRow| {
        let (tokens, drafted) = match row.work {
            Work::Prefill { last, .. } => (usize::from(last), 0),
            Work::Verify { drafts } => (1 + drafts.min((plan.step % 5) as usize), drafts),
            Work::Embed { .. } => (0, 0),
        };
        RowOutput {
            tokens: vec![7; tokens],
            drafted,
            source: (drafted > 0).then_some(DraftSource::Neural),
            snapshot_written: row.snapshot.is_some(),
            ..RowOutput::default()
        }
    };
    // As on a machine that reads its weights once per step.
    let device_ns = 5_000_000 + 20_000 * plan.tokens() as u64;
    StepOutput {
        step: plan.step,
        rows: plan.rows.iter().map(row).collect(),
        device_ns: (0, device_ns),
        draft_ns: 100_000,
        draft_passes: 1,
    }
}

fn measure(running: usize, context: usize, kind: Kind) -> (Duration, Duration) {
    let mut scheduler = scheduler(running, context, kind);
    let decodes = |plan: &StepPlan| {
        plan.rows
            .iter()
            .all(|row| matches!(row.work, Work::Verify { .. }))
    };
    let (mut plan_time, mut collect_time, mut steps) = (Duration::ZERO, Duration::ZERO, 0);
    while steps < STEPS {
        let begin = Instant::now();
        let Some(plan) = scheduler.plan(0) else { break };
        let planned = begin.elapsed();
        let output = output(&plan);
        let begin = Instant::now();
        let request_outputs = scheduler.collect(&plan, output);
        let collected = begin.elapsed();
        drop(request_outputs);
        if decodes(&plan) && plan.rows.len() == running {
            plan_time += planned;
            collect_time += collected;
            steps += 1;
        }
    }
    (plan_time / STEPS, collect_time / STEPS)
}

fn main() {
    let arguments: Vec<usize> = std::env::args()
        .skip(1)
        .filter_map(|argument| argument.parse().ok())
        .collect();
    let cases = match arguments[..] {
        [running, context] => vec![(running, context)],
        _ => vec![(1, 100), (64, 100), (256, 100), (256, 4_000)],
    };
    println!("running  context  kind            plan    collect");
    for (running, context) in cases {
        for kind in [Kind::Plain, Kind::Recurrent, Kind::Drafts] {
            let (plan, collect) = measure(running, context, kind);
            let kind = format!("{kind:?}");
            println!("{running:7}  {context:7}  {kind:9}  {plan:>9.2?}  {collect:>9.2?}");
        }
    }
}
