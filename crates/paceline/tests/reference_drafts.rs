//! The default model's own head, in the engine: it drafts and accepts what the reference's chains say, step by step.

mod support;

use paceline_testkit::{DraftReference, storyteller_reference};
use paceline_types::SamplingParams;
use support::{Asked, Bench, Drafter, Setup};

const DRAFTS: usize = 3;

/// What a run of a text does when it verifies the reference's chains.
#[derive(Debug, Default, PartialEq, Eq)]
struct Course {
    steps: u64,
    verified: u64,
    accepted: u64,
}

/// Follows a text of `length` generated tokens. The prompt's step gives the first one; each later step verifies the chain
/// behind the newest token, as far as there is room for it and one more.
fn follow(case: &DraftReference, length: usize) -> Course {
    let mut course = Course {
        steps: 1,
        ..Course::default()
    };
    let mut known = 1;
    while known < length {
        let room = DRAFTS.min(length - known - 1);
        let chain = &case.mtp_drafts[known - 1][..room];
        let next = &case.greedy[known..];
        let accepted = chain
            .iter()
            .zip(next)
            .take_while(|(draft, token)| draft == token)
            .count();
        course.steps += 1;
        course.verified += room as u64;
        course.accepted += accepted as u64;
        known += accepted + 1;
    }
    course
}

#[test]
fn the_engine_accepts_what_the_references_chains_say() {
    let bench = Bench::default();
    let mut total = Course::default();
    for case in storyteller_reference() {
        let length = case.mtp_drafts.len();
        let expected = follow(&case, length);
        let params = SamplingParams {
            temperature: 0.0,
            max_tokens: length,
            ..SamplingParams::default()
        };
        let request = Asked::new(case.prompt_ids.clone(), params);
        let setup = Setup {
            drafter: Drafter::Mtp,
            drafts: DRAFTS,
            ..Setup::plain("storyteller")
        };
        let outcome = bench.run(&setup, &[request]);
        assert_eq!(outcome.given[0].tokens, case.greedy[..length], "{}", case.prompt);
        let found = Course {
            steps: outcome.totals.steps,
            verified: outcome.counters.drafts_verified,
            accepted: outcome.counters.drafts_accepted,
        };
        assert_eq!(found, expected, "{}", case.prompt);
        total.steps += found.steps;
        total.accepted += found.accepted;
    }
    let per_step = 1.0 + total.accepted as f64 / total.steps as f64;
    assert!(per_step > 2.8, "{per_step} tokens per step: {total:?}");
}
