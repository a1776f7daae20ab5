//! The default model tells the stories it told its reference, and drafts as it did there.

mod support;

use paceline_device_cpu::Instructions;
use paceline_testkit::Program;
use paceline_testkit::{storyteller, storyteller_reference};
use support::{assert_greedy, cpu, greedy, runner, step};

#[test]
fn greedy_stories_match_the_reference() {
    let mut runner = runner(&cpu(2, Instructions::detect()), &storyteller());
    for case in storyteller_reference() {
        let tokens = greedy(&mut runner, &case.prompt_ids, case.greedy.len());
        assert_greedy(&tokens, &case.greedy, &case.greedy_margin, &case.prompt);
    }
}

/// The head drafts from the true prefix at every position: its first draft from the model's hidden state, the
/// next ones from its own. Its cache holds approximations behind the true prefix, overwritten as the prefix grows.
#[test]
fn draft_chains_match_the_reference() {
    let mut runner = runner(&cpu(2, Instructions::detect()), &storyteller());
    let mut drafts = 0;
    for case in storyteller_reference() {
        let mut text = case.prompt_ids.clone();
        text.extend(&case.greedy);
        let start = case.prompt_ids.len();
        step(&mut runner, Program::Model, &text[..start - 1], 0, 0);
        step(&mut runner, Program::Draft, &text[1..start], 0, 0);
        for (index, expected) in case.mtp_drafts.iter().enumerate() {
            let position = start - 1 + index;
            step(
                &mut runner,
                Program::Model,
                &text[position..=position],
                position,
                0,
            );
            step(
                &mut runner,
                Program::Draft,
                &text[position + 1..=position + 1],
                position,
                1,
            );
            let mut chain = vec![runner.sampled(1).unwrap()[0]];
            while chain.len() < expected.len() {
                let last = chain[chain.len() - 1];
                step(
                    &mut runner,
                    Program::DraftAgain,
                    &[last],
                    position + chain.len(),
                    1,
                );
                chain.push(runner.sampled(1).unwrap()[0]);
            }
            assert_eq!(
                &chain, expected,
                "{}: position {index} of the continuation",
                case.prompt
            );
            drafts += chain.len();
        }
    }
    assert!(drafts > 1000, "{drafts} drafts compared");
}
