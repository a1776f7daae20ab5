//! The engine as its callers see it, on the default model.

use futures_core::Stream;
use paceline::{Engine, EngineConfig, Event, Generation, Handle, Request, RequestError, StartError, Stats};
use paceline_testkit::{held, storyteller};
use paceline_types::{FinishReason, SamplingParams, TokenId};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

fn config() -> EngineConfig {
    EngineConfig {
        threads: 1,
        max_model_len: Some(1024),
        available_memory: Some(4 << 30),
        ..EngineConfig::default()
    }
}

fn start(config: EngineConfig) -> Handle {
    Engine::start(&storyteller(), config, &|_| {}).expect("the default model starts")
}

/// A request that goes on for exactly `tokens` tokens.
fn request(prompt: usize, seed: u64, tokens: usize) -> Request {
    Request {
        prompt: (0..prompt as u32)
            .map(|i| (i * 31 + seed as u32 * 7 + 5) % 4000)
            .collect(),
        sampling: SamplingParams {
            temperature: 0.8,
            seed,
            max_tokens: tokens,
            ignore_eos: true,
            ..SamplingParams::default()
        }
        .into(),
        ..Request::default()
    }
}

/// What a generation gave: tokens per choice, and how each ended.
#[derive(Debug, Default, PartialEq, Eq)]
struct Text {
    tokens: Vec<Vec<TokenId>>,
    reasons: Vec<Option<FinishReason>>,
}

impl Text {
    fn take(&mut self, event: Event) {
        let choice = match &event {
            Event::Delta { choice, .. } | Event::Finished { choice, .. } => *choice,
            other => panic!("unexpected: {other:?}"),
        };
        if self.tokens.len() <= choice {
            self.tokens.resize(choice + 1, Vec::new());
            self.reasons.resize(choice + 1, None);
        }
        match event {
            Event::Delta { output, .. } => self.tokens[choice].extend(output.ids),
            Event::Finished { finish, .. } => {
                assert_eq!(finish.usage.completion_tokens, self.tokens[choice].len());
                self.reasons[choice] = Some(finish.reason);
            }
            Event::Prompt { .. } | Event::Failed(_) => {}
        }
    }
}

fn read(mut generation: Generation) -> Text {
    let mut text = Text::default();
    while let Some(event) = generation.next_blocking() {
        text.take(event);
    }
    text
}

fn tokens_of(handle: &Handle, request: Request) -> Vec<TokenId> {
    read(handle.generate(request).expect("a good request"))
        .tokens
        .remove(0)
}

