//! Scheduler, caches and pipeline against a scripted device on virtual time.
//!
//! Each case is drawn from a seed: configuration, arrivals, cancels, stops, deadlines, groups, priorities,
//! constraints, texts that become vectors, acceptance counts. The device checks every row (positions, blocks, tokens, states), the callers every delivery.
//! A failing case is made simpler as far as it still fails, and printed with its seed.
//! `PACELINE_TEST_LONG=1`: a million steps. `PACELINE_SIM_SEED=n`: that case alone.

use crate::sim::scenario::Scenario;
use crate::sim::world::{Tally, World};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Most cases are short, to see many configurations; one in fifty is long.
fn steps_of(seed: u64) -> u64 {
    if seed % 50 == 49 { 5_000 } else { STEPS_PER_CASE }
}

const STEPS_PER_CASE: u64 = 250;

fn run(scenario: &Scenario) -> (Tally, paceline_schedule::Counters, Counts) {
    let mut world = World::new(scenario.clone());
    world.run();
    let device = world.pipeline.runner();
    let counts = Counts {
        idle_rows: device.idle_rows,
        restores: device.restores,
        most_accepted: device.most_accepted,
        early_drafts: device.early_drafts,
        drafted: device.drafted,
        vectors: device.vectors,
    };
    (world.tally, world.pipeline.scheduler().counters(), counts)
}

struct Counts {
    idle_rows: u64,
    restores: u64,
    most_accepted: usize,
    early_drafts: u64,
    drafted: [u64; 3],
    vectors: u64,
}

/// The simplest variant of a failing case that still fails.
fn simplest(failing: Scenario) -> Scenario {
    let fails = |scenario: &Scenario| catch_unwind(AssertUnwindSafe(|| run(scenario))).is_err();
    let mut simplest = failing;
    while let Some(simpler) = simplest.simpler().into_iter().find(fails) {
        simplest = simpler;
    }
    simplest
}

fn seeds() -> Vec<u64> {
    if let Ok(seed) = std::env::var("PACELINE_SIM_SEED") {
        return vec![seed.parse().expect("PACELINE_SIM_SEED is a number")];
    }
    let long = std::env::var("PACELINE_TEST_LONG").is_ok_and(|value| value == "1");
    let steps = if long { 1_000_000 } else { 20_000 };
    (0..steps / STEPS_PER_CASE).collect()
}

#[test]
fn every_token_is_delivered_once_in_order_and_everything_comes_back() {
    let seeds = seeds();
    let (mut steps, mut tokens, mut wasted, mut preempted) = (0, 0, 0, 0);
    let (mut hits, mut unreached, mut used, mut idle, mut accepted) = (0, 0, 0, 0, 0);
    let (mut early, mut drafted) = (0, [0; 3]);
    let (mut made, mut vectors, mut completed) = (0, 0, 0);
    let mut finished = [0; 5];
    for seed in &seeds {
        let scenario = Scenario::draw(*seed, steps_of(*seed));
        let Ok((tally, counters, counts)) = catch_unwind(AssertUnwindSafe(|| run(&scenario))) else {
            let simplest = simplest(scenario);
            panic!("seed {seed} fails; the simplest variant that does: {simplest:#?}");
        };
        steps += tally.steps;
        tokens += tally.tokens;
        wasted += counters.wasted_rows;
        preempted += counters.preemptions;
        hits += counters.prefix_hits;
        unreached += counters.snapshots_released;
        used += counters.snapshots_used;
        idle += counts.idle_rows;
        accepted = accepted.max(counts.most_accepted);
        early += counts.early_drafts;
        made += counts.vectors;
        vectors += tally.vectors;
        completed += tally.completed;
        for (sum, count) in drafted.iter_mut().zip(counts.drafted) {
            *sum += count;
        }
        assert_eq!(counters.snapshots_used, counts.restores);
        assert_eq!(
            counters.snapshots_reserved,
            counters.snapshots_published + counters.snapshots_released,
            "seed {seed}: a reserved state was neither published nor released"
        );
        for (sum, count) in finished.iter_mut().zip(tally.finished) {
            *sum += count;
        }
    }
    println!(
        "{} cases, {steps} steps, {tokens} tokens, finished {finished:?}, preempted {preempted}, prefix hits {hits}, \
         states used {used} released {unreached}, wasted rows {wasted}, idle rows {idle}, drafted {drafted:?}, \
         in first decodes {early}, most accepted {accepted}, vectors {vectors} of {made}, completed by grammars \
         {completed}",
        seeds.len()
    );
    if seeds.len() > 1 {
        // The cases are worth something only if all of this came up.
        assert!(steps >= seeds.len() as u64 * STEPS_PER_CASE / 2);
        assert!(finished.iter().all(|count| *count > 0), "{finished:?}");
        assert!(early > 0 && drafted.iter().all(|count| *count > 0));
        // Some vectors are made for nothing: their requests ended while the step was in flight.
        assert!(vectors > 0 && vectors < made && completed > 0);
        assert!(
            preempted > 0 && hits > 0 && used > 0 && unreached > 0 && wasted > 0 && idle > 0 && accepted > 8
        );
    }
}
