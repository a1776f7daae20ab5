//! Texts that become vectors: what a plain run of the model gives, to the last bit, whatever else the engine does.

use paceline::{
    EmbeddingError, EmbeddingRequest, Engine, EngineConfig, Event, Handle, Request, RequestError,
    SpeculationConfig, SpeculationMethod,
};
use paceline_device::abi::{RequestRow, TokenRow};
use paceline_device::{Backend, Pending, StepLimits, StepTables, Workspace};
use paceline_device_cpu::{Cpu, CpuOptions, Instructions};
use paceline_models::{CacheSizes, Forward};
use paceline_testkit::{FIXTURES, Fixture, assert_same_bits, storyteller};
use paceline_types::{Pooling, SamplingParams, TokenId, on_state_grid};
use paceline_weights::Checkpoint;
use std::thread;
use std::time::{Duration, Instant};

/// A text with a given number of tokens, of any vocabulary.
fn text(tokens: usize, seed: u32) -> Vec<TokenId> {
    (0..tokens as u32).map(|i| (i * 31 + seed * 7 + 5) % 60).collect()
}

/// The final states of a text's tokens, from one pass without engine, scheduler, slots or plan.
fn plain_states(checkpoint: &Checkpoint, tokens: &[TokenId]) -> (Vec<f32>, usize) {
    let backend = Cpu::new(CpuOptions {
        threads: 1,
        instructions: Instructions::detect(),
    });
    let model = paceline_models::load(&backend, checkpoint, None, &|_| {}).unwrap();
    let count = tokens.len();
    let limits = StepLimits {
        tokens: count,
        requests: 1,
        samples: 1,
        blocks_per_request: 1,
        block_size: count,
    };
    let step = StepTables::new(&backend, limits).unwrap();
    let sizes = CacheSizes {
        blocks: 1,
        block_size: count,
        slots: 1,
        drafts: 0,
        snapshots: 0,
    };
    let caches = model.caches(&backend, &sizes).unwrap();
    let row = |(position, token): (usize, &TokenId)| TokenRow {
        id: *token as i32,
        position: position as i32,
        request: 0,
    };
    let rows: Vec<TokenRow> = tokens.iter().enumerate().map(row).collect();
    let request = RequestRow {
        token_count: count as i32,
        state_end: on_state_grid(count) as i32,
        ..RequestRow::default()
    };
    backend.write(&step.token_rows, &rows);
    backend.write(&step.request_rows, &[request]);
    backend.write(&step.tokens.live, &[count as i32]);
    backend.write(&step.requests.live, &[1]);
    let workspace = Workspace::new(backend.clone());
    let mut cx = Forward::new(&backend, &step, &workspace, &caches);
    let states = model.forward(&mut cx).unwrap();
    (backend.read_tensor(&states).wait().unwrap(), model.dims.hidden)
}

/// The vector that the states make.
fn pooled((states, width): &(Vec<f32>, usize), pooling: Pooling) -> Vec<f32> {
    let rows = states.chunks_exact(*width);
    let count = rows.len() as f32;
    match pooling {
        Pooling::Last => rows.last().unwrap().to_vec(),
        Pooling::Mean => {
            let mut sum = vec![0.0; *width];
            for row in rows {
                sum.iter_mut().zip(row).for_each(|(sum, state)| *sum += state);
            }
            sum.iter().map(|sum| sum / count).collect()
        }
    }
}

fn config() -> EngineConfig {
    EngineConfig {
        threads: 1,
        max_model_len: Some(256),
        available_memory: Some(4 << 30),
        ..EngineConfig::default()
    }
}

fn embed(handle: &Handle, tokens: &[TokenId], pooling: Pooling) -> Vec<f32> {
    let request = EmbeddingRequest::new(tokens.to_vec(), pooling);
    handle.embed(request).unwrap().wait().unwrap().values
}

fn story(prompt: usize, seed: u64, tokens: usize) -> Request {
    Request {
        prompt: text(prompt, seed as u32).into(),
        sampling: SamplingParams {
            temperature: 0.9,
            seed,
            max_tokens: tokens,
            ignore_eos: true,
            ..SamplingParams::default()
        }
        .into(),
        ..Request::default()
    }
}