/// Waits until the engine's numbers are as described.
fn wait_until(handle: &Handle, what: &str, holds: impl Fn(&Stats) -> bool) {
    let start = Instant::now();
    while !holds(&handle.stats()) {
        assert!(
            start.elapsed() < Duration::from_mins(1),
            "never {what}: {:?}",
            handle.stats()
        );
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until `ended` requests have ended and nothing is held any more.
fn wait_until_free(handle: &Handle, ended: u64) {
    wait_until(handle, "free", |stats| {
        stats.finished == ended && stats.running == 0 && stats.waiting == 0 && stats.blocks_used == 0
    });
}

#[test]
fn many_generations_at_once_equal_their_solo_runs_and_the_host_waits_once_per_step() {
    let handle = start(EngineConfig {
        max_num_seqs: 32,
        ..config()
    });
    let requests: Vec<Request> = (0..32).map(|i| request(1 + 7 * i, i as u64, 10 + i)).collect();
    let alone: Vec<Vec<TokenId>> = requests.iter().map(|r| tokens_of(&handle, r.clone())).collect();
    let readers: Vec<_> = requests
        .into_iter()
        .map(|request| {
            let handle = handle.clone();
            thread::spawn(move || tokens_of(&handle, request))
        })
        .collect();
    let together: Vec<Vec<TokenId>> = readers.into_iter().map(|r| r.join().unwrap()).collect();
    assert_eq!(together, alone);
    wait_until_free(&handle, 64);
    let stats = handle.stats();
    let waits = stats.pipeline.waits;
    assert_eq!((waits.collect, waits.elsewhere), (stats.pipeline.steps, 0));
}

#[test]
fn a_dropped_generation_frees_what_it_held_at_every_phase() {
    let handle = start(EngineConfig {
        max_num_seqs: 1,
        max_num_batched_tokens: 16,
        pipeline_depth: 4,
        prefix_caching: false,
        ..config()
    });
    // In the queue.
    let running = handle.generate(request(4, 1, 900)).unwrap();
    let queued = handle.generate(request(4, 2, 50)).unwrap();
    wait_until(&handle, "queued", |s| s.running == 1 && s.waiting == 1);
    drop(queued);
    wait_until(&handle, "alone", |s| s.running == 1 && s.waiting == 0);
    // While it generates, with results in flight.
    wait_until(&handle, "under way", |s| s.tokens > 5);
    drop(running);
    wait_until_free(&handle, 2);
    // In its prompt.
    let prompt = handle.generate(request(1000, 3, 20)).unwrap();
    wait_until(&handle, "in its prompt", |s| s.running == 1);
    drop(prompt);
    wait_until_free(&handle, 3);
    // After its first event.
    let mut first = handle.generate(request(4, 4, 900)).unwrap();
    assert!(matches!(first.next_blocking(), Some(Event::Delta { .. })));
    drop(first);
    wait_until_free(&handle, 4);
    // At once.
    for seed in 0..20 {
        drop(handle.generate(request(40, seed, 30)).unwrap());
    }
    wait_until_free(&handle, 24);
    assert_eq!(tokens_of(&handle, request(9, 5, 6)).len(), 6);
}

#[test]
fn a_dropped_generation_stops_its_tokens() {
    let handle = start(EngineConfig {
        prefix_caching: false,
        ..config()
    });
    // One after the other and side by side; each would go on for a thousand tokens.
    let mut ended = 0;
    for count in [1, 8] {
        let before = handle.stats().tokens;
        let mut open: Vec<Generation> = (0..count)
            .map(|seed| handle.generate(request(4, seed, 1000)).unwrap())
            .collect();
        for generation in &mut open {
            assert!(matches!(generation.next_blocking(), Some(Event::Delta { .. })));
        }
        drop(open);
        ended += count;
        wait_until_free(&handle, ended);
        let tokens = handle.stats().tokens - before;
        assert!(tokens < count * 1000, "{tokens} tokens for nobody");
    }
    // A choice that is stopped, too.
    let before = handle.stats().tokens;
    let mut generation = handle.generate(request(4, 1, 1000)).unwrap();
    assert!(generation.next_blocking().is_some());
    generation.stop_choice(0);
    while generation.next_blocking().is_some() {}
    assert!(handle.stats().tokens - before < 1000);
}

#[test]
fn cancel_and_deadline_end_a_generation_with_what_it_has() {
    let handle = start(config());
    let expected = tokens_of(&handle, request(9, 3, 400));
    let mut generation = handle.generate(request(9, 3, 400)).unwrap();
    let mut text = Text::default();
    text.take(generation.next_blocking().unwrap());
    generation.cancel();
    while let Some(event) = generation.next_blocking() {
        text.take(event);
    }
    assert_eq!(text.reasons, [Some(FinishReason::Cancelled)]);
    assert!(text.tokens[0].len() < 400 && expected.starts_with(&text.tokens[0]));
    let (gate, constraint) = held(3, 4096);
    let hurried = Request {
        deadline: Some(Duration::from_millis(40)),
        constraint: Some(constraint),
        ..request(9, 3, 400)
    };
    let text = read(handle.generate(hurried).unwrap());
    drop(gate);
    assert_eq!(text.reasons, [Some(FinishReason::Deadline)]);
    // There is none before the first token.
    let tokens = text.tokens.first().map_or(&[][..], Vec::as_slice);
    assert!(tokens.len() < 30 && expected.starts_with(tokens), "{tokens:?}");
    let late = Request {
        deadline: Some(Duration::ZERO),
        ..request(9, 3, 900)
    };
    let text = read(handle.generate(late).unwrap());
    assert_eq!(text.reasons, [Some(FinishReason::Deadline)]);
    wait_until_free(&handle, 4);
}

#[test]
fn choices_share_the_prompt_and_the_first_is_the_only_one_of_one() {
    for prefix_caching in [true, false] {
        let handle = start(EngineConfig {
            prefix_caching,
            ..config()
        });
        let many = Request {
            n: Some(3),
            ..request(100, 8, 20)
        };
        let text = read(handle.generate(many).unwrap());
        assert_eq!(text.reasons, [Some(FinishReason::Length); 3]);
        assert_ne!(text.tokens[1], text.tokens[2]);
        // All full blocks of the prompt, for each of the others.
        assert_eq!(handle.stats().counters.prefix_hits, 2 * 96);
        assert_eq!(tokens_of(&handle, request(100, 8, 20)), text.tokens[0]);
        wait_until_free(&handle, 4);
    }
}

#[test]
fn a_choice_that_is_stopped_leaves_its_place_and_its_siblings_go_on() {
    let handle = start(EngineConfig {
        prefix_caching: false,
        ..config()
    });
    let many = Request {
        n: Some(3),
        ..request(40, 8, 800)
    };
    let expected = read(handle.generate(many.clone()).unwrap());
    wait_until_free(&handle, 3);
    let mut generation = handle.generate(many).unwrap();
    let mut text = Text::default();
    // Each is stopped with its first tokens; a choice that does not exist is ignored.
    while text.reasons.iter().flatten().count() < 2 {
        let event = generation.next_blocking().unwrap();
        if let Event::Delta { choice, .. } = event
            && choice != 1
        {
            generation.stop_choice(choice);
        }
        generation.stop_choice(3);
        text.take(event);
    }
    wait_until(&handle, "alone", |stats| stats.running == 1 && stats.waiting == 0);
    assert!(handle.stats().blocks_used <= 840_usize.div_ceil(16));
    assert_eq!(
        text.reasons,
        [Some(FinishReason::Stop), None, Some(FinishReason::Stop)]
    );
    while let Some(event) = generation.next_blocking() {
        text.take(event);
    }
    assert_eq!(text.reasons[1], Some(FinishReason::Length));
    assert_eq!(text.tokens[1], expected.tokens[1]);
    for choice in [0, 2] {
        assert!(text.tokens[choice].len() < 800 && expected.tokens[choice].starts_with(&text.tokens[choice]));
    }
    wait_until_free(&handle, 6);
}

#[test]
fn usage_tells_what_the_prefix_cache_spared() {
    let cached = |handle: &Handle, request: Request| {
        let mut generation = handle.generate(request).unwrap();
        let mut cached = Vec::new();
        while let Some(event) = generation.next_blocking() {
            if let Event::Finished { choice, finish } = event {
                cached.push((choice, finish.usage.cached_tokens));
            }
        }
        cached.sort_unstable();
        cached
    };
    let handle = start(config());
    assert_eq!(cached(&handle, request(100, 1, 4)), [(0, 0)]);
    assert_eq!(cached(&handle, request(100, 1, 4)), [(0, 96)]);
    let many = Request {
        n: Some(2),
        ..request(100, 2, 4)
    };
    assert_eq!(cached(&handle, many), [(0, 0), (1, 96)]);
    let handle = start(EngineConfig {
        prefix_caching: false,
        ..config()
    });
    for _ in 0..2 {
        assert_eq!(cached(&handle, request(100, 1, 4)), [(0, 0)]);
    }
}

#[test]
fn usage_counts_time_from_the_arrival() {
    let handle = start(config());
    let before = Instant::now();
    let mut generation = handle.generate(request(20, 1, 8)).unwrap();
    let arrived = generation.arrived();
    assert!(before <= arrived);
    let end = std::iter::from_fn(|| generation.next_blocking()).find_map(|event| match event {
        Event::Finished { finish, .. } => Some(finish.usage),
        _ => None,
    });
    let usage = end.unwrap();
    assert!(usage.queued <= usage.first_token && usage.first_token <= usage.total);
    assert!(arrived + usage.total <= Instant::now());
}

#[test]
fn a_full_queue_is_an_error_and_the_engine_goes_on() {
    let handle = start(EngineConfig {
        max_num_seqs: 2,
        max_waiting: 2,
        ..config()
    });
    let open: Vec<Generation> = (0..4)
        .map(|i| handle.generate(request(5, i, 300)).unwrap())
        .collect();
    let refused = handle.generate(request(5, 9, 4)).err().unwrap();
    assert_eq!(refused, RequestError::QueueFull { open: 4 });
    assert!(refused.to_string().contains("try again later"));
    drop(open);
    wait_until_free(&handle, 4);
    assert_eq!(tokens_of(&handle, request(5, 9, 4)).len(), 4);
    // Choices count one each.
    let many = Request {
        n: Some(2),
        ..request(5, 1, 300)
    };
    let _two = handle.generate(many.clone()).unwrap();
    let _four = handle.generate(many.clone()).unwrap();
    assert!(matches!(
        handle.generate(many),
        Err(RequestError::QueueFull { .. })
    ));
}

#[test]
fn a_reader_that_never_reads_blocks_nobody_and_loses_nothing() {
    let handle = start(config());
    let mut lazy = handle.generate(request(6, 1, 700)).unwrap();
    for seed in 2..6 {
        assert_eq!(tokens_of(&handle, request(6, seed, 40)).len(), 40);
    }
    wait_until_free(&handle, 5);
    // What waited was merged: few events, all tokens.
    let mut text = Text::default();
    let mut events = 0;
    while let Some(event) = lazy.next_blocking() {
        events += 1;
        text.take(event);
    }
    assert!(events <= 2, "{events}");
    assert_eq!(text.tokens[0], tokens_of(&handle, request(6, 1, 700)));
}

#[test]
fn bad_requests_name_the_field_and_the_engine_goes_on() {
    let handle = start(config());
    let with = |change: fn(&mut Request)| {
        let mut request = request(8, 1, 12);
        change(&mut request);
        request
    };
    let expected = tokens_of(&handle, with(|_| {}));
    let bad: [(&str, Request); 9] = [
        ("prompt", with(|r| r.prompt = [].into())),
        ("prompt", with(|r| r.prompt = vec![1; 1024].into())),
        ("prompt", with(|r| r.prompt = [1, 4096].into())),
        (
            "stop_token_ids",
            with(|r| r.sampling_mut().stop_tokens = vec![9999]),
        ),
        (
            "presence_penalty",
            with(|r| r.sampling_mut().presence_penalty = 2.1),
        ),
        (
            "frequency_penalty",
            with(|r| r.sampling_mut().frequency_penalty = f32::NAN),
        ),
        (
            "repetition_penalty",
            with(|r| r.sampling_mut().repetition_penalty = -1.0),
        ),
        ("n", with(|r| r.n = Some(0))),
        ("max_tokens", with(|r| r.sampling_mut().max_tokens = 0)),
    ];
    for (field, request) in bad {
        let message = handle.generate(request).err().expect(field).to_string();
        assert!(
            message.contains(&format!("`{field}`")) && message.contains("must be"),
            "{message}"
        );
        assert_eq!(tokens_of(&handle, with(|_| {})), expected);
    }
}

#[test]
fn what_cannot_fit_refuses_to_start_with_a_sentence() {
    let refusal = |change: fn(&mut EngineConfig)| {
        let mut config = config();
        change(&mut config);
        match Engine::start(&storyteller(), config, &|_| {}) {
            Err(StartError::Memory(sentence)) => sentence,
            Err(StartError::Option { option, bound, .. }) => format!("{option}: {bound}"),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("it starts"),
        }
    };
    let tiny = refusal(|c| c.available_memory = Some(1 << 20));
    assert!(tiny.contains("MiB") && tiny.contains("--"), "{tiny}");
    let blocks = refusal(|c| c.num_blocks = Some(3));
    assert!(blocks.contains("--num-blocks"), "{blocks}");
    let long = refusal(|c| c.max_model_len = Some(10_000_000));
    assert!(long.contains("max-model-len"), "{long}");
    let many = refusal(|c| c.num_blocks = Some(100_000_000));
    assert!(many.contains("--num-blocks"), "{many}");
}

/// Wakes the thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn a_generation_is_a_stream_for_any_executor() {
    let handle = start(config());
    let expected = tokens_of(&handle, request(8, 2, 60));
    let mut generation = handle.generate(request(8, 2, 60)).unwrap();
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    let (mut text, mut waits) = (Text::default(), 0);
    loop {
        match Pin::new(&mut generation).poll_next(&mut cx) {
            Poll::Ready(Some(event)) => text.take(event),
            Poll::Ready(None) => break,
            Poll::Pending => {
                waits += 1;
                thread::park_timeout(Duration::from_mins(1));
            }
        }
    }
    assert_eq!(text.tokens[0], expected);
    assert!(waits > 0, "the first poll comes before the first token");
    assert!(matches!(
        Pin::new(&mut generation).poll_next(&mut cx),
        Poll::Ready(None)
    ));
}

/// A plan row passes one point at which states are saved, so points that lie close would cut a prompt into small steps.
#[test]
fn points_to_save_states_at_leave_steps_their_size() {
    let engine = start(EngineConfig {
        snapshot_interval: 16,
        max_num_batched_tokens: 256,
        ..config()
    });
    read(engine.generate(request(250, 1, 1)).expect("there is room"));
    let stats = engine.stats();
    assert!(stats.counters.snapshots_written > 0, "{stats:?}");
    // One, and what was in flight when it ended; a point for every quarter of a step makes it four and more.
    assert!(stats.pipeline.steps <= 3, "{} steps", stats.pipeline.steps);
}

/// Steps that nobody looks at are not kept, before a viewer comes and behind the last one that goes.
#[test]
fn steps_are_kept_while_somebody_looks_and_only_then() {
    let handle = start(config());
    let kept = || handle.trace(1 << 16).len();
    let run = |seed| tokens_of(&handle, request(5, seed, 20));
    let nothing = kept();
    run(1);
    assert_eq!(kept(), nothing);
    let mut viewer = handle.watch();
    run(2);
    let start = Instant::now();
    while viewer.take().0.is_empty() {
        assert!(start.elapsed() < Duration::from_mins(1), "no step was seen");
    }
    assert!(kept() > nothing);
    drop(viewer);
    run(3);
    let before = kept();
    run(4);
    assert_eq!(kept(), before);
}
