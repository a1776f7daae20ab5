//! What the scheduler costs the host per decode step, by running requests and by context length.
//!
//! `cargo run --release -p paceline-schedule --example scheduler_cost`. Under an instruction counter, give one pair
//! of numbers, running requests and context length, to run that case alone.

use paceline_schedule::{NewRequest, RecurrentConfig, RequestId, Scheduler, SchedulerConfig};
use paceline_types::{RowOutput, SamplingParams, StepOutput, StepPlan, Work};
use std::sync::Arc;
use std::time::{Duration, Instant};

const STEPS: u32 = 2_000;
const BLOCK_SIZE: usize = 16;

fn scheduler(running: usize, context: usize, recurrent: bool) -> Scheduler {
    let max_length = context + 2 * STEPS as usize;
    let blocks = max_length.div_ceil(BLOCK_SIZE);
    let mut scheduler = Scheduler::new(SchedulerConfig {
        slots: running,
        max_batched_tokens: 8192,
        max_samples: 1024,
        block_size: BLOCK_SIZE,
        num_blocks: blocks * (running + 1),
        blocks_per_request: blocks,
        max_waiting: running,
        drafts: 0,
        recurrent: recurrent.then_some(RecurrentConfig {
            snapshots: 4 * running,
            interval: 4096,
        }),
        prefix_caching: true,
    });
    for id in 0..running as u64 {
        let prompt: Vec<u32> = (0..context as u32).map(|i| i ^ id as u32).collect();
        let new = NewRequest {
            id: RequestId(id),
            prompt: prompt.into(),
            params: Arc::new(SamplingParams::default()),
            stop_tokens: vec![0],
            priority: 0,
            deadline: None,
            salt: 0,
            max_length,
            group: None,
            speculation: NewRequest::ANY_DRAFTS,
        };
        assert_eq!(scheduler.add(new), Ok(()));
    }
    scheduler
}

/// Every row does what it can.
fn output(plan: &StepPlan) -> StepOutput {
    let row = |row: &paceline_types::PlanRow| RowOutput {
        tokens: match row.work {
            Work::Prefill { last: false, .. } => Vec::new(),
            _ => vec![7],
        },
        snapshot_written: row.snapshot.is_some(),
        ..RowOutput::default()
    };
    StepOutput {
        step: plan.step,
        rows: plan.rows.iter().map(row).collect(),
        ..StepOutput::default()
    }
}

fn measure(running: usize, context: usize, recurrent: bool) -> (Duration, Duration) {
    let mut scheduler = scheduler(running, context, recurrent);
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
        let deliveries = scheduler.collect(&plan, output);
        let collected = begin.elapsed();
        drop(deliveries);
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
    println!("running  context  recurrent       plan    collect");
    for (running, context) in cases {
        for recurrent in [false, true] {
            let (plan, collect) = measure(running, context, recurrent);
            println!("{running:7}  {context:7}  {recurrent:9}  {plan:>9.2?}  {collect:>9.2?}");
        }
    }
}
