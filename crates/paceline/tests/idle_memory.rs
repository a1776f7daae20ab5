//! An engine with nothing to do gives the memory of its caches back. Alone in its process, so that its memory can be
//! watched.

use paceline::{Engine, EngineConfig, Event, Handle, Request};
use paceline_testkit::storyteller;
use paceline_types::{SamplingParams, TokenId};
use std::thread;
use std::time::{Duration, Instant};

/// Requests at once, and tokens of each prompt.
const REQUESTS: u32 = 16;
const PROMPT: u32 = 1000;

/// Keys and values of a token in two layers and a draft head.
const BYTES_PER_TOKEN: u64 = 3 << 10;

/// Memory of this process in bytes, by its name in `/proc`; `None` where the system does not tell.
fn memory(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

/// Has the highest memory counted from here on; false where the system cannot.
fn forget_peak() -> bool {
    std::fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// The tokens of a greedy continuation, and how many of its prompt were cached.
fn continuation(handle: &Handle, first: u32) -> (Vec<TokenId>, usize) {
    let request = Request {
        prompt: (0..PROMPT).map(|i| 3 + (first + i * 7) % 4000).collect(),
        sampling: SamplingParams {
            max_tokens: 8,
            ignore_eos: true,
            temperature: 0.0,
            ..SamplingParams::default()
        }
        .into(),
        ..Request::default()
    };
    let (mut tokens, mut cached) = (Vec::new(), 0);
    let mut generation = handle.generate(request).expect("it is a good request");
    while let Some(event) = generation.next_blocking() {
        match event {
            Event::Delta { output, .. } => tokens.extend(output.ids),
            Event::Finished { finish, .. } => cached = finish.usage.cached_tokens,
            other => panic!("{other:?}"),
        }
    }
    (tokens, cached)
}

/// All continuations, made at once, so that each has blocks of its own.
fn continuations(handle: &Handle) -> Vec<(Vec<TokenId>, usize)> {
    thread::scope(|scope| {
        let readers: Vec<_> = (0..REQUESTS)
            .map(|first| scope.spawn(move || continuation(handle, first)))
            .collect();
        readers
            .into_iter()
            .map(|reader| reader.join().expect("it ends"))
            .collect()
    })
}

fn wait_for_hand_back(handle: &Handle, times: u64) {
    let start = Instant::now();
    while handle.stats().hand_backs < times {
        assert!(start.elapsed() < Duration::from_mins(1), "never handed back");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn memory_goes_back_in_a_long_pause_and_texts_stay_as_they_are() {
    let config = EngineConfig {
        threads: 1,
        max_model_len: Some(1024),
        available_memory: Some(4 << 30),
        hand_back_after: Some(Duration::ZERO),
        ..EngineConfig::default()
    };
    let handle = Engine::start(&storyteller(), config, &|_| {}).expect("the default model starts");
    let known = forget_peak();
    let before = memory("VmRSS:").unwrap_or(0);
    let first = continuations(&handle);
    wait_for_hand_back(&handle, 1);
    let peak = memory("VmHWM:").unwrap_or(0);
    // It begins behind what is on the stream, and finds nothing of itself.
    let again = continuation(&handle, 5);
    assert_eq!(again, (first[5].0.clone(), 0));
    let after = memory("VmRSS:").unwrap_or(0);
    println!("{before} bytes before, {peak} at most, {after} after the pause");
    if cfg!(target_os = "linux") && known {
        let written = u64::from(REQUESTS * PROMPT) * BYTES_PER_TOKEN;
        assert!(
            peak > before + written * 3 / 4,
            "{peak} bytes with {written} of keys and values"
        );
        assert!(after < peak - written * 3 / 4, "{after} bytes are left of {peak}");
    } else {
        eprintln!("skipped: whether memory goes back is not known here");
    }
    wait_for_hand_back(&handle, 2);
    let texts = |continuations: Vec<(Vec<TokenId>, usize)>| continuations.into_iter().map(|(text, _)| text);
    assert!(texts(first).eq(texts(continuations(&handle))));
    assert_eq!(handle.fault(), None);
}
