//! Whatever is drawn from the masks is what the grammar describes; looking ahead changes nothing.

use crate::support::{ENDS, Random, compile, rounds, text, walk};
use paceline_grammar::GrammarSpec;
use paceline_testkit::random_schema;
use paceline_types::{Constraint, TokenId};
use serde_json::{Value, json};

#[test]
fn texts_drawn_from_masks_validate() {
    let mut finished = 0;
    let schemas = rounds(60, 1000);
    for seed in 0..schemas {
        let schema = random_schema(seed);
        let validator = jsonschema::validator_for(&schema).unwrap();
        let grammar = compile(&GrammarSpec::JsonSchema(schema.clone()));
        for round in 0..3 {
            let Some(tokens) = walk(&grammar, seed * 31 + round, 2000) else {
                continue;
            };
            finished += 1;
            let text = text(&tokens);
            let value: Value = serde_json::from_str(&text)
                .unwrap_or_else(|error| panic!("seed {seed}: {schema}: {text:?}: {error}"));
            assert!(validator.is_valid(&value), "seed {seed}: {schema}: {text}");
        }
    }
    assert!(
        finished > schemas * 2,
        "{finished} of {} walks came to an end",
        schemas * 3
    );
}

#[test]
fn texts_of_expressions_match_them() {
    for regex in [
        "[a-f]{2,5}-\\d+(\\.\\d{1,3})?",
        "(Once|Twice) upon a (time|mattress)[.!]",
        "[äöü日本]{3}",
    ] {
        let grammar = compile(&GrammarSpec::Regex(regex.to_owned()));
        let validator = jsonschema::validator_for(&json!({"pattern": format!("^({regex})$")})).unwrap();
        for seed in 0..20 {
            if let Some(tokens) = walk(&grammar, seed, 400) {
                assert!(
                    validator.is_valid(&json!(text(&tokens))),
                    "{regex}: {}",
                    text(&tokens)
                );
            }
        }
    }
}

/// Masks behind drafts are those behind the same tokens once committed, wherever drafts go wrong, and asking for them
/// leaves no trace.
#[test]
fn looking_ahead_is_the_same_as_going() {
    for seed in 0..rounds(25, 300) {
        let grammar = compile(&GrammarSpec::JsonSchema(random_schema(seed)));
        let Some(tokens) = walk(&grammar, seed, 300) else {
            continue;
        };
        let mut random = Random(seed);
        let (mut ahead, mut plain) = (grammar.matcher(), grammar.matcher());
        let mut at = 0;
        while at < tokens.len() {
            let mut drafts: Vec<TokenId> = tokens[at..].iter().take(random.below(8)).copied().collect();
            let true_drafts = drafts.len();
            if random.below(3) == 0 {
                drafts.push(random.below(4096) as TokenId);
            }
            let forced = ahead.forced(15).unwrap();
            assert!(
                tokens[at..].starts_with(&forced) || forced.len() > tokens.len() - at,
                "seed {seed}: forced {forced:?}"
            );
            let masks = ahead.masks(&drafts).unwrap();
            assert!(
                masks.len() > true_drafts && masks.len() <= drafts.len() + 1,
                "seed {seed} at {at}"
            );
            for (offset, mask) in masks.iter().enumerate().take(true_drafts + 1) {
                assert_eq!(
                    *mask,
                    plain.masks(&[]).unwrap()[0],
                    "seed {seed} at {at} + {offset}"
                );
                if offset < true_drafts {
                    plain.commit(&tokens[at + offset..=at + offset]).unwrap();
                }
            }
            if true_drafts == 0 {
                plain.commit(&tokens[at..=at]).unwrap();
            }
            let step = true_drafts.max(1);
            ahead.commit(&tokens[at..at + step]).unwrap();
            at += step;
        }
        assert_eq!(ahead.masks(&[]).unwrap(), plain.masks(&[]).unwrap());
        assert!(ahead.masks(&ENDS[..1]).unwrap().len() == 1);
    }
}
