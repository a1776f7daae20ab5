//! What becomes of requests when the engine cannot go on.

use paceline::faults::Fault;
use paceline::{
    Device, EmbeddingError, EmbeddingRequest, EngineConfig, Event, Generation, Handle, Request, RequestError,
};
use paceline_testkit::storyteller;
use paceline_types::{Pooling, SamplingParams};
use std::time::{Duration, Instant};

fn failing(fault: Fault, at: u64) -> Handle {
    let config = EngineConfig {
        threads: 1,
        max_model_len: Some(1024),
        max_num_seqs: 2,
        available_memory: Some(4 << 30),
        ..EngineConfig::default()
    };
    let device = Device::open(&config).expect("there is a device");
    let loaded = device
        .load(&storyteller(), config, &|_| {})
        .expect("the default model loads");
    loaded.start_failing(fault, at).expect("the engine starts")
}

fn request(seed: u32) -> Request {
    Request {
        prompt: (seed..seed + 20).collect(),
        sampling: SamplingParams {
            max_tokens: 900,
            ignore_eos: true,
            ..SamplingParams::default()
        }
        .into(),
        ..Request::default()
    }
}

/// How many tokens came, and what was said at the end.
fn read(mut generation: Generation) -> (usize, Option<String>) {
    let (mut count, mut failure) = (0, None);
    while let Some(event) = generation.next_blocking() {
        match event {
            Event::Delta { output, .. } => count += output.ids.len(),
            Event::Failed(failed) => failure = Some(failed.to_string()),
            other => panic!("{other:?}"),
        }
    }
    (count, failure)
}

#[test]
fn a_fault_ends_every_request_with_its_cause_and_refuses_the_next() {
    for (fault, cause) in [
        (Fault::Submit, "the device failed: a fault was injected"),
        (Fault::Collect, "the device failed: a fault was injected"),
        (
            Fault::Panic,
            "its thread panicked: a fault was injected in step 12",
        ),
    ] {
        let handle = failing(fault, 12);
        assert_eq!(handle.fault(), None);
        // Two that run and two that wait for a slot.
        let texts = [1, 2, 3].map(|seed| handle.generate(request(seed)).unwrap());
        let vector = EmbeddingRequest::new((1..200).collect::<Vec<_>>(), Pooling::Mean);
        let vector = handle.embed(vector).unwrap();
        let counts = texts.map(|generation| {
            let (count, failure) = read(generation);
            let message = failure.unwrap_or_else(|| panic!("{fault:?}: no failure"));
            assert!(message.contains(cause), "{fault:?}: {message}");
            count
        });
        assert!(counts[0] > 0 && counts[2] == 0, "{fault:?}: {counts:?}");
        match vector.wait() {
            Err(EmbeddingError::Failed(message)) => assert!(message.contains(cause), "{message}"),
            other => panic!("{fault:?}: {other:?}"),
        }
        assert!(
            handle.fault().is_some_and(|reason| reason.contains(cause)),
            "{fault:?}"
        );
        assert_eq!((handle.stats().running, handle.stats().waiting), (0, 0));
        // The thread says why before it is gone; then nothing is taken in any more.
        let start = Instant::now();
        loop {
            match handle.generate(request(5)) {
                Err(RequestError::Stopped(reason)) => {
                    assert!(reason.contains(cause), "{fault:?}: {reason}");
                    break;
                }
                Err(other) => panic!("{fault:?}: {other}"),
                Ok(generation) => assert_eq!(read(generation).0, 0),
            }
            assert!(
                start.elapsed() < Duration::from_mins(1),
                "{fault:?}: it still takes requests"
            );
        }
    }
}

#[test]
fn a_request_that_the_fault_comes_before_finds_its_stream_closed() {
    let handle = failing(Fault::Panic, 1);
    let lost: Vec<_> = (0..2)
        .filter_map(|seed| handle.generate(request(seed)).ok())
        .collect();
    for generation in lost {
        assert_eq!(read(generation).0, 0);
    }
    assert!(handle.fault().is_some());
}
