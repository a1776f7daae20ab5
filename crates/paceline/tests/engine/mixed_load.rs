//! A long prompt arrives while a stream runs: the stream gets its token in every step all the same.

use paceline_device::Backend;
use paceline_device_cpu::{Cpu, CpuOptions, Instructions};
use paceline_runner::{DeviceRunner, RunnerConfig};
use paceline_schedule::{
    CheckedRequest, Pipeline, RealClock, RecurrentConfig, RequestId, Scheduler, SchedulerConfig, StepRecord,
};
use paceline_testkit::storyteller;
use paceline_types::SamplingParams;
use std::sync::Arc;

const BUDGET: usize = 256;
const BLOCKS: usize = 320;
const STREAM: RequestId = RequestId(1);
const PROMPT: RequestId = RequestId(2);

fn pipeline(depth: usize) -> Pipeline<DeviceRunner<Cpu>, RealClock> {
    let backend = Cpu::new(CpuOptions {
        threads: 2,
        instructions: Instructions::detect(),
    });
    let model =
        paceline_models::load(&backend, &storyteller(), None, &|_| {}).expect("the default model loads");
    let clock = RealClock::since(backend.epoch());
    let config = RunnerConfig {
        slots: 4,
        tokens: BUDGET,
        samples: BUDGET,
        blocks: BLOCKS,
        blocks_per_slot: 160,
        block_size: 16,
        snapshots: 8,
        drafts: 0,
        masks: 0,
        depth,
    };
    let mut runner = DeviceRunner::new(backend, model, config).expect("memory for a small model");
    runner.warm_up().expect("memory for a small model");
    let scheduler = Scheduler::new(SchedulerConfig {
        slots: 4,
        max_batched_tokens: BUDGET,
        max_step_ns: None,
        max_samples: BUDGET,
        max_masks: 64,
        block_size: 16,
        num_blocks: BLOCKS,
        blocks_per_request: 160,
        max_waiting: 8,
        drafts: 0,
        recurrent: Some(RecurrentConfig {
            snapshots: 8,
            interval: 512,
        }),
        prefix_caching: true,
    });
    Pipeline::new(scheduler, runner, clock, depth)
}

fn request(id: RequestId, prompt: usize, tokens: usize) -> CheckedRequest {
    CheckedRequest {
        id,
        prompt: (0..prompt as u32).map(|i| (i * 17 + 3) % 4000).collect(),
        generated: Arc::default(),
        params: Arc::new(SamplingParams::default()),
        stop_tokens: Arc::default(),
        priority: 0,
        deadline: None,
        tenant: 0,
        salt: 0,
        max_length: prompt + tokens,
        group: None,
        speculation: CheckedRequest::ANY_DRAFTS,
        constraint: None,
        pooling: None,
    }
}

/// One collected step: its record, and whether stream and prompt got a token.
struct Seen {
    record: StepRecord,
    stream: bool,
    prompt: bool,
}

/// The steps from the arrival of the prompt on until its first token.
fn run(depth: usize) -> Vec<Seen> {
    let mut pipeline = pipeline(depth);
    pipeline
        .scheduler_mut()
        .add(request(STREAM, 8, 400))
        .expect("it fits");
    let mut seen = Vec::new();
    for turn in 0..1000 {
        if turn == 20 {
            seen.clear();
            pipeline
                .scheduler_mut()
                .add(request(PROMPT, 2000, 4))
                .expect("it fits");
        }
        let stepped = pipeline.step().expect("the device works");
        let Some(record) = stepped.collected else { continue };
        let got = |id| {
            let mut own = stepped
                .request_outputs
                .iter()
                .filter(|request_output| request_output.id == id);
            own.any(|request_output| !request_output.tokens.is_empty())
        };
        let (stream, prompt) = (got(STREAM), got(PROMPT));
        seen.push(Seen {
            record,
            stream,
            prompt,
        });
        if prompt {
            return seen;
        }
    }
    panic!("the prompt never got its token");
}

#[test]
fn a_long_prompt_never_keeps_a_stream_from_its_next_token() {
    for depth in 1..=4 {
        let steps = run(depth);
        for step in &steps {
            let record = &step.record;
            assert!(step.stream, "depth {depth}: no token in step {}", record.step);
            assert!(record.tokens <= BUDGET);
        }
        // The prompt takes what is left of each step: no more steps than that needs.
        let with_prompt: Vec<&Seen> = steps.iter().filter(|step| step.record.rows == 2).collect();
        assert!(steps.last().is_some_and(|step| step.prompt));
        assert_eq!(
            with_prompt.len(),
            2000_usize.div_ceil(BUDGET - 1),
            "depth {depth}"
        );
    }
}
