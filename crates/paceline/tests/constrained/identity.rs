//! The same tokens, whatever happens around them.

use crate::grammars::{ENDS, assert_valid, finished, named, prompt};
use paceline_grammar::GrammarSpec;
use paceline_schedule::Counters;
use paceline_selftest::mixes::{Asked, CpuBench as Bench, Drafter, Ending, Script, Setup};
use paceline_testkit::random_schema;
use paceline_types::SamplingParams;
use serde_json::{Value, json};

const MODEL: &str = "storyteller";

fn long() -> bool {
    std::env::var_os("PACELINE_TEST_LONG").is_some()
}

fn params(seed: u64) -> SamplingParams {
    SamplingParams {
        temperature: [0.0, 0.7, 1.0][seed as usize % 3],
        top_k: if seed % 4 == 1 { 20 } else { 0 },
        top_p: if seed % 4 == 2 { 0.9 } else { 1.0 },
        frequency_penalty: if seed % 5 == 3 { 0.3 } else { 0.0 },
        logprobs: (seed % 3 == 1).then_some(2),
        stop_tokens: ENDS.to_vec(),
        seed,
        max_tokens: 120,
        ..SamplingParams::default()
    }
}

/// A request for a value of a random schema.
fn asked(seed: u64) -> (Value, Asked) {
    let schema = random_schema(seed);
    let request = Asked {
        constraint: Some(named(&GrammarSpec::JsonSchema(schema.clone()))),
        ..Asked::new(prompt("Once upon a time there was a little dog."), params(seed))
    };
    (schema, request)
}

/// A request without a constraint.
fn free(seed: u64) -> Asked {
    let mut params = params(seed);
    params.max_tokens = 30 + seed as usize % 7;
    Asked::new(prompt("Tim and Lily went to the park. They saw"), params)
}

fn setup(drafter: Drafter, drafts: usize) -> Setup {
    Setup {
        drafter,
        drafts,
        depth: 2,
        batch: 4,
        budget: 64,
        caching: true,
        snapshots: 8,
        ..Setup::plain(MODEL)
    }
}

/// Runs requests together and compares each with itself alone.
fn compare(bench: &Bench, setup: &Setup, requests: &[Asked]) -> Counters {
    let outcome = bench.run(setup, requests);
    for (index, (request, given)) in requests.iter().zip(&outcome.given).enumerate() {
        let alone = bench.alone(MODEL, request);
        if let Some(difference) = given.differs_from(&alone) {
            panic!(
                "{setup:?}\nrequest {index} {:?}: {difference}",
                request.constraint
            );
        }
    }
    outcome.counters
}

#[test]
fn finished_replies_are_what_their_schemas_describe() {
    let bench = Bench::default();
    let (mut done, schemas) = (0, if long() { 200 } else { 16 });
    for first in (0..schemas).step_by(8) {
        let (schemas, requests): (Vec<_>, Vec<_>) = (first..first + 8).map(asked).unzip();
        let auto = Setup {
            depth_control: true,
            batch: 8,
            ..setup(Drafter::Chain, 7)
        };
        let outcome = bench.run(&auto, &requests);
        for ((schema, request), given) in schemas.iter().zip(&requests).zip(&outcome.given) {
            assert_eq!(given.ending, Ending::Finished);
            if let Some(text) = finished(&given.tokens) {
                assert_valid(schema, &text);
                done += 1;
            }
            // With speculation off, alone, the same.
            let alone = bench.alone(MODEL, request);
            assert_eq!(given.differs_from(&alone), None, "{schema}");
        }
    }
    assert!(done * 2 > schemas, "{done} of {schemas} replies came to an end");
}

#[test]
fn drafters_depths_and_batches_change_no_token() {
    let bench = Bench::default();
    let mut requests: Vec<Asked> = (20..24).map(|seed| asked(seed).1).collect();
    requests.extend([free(1), free(2)]);
    requests[1].arrives = 3;
    requests[4].arrives = 5;
    let mut scripts = Script::ALL.map(Drafter::Scripted).to_vec();
    scripts.extend([
        Drafter::Off,
        Drafter::Ngram,
        Drafter::Mtp,
        Drafter::Chain,
        Drafter::Itself,
    ]);
    for (index, drafter) in scripts.into_iter().enumerate() {
        let drafts = if drafter == Drafter::Off {
            0
        } else {
            1 + index * 2 % 7
        };
        for depth in if long() {
            vec![1, 2, 3, 4]
        } else {
            vec![1 + index % 4]
        } {
            let setup = Setup {
                depth,
                depth_control: index % 2 == 1,
                budget: if index % 3 == 0 { 16 } else { 64 },
                ..setup(drafter, drafts)
            };
            let counters = compare(&bench, &setup, &requests);
            assert_eq!(counters.grammar.drafted, counters.grammar.accepted, "{setup:?}");
            // A drafter that knows the future drafts what is forced, and more.
            if drafts > 0 && drafter != Drafter::Scripted(Script::Right) {
                assert!(counters.grammar.accepted > 0, "{setup:?}");
            }
        }
    }
}

