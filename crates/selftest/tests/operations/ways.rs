//! A device that says something else when it works in another way is found, and so is a comparison that finds nothing.

use crate::wrong::Wrong;
use paceline::{Open, Openers};
use paceline_selftest::{ModelsConfig, Outcome, ways};
use paceline_testkit::repository;

fn opener(fault: &'static str) -> Box<Open<'static, Wrong>> {
    Box::new(move |_| Ok(Wrong::new(fault)))
}

fn judge(other: &'static str, hasty: &'static str) -> Vec<Outcome> {
    let openers = Openers {
        open: opener("nothing"),
        other_ways: vec![("other", opener(other))],
        hasty: Some([opener(hasty), opener("nothing")]),
        lose: None,
    };
    let config = ModelsConfig {
        root: repository(),
        seed: 3,
        mixes: 0,
        only: None,
    };
    ways(&openers, &config, &mut |_| {})
}

#[test]
fn every_program_says_the_same_in_every_way() {
    let outcomes = judge("nothing", "rms_norm");
    assert!(outcomes.iter().all(Outcome::is_ok), "{outcomes:?}");
    // Programs of up to 32 tokens with prompts, and of up to 16 without, which have a step before and one behind them; each
    // with 0 to 3 draft forwards.
    assert_eq!(outcomes[0].cases, 3 * 4 * (6 + 3 * 5), "{outcomes:?}");
    assert_eq!(outcomes[1].cases, 3);
}

#[test]
fn what_is_different_is_named_and_a_fault_that_does_not_show_is_a_miss() {
    let outcomes = judge("attention", "nothing");
    assert_eq!(outcomes[0].misses.len(), 3, "{outcomes:?}");
    let first = &outcomes[0].misses[0];
    assert!(
        first.starts_with(
            "ways: other, qwen3_5 BF16: Shape { tokens: 32, draft_forwards: 3, prompts: true, scope: Whole }, row 0"
        ),
        "{first}"
    );
    assert_eq!(outcomes[1].misses.len(), 1, "{outcomes:?}");
    let first = &outcomes[1].misses[0];
    assert!(first.contains("nothing shows"), "{first}");
}
