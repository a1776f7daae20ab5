//! The default model's own head in the engine: it drafts and accepts what the reference's chains say, step by step.

use crate::mixes::{Asked, Bench, Devices, Drafter, Setup};
use paceline_testkit::{DraftReference, storyteller_reference_in};
use paceline_types::{DType, SamplingParams};
use std::path::Path;

const DRAFTS: usize = 3;

/// What a run of a text does when it verifies the reference's chains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Course {
    /// Steps of the engine.
    pub steps: u64,
    /// Drafts that were verified.
    pub verified: u64,
    /// And those that held.
    pub accepted: u64,
}

/// A text of the reference in the engine.
pub struct Story {
    /// What it took.
    pub course: Course,
    /// Its prompt, and what is not as the reference says.
    pub miss: Option<(String, String)>,
}

/// Every text of the reference, through the engine with the model's own head, its weights converted if that is said.
pub fn follow<D: Devices>(bench: &Bench<D>, root: &Path, dtype: Option<DType>) -> Vec<Story> {
    let cases = storyteller_reference_in(root);
    cases.iter().map(|case| story(bench, case, dtype)).collect()
}

fn story<D: Devices>(bench: &Bench<D>, case: &DraftReference, dtype: Option<DType>) -> Story {
    let length = case.mtp_drafts.len();
    let params = SamplingParams {
        temperature: 0.0,
        max_tokens: length,
        ..SamplingParams::default()
    };
    let request = Asked::new(case.prompt_ids.clone(), params);
    let setup = Setup {
        dtype,
        drafter: Drafter::Mtp,
        drafts: DRAFTS,
        ..Setup::plain("storyteller")
    };
    let outcome = bench.run(&setup, &[request]);
    let course = Course {
        steps: outcome.totals.steps,
        verified: outcome.counters.drafts_verified,
        accepted: outcome.counters.drafts_accepted,
    };
    let (tokens, expected) = (&outcome.given[0].tokens, expected(case, length));
    let why = if tokens[..] != case.greedy[..length] {
        Some(format!("{tokens:?} for {:?}", &case.greedy[..length]))
    } else if course != expected {
        Some(format!("{course:?} for {expected:?}"))
    } else {
        None
    };
    Story {
        course,
        miss: why.map(|why| (case.prompt.clone(), why)),
    }
}

/// Follows a text of `length` generated tokens. The prompt's step gives the first one; each later step verifies the chain
/// behind the newest token, as far as there is room for it and one more.
fn expected(case: &DraftReference, length: usize) -> Course {
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
