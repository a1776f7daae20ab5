//! Failures that the field knows, by name. Each test runs the engine's own scheduler, pipeline, runner and device in the
//! situation that went wrong elsewhere, and compares with the same request alone and without drafts, bit by bit.

use paceline_selftest::mixes::{Asked, CpuBench as Bench, Drafter, Ending, Outcome, Script, Setup};
use paceline_types::{SamplingParams, TokenId};

const HYBRIDS: [&str; 4] = ["storyteller", "qwen3_next", "granite_h", "nemotron_h"];

const ALL_HYBRIDS: [&str; 11] = [
    "bamba",
    "falcon_h1",
    "falcon_h1_norm",
    "granite_h",
    "granite_h_moe",
    "nemotron_h",
    "nemotron_h_moe",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
    "storyteller",
];

fn prompt(length: usize, salt: u32) -> Vec<TokenId> {
    (0..length as u32)
        .map(|i| (i * 31 + salt * 57 + i * i % 7) % 240)
        .collect()
}

fn greedy(max_tokens: usize) -> SamplingParams {
    SamplingParams {
        temperature: 0.0,
        max_tokens,
        logprobs: Some(1),
        ..SamplingParams::default()
    }
}

/// A request whose name is its seed.
fn asked(length: usize, seed: u64, max_tokens: usize) -> Asked {
    let warm = seed % 2 == 1;
    let params = SamplingParams {
        temperature: if warm { 0.8 } else { 0.0 },
        seed,
        ..greedy(max_tokens)
    };
    Asked::new(prompt(length, seed as u32), params)
}

fn with(model: &'static str, drafter: Drafter, drafts: usize) -> Setup {
    Setup {
        drafter,
        drafts,
        depth: 2,
        batch: 4,
        budget: 64,
        block_size: 8,
        snapshots: 8,
        caching: true,
        ..Setup::plain(model)
    }
}

/// Runs requests together and compares each with its solo run.
fn same_as_alone(bench: &Bench, setup: &Setup, requests: &[Asked]) -> Outcome {
    let outcome = bench.run(setup, requests);
    for (index, (request, found)) in requests.iter().zip(&outcome.given).enumerate() {
        let difference = found.differs_from(&bench.alone(setup.model, request));
        assert_eq!(difference, None, "{setup:?}, request {index}");
    }
    outcome
}

/// Requests end at different steps, so the plan rows of the others move up in the plan while results are in flight: each
/// must go on with its own count of accepted drafts, not with that of the place it has moved to.
#[test]
fn stale_acceptance_after_a_row_moved() {
    let bench = Bench::default();
    let requests: Vec<Asked> = (0..6)
        .map(|i| Asked {
            arrives: i,
            ..asked(5 + 3 * i, i as u64, 9 + 7 * (i % 3))
        })
        .collect();
    for model in HYBRIDS {
        for depth in 1..=4 {
            let setup = Setup {
                depth,
                ..with(model, Drafter::Scripted(Script::Alternating), 5)
            };
            let outcome = same_as_alone(&bench, &setup, &requests);
            assert!(outcome.counters.drafts_accepted > 0);
            assert!(outcome.counters.drafts_verified > outcome.counters.drafts_accepted);
        }
    }
}

/// Records are padded with -1 and windows are ragged. No padding may be run as a token: the embedding refuses ids outside
/// its table, and the step would fail.
#[test]
fn placeholder_minus_one_never_reaches_the_embedding() {
    let bench = Bench::default();
    let requests: Vec<Asked> = (0..5).map(|i| asked(4 + i, i as u64, 3 + 5 * i)).collect();
    for model in HYBRIDS {
        for drafter in [
            Drafter::Scripted(Script::Random),
            Drafter::Mtp,
            Drafter::Eagle3,
            Drafter::Itself,
        ] {
            let setup = Setup {
                depth: 4,
                ..with(model, drafter, 15)
            };
            same_as_alone(&bench, &setup, &requests);
        }
    }
}

/// With no draft accepted a hybrid goes on from the state before the window and the model's own token; with all accepted
/// from the state behind it and the token behind that. Neither may be one off.
#[test]
fn backup_token_off_by_one() {
    let bench = Bench::default();
    let requests = [asked(11, 0, 24), asked(8, 1, 23)];
    for model in HYBRIDS {
        for drafts in [1, 2, 3, 5, 8, 15] {
            let none = same_as_alone(
                &bench,
                &with(model, Drafter::Scripted(Script::Wrong), drafts),
                &requests,
            );
            assert_eq!(none.counters.drafts_accepted, 0);
            let all = same_as_alone(
                &bench,
                &with(model, Drafter::Scripted(Script::Right), drafts),
                &requests,
            );
            assert!(all.totals.steps < none.totals.steps);
        }
    }
}

