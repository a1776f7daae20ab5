//! The default model tells the stories it told its reference, and drafts as it did there.

use crate::support::{assert_greedy, cpu, greedy, runner};
use paceline_device_cpu::Instructions;
use paceline_testkit::{storyteller, storyteller_reference};

#[test]
fn greedy_stories_match_the_reference() {
    let mut runner = runner(&cpu(2, Instructions::detect()), &storyteller());
    for case in storyteller_reference() {
        let tokens = greedy(&mut runner, &case.prompt_ids, case.greedy.len());
        assert_greedy(&tokens, &case.greedy, &case.greedy_margin, &case.prompt);
    }
}

#[test]
fn draft_chains_match_the_reference() {
    let mut runner = runner(&cpu(2, Instructions::detect()), &storyteller());
    let mut drafts = 0;
    for case in storyteller_reference() {
        let chains = runner.draft_chains(&case).unwrap();
        assert_eq!(chains, case.mtp_drafts, "{}", case.prompt);
        drafts += chains.iter().map(Vec::len).sum::<usize>();
    }
    assert!(drafts > 1000, "{drafts} drafts compared");
}
