//! What an engine with nothing to do does: nothing. Alone in its process, so that its thread can be watched.

use paceline::{Engine, EngineConfig, Event, Handle, Request};
use paceline_testkit::storyteller;
use paceline_types::SamplingParams;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

fn start() -> Handle {
    let config = EngineConfig {
        threads: 1,
        max_model_len: Some(1024),
        available_memory: Some(4 << 30),
        ..EngineConfig::default()
    };
    Engine::start(&storyteller(), config, &|_| {}).expect("the default model starts")
}

fn request(tokens: usize) -> Request {
    Request {
        prompt: [5, 6, 7].into(),
        sampling: SamplingParams {
            max_tokens: tokens,
            ignore_eos: true,
            ..SamplingParams::default()
        }
        .into(),
        ..Request::default()
    }
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_mins(1), "never {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// How often the engines' threads have gone to sleep; `None` where the system does not tell.
fn sleeps() -> Option<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    let of_engine = tasks.flatten().filter(|task| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == "paceline-engine")
    });
    let counts = of_engine.filter_map(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    });
    counts.max()
}

#[test]
fn an_idle_engine_sleeps_whoever_has_not_read_his_text() {
    let handle = start();
    let held = Arc::new(());
    let mut unread: Vec<_> = (0..4)
        .map(|_| {
            let request = Request {
                n: Some(3),
                held: Some(held.clone()),
                ..request(200)
            };
            handle.generate(request).unwrap()
        })
        .collect();
    wait_until("done", || handle.stats().finished == 12);
    // What callers want back does not wait for them to read.
    wait_until("given back", || Arc::strong_count(&held) == 1);
    wait_until("checked", || handle.stats().integrity_checks == 1);
    if let Some(before) = sleeps() {
        // At one look every 2 ms it would be hundreds.
        thread::sleep(Duration::from_millis(500));
        let after = sleeps().unwrap();
        assert!(after - before < 5, "it woke up {} times", after - before);
    } else {
        eprintln!("skipped: the system does not count sleeps");
    }
    for generation in &mut unread {
        let mut tokens = 0;
        while let Some(event) = generation.next_blocking() {
            if let Event::Delta { output, .. } = event {
                tokens += output.ids.len();
            }
        }
        assert_eq!(tokens, 600);
    }
}

#[test]
fn the_parts_are_checked_once_after_each_stretch_of_work() {
    let handle = start();
    for round in 1..=2 {
        let mut generation = handle.generate(request(4)).unwrap();
        while generation.next_blocking().is_some() {}
        wait_until("checked", || handle.stats().integrity_checks == round);
    }
    assert_eq!(handle.fault(), None);
}
