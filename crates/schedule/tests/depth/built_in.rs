//! The built-in model on two cores, and a burst of prompts on a GPU: costs and chances as they were measured.

use super::world::{Law, PLAIN, Spot, World, fixed};
use super::{STEPS, best_fixed};
use paceline_schedule::DepthControl;
use paceline_types::DraftSource;

/// What the built-in model's steps take on two cores, by tokens run: not in proportion to them, and in stairs.
fn built_in(tokens: f64) -> f64 {
    const TIMES: [f64; 8] = [2.7e5, 3.3e5, 4.2e5, 4.3e5, 5.1e5, 6e5, 6.9e5, 7.1e5];
    match tokens as usize {
        few @ 1..=8 => TIMES[few - 1],
        _ => 8.8e4 * tokens,
    }
}

/// Short texts of the built-in model in an engine that has just started. Whatever its first requests met, whether slow steps, bad
/// luck or texts that repeat nothing, must not be held against the drafts of those that come later.
#[test]
fn a_bad_start_is_not_held_against_drafts() {
    type Verify = fn(f64, u64) -> f64;
    type Found = fn(Spot) -> f64;
    let starts: [(Verify, Found); 4] = [
        (|tokens, _| built_in(tokens), |_| 0.0),
        (|tokens, _| built_in(tokens), |_| 0.2),
        (
            |tokens, step| built_in(tokens) * if step < 100 { 1.6 } else { 1.0 },
            |_| 0.0,
        ),
        (
            |tokens, step| built_in(tokens) * if step < 400 { 1.6 } else { 1.0 },
            |_| 0.2,
        ),
    ];
    let (mut shares, mut worst) = (Vec::new(), f64::INFINITY);
    for (start, (verify, found)) in starts.into_iter().enumerate() {
        let law = Law {
            verify,
            pass: |_| 4e4,
            found,
            chance: |_, source, place| match source {
                DraftSource::Neural => [0.8, 0.8, 0.8, 0.7, 0.6, 0.5, 0.5][place.min(6)],
                _ => [0.5, 0.6, 0.8, 0.8, 0.8, 0.8, 0.8][place.min(6)],
            },
            length: 110,
            drafts: 7,
            ..PLAIN
        };
        let usual: Verify = |tokens, _| built_in(tokens);
        let (depth, best) = best_fixed(Law { verify: usual, ..law }, STEPS / 2, true);
        for (noisy, seed) in (1..16).flat_map(|seed| [(false, seed), (true, seed)]) {
            let mut world = World::new(Law { noisy, ..law }, Box::new(DepthControl::new()), seed);
            world.run_for(5e8);
            let share = world.run_for(1e9).rate() / best.rate();
            println!("start {start}, noisy {noisy}, seed {seed}: best {depth}, {share:.3} of it");
            shares.push(share);
            worst = worst.min(share);
        }
    }
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    println!("{mean:.3}, at worst {worst:.3}");
    assert!(mean > 0.96 && worst > 0.87, "{mean:.3}, at worst {worst:.3}");
}

/// Rates of some seeds against that of a fixed depth, once the first half second is over.
fn shares(law: Law, (ngram, neural): (usize, usize)) -> Vec<f64> {
    let fixed = World::new(law, fixed(ngram, neural), 1).run_for(1e9).rate();
    let share = |seed| {
        let mut world = World::new(law, Box::new(DepthControl::new()), seed);
        world.run_for(5e8);
        world.run_for(1e9).rate() / fixed
    };
    (1..=12).map(share).collect()
}

/// Checks the mean of some shares and the least of them.
#[track_caller]
pub(crate) fn all_above(shares: &[f64], mean: f64, least: f64) {
    let (sum, worst) = shares.iter().fold((0.0, f64::INFINITY), |(sum, worst), share| {
        (sum + share, share.min(worst))
    });
    let average = sum / shares.len() as f64;
    println!("{average:.3}, at worst {worst:.3}");
    assert!(
        average > mean && worst > least,
        "{average:.3}, at worst {worst:.3}"
    );
}

/// Requests that are over before they would try again still find out together that later drafts are right after all.
#[test]
fn short_requests_try_again_what_the_first_ones_gave_up() {
    let law = Law {
        verify: |tokens, _| built_in(tokens),
        pass: |_| 4e4,
        chance: |spot, _, place| if place > 1 && spot.request <= 12 { 0.0 } else { 0.8 },
        length: 64,
        drafts: 7,
        noisy: false,
        ..PLAIN
    };
    all_above(&shares(law, (0, 3)), 0.98, 0.93);
}

/// Where a pass of the drafter takes long as measured by a step, text that repeats itself is worth more than drafts that are as good.
#[test]
fn drafts_from_the_text_spare_passes() {
    let law = Law {
        verify: |tokens, _| 2.5e5 + 2e3 * tokens,
        pass: |_| 5.2e4,
        found: |_| 0.15,
        chance: |_, source, place| match source {
            DraftSource::Neural => [0.8, 0.79, 0.81, 0.75, 0.7, 0.65, 0.6][place.min(6)],
            _ => [0.6, 0.7, 0.8, 0.8, 0.8, 0.8, 0.8][place.min(6)],
        },
        length: 128,
        drafts: 7,
        noisy: false,
        ..PLAIN
    };
    all_above(&shares(law, (7, 3)), 0.965, 0.94);
}

/// 256 requests at once with the times of Qwen3.5-4B on an H200. A drafter that is never right reads no more prompts than it takes to
/// find that out, though no step without prompts has told yet what drafts cost.
#[test]
fn a_burst_of_prompts_is_not_read_by_a_drafter_that_is_never_right() {
    let law = Law {
        verify: |tokens, _| {
            if tokens > 2048.0 {
                1.9e4 * tokens
            } else {
                1.1e7 + 1.9e4 * (tokens - 256.0).max(0.0)
            }
        },
        pass: |_| 7e5,
        // 3 % of what the model takes for a token of a prompt.
        reading: 6e2,
        prompt: 1024,
        length: 256,
        drafts: 3,
        slots: 256,
        step_tokens: 8192,
        rows: |step| if step == 0 { 256 } else { 0 },
        noisy: false,
        ..PLAIN
    };
    let none = World::new(law, fixed(0, 0), 1).finish().rate();
    let ratio = World::new(law, Box::new(DepthControl::new()), 1).finish().rate() / none;
    println!("{ratio:.4}");
    assert!(ratio > 0.985, "{ratio}");
}
