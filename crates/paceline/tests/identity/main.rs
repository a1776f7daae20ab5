//! The identity matrix: whatever else happens, a request's tokens and log-probabilities are those of its solo run.
//!
//! A case is a model, a way to run it (depth, batch, budget, block size, threads, caching, pages) and requests that
//! arrive, share beginnings, and are cancelled at given steps. Every request that ends by itself must have given
//! exactly what it gives alone in a plain loop; a cancelled one a beginning of it. The default run has 200 cases,
//! `PACELINE_TEST_LONG=1` has 2000; a failing case is shrunk and printed with its seed, and `PACELINE_TEST_SEED`
//! runs the cases of a seed again.

mod case;
mod run;

use case::{Case, any_case};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use run::{Bench, Ending};
use std::time::{SystemTime, UNIX_EPOCH};

fn cases() -> u32 {
    if std::env::var_os("PACELINE_TEST_LONG").is_some_and(|value| value == "1") {
        2_000
    } else {
        200
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

#[test]
fn every_request_gets_what_it_gets_alone() {
    let bench = Bench::default();
    let config = Config {
        cases: cases(),
        max_shrink_iters: 200,
        failure_persistence: None,
        ..Config::default()
    };
    let seed = seed();
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let outcome = TestRunner::new_with_rng(config, rng).run(&any_case(), |case| check(&bench, &case));
    match outcome {
        Ok(()) => println!("{} requests compared in {} cases", bench.compared(), cases()),
        Err(TestError::Fail(why, case)) => panic!("seed {seed}: {why}\nshrunk case: {case:#?}"),
        Err(other) => panic!("{other}"),
    }
    assert!(bench.compared() > u64::from(cases()), "requests were compared");
}

fn check(bench: &Bench, case: &Case) -> Result<(), TestCaseError> {
    let together = bench.run(case);
    for (index, (request, found)) in case.requests.iter().zip(&together).enumerate() {
        let alone = bench.alone(case, request);
        let length = found.tokens.len();
        let complete = found.ending == Ending::Finished;
        let expected_length = if complete { alone.tokens.len() } else { length };
        let same = length == expected_length
            && length <= alone.tokens.len()
            && found.tokens == alone.tokens[..length]
            && found.bits() == alone.bits_of(length);
        if !same {
            return Err(TestCaseError::fail(format!(
                "request {index}: {:?} {:?}\n  alone: {:?}\n  log-probabilities equal: {}",
                found.ending,
                found.tokens,
                alone.tokens,
                found.bits() == alone.bits_of(length.min(alone.tokens.len())),
            )));
        }
    }
    Ok(())
}
