//! What the stream of steps behind the page costs the engine's thread, in instructions per step: in a build that has no
//! stream, while nobody looks, and with a viewer that takes what there is ten times a second, as the server does for a page.
//!
//! ```text
//! cargo run --release -p paceline --example watch_cost --features unwatched
//! cargo run --release -p paceline --example watch_cost
//! ```
//!
//! It runs itself under valgrind, which has to be installed, and counts what happens between the collection of a step and
//! the next plan (`Service::hand_out`): numbers, events of requests, and the step for those who look. Everything else of a
//! step is the same, looked at or not.

use paceline::{Engine, EngineConfig, Request, SpeculationMethod};
use paceline_types::SamplingParams;
use paceline_weights::Checkpoint;
use std::env;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Steps of one run; the difference of two runs leaves out what happens once.
const STEPS: [usize; 2] = [20, 100];

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.as_slice() {
        [] => measure(),
        [steps, viewer] => run(steps.parse().expect("a number"), viewer == "viewer"),
        _ => panic!("no arguments, or those that it gives itself"),
    }
}

/// Runs itself under valgrind in every way and prints instructions per step.
fn measure() {
    let ways: &[&str] = if cfg!(feature = "unwatched") {
        println!("built without the stream");
        &["nobody"]
    } else {
        &["nobody", "viewer"]
    };
    for viewer in ways {
        let [few, many] = STEPS.map(|steps| instructions(steps, viewer));
        let each = (many - few) as f64 / (STEPS[1] - STEPS[0]) as f64;
        println!("{viewer}: {each:.1} instructions per step to hand out its outputs");
    }
}

fn instructions(steps: usize, viewer: &str) -> u64 {
    let output = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--toggle-collect=*hand_out*",
            "--callgrind-out-file=/dev/null",
        ])
        .arg(env::current_exe().expect("a path"))
        .args([&steps.to_string(), viewer])
        .output()
        .expect("valgrind is installed");
    let text = String::from_utf8_lossy(&output.stderr);
    let collected = text.lines().find_map(|line| line.split_once("Collected : "));
    let (_, count) = collected.unwrap_or_else(|| panic!("valgrind counted nothing:\n{text}"));
    count.trim().parse().expect("a number")
}

/// One request of so many steps.
fn run(steps: usize, viewer: bool) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/storyteller");
    let checkpoint = Checkpoint::open(&folder).expect("the default model");
    let config = EngineConfig {
        threads: 1,
        max_num_seqs: 1,
        ..EngineConfig::default()
    };
    let engine = Engine::start(&checkpoint, config, &|_| {}).expect("the default model");
    let mut viewer = viewer.then(|| engine.watch());
    let mut request = Request {
        prompt: [443, 441, 261].into(),
        sampling: SamplingParams {
            max_tokens: steps,
            ignore_eos: true,
            temperature: 0.0,
            ..SamplingParams::default()
        }
        .into(),
        ..Request::default()
    };
    request.speculation.method = SpeculationMethod::Off;
    // Read at the end alone: what a reader costs depends on when it comes.
    let _story = engine.generate(request).expect("it can be served");
    while engine.stats().finished == 0 {
        std::thread::sleep(Duration::from_millis(100));
        if let Some(viewer) = &mut viewer {
            viewer.take();
        }
    }
}