fn tokens_of(handle: &Handle, request: Request) -> Vec<TokenId> {
    let mut generation = handle.generate(request).unwrap();
    let mut text = Vec::new();
    while let Some(event) = generation.next_blocking() {
        match event {
            Event::Delta { output, .. } => text.extend(output.ids),
            Event::Finished { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    text
}

/// Embeds texts and generates at the same time; both must be what they are alone.
fn check_together(
    handle: &Handle,
    what: &str,
    texts: &[(Vec<TokenId>, [Vec<f32>; 2])],
    stories: &[Vec<TokenId>],
) {
    thread::scope(|scope| {
        let writers: Vec<_> = (0..stories.len())
            .map(|seed| scope.spawn(move || tokens_of(handle, story(20 + 9 * seed, seed as u64, 24))))
            .collect();
        let vectors: Vec<_> = texts
            .iter()
            .map(|(tokens, expected)| {
                let start = |pooling| {
                    handle
                        .embed(EmbeddingRequest::new(tokens.clone(), pooling))
                        .unwrap()
                };
                ([Pooling::Mean, Pooling::Last].map(start), expected)
            })
            .collect();
        for (found, expected) in vectors {
            for (found, expected) in found.into_iter().zip(expected) {
                assert_same_bits(&found.wait().unwrap().values, expected, what);
            }
        }
        for (writer, expected) in writers.into_iter().zip(stories) {
            assert_eq!(writer.join().unwrap(), *expected, "{what}");
        }
    });
}

#[test]
fn vectors_are_those_of_a_plain_run_and_texts_beside_them_stay_the_same() {
    for name in FIXTURES {
        let checkpoint = Fixture::read(name).checkpoint();
        let texts: Vec<_> = [1, 17, 70]
            .map(|length| {
                let tokens = text(length, length as u32);
                let states = plain_states(&checkpoint, &tokens);
                let expected = [Pooling::Mean, Pooling::Last].map(|pooling| pooled(&states, pooling));
                (tokens, expected)
            })
            .into();
        let mut limit = config();
        limit.max_model_len = Some(128);
        let quiet = Engine::start(&checkpoint, limit.clone(), &|_| {}).unwrap();
        let stories: Vec<_> = (0..3)
            .map(|seed| tokens_of(&quiet, story(20 + 9 * seed, seed as u64, 24)))
            .collect();
        for (chunk, depth, threads, caching) in [
            (1, 1, 1, false),
            (7, 3, 2, true),
            (64, 2, 1, true),
            (512, 4, 2, false),
        ] {
            let config = EngineConfig {
                max_num_batched_tokens: chunk,
                pipeline_depth: depth,
                threads,
                prefix_caching: caching,
                max_num_seqs: 4,
                ..limit.clone()
            };
            let handle = Engine::start(&checkpoint, config, &|_| {}).unwrap();
            check_together(&handle, &format!("{name}, chunks of {chunk}"), &texts, &stories);
            let stats = handle.stats();
            let waits = stats.pipeline.waits;
            assert_eq!(
                (waits.collect, waits.elsewhere),
                (stats.pipeline.steps, 0),
                "{name}"
            );
        }
    }
}

#[test]
fn vectors_survive_preemption_with_every_row_counted_once() {
    let checkpoint = storyteller();
    let tokens = text(200, 3);
    let states = plain_states(&checkpoint, &tokens);
    let expected = [Pooling::Mean, Pooling::Last].map(|pooling| pooled(&states, pooling));
    // Room for one full request and a little: whoever comes with a better priority pushes others out.
    let handle = Engine::start(
        &checkpoint,
        EngineConfig {
            max_num_batched_tokens: 8,
            num_blocks: Some(16),
            max_num_seqs: 3,
            ..config()
        },
        &|_| {},
    )
    .unwrap();
    let alone = tokens_of(&handle, story(60, 1, 40));
    for round in 0..20 {
        thread::scope(|scope| {
            let later = [Pooling::Mean, Pooling::Last].map(|pooling| {
                let request = EmbeddingRequest {
                    priority: 1,
                    ..EmbeddingRequest::new(tokens.clone(), pooling)
                };
                handle.embed(request).unwrap()
            });
            let steps = handle.stats().pipeline.steps;
            wait_until(&handle, |handle| handle.stats().pipeline.steps > steps + 2);
            let urgent = scope.spawn(|| tokens_of(&handle, story(60, 1, 40)));
            for (found, expected) in later.into_iter().zip(&expected) {
                assert_same_bits(&found.wait().unwrap().values, expected, "after a preemption");
            }
            assert_eq!(urgent.join().unwrap(), alone);
        });
        if round > 2 && handle.stats().counters.preemptions > 3 {
            return;
        }
    }
    panic!("no request was preempted: {:?}", handle.stats().counters);
}

fn wait_until(handle: &Handle, holds: impl Fn(&Handle) -> bool) {
    let start = Instant::now();
    while !holds(handle) {
        assert!(start.elapsed() < Duration::from_mins(1), "{:?}", handle.stats());
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_cached_beginning_spares_the_last_state_and_no_row_of_a_mean() {
    let checkpoint = storyteller();
    let handle = Engine::start(&checkpoint, config(), &|_| {}).unwrap();
    let tokens = text(100, 1);
    let states = plain_states(&checkpoint, &tokens);
    let _ = tokens_of(
        &handle,
        Request {
            prompt: tokens.clone().into(),
            ..story(0, 1, 4)
        },
    );
    for (pooling, cached) in [(Pooling::Mean, 0), (Pooling::Last, 96)] {
        let request = EmbeddingRequest::new(tokens.clone(), pooling);
        let found = handle.embed(request).unwrap().wait().unwrap();
        assert_same_bits(
            &found.values,
            &pooled(&states, pooling),
            "behind a cached beginning",
        );
        assert_eq!(
            (found.usage.prompt_tokens, found.usage.cached_tokens),
            (100, cached)
        );
        assert_eq!(found.usage.completion_tokens, 0);
    }
    // And the other way round: what a vector was made of is a beginning for others.
    let fresh = text(100, 2);
    embed(&handle, &fresh, Pooling::Mean);
    let hits = handle.stats().counters.prefix_hits;
    let _ = tokens_of(
        &handle,
        Request {
            prompt: fresh.into(),
            ..story(0, 1, 4)
        },
    );
    assert_eq!(handle.stats().counters.prefix_hits, hits + 96);
}

#[test]
fn a_vector_nobody_waits_for_frees_its_place_and_deadlines_hold() {
    let handle = Engine::start(
        &storyteller(),
        EngineConfig {
            max_num_batched_tokens: 2,
            max_num_seqs: 1,
            ..config()
        },
        &|_| {},
    )
    .unwrap();
    let free = |handle: &Handle| {
        let stats = handle.stats();
        stats.running + stats.waiting + stats.blocks_used == 0
    };
    let running = handle
        .embed(EmbeddingRequest::new(text(250, 1), Pooling::Mean))
        .unwrap();
    let queued = handle
        .embed(EmbeddingRequest::new(text(250, 2), Pooling::Mean))
        .unwrap();
    wait_until(&handle, |handle| {
        handle.stats().running == 1 && handle.stats().waiting == 1
    });
    queued.cancel();
    assert_eq!(queued.wait(), Err(EmbeddingError::Cancelled));
    drop(running);
    wait_until(&handle, free);
    let late = EmbeddingRequest {
        deadline: Some(Duration::ZERO),
        ..EmbeddingRequest::new(text(9, 1), Pooling::Last)
    };
    assert_eq!(handle.embed(late).unwrap().wait(), Err(EmbeddingError::Deadline));
    wait_until(&handle, free);
    // Full length is allowed: nothing is generated behind it.
    assert!(
        embed(&handle, &text(256, 1), Pooling::Mean)
            .iter()
            .all(|x| x.is_finite())
    );
    for (tokens, part) in [
        (Vec::new(), "0 tokens long"),
        (vec![1, 1 << 20], "with token 1048576"),
    ] {
        let refused = handle
            .embed(EmbeddingRequest::new(tokens, Pooling::Mean))
            .err()
            .unwrap();
        assert!(matches!(refused, RequestError::Parameter { field: "input", .. }));
        assert!(refused.to_string().contains(part), "{refused}");
    }
    let long = EmbeddingRequest::new(text(257, 1), Pooling::Mean);
    let refused = handle.embed(long).err().unwrap();
    assert_eq!(
        refused.to_string(),
        "This model's maximum context length is 256 tokens. However, `input` has 257 tokens."
    );
    let patient = EmbeddingRequest {
        deadline: Some(Duration::MAX),
        ..EmbeddingRequest::new(text(9, 1), Pooling::Last)
    };
    let refused = handle.embed(patient).err().unwrap();
    assert!(matches!(
        refused,
        RequestError::Parameter {
            field: "deadline",
            ..
        }
    ));
}

#[test]
fn drafts_change_no_vector() {
    let checkpoint = storyteller();
    let tokens = text(90, 5);
    let expected = pooled(&plain_states(&checkpoint, &tokens), Pooling::Mean);
    for method in [SpeculationMethod::Off, SpeculationMethod::Auto] {
        let speculation = SpeculationConfig {
            method,
            ..SpeculationConfig::default()
        };
        let config = EngineConfig {
            speculation,
            max_num_batched_tokens: 32,
            ..config()
        };
        let handle = Engine::start(&checkpoint, config, &|_| {}).unwrap();
        let story = handle.generate(story(30, 2, 60)).unwrap();
        assert_same_bits(
            &embed(&handle, &tokens, Pooling::Mean),
            &expected,
            "beside drafts",
        );
        drop(story);
    }
}
