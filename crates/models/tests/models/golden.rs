//! Every reference model gives what the reference implementation gives.

use crate::support::{assert_greedy, cpu, greedy, prompt_logits, runner};
use paceline_device_cpu::Instructions;
use paceline_testkit::{FIXTURES, Fixture, assert_same_bits, relative_error};

/// Allowed norm of the difference over the norm.
const TOLERANCE: f64 = 2e-4;

#[test]
fn logits_match_the_reference() {
    for name in FIXTURES {
        let fixture = Fixture::read(name);
        let mut runner = runner(&cpu(2, Instructions::detect()), &fixture.checkpoint());
        for (index, prompt) in fixture.prompts.iter().enumerate() {
            let logits = prompt_logits(&mut runner, prompt, 256, 16);
            let error = relative_error(&logits, &fixture.logits(index));
            assert!(
                error < TOLERANCE,
                "{name}, prompt {index}: relative error {error}"
            );
        }
    }
}

#[test]
fn greedy_continuations_match_the_reference() {
    for name in FIXTURES {
        let fixture = Fixture::read(name);
        let mut runner = runner(&cpu(2, Instructions::detect()), &fixture.checkpoint());
        for (index, prompt) in fixture.prompts.iter().enumerate() {
            let expected = &fixture.greedy[index];
            let tokens = greedy(&mut runner, prompt, expected.len());
            let margins = &fixture.greedy_margin[index];
            assert_greedy(&tokens, expected, margins, &format!("{name}, prompt {index}"));
        }
    }
}

#[test]
fn draft_heads_match_the_reference() {
    let mut heads = 0;
    for name in FIXTURES {
        let fixture = Fixture::read(name);
        let Some(expected) = fixture.mtp_logits() else {
            continue;
        };
        heads += 1;
        let mut runner = runner(&cpu(2, Instructions::detect()), &fixture.checkpoint());
        let logits = runner.head_logits(&fixture.prompts[1]).unwrap();
        let error = relative_error(&logits, &expected[..logits.len()]);
        assert!(error < TOLERANCE, "{name}: relative error {error}");
    }
    assert_eq!(heads, 3, "the Qwen hybrids have draft heads");
}

#[test]
fn how_a_prompt_is_cut_into_steps_changes_no_bit() {
    for name in FIXTURES {
        let fixture = Fixture::read(name);
        let mut runner = runner(&cpu(2, Instructions::detect()), &fixture.checkpoint());
        let prompt = &fixture.prompts[2];
        let whole = prompt_logits(&mut runner, prompt, 256, 32);
        for chunk in [1, 7, 64] {
            let cut = prompt_logits(&mut runner, prompt, chunk, 32);
            assert_same_bits(&cut, &whole, &format!("{name} in chunks of {chunk}"));
        }
    }
}

#[test]
fn threads_and_instructions_change_no_bit() {
    for name in FIXTURES {
        let fixture = Fixture::read(name);
        let checkpoint = fixture.checkpoint();
        let prompt = &fixture.prompts[1];
        let run = |threads, instructions| {
            prompt_logits(
                &mut runner(&cpu(threads, instructions), &checkpoint),
                prompt,
                64,
                16,
            )
        };
        let expected = run(1, Instructions::detect());
        for threads in [2, 3] {
            let found = run(threads, Instructions::detect());
            assert_same_bits(&found, &expected, &format!("{name} on {threads} threads"));
        }
        for instructions in Instructions::all() {
            let found = run(2, instructions);
            assert_same_bits(&found, &expected, &format!("{name} with {}", instructions.name()));
        }
    }
}