/// The step that ends a prompt drafts too, and the first decode verifies it: there is no step in which the acceptance of a
/// window that never was is counted, and none without drafts.
#[test]
fn first_step_after_prefill() {
    let bench = Bench::default();
    for model in HYBRIDS {
        // One token from the prompt, then a window of three drafts and the model's own.
        for length in [1, 7, 8, 9, 63, 64, 65] {
            let setup = Setup {
                depth: 1,
                budget: 128,
                // Points to save at would cut the prompt into several steps.
                snapshots: 0,
                ..with(model, Drafter::Scripted(Script::Right), 3)
            };
            let outcome = same_as_alone(&bench, &setup, &[asked(length, 3, 5)]);
            assert_eq!(outcome.totals.steps, 2, "{model}, a prompt of {length}");
            assert_eq!(outcome.counters.drafts_accepted, 3);
        }
    }
}

/// A request that ends before a whole window fits is not run past its end.
#[test]
fn request_shorter_than_the_window() {
    let bench = Bench::default();
    for model in HYBRIDS {
        for drafter in [
            Drafter::Scripted(Script::Right),
            Drafter::Ngram,
            Drafter::Mtp,
            Drafter::Itself,
        ] {
            for max_tokens in 1..=6 {
                let requests = [asked(7, 2, max_tokens), asked(15, 5, max_tokens + 1)];
                let outcome = same_as_alone(&bench, &with(model, drafter, 5), &requests);
                if drafter == Drafter::Scripted(Script::Right) {
                    // The last token of a text is never run, as a draft or otherwise: nothing follows it.
                    let run: usize = requests.iter().map(|request| request.params.max_tokens - 1).sum();
                    assert!(outcome.counters.drafts_verified <= run as u64, "{model}");
                }
            }
        }
    }
}

/// A stop token at every place of a window ends the text there: what was drafted behind it is dropped, and the slot serves
/// the next request as if nothing had been.
#[test]
fn end_of_text_inside_the_window() {
    let bench = Bench::default();
    for model in HYBRIDS {
        let whole = bench.alone(model, &asked(9, 4, 20));
        for place in 1..=8 {
            let stop = whole.tokens[place];
            let end = whole
                .tokens
                .iter()
                .position(|token| *token == stop)
                .expect("it is there");
            let mut first = asked(9, 4, 20);
            first.params.stop_tokens = vec![stop];
            let next = Asked {
                arrives: 1,
                ..asked(12, 7, 9)
            };
            for drafter in [Drafter::Scripted(Script::Right), Drafter::Itself] {
                let setup = Setup {
                    batch: 1,
                    ..with(model, drafter, 8)
                };
                let outcome = same_as_alone(&bench, &setup, &[first.clone(), next.clone()]);
                assert_eq!(outcome.given[0].tokens.len(), end + 1);
                assert_eq!(outcome.given[0].ending, Ending::Finished);
            }
        }
    }
}

/// A request loses its slot and blocks while steps that name them are in flight, and comes back with other ones.
#[test]
fn preemption_with_results_in_flight() {
    let bench = Bench::default();
    let mut requests: Vec<Asked> = (0..4)
        .map(|i| Asked {
            arrives: 2 * i,
            priority: -(i as i32),
            ..asked(12 + i, i as u64, 30)
        })
        .collect();
    requests[3].cancelled = Some(9);
    for model in HYBRIDS {
        let mut preempted = 0;
        for depth in 1..=4 {
            for drafter in [
                Drafter::Scripted(Script::Random),
                Drafter::Mtp,
                Drafter::Itself,
                Drafter::Chain,
            ] {
                let setup = Setup {
                    depth,
                    spare_blocks: Some(3),
                    ..with(model, drafter, 3)
                };
                preempted += same_as_alone(&bench, &setup, &requests).counters.preemptions;
            }
        }
        assert!(preempted > 0, "{model}");
    }
}

