//! The identity matrix: whatever else happens, a request's tokens and log-probabilities are those of its solo run.
//!
//! A case is a model, a way to run it (drafter, drafts per step, depth control, pipeline depth, batch, budget, block size,
//! threads, caching, blocks) and requests that arrive, share beginnings, and are cancelled at given steps. Every request
//! that ends by itself must have given exactly what it gives alone in a plain loop without drafts; a cancelled one a
//! beginning of it. The default run has 300 cases, `PACELINE_TEST_LONG=1` has 6000; a failing case is shrunk and printed
//! with its seed, and `PACELINE_TEST_SEED` runs the cases of a seed again.

#[path = "../support/mod.rs"]
mod support;

mod case;

use case::{Case, any_case};
use paceline_schedule::Counters;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::cell::RefCell;
use std::time::{SystemTime, UNIX_EPOCH};
use support::{Bench, Drafter};

fn cases() -> u32 {
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

/// What the cases were made of: a matrix in which nothing is ever accepted or pushed out proves little.
#[derive(Debug, Default)]
struct Seen {
    requests: usize,
    drafted: u64,
    accepted: u64,
    preemptions: u64,
    hits: u64,
    restored: u64,
    /// Drafters with accepted drafts.
    useful: Vec<Drafter>,
}

impl Seen {
    fn add(&mut self, case: &Case, counters: &Counters) {
        self.requests += case.requests.len();
        self.drafted += counters.drafts_verified;
        self.accepted += counters.drafts_accepted;
        self.preemptions += counters.preemptions;
        self.hits += counters.prefix_hits;
        self.restored += counters.snapshots_used;
        let drafter = case.setup.drafter;
        if counters.drafts_accepted > 0 && !self.useful.contains(&drafter) {
            self.useful.push(drafter);
        }
    }
}

#[test]
fn every_request_gets_what_it_gets_alone() {
    let bench = Bench::default();
    let seen = RefCell::new(Seen::default());
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
    let outcome = TestRunner::new_with_rng(config, rng).run(&any_case(), |case| check(&bench, &seen, &case));
    match outcome {
        Ok(()) => println!("{} cases: {:?}", cases(), seen.borrow()),
        Err(TestError::Fail(why, case)) => panic!("seed {seed}: {why}\nshrunk case: {case:#?}"),
        Err(other) => panic!("{other}"),
    }
    let seen = seen.borrow();
    assert!(seen.requests > cases() as usize, "{seen:?}");
    assert!(seen.drafted > seen.accepted && seen.accepted > 0, "{seen:?}");
    assert!(
        seen.preemptions > 0 && seen.hits > 0 && seen.restored > 0,
        "{seen:?}"
    );
    // All but the one that is off and the one that is always wrong.
    assert!(seen.useful.len() >= 8, "{seen:?}");
}

fn check(bench: &Bench, seen: &RefCell<Seen>, case: &Case) -> Result<(), TestCaseError> {
    let outcome = bench.run(&case.setup, &case.requests);
    seen.borrow_mut().add(case, &outcome.counters);
    for (index, (request, found)) in case.requests.iter().zip(&outcome.given).enumerate() {
        let alone = bench.alone(case.setup.model, request);
        if let Some(difference) = found.differs_from(&alone) {
            return Err(TestCaseError::fail(format!("request {index}: {difference}")));
        }
    }
    Ok(())
}
