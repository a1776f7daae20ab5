//! The default model's own head, in the engine: it drafts and accepts what the reference's chains say, step by step.

use paceline_selftest::mixes::CpuBench;
use paceline_selftest::stories::follow;
use paceline_testkit::repository;

#[test]
fn the_engine_accepts_what_the_references_chains_say() {
    let stories = follow(&CpuBench::default(), &repository(), None);
    let misses: Vec<_> = stories.iter().filter_map(|story| story.miss.as_ref()).collect();
    assert!(misses.is_empty(), "{misses:#?}");
    let steps: u64 = stories.iter().map(|story| story.course.steps).sum();
    let accepted: u64 = stories.iter().map(|story| story.course.accepted).sum();
    let per_step = 1.0 + accepted as f64 / steps as f64;
    assert!(per_step > 2.8, "{per_step} tokens per step");
}