/// A prompt whose beginning is cached skips the model's work on it; the head must find its own keys and values there, and
/// draft as if it had run the prompt itself. Also where the prompts part right at the end of a block: what the head has for
/// the last token there depends on the token that follows.
#[test]
fn prefix_hit_with_a_draft_head() {
    let bench = Bench::default();
    let story = bench.alone("storyteller", &asked(40, 2, 60)).tokens.clone();
    let first = Asked::new(story[..49].to_vec(), greedy(40));
    let other = Asked::new([&story[..48], &story[3..7]].concat(), greedy(40));
    for drafter in [Drafter::Mtp, Drafter::Eagle3, Drafter::Itself] {
        let run = |requests: &[Asked], caching| {
            let setup = Setup {
                caching,
                batch: 1,
                depth: 1,
                ..with("storyteller", drafter, 3)
            };
            same_as_alone(&bench, &setup, requests).counters
        };
        for second in [&first, &other] {
            let warm = run(&[first.clone(), second.clone()], true);
            let cold = [&first, second].map(|request| run(std::slice::from_ref(request), false));
            let verified: u64 = cold.iter().map(|counters| counters.drafts_verified).sum();
            let accepted: u64 = cold.iter().map(|counters| counters.drafts_accepted).sum();
            assert_eq!(warm.prefix_hits, 48, "{drafter:?}");
            assert_eq!(warm.drafts_verified, verified, "{drafter:?}");
            assert_eq!(warm.drafts_accepted, accepted, "{drafter:?}");
        }
    }
}

/// States of hybrids stand at multiples of 16 and blocks end elsewhere: a prompt starts from the cache at the last common
/// multiple, and prompts and windows that end before, at and behind one go on with the same bits.
#[test]
fn prefix_hits_on_the_grid_whatever_the_block_size() {
    let bench = Bench::default();
    let drafters = [Drafter::Scripted(Script::Random), Drafter::Itself];
    for (index, model) in ALL_HYBRIDS.into_iter().enumerate() {
        for (place, (block_size, unit)) in [(1, 16), (4, 16), (8, 16), (16, 16), (24, 48), (32, 32)]
            .into_iter()
            .enumerate()
        {
            let length = 95 + (index + place) % 4;
            let first = asked(length, 2 + index as u64 % 2, 20);
            let setup = Setup {
                block_size,
                batch: 1,
                depth: 1 + place % 3,
                budget: [7, 64, 512][(index + place) % 3],
                ..with(
                    model,
                    drafters[(index + place) % 2],
                    [0, 1, 3, 7, 15][(index + place) % 5],
                )
            };
            let outcome = same_as_alone(&bench, &setup, &[first.clone(), first]);
            let hit = (length - 1) / unit * unit;
            assert_eq!(
                outcome.counters.prefix_hits, hit as u64,
                "{setup:?}, {length} tokens"
            );
            assert_eq!(outcome.counters.snapshots_used, 1, "{setup:?}");
        }
    }
}

/// Windows of five and more with more requests than slots, prompts between decodes, and every depth of the pipeline.
#[test]
fn five_and_more_drafts_under_load() {
    let bench = Bench::default();
    let requests: Vec<Asked> = (0..24)
        .map(|i| Asked {
            arrives: i / 3,
            ..asked(3 + 5 * (i % 7), i as u64, 8 + i % 11)
        })
        .collect();
    for model in ["storyteller", "qwen3_5", "bamba"] {
        for (drafts, depth, depth_control) in [(5, 2, false), (8, 3, true), (15, 4, false)] {
            for drafter in [Drafter::Scripted(Script::Random), Drafter::Chain, Drafter::Itself] {
                let setup = Setup {
                    depth,
                    depth_control,
                    batch: 8,
                    threads: 2,
                    ..with(model, drafter, drafts)
                };
                same_as_alone(&bench, &setup, &requests);
            }
        }
    }
}

/// Positions beyond 32,768: indices, blocks and n-gram positions are wide enough, and drafts are verified there as anywhere.
/// The first request takes no drafts; the second finds the prompt cached and must give the same.
#[test]
fn context_beyond_32k() {
    let bench = Bench::default();
    let mut long = prompt(33_000, 1);
    // Something to look up at the far end.
    let again: Vec<TokenId> = long[200..240].to_vec();
    long.extend(again);
    let plain = Asked {
        undrafted: true,
        ..Asked::new(long, greedy(12))
    };
    let drafted = Asked {
        undrafted: false,
        ..plain.clone()
    };
    let setup = Setup {
        budget: 2048,
        batch: 1,
        block_size: 16,
        threads: 2,
        ..with("nemotron_h", Drafter::Chain, 5)
    };
    let outcome = bench.run(&setup, &[plain, drafted]);
    let [plain, drafted] = outcome.given.as_slice() else {
        panic!("two requests");
    };
    assert_eq!(drafted.differs_from(plain), None);
    assert_eq!(plain.tokens.len(), 12);
    assert!(outcome.counters.prefix_hits > 32_768, "{:?}", outcome.counters);
    assert!(outcome.counters.drafts_verified > 0);
}
