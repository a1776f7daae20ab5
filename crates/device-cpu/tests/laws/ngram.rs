//! Drafts from the slots' own texts, against a search through all of the text.

mod bench;

use bench::{Ask, Bench, Found, Script, Shape};
use paceline_device::NgramIndex;
use paceline_device::abi::Slot;
use paceline_device_cpu::Cpu;
use std::cell::Cell;

const PER_STEP: usize = NgramIndex::<Cpu>::PER_STEP;

/// Length and last position of the match: the longest, and of those the latest, that ends before `end`.
fn search(text: &[i32], (min, max): (usize, usize), end: usize) -> Option<(usize, usize)> {
    (min..=max.min(text.len())).rev().find_map(|length| {
        let suffix = &text[text.len() - length..];
        let last = (length - 1..end.min(text.len() - 1))
            .rev()
            .find(|last| text[last + 1 - length..=*last] == *suffix);
        last.map(|last| (length, last))
    })
}

/// Drafts behind a match that ends at `last`.
fn continuation(text: &[i32], last: usize, most: usize, stops: &[i32]) -> Vec<i32> {
    let mut all = text.to_vec();
    for place in 0..most {
        let next = all[last + 1 + place];
        if stops.contains(&next) {
            break;
        }
        all.push(next);
    }
    all.split_off(text.len())
}

/// The drafts that a slot should have, if it wants `most` and may become `max_length` tokens long.
fn expected(found: &Found, lengths: (usize, usize), most: usize, script: &Script) -> Vec<i32> {
    if !found.chose || found.finished {
        return Vec::new();
    }
    let room = script.max_length - found.text.len() - 1;
    search(&found.text, lengths, found.indexed).map_or(Vec::new(), |(_, last)| {
        continuation(&found.text, last, most.min(room), &script.stops)
    })
}

/// Whether drafts followed some earlier occurrence of what the text ends with.
fn followed(found: &Found, (min, max): (usize, usize)) -> bool {
    let text = &found.text;
    (min..=max.min(text.len() - 1)).any(|length| {
        (length - 1..text.len() - 1).any(|last| {
            text[last + 1 - length..=last] == text[text.len() - length..]
                && continuation(text, last, found.drafts.len(), &[]) == found.drafts
        })
    })
}

/// Numbers that follow from a seed.
struct Random(Cell<u64>);

impl Random {
    fn seeded(seed: u64) -> Self {
        Self(Cell::new(seed))
    }

