//! What a turn of the engine's thread costs around its step, in instructions: while nobody looks, with a viewer, and in a build
//! that has no stream of steps. They are counted under valgrind, where it is installed, with a device that answers at once:
//!
//! ```text
//! PACELINE_TEST_LONG=1 cargo test --release -p paceline --lib turns -- --nocapture
//! ```

use super::{Job, Message, Service};
use crate::cancel_flags::CancelFlags;
use crate::channel::{self, EventReceiver};
use crate::client::Answer;
use crate::event::Event;
use crate::handle::Shared;
use crate::watch::StepViewer;
use paceline_schedule::{
    CheckedRequest, Clock, Pipeline, RequestId, RunnerFault, Scheduler, SchedulerConfig, StepRunner,
};
use paceline_types::{RowEnd, RowOutput, SamplingParams, StepOutput, StepPlan};
use serde_json::Value;
use std::cell::Cell;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Instant;

/// Where a counted run finds what it is to do.
const WAY: &str = "PACELINE_COUNTED_TURNS";

/// Steps of a run.
const STEPS: usize = 200;

/// Who looks at the steps of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Viewers {
    Nobody,
    /// One that was there and has gone.
    Gone,
    One,
}

const WAYS: [(&str, Viewers); 3] = [
    ("nobody", Viewers::Nobody),
    ("gone", Viewers::Gone),
    ("one", Viewers::One),
];

/// Answers every step of one request at once, with a token as long as it has not come to its end.
struct Stub {
    left: usize,
}

impl StepRunner for Stub {
    type InFlight = StepOutput;

    fn submit(&mut self, plan: &StepPlan) -> Result<StepOutput, RunnerFault> {
        let rows = plan.rows.iter().map(|_| {
            let tokens = self.left.min(1);
            self.left -= tokens;
            RowOutput {
                tokens: vec![7; tokens],
                end: (tokens > 0 && self.left == 0).then_some(RowEnd::Length),
                ..RowOutput::default()
            }
        });
        Ok(StepOutput {
            step: plan.step,
            rows: rows.collect(),
            ..StepOutput::default()
        })
    }

    fn collect(&mut self, step: StepOutput) -> Result<StepOutput, RunnerFault> {
        Ok(step)
    }

    fn host_waits(&self) -> u64 {
        0
    }
}

/// The same times in every run.
struct Ticks(Cell<u64>);

impl Clock for Ticks {
    fn now_ns(&self) -> u64 {
        self.0.set(self.0.get() + 1);
        self.0.get()
    }
}

fn pipeline() -> Pipeline<Stub, Ticks> {
    let scheduler = Scheduler::new(SchedulerConfig {
        slots: 1,
        max_batched_tokens: 64,
        max_step_ns: None,
        max_samples: 64,
        max_masks: 1,
        block_size: 16,
        num_blocks: 64,
        blocks_per_request: 64,
        max_waiting: 1,
        drafts: 0,
        recurrent: None,
        prefix_caching: true,
    });
    Pipeline::new(scheduler, Stub { left: STEPS }, Ticks(Cell::new(0)), 2)
}

/// One request of so many tokens, and the reader of its events.
fn job(tokens: usize) -> (Job, EventReceiver) {
    let (sender, events) = channel::channel(None);
    let request = CheckedRequest {
        id: RequestId(1),
        prompt: [4, 5, 6].into(),
        generated: Arc::default(),
        params: Arc::new(SamplingParams {
            max_tokens: tokens,
            ..SamplingParams::default()
        }),
        stop_tokens: [1].into(),
        priority: 0,
        deadline: None,
        tenant: 0,
        salt: 0,
        max_length: 3 + tokens,
        group: None,
        speculation: CheckedRequest::ANY_DRAFTS,
        constraint: None,
        pooling: None,
    };
    let job = Job {
        requests: vec![request],
        answer: Answer::Text(Arc::new(sender)),
        cancel_flags: Arc::new(CancelFlags::new(1)),
        arrived: Instant::now(),
    };
    (job, events)
}

/// What came of a run.
struct Ran {
    /// Tokens that the reader of the request got.
    tokens: usize,
    /// Steps that a viewer saw.
    seen: Vec<u64>,
    /// How often it was asked whether somebody looks.
    asked: usize,
}

