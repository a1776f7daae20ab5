//! What a step costs the host: plan, submit and collect with a device that does nothing.
//!
//! ```text
//! cargo build --release -p paceline --example host_cost
//! target/release/examples/host_cost REQUESTS CONTEXT [STEPS] [stub|encode] [events]
//! valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*measured_loop*' \
//!     target/release/examples/host_cost 256 100 100
//! ```
//!
//! `stub` answers with a token per plan row at once. `encode` (the default) also runs the real runner's submit on a
//! backend without memory, and its decoding of a record's worth of words. With `events`, changes of the prefix cache are
//! left in a feed, which nobody empties. Prints microseconds per step; callgrind
//! counts instructions of the measured steps alone.

use paceline_device::Recorder;
use paceline_runner::{DeviceRunner, RunnerConfig};
use paceline_schedule::{
    CacheFeed, CheckedRequest, Pipeline, RealClock, RecurrentConfig, RequestId, RunnerFault, Scheduler,
    SchedulerConfig, StepRunner,
};
use paceline_types::{RowOutput, SamplingParams, StepOutput, StepPlan, Work};
use paceline_weights::Checkpoint;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const BLOCK: usize = 16;

/// Answers every step at once, one token per plan row that chooses one.
struct Stub {
    /// The real runner on a device without memory, if its part is to be measured too.
    real: Option<DeviceRunner<Recorder>>,
}

struct Flight {
    output: StepOutput,
    real: Option<paceline_runner::InFlight<Recorder>>,
}

impl StepRunner for Stub {
    type InFlight = Flight;

    fn submit(&mut self, plan: &StepPlan) -> Result<Flight, RunnerFault> {
        let real = self.real.as_mut().map(|runner| runner.submit(plan)).transpose()?;
        let answer = |work: &Work| match work {
            Work::Prefill { last, .. } => usize::from(*last),
            Work::Verify { .. } => 1,
            Work::Embed { .. } => 0,
        };
        let rows = plan.rows.iter().map(|row| RowOutput {
            tokens: vec![7; answer(&row.work)],
            snapshot_written: false,
            ..RowOutput::default()
        });
        let output = StepOutput {
            step: plan.step,
            rows: rows.collect(),
            ..StepOutput::default()
        };
        Ok(Flight { output, real })
    }

    fn collect(&mut self, flight: Flight) -> Result<StepOutput, RunnerFault> {
        if let (Some(runner), Some(real)) = (self.real.as_mut(), flight.real) {
            // Its record is empty: what counts is the work of reading it.
            std::hint::black_box(runner.collect(real)?);
        }
        Ok(flight.output)
    }

    fn host_waits(&self) -> u64 {
        self.real.as_ref().map_or(0, StepRunner::host_waits)
    }
}

fn pipeline(requests: usize, context: usize, real: bool) -> Pipeline<Stub, RealClock> {
    let per_request = (context + 4096).div_ceil(BLOCK);
    let blocks = requests * per_request + 16;
    let tokens = 8192.max(requests);
    let scheduler = Scheduler::new(SchedulerConfig {
        slots: requests,
        max_batched_tokens: tokens,
        max_step_ns: None,
        max_samples: tokens,
        max_masks: 64,
        block_size: BLOCK,
        num_blocks: blocks,
        blocks_per_request: per_request,
        max_waiting: requests,
        drafts: 0,
        recurrent: Some(RecurrentConfig {
            snapshots: requests,
            interval: 512,
        }),
        prefix_caching: true,
    });
    let config = RunnerConfig {
        slots: requests,
        tokens,
        samples: requests,
        blocks,
        blocks_per_slot: per_request,
        block_size: BLOCK,
        snapshots: requests,
        drafts: 0,
        masks: 0,
        depth: 2,
    };
    let real = real.then(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/storyteller");
        let checkpoint = Checkpoint::open(&folder).expect("the default model");
        let backend = Recorder::silent();
        let model = paceline_models::load(&backend, &checkpoint, None, &|_| {}).expect("the default model");
        DeviceRunner::new(backend, model, config).expect("nothing is allocated")
    });
    Pipeline::new(scheduler, Stub { real }, RealClock::since(Instant::now()), 2)
}

fn request(id: usize, context: usize) -> CheckedRequest {
    CheckedRequest {
        id: RequestId(id as u64),
        prompt: (0..context as u32).map(|i| i * 31 % 4000 + id as u32).collect(),
        generated: Arc::default(),
        params: Arc::new(SamplingParams::default()),
        stop_tokens: [1].into(),
        priority: 0,
        deadline: None,
        tenant: 0,
        salt: id as u64,
        max_length: context + 4000,
        group: None,
        speculation: CheckedRequest::ANY_DRAFTS,
        constraint: None,
        pooling: None,
    }
}

/// The steps that are measured. Its name is what callgrind looks for.
#[inline(never)]
fn measured_loop(pipeline: &mut Pipeline<Stub, RealClock>, steps: usize) -> usize {
    let mut tokens = 0;
    for _ in 0..steps {
        let stepped = pipeline.step().expect("the stub works");
        tokens += stepped.request_outputs.len();
    }
    tokens
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: usize| {
        let argument = arguments.next();
        argument.map_or(default, |text| text.parse().expect("a number"))
    };
    let (requests, context, steps) = (number(256), number(100), number(1000));
    let real = arguments.next().as_deref() != Some("stub");
    let mut pipeline = pipeline(requests, context, real);
    if arguments.next().as_deref() == Some("events") {
        pipeline.scheduler_mut().tell_cache_changes(CacheFeed::new(|| {}));
    }
    for id in 0..requests {
        pipeline
            .scheduler_mut()
            .add(request(id, context))
            .expect("it fits");
    }
    // Prompts first, until everybody decodes.
    while !decoding(&mut pipeline, requests) {}
    let before = pipeline.totals();
    let start = Instant::now();
    let tokens = measured_loop(&mut pipeline, steps);
    let each = start.elapsed().as_secs_f64() * 1e6 / steps as f64;
    let after = pipeline.totals();
    let part = |sum: fn(&paceline_schedule::PipelineTotals) -> u64| {
        (sum(&after) - sum(&before)) as f64 / 1000.0 / (after.steps - before.steps) as f64
    };
    assert_eq!(
        tokens,
        requests * steps,
        "every request gets a token in every step"
    );
    println!(
        "{requests} requests, context {context}: {each:.1} µs per step (plan {:.1}, submit {:.1}, wait {:.1}, collect {:.1})",
        part(|t| t.plan_ns),
        part(|t| t.submit_ns),
        part(|t| t.waits.collect_ns),
        part(|t| t.collect_ns),
    );
}

/// One step; whether it gave everybody a token.
fn decoding(pipeline: &mut Pipeline<Stub, RealClock>, requests: usize) -> bool {
    let stepped = pipeline.step().expect("the stub works");
    stepped.request_outputs.len() == requests
}