#[test]
fn preempted_cancelled_and_grouped_texts_are_the_same() {
    let bench = Bench::default();
    let mut requests: Vec<Asked> = (30..35).map(|seed| asked(seed).1).collect();
    requests.extend([free(3), free(4)]);
    for (index, request) in requests.iter_mut().enumerate() {
        request.arrives = index * 2;
        // Whoever comes later may come first.
        request.priority = -(index as i32 % 3);
    }
    requests[2].cancelled = Some(4);
    requests[6].cancelled = Some(9);
    let tight = Setup {
        block_size: 8,
        spare_blocks: Some(3),
        ..setup(Drafter::Chain, 4)
    };
    for depth in [1, 3] {
        let counters = compare(
            &bench,
            &Setup {
                depth,
                ..tight.clone()
            },
            &requests,
        );
        assert!(counters.preemptions > 0, "no request was preempted");
    }
    // One prompt, one grammar, several seeds.
    let (_, first) = asked(41);
    let members = (0..3).map(|seed| {
        let mut member = Asked {
            constraint: first.constraint.clone(),
            group: Some(9),
            ..Asked::new(first.prompt.clone(), first.params.clone())
        };
        member.params.seed = 41 + seed * 3;
        member
    });
    compare(&bench, &setup(Drafter::Mtp, 3), &members.collect::<Vec<_>>());
}

#[test]
fn what_a_grammar_forces_is_drafted_and_accepted() {
    let bench = Bench::default();
    let fixed = "The quick brown fox jumps over the lazy dog and runs away from the big bad wolf";
    let schema = json!({
        "type": "object",
        "properties": {"a rather long name of a property": {"const": fixed}, "ok": {"type": "boolean"}},
        "required": ["a rather long name of a property", "ok"],
        "additionalProperties": false,
        "x-guidance": {"whitespace_flexible": false},
    });
    let request = Asked {
        constraint: Some(named(&GrammarSpec::JsonSchema(schema.clone()))),
        ..Asked::new(prompt("Once"), params(0))
    };
    let setup = setup(Drafter::Mtp, 7);
    let outcome = bench.run(&setup, std::slice::from_ref(&request));
    let given = &outcome.given[0];
    assert_eq!(given.differs_from(&bench.alone(MODEL, &request)), None);
    assert_valid(&schema, &finished(&given.tokens).expect("a finished reply"));
    let forced = outcome.counters.grammar;
    assert_eq!(forced.drafted, forced.accepted);
    let tokens = given.tokens.len() as u64;
    assert!(forced.accepted * 2 > tokens, "{forced:?} of {tokens} tokens");
    assert!(
        outcome.totals.steps < tokens / 2,
        "{} steps",
        outcome.totals.steps
    );
}

#[test]
fn options_act_within_the_mask() {
    let bench = Bench::default();
    let choice = GrammarSpec::Choice(["yes", "no", "maybe later"].map(str::to_owned).to_vec());
    let request = |change: fn(&mut SamplingParams)| {
        let mut params = params(0);
        params.logprobs = Some(3);
        change(&mut params);
        Asked {
            constraint: Some(named(&choice)),
            ..Asked::new(prompt("Do you like it?"), params)
        }
    };
    let token = |text: &str| prompt(text)[0];
    let plain = bench.alone(MODEL, &request(|_| {}));
    let free = bench.alone(
        MODEL,
        &Asked::new(prompt("Do you like it?"), request(|_| {}).params),
    );
    // Log-probabilities are those of the model, not of what the mask leaves.
    assert_eq!(plain.logprobs[0].top, free.logprobs[0].top);
    for (word, change) in [
        (
            "yes",
            (|params| params.logit_bias = vec![(prompt("yes")[0], 50.0)]) as fn(&mut SamplingParams),
        ),
        ("no", |params| params.logit_bias = vec![(prompt("no")[0], 50.0)]),
    ] {
        let given = bench.alone(MODEL, &request(change));
        assert_eq!(finished(&given.tokens).as_deref(), Some(word), "{}", token(word));
    }
    // A minimum length that no text of the grammar has, and words that are all of them: the grammar is what counts.
    let given = bench.alone(MODEL, &request(|params| params.min_tokens = 40));
    assert!(
        finished(&given.tokens).is_some_and(|text| ["yes", "no", "maybe later"].contains(&text.as_str()))
    );
    let given = bench.alone(
        MODEL,
        &request(|params| params.bad_words = (3..300).map(|token| vec![token]).collect()),
    );
    assert!(
        finished(&given.tokens).is_some_and(|text| ["yes", "no", "maybe later"].contains(&text.as_str()))
    );
}