/// Runs one request to its end on this thread.
fn run(viewers: Viewers) -> Ran {
    let shared = Arc::new(Shared::new((64, 0), false));
    let (sender, intake) = sync_channel(1);
    let (job, events) = job(STEPS);
    sender.send(Message::Job(job)).expect("there is room");
    shared.calls.begin();
    drop(sender);
    let mut viewer = (viewers != Viewers::Nobody).then(|| StepViewer::new(Arc::clone(&shared.watch)));
    viewer.take_if(|_| viewers == Viewers::Gone);
    let mut service = Service::new(pipeline(), intake, Arc::clone(&shared));
    service.serve().expect("the stub works");
    let mut tokens = 0;
    while let Some(event) = events.next_blocking() {
        match event {
            Event::Delta { output, .. } => tokens += output.ids.len(),
            Event::Finished { .. } => break,
            other => panic!("unexpected: {other:?}"),
        }
    }
    let seen = viewer.map_or_else(Vec::new, |mut viewer| viewer.take().0);
    Ran {
        tokens,
        seen: seen.iter().map(|step| step.record.step).collect(),
        asked: shared.watch.asked(),
    }
}

/// What is counted, and what has to come of it.
#[test]
fn a_viewer_sees_every_step_and_requests_do_not_notice() {
    let chosen = env::var(WAY).ok();
    for (name, viewers) in WAYS {
        if chosen.as_ref().is_some_and(|chosen| chosen != name) {
            continue;
        }
        let Ran { tokens, seen, asked } = run(viewers);
        assert_eq!(tokens, STEPS, "{name}");
        if viewers == Viewers::One && cfg!(not(feature = "unwatched")) {
            let first = seen[0];
            assert!(seen.len() >= STEPS, "{} steps", seen.len());
            assert!(
                seen.iter().copied().eq(first..first + seen.len() as u64),
                "{seen:?}"
            );
        } else {
            assert!(seen.is_empty(), "{name}: {seen:?}");
            assert_eq!(asked, 1, "{name}: when the request came, and at no step");
        }
    }
}

/// Instructions of a run in all its turns, but for the steps themselves. `None`: there is no valgrind.
fn count(program: &Path, way: &str) -> Option<u64> {
    let mut command = Command::new("valgrind");
    command.args([
        "--tool=callgrind",
        "--toggle-collect=*Service*turn*",
        "--toggle-collect=*Pipeline*step*",
        "--callgrind-out-file=/dev/null",
    ]);
    let test = "service::turns::a_viewer_sees_every_step_and_requests_do_not_notice";
    command.arg(program).args(["--exact", test, "--test-threads=1"]);
    let output = command.env(WAY, way).output().ok()?;
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let collected = text.lines().find_map(|line| line.split_once("Collected : "));
    let (_, count) = collected.unwrap_or_else(|| panic!("valgrind counted nothing:\n{text}"));
    Some(count.trim().parse().expect("a number"))
}

/// The same tests in a build without the stream of steps.
fn without_stream() -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--no-run", "--locked", "-p", "paceline", "--lib"]);
    cargo.args(["--features", "unwatched", "--message-format", "json"]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let output = cargo.output().expect("cargo runs");
    let lines = String::from_utf8_lossy(&output.stdout);
    let told = lines
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut programs = told.filter_map(|told| Some(PathBuf::from(told["executable"].as_str()?)));
    programs
        .next_back()
        .unwrap_or_else(|| panic!("no program:\n{}", String::from_utf8_lossy(&output.stderr)))
}

/// The page's stream of steps costs the engine nothing while nobody looks at the page.
#[test]
fn a_turn_that_nobody_looks_at_takes_not_one_instruction_more() {
    let this = env::current_exe().expect("a path");
    let Some(nobody) = count(&this, "nobody") else {
        println!("skipped: valgrind is not installed");
        return;
    };
    let each = |count: u64| count as f64 / STEPS as f64;
    let [gone, one] = ["gone", "one"].map(|way| count(&this, way).expect("it ran just now"));
    println!(
        "per step, nobody looks: {:.1}, one viewer: {:.1}",
        each(nobody),
        each(one)
    );
    assert_eq!(gone, nobody, "a viewer that has gone leaves nothing behind");
    if cfg!(not(feature = "unwatched")) {
        assert!(one > nobody, "what a viewer costs is not counted: {one}");
    }
    if env::var_os("PACELINE_TEST_LONG").is_some() {
        let without = count(&without_stream(), "nobody").expect("it ran just now");
        println!("per step, without the stream: {:.1}", each(without));
        assert_eq!(
            nobody, without,
            "instructions of {STEPS} turns, with the stream and without"
        );
    }
}