    fn below(&self, bound: usize) -> usize {
        let state = self.0.get().wrapping_mul(6_364_136_223_846_793_005);
        self.0.set(state.wrapping_add(1_442_695_040_888_963_407));
        (((state ^ (state >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 33) % bound as u64) as usize
    }

    /// A text over an alphabet; `copies` of ten times it goes on with a copy of something earlier.
    fn text(&self, len: usize, alphabet: usize, copies: usize) -> Vec<i32> {
        let mut text = Vec::new();
        while text.len() < len {
            if !text.is_empty() && self.below(10) < copies {
                let start = self.below(text.len());
                for place in start..start + 1 + self.below(12) {
                    text.push(text[place.min(text.len() - 1)]);
                }
            } else {
                text.push(self.below(alphabet) as i32);
            }
        }
        text.truncate(len);
        text
    }
}

/// A request that has `blocks` to itself.
fn alone(text: Vec<i32>, prompt: usize, blocks: impl Iterator<Item = i32>) -> Script {
    Script {
        max_length: text.len() - 16,
        text,
        prompt,
        blocks: blocks.collect(),
        ..Script::default()
    }
}

fn spacious(block: usize, lengths: (usize, usize)) -> Shape {
    Shape {
        block,
        lengths,
        tokens: 1 << 14,
        chain_min: 0,
    }
}

/// Runs a slot alone to its end, in pieces of the prompt and with windows of drafts, and compares every step.
/// Returns how many drafts there were.
fn run_alone(
    bench: &mut Bench,
    shape: Shape,
    slot: usize,
    (script, piece, window): (&Script, usize, usize),
) -> usize {
    let mut drafts = 0;
    bench.admit(slot, script.clone());
    while !bench.finished(slot) {
        let ask = bench.ask(slot, piece, window);
        let found = &bench.step(&[ask])[0];
        check(found, shape.lengths, window, script);
        drafts += found.drafts.len();
    }
    drafts
}

fn check(found: &Found, lengths: (usize, usize), window: usize, script: &Script) {
    let known = found.text.len() - usize::from(found.chose);
    assert_eq!(found.indexed, known, "all but the newest token are indexed");
    assert_eq!(
        found.drafts,
        expected(found, lengths, window, script),
        "behind {:?}",
        found.text
    );
    let source = i32::from(!found.drafts.is_empty()) * Slot::FROM_NGRAM;
    assert_eq!(found.source, source);
}

#[test]
fn drafts_follow_the_latest_occurrence_of_the_longest_match() {
    let random = Random::seeded(1);
    for max in 1..=8 {
        for min in 1..=max {
            for block in [1, 8, 16] {
                let shape = spacious(block, (min, max));
                let mut bench = Bench::new(shape);
                let blocks = 200_usize.div_ceil(block) as i32;
                // Two at a time, one of them ahead of the other, on blocks that alternate.
                let scripts: Vec<Script> = [(2, 0), (2, 5), (3, 3), (5, 6), (40, 8)]
                    .map(|(alphabet, copies)| random.text(140 + random.below(40), alphabet, copies))
                    .into_iter()
                    .enumerate()
                    .map(|(n, text)| {
                        let own = (0..blocks).map(|block| block * 5 + n as i32);
                        alone(text, 1 + random.below(60), own)
                    })
                    .collect();
                let mut drafts = 0;
                let (piece, window) = (1 + random.below(30), 1 + random.below(15));
                bench.admit(0, scripts[0].clone());
                for other in &scripts[1..] {
                    bench.admit(1, other.clone());
                    while !bench.finished(1) {
                        let mut asks = vec![bench.ask(1, piece, window)];
                        if random.below(3) > 0 {
                            asks.push(bench.ask(0, piece + 3, window));
                        }
                        for (found, script) in bench.step(&asks).iter().zip([other, &scripts[0]]) {
                            if !found.finished {
                                check(found, shape.lengths, window, script);
                                drafts += found.drafts.len();
                            }
                        }
                    }
                }
                assert!(drafts > 100 || min > 4, "{shape:?}: {drafts}");
            }
        }
    }
}

#[test]
fn a_period_goes_on_past_the_end_of_the_text() {
    for period in 1..6 {
        let shape = spacious(4, (1, 3));
        let text: Vec<i32> = (0..80).map(|position| position % period).collect();
        let script = alone(text.clone(), 20, 0..20);
        let mut bench = Bench::new(shape);
        bench.admit(0, script);
        let found = &bench.step(&[Ask::new(0, 20, 15)])[0];
        assert_eq!(found.drafts, text[21..36]);
        // All of them hold, and the next window begins behind them.
        let found = &bench.step(&[Ask::new(0, 15, 15)])[0];
        assert_eq!(found.text, text[..37]);
        assert_eq!(found.drafts, text[37..52]);
    }
}

/// A request that says `text`, and five that share more and more of it, up to what was said last; `indexed_again` if
/// the index is not taken to have what is shared. Returns in how many steps there was something to draft, and in how
/// many of them the drafts were those of a search.
fn share_a_beginning(block: usize, text: Vec<i32>, alphabet: usize, indexed_again: bool) -> (usize, usize) {
    let random = Random::seeded(2 + block as u64);
    let shape = spacious(block, (1, 4));
    let mut bench = Bench::new(shape);
    let blocks = 384 / block as i32;
    let first = alone(text, 60, 0..blocks);
    run_alone(&mut bench, shape, 0, (&first, 25, 5));
    let (mut all, mut right) = (0, 0);
    for turn in 1..6 {
        let cached = (30 + turn * 28) / block * block;
        let shared = cached as i32 / block as i32;
        let own = (0..blocks).map(|block| if block < shared { block } else { block + blocks });
        let script = Script {
            cached,
            indexed: if indexed_again { 0 } else { cached },
            ..alone(
                [&first.text[..cached], &random.text(150, alphabet, 4)].concat(),
                cached + 20,
                own,
            )
        };
        bench.admit(turn % 3, script.clone());
        while !bench.finished(turn % 3) {
            let ask = bench.ask(turn % 3, 7, 8);
            let found = &bench.step(&[ask])[0];
            let drafts = expected(found, shape.lengths, 8, &script);
            assert!(found.drafts.is_empty() || followed(found, shape.lengths));
            all += usize::from(!drafts.is_empty());
            right += usize::from(!drafts.is_empty() && drafts == found.drafts);
        }
    }
    assert!(all > 100, "{all}");
    (all, right)
}

#[test]
fn a_cached_beginning_brings_its_ngrams() {
    for block in [1, 8, 16] {
        // What followed it in the first request has pushed out n-grams that are everywhere, not the others.
        let text = Random::seeded(block as u64).text(200, 50, 4);
        let (all, right) = share_a_beginning(block, text, 50, false);
        assert!(right * 10 >= all * 9, "{right} of {all}, blocks of {block}");
    }
}

#[test]
fn a_cached_beginning_can_be_indexed_again() {
    for block in [1, 8, 16] {
        for alphabet in [3, 50] {
            let text = Random::seeded(block as u64).text(200, alphabet, 4);
            let (all, right) = share_a_beginning(block, text, alphabet, true);
            assert_eq!(right, all);
        }
    }
}

#[test]
fn a_phrase_of_the_shared_beginning_is_found_by_whoever_shares_it() {
    let shape = spacious(16, (2, 4));
    let mut bench = Bench::new(shape);
    let phrase: Vec<i32> = (0..40).map(|n| 100 + n).collect();
    let first = alone([&phrase[..], &[1; 40]].concat(), 41, 0..5);
    bench.admit(0, first);
    bench.step(&[Ask::new(0, 41, 0)]);
    let text = [&phrase[..32], &[7, 8, 9, 110, 111, 112, 0], &[0; 40]].concat();
    let second = Script {
        cached: 32,
        indexed: 32,
        ..alone(text, 38, [0, 1, 10, 11, 12].into_iter())
    };
    bench.admit(
        1,
        Script {
            text: second.text.clone(),
            ..second
        },
    );
    // The prompt ends with 112, then comes 0; without it the phrase goes on with 113.
    let found = &bench.step(&[Ask::new(1, 6, 6)])[0];
    assert_eq!(found.drafts, [] as [i32; 0], "the model said something else");
    let mut third = alone(
        [&phrase[..32], &[7, 8, 9, 110, 111, 112, 113], &[0; 40]].concat(),
        38,
        [].into_iter(),
    );
    (third.cached, third.indexed, third.blocks) = (32, 32, vec![0, 1, 20, 21, 22]);
    bench.admit(2, third);
    let found = &bench.step(&[Ask::new(2, 6, 6)])[0];
    assert_eq!(found.drafts, [114, 115, 116, 117, 118, 119]);
}

#[test]
fn siblings_that_part_find_their_own_texts_beside_each_other() {
    let random = Random::seeded(3);
    let shape = spacious(16, (2, 4));
    let mut bench = Bench::new(shape);
    let start = random.text(64, 60, 3);
    let scripts: Vec<Script> = (0..4)
        .map(|sibling| Script {
            cached: if sibling == 0 { 0 } else { 64 },
            indexed: if sibling == 0 { 0 } else { 64 },
            ..alone(
                [&start[..], &random.text(800, 60, 3)].concat(),
                70,
                (0..60).map(|block| if block < 4 { block } else { block + 60 * sibling }),
            )
        })
        .collect();
    let (mut right, mut all) = (0, 0);
    bench.admit(0, scripts[0].clone());
    bench.step(&[Ask::new(0, 64, 4)]);
    for slot in 1..4 {
        bench.admit(slot, scripts[slot].clone());
    }
    while !(0..4).any(|slot| bench.finished(slot)) {
        let asks = [0, 1, 2, 3].map(|slot| bench.ask(slot, 6, 4));
        for (found, script) in bench.step(&asks).iter().zip(&scripts) {
            let drafts = expected(found, shape.lengths, 4, script);
            assert!(found.drafts.is_empty() || followed(found, shape.lengths));
            all += usize::from(!drafts.is_empty());
            right += usize::from(!drafts.is_empty() && drafts == found.drafts);
        }
    }
    assert!(all > 500 && right * 20 > all * 19, "{right} of {all}");
}

#[test]
fn what_former_owners_of_blocks_left_is_nothing_to_the_next() {
    for seed in 0..6 {
        let random = Random::seeded(40 + seed);
        let shape = spacious([1, 8, 16][seed as usize % 3], (1, 5));
        let mut bench = Bench::new(shape);
        let mut blocks: Vec<i32> = (0..256 / shape.block as i32).collect();
        for turn in 0..12 {
            // The first block stays the first, so that all of them use the same names.
            for place in (2..blocks.len()).rev() {
                let other = 1 + random.below(place);
                blocks.swap(place, other);
            }
            let text = random.text(60 + random.below(150), 2 + random.below(6), random.below(8));
            let script = alone(text, 1 + random.below(40), blocks.clone().into_iter());
            run_alone(&mut bench, shape, turn % 4, (&script, 9, 1 + random.below(15)));
        }
    }
}

#[test]
fn an_index_too_small_gives_fewer_drafts_and_no_wrong_ones() {
    let random = Random::seeded(5);
    for tokens in [0, 1, 9, 60] {
        let shape = Shape {
            tokens,
            ..spacious(8, (1, 4))
        };
        let mut bench = Bench::new(shape);
        let mut drafts = 0;
        for turn in 0..8 {
            let script = alone(
                random.text(400, 12, 4),
                50,
                (0..50).map(|block| block * 2 + turn % 2),
            );
            bench.admit(0, script);
            while !bench.finished(0) {
                let ask = bench.ask(0, 20, 5);
                let found = &bench.step(&[ask])[0];
                assert!(found.drafts.is_empty() || followed(found, shape.lengths));
                drafts += found.drafts.len();
            }
        }
        assert!(drafts > 20, "{drafts} with {tokens}");
    }
}

#[test]
fn an_index_of_the_right_size_loses_little() {
    // Every n-gram of the first part is another one, and the whole text is what the index is made for.
    let random = Random::seeded(6);
    let mut text: Vec<i32> = (0..4000).collect();
    while text.len() < 6000 {
        let start = random.below(3990);
        text.extend(start as i32..start as i32 + 5);
    }
    let shape = Shape {
        tokens: text.len(),
        ..spacious(16, (2, 4))
    };
    let script = alone(text, 4000, 0..400);
    let mut bench = Bench::new(shape);
    bench.admit(0, script.clone());
    let (mut right, mut all) = (0, 0);
    while !bench.finished(0) {
        let ask = Ask {
            ngram: 3,
            ..bench.ask(0, 4000, 0)
        };
        let found = &bench.step(&[ask])[0];
        let drafts = expected(found, shape.lengths, 3, &script);
        all += usize::from(!drafts.is_empty());
        right += usize::from(!drafts.is_empty() && found.drafts == drafts);
    }
    assert!(all > 1000 && right * 100 >= all * 98, "{right} of {all}");
}

#[test]
fn a_long_text_is_indexed_over_several_steps() {
    let random = Random::seeded(7);
    let shape = spacious(16, (2, 3));
    let script = alone(random.text(10_100, 300, 5), 10_000, 0..700);
    let mut bench = Bench::new(shape);
    bench.admit(0, script.clone());
    for indexed in [PER_STEP, 2 * PER_STEP, 10_002, 10_003] {
        let ask = Ask {
            ngram: 6,
            ..bench.ask(0, 10_000, 0)
        };
        let found = &bench.step(&[ask])[0];
        assert_eq!(found.indexed, indexed);
        assert_eq!(found.drafts, expected(found, shape.lengths, 6, &script));
    }
}

/// A slot at the end of a prompt that is `0 1 2 3 4 5 6 7 0 1`, whose next token is 2.
fn counting(shape: Shape, script: Script, ask: Ask) -> Vec<i32> {
    let mut bench = Bench::new(shape);
    let text = [&[0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2], &[50; 40][..]].concat();
    let max_length = if script.max_length == 0 {
        40
    } else {
        script.max_length
    };
    bench.admit(
        0,
        Script {
            text,
            prompt: 10,
            blocks: (0..8).collect(),
            max_length,
            ..script
        },
    );
    bench.step(&[Ask { count: 10, ..ask }]).remove(0).drafts
}

#[test]
fn drafts_end_before_a_stop_token() {
    for (stops, drafts) in [
        (vec![], vec![3, 4, 5, 6]),
        (vec![6], vec![3, 4, 5]),
        (vec![60, 5, 4], vec![3]),
        (vec![3], vec![]),
        (vec![60, 61], vec![3, 4, 5, 6]),
    ] {
        let script = Script {
            stops: stops.clone(),
            ..Script::default()
        };
        assert_eq!(
            counting(spacious(8, (2, 3)), script, Ask::new(0, 0, 4)),
            drafts,
            "{stops:?}"
        );
    }
    // A stop token that was chosen ends the request; there is nothing to draft for.
    let ended = Script {
        stops: vec![2],
        ..Script::default()
    };
    assert_eq!(
        counting(spacious(8, (2, 3)), ended, Ask::new(0, 0, 4)),
        [] as [i32; 0]
    );
}

#[test]
fn drafts_end_where_one_more_token_has_room_and_where_no_more_are_wanted() {
    for max_length in 11..20 {
        for wanted in [-1, 0, 1, 3, 15, 100] {
            let script = Script {
                max_length,
                ..Script::default()
            };
            let drafts = counting(spacious(8, (1, 8)), script, Ask::new(0, 0, wanted));
            let count = (max_length as i32 - 12).clamp(0, wanted.clamp(0, 15));
            assert_eq!(drafts, [3, 4, 5, 6, 7, 0, 1, 2][..count as usize]);
        }
    }
}

#[test]
fn short_matches_are_left_to_a_neural_drafter() {
    // The match is `0 1 2`.
    for (lengths, chain_min, neural, count) in [
        ((1, 8), 3, 1, 4),
        ((1, 8), 4, 1, 0),
        ((1, 8), 4, 0, 4),
        ((1, 2), 3, 1, 0),
        ((1, 2), 2, 1, 4),
        ((1, 2), 100, 1, 0),
        ((4, 8), 0, 0, 0),
    ] {
        let shape = Shape {
            chain_min,
            ..spacious(8, lengths)
        };
        let ask = Ask {
            neural,
            ..Ask::new(0, 0, 4)
        };
        let drafts = counting(shape, Script::default(), ask);
        assert_eq!(drafts, [3, 4, 5, 6][..count], "{lengths:?} {chain_min} {neural}");
    }
}

#[test]
fn rows_of_another_owner_or_an_ended_request_do_nothing() {
    let shape = spacious(8, (1, 3));
    let mut bench = Bench::new(shape);
    let text = Random::seeded(8).text(60, 3, 3);
    bench.admit(0, alone(text.clone(), 20, 0..8));
    bench.admit(
        1,
        Script {
            max_length: 21,
            ..alone(text, 20, 10..18)
        },
    );
    let ended = bench.step(&[bench.ask(0, 20, 4), bench.ask(1, 20, 4)]).remove(1);
    assert!(ended.finished && ended.drafts.is_empty());
    assert_eq!(ended.indexed, 20, "who shares its blocks needs them");
    let before = (bench.entries(), bench.state());
    assert!(before.0.iter().any(|word| *word != 0));
    let late = Ask {
        late: -1,
        ..bench.ask(0, 20, 4)
    };
    bench.step(&[late, bench.ask(1, 20, 4)]);
    assert!(before == (bench.entries(), bench.state()));
}

#[test]
fn rows_that_want_no_drafts_are_indexed() {
    let shape = spacious(8, (2, 4));
    let script = alone(Random::seeded(9).text(160, 4, 3), 33, 0..20);
    let mut bench = Bench::new(shape);
    bench.admit(0, script.clone());
    for _ in 0..40 {
        let ask = Ask {
            ngram: 0,
            ..bench.ask(0, 10, 0)
        };
        let found = &bench.step(&[ask])[0];
        assert!(found.drafts.is_empty());
        assert_eq!(found.indexed, found.text.len() - usize::from(found.chose));
    }
    let ask = bench.ask(0, 10, 8);
    check(&bench.step(&[ask])[0], shape.lengths, 8, &script);
}
