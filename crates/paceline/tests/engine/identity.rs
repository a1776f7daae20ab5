//! The identity matrix: whatever else happens, a request's tokens and log-probabilities are those of its solo run.
//!
//! A case is a model, a way to run it (drafter, drafts per step, depth control, pipeline depth, batch, budget, block size,
//! threads, caching, blocks) and requests that arrive, share beginnings, and are cancelled at given steps. Every request
//! that ends by itself must have given exactly what it gives alone in a plain loop without drafts; a cancelled one a
//! beginning of it. The default run has 300 cases, `PACELINE_TEST_LONG=1` has 6000; a failing case is made smaller and printed
//! with its seed, and `PACELINE_TEST_SEED` runs the cases of a seed again.

use paceline_selftest::Random;
use paceline_selftest::mixes::{CpuBench, Mix, Seen, check, smallest};
use paceline_types::DType;
use std::time::{SystemTime, UNIX_EPOCH};

fn cases() -> usize {
    if std::env::var_os("PACELINE_TEST_LONG").is_some_and(|value| value == "1") {
        6_000
    } else {
        300
    }
}

/// The seed to run again, or one that no run had before.
fn seed() -> u64 {
    let given = std::env::var("PACELINE_TEST_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let clock = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |time| time.as_nanos() as u64)
    };
    given.unwrap_or_else(clock)
}

/// Runs mixes until one fails, which is made smaller and told.
fn run(bench: &CpuBench, cases: usize) -> Seen {
    let (seed, mut seen) = (seed(), Seen::default());
    let mut random = Random::new(seed, "mixes");
    for _ in 0..cases {
        let mix = Mix::random(&mut random, true);
        if check(bench, &mut seen, &mix).is_err() {
            let fails = |mix: &Mix| check(bench, &mut Seen::default(), mix).err();
            let mix = smallest(mix, |mix| fails(mix).is_some());
            let why = fails(&mix).unwrap_or_default();
            panic!("seed {seed}: {why}\nsmallest mix: {mix:#?}");
        }
    }
    seen
}

#[test]
fn every_request_gets_what_it_gets_alone() {
    let seen = run(&CpuBench::default(), cases());
    println!("{} cases: {seen:?}", cases());
    assert!(seen.requests > cases(), "{seen:?}");
    assert!(seen.drafted > seen.accepted && seen.accepted > 0, "{seen:?}");
    assert!(
        seen.preemptions > 0 && seen.hits > 0 && seen.restored > 0,
        "{seen:?}"
    );
    // All but the one that is off and the one that is always wrong.
    assert!(seen.useful.len() >= 8, "{seen:?}");
}

#[test]
fn every_request_gets_what_it_gets_alone_with_keys_and_values_in_half_width() {
    for kv in [DType::F16, DType::BF16] {
        let seen = run(&CpuBench::with_kv(kv), cases() / 6);
        assert!(seen.accepted > 0 && seen.hits > 0, "{kv}: {seen:?}");
    }
}
