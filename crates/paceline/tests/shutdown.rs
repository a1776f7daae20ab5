//! The end of an engine. Alone in its process, so that its threads can be counted.

use paceline::{Engine, EngineConfig, Event, Request};
use paceline_testkit::storyteller;
use paceline_types::SamplingParams;
use std::time::{Duration, Instant};

/// Names of this process's threads that belong to an engine; `None` where the system does not tell.
fn threads() -> Option<Vec<String>> {
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    let names = tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    Some(
        names
            .map(|name| name.trim().to_owned())
            .filter(|name| name.starts_with("paceline-"))
            .collect(),
    )
}

#[test]
fn the_engine_finishes_what_it_has_and_ends_with_its_last_handle() {
    let config = EngineConfig {
        threads: 2,
        max_model_len: Some(512),
        available_memory: Some(4 << 30),
        ..EngineConfig::default()
    };
    let handle = Engine::start(&storyteller(), config, &|_| {}).expect("the default model starts");
    let request = Request {
        prompt: [5, 6, 7].into(),
        sampling: SamplingParams {
            max_tokens: 100,
            ignore_eos: true,
            ..SamplingParams::default()
        }
        .into(),
        ..Request::default()
    };
    let mut generation = handle.generate(request).expect("a good request");
    let clone = handle.clone();
    drop(handle);
    drop(clone);
    let mut tokens = 0;
    while let Some(event) = generation.next_blocking() {
        match event {
            Event::Delta { output, .. } => tokens += output.ids.len(),
            Event::Finished { finish, .. } => assert_eq!(finish.usage.completion_tokens, 100),
            other => panic!("unexpected: {other:?}"),
        }
    }
    assert_eq!(tokens, 100);
    if cfg!(target_os = "linux") {
        assert!(threads().is_some(), "the system lists threads");
    }
    let start = Instant::now();
    while threads().is_some_and(|names| !names.is_empty()) {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "still there: {:?}",
            threads()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}
