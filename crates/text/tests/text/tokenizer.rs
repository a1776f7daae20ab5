//! Encoding and decoding, against the tokenizer library and against definitions written out here.

use crate::common::{TEXTS, sentence_piece, storyteller, storyteller_gguf, storyteller_json};
use paceline_text::{EncodeLimit, GgufTokenizer, TextError, Tokenizer, TokenizerConfig};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::cell::Cell;

#[test]
fn gguf_metadata_gives_the_same_tokens_as_tokenizer_json() {
    let (json, gguf) = (storyteller(), Tokenizer::from_gguf(storyteller_gguf()).unwrap());
    assert_eq!(json.vocab_size(), gguf.vocab_size());
    for text in TEXTS {
        let tokens = json.encode(text, true).unwrap();
        assert_eq!(gguf.encode(text, true).unwrap(), tokens, "{text:?}");
        assert_eq!(gguf.decode(&tokens, false).unwrap(), *text);
    }
    assert_eq!(gguf.bos_id(), Some(0));
    assert_eq!(gguf.eos_id(), Some(2));
}

#[test]
fn special_tokens_in_text_are_recognised_and_skipped_on_request() {
    let tokenizer = storyteller();
    let tokens = tokenizer.encode("<|im_start|>user\nHi<|im_end|>", false).unwrap();
    assert_eq!((tokens[0], tokens.last()), (1, Some(&2)));
    assert_eq!(tokenizer.decode(&tokens, true).unwrap(), "user\nHi");
    assert_eq!(tokenizer.token_to_id("<|im_end|>"), Some(2));
    assert_eq!(tokenizer.id_to_token(2).as_deref(), Some("<|im_end|>"));
    assert_eq!(tokenizer.token_bytes(2).unwrap(), b"<|im_end|>");
}

#[test]
fn the_configuration_names_the_begin_and_end_tokens() {
    let config = br#"{"bos_token": null, "eos_token": "<|im_end|>"}"#;
    let tokenizer = storyteller().with_config(&TokenizerConfig::from_json_bytes(config).unwrap());
    assert_eq!((tokenizer.bos_id(), tokenizer.eos_id()), (None, Some(2)));
}

#[test]
fn ids_outside_the_vocabulary_are_errors() {
    let error = storyteller().decode(&[5, 4096], false).unwrap_err();
    assert!(
        matches!(
            error,
            TextError::UnknownToken {
                id: 4096,
                vocab_size: 4096
            }
        ),
        "{error}"
    );
    assert!(storyteller().decode(&[u32::MAX], true).is_err());
}

/// Encodes within a limit, for a client that gives up the time given that it is asked; also how often that was.
fn within(text: &str, tokens: usize, patience: usize) -> (Result<Vec<u32>, TextError>, usize) {
    let asked = Cell::new(0);
    let given_up = || asked.replace(asked.get() + 1) >= patience;
    let limit = EncodeLimit {
        tokens,
        given_up: &given_up,
    };
    (storyteller().encode_within(text, true, &limit), asked.get())
}

#[test]
fn a_text_that_surely_is_too_long_costs_no_more_than_one_that_fits() {
    // By its bytes alone: nothing is encoded.
    let (result, asked) = within(&"once upon a time ".repeat(1 << 20), 1000, usize::MAX);
    let error = result.unwrap_err();
    assert!(
        matches!(error, TextError::TooLong { at_least, limit: 1000 } if at_least > 1000),
        "{error}"
    );
    assert_eq!(asked, 0);
    // By its tokens, two bytes each: a fraction of its 64 pieces is encoded.
    let dense = "1 ".repeat(1 << 20);
    let (result, asked) = within(&dense, 150_000, usize::MAX);
    let error = result.unwrap_err();
    assert!(
        matches!(error, TextError::TooLong { at_least, .. } if at_least > 150_000),
        "{error}"
    );
    assert!((1..32).contains(&asked), "{asked} pieces");
}

#[test]
fn a_text_that_may_fit_has_the_tokens_that_it_always_has() {
    let text = TEXTS.concat().repeat(200);
    assert!(text.len() > 100_000);
    let whole = storyteller().encode(&text, true).unwrap();
    for limit in [whole.len(), whole.len() * 3] {
        let (tokens, _) = within(&text, limit, usize::MAX);
        assert!(tokens.unwrap() == whole);
    }
    // More than the limit, but not beyond doubt.
    assert!(within(&text, whole.len() - 1, usize::MAX).0.unwrap() == whole);
}

#[test]
fn nobody_encodes_for_those_who_have_left() {
    let dense = "1 ".repeat(1 << 18);
    for patience in [0, 3] {
        let (result, asked) = within(&dense, 100_000, patience);
        assert!(matches!(result, Err(TextError::GivenUp)));
        assert_eq!(asked, patience + 1);
    }
}

#[test]
fn long_runs_are_encoded_whole() {
    let tokenizer = Tokenizer::from_gguf(GgufTokenizer {
        pre: "qwen2".to_owned(),
        ..storyteller_gguf()
    })
    .unwrap();
    for unit in [" ", "a", "\n", "!", "7", "é"] {
        let text = unit.repeat(200_000);
        let tokens = tokenizer.encode(&text, false).unwrap();
        assert!(
            tokenizer.decode(&tokens, false).unwrap() == text,
            "a run of {unit:?}"
        );
    }
}

#[test]
fn malformed_files_are_errors() {
    type Change = fn(&mut Value);
    let file: Value = serde_json::from_slice(&storyteller_json()).unwrap();
    let changes: [(&str, Change); 9] = [
        ("not an object", |f| *f = json!([1])),
        ("no model", |f| f["model"] = Value::Null),
        ("no decoder", |f| f["decoder"] = Value::Null),
        ("another decoder", |f| {
            f["decoder"] = json!({ "type": "WordPiece", "prefix": "##", "cleanup": true });
        }),
        ("a merge of unknown tokens", |f| {
            f["model"]["merges"][0] = json!(["x".repeat(99), "y".repeat(99)]);
        }),
        ("a merge of one", |f| f["model"]["merges"][0] = json!("x")),
        ("a prefix no token has", |f| {
            f["model"]["continuing_subword_prefix"] = json!("##");
        }),
        ("a huge id", |f| f["model"]["vocab"]["zzz"] = json!(u32::MAX)),
        ("a bad expression", |f| {
            f["pre_tokenizer"] = json!({ "type": "Split", "pattern": { "Regex": "(" }, "behavior": "Isolated", "invert": false });
        }),
    ];
    for (name, change) in changes {
        let mut file = file.clone();
        change(&mut file);
        assert!(
            Tokenizer::from_json_bytes(file.to_string().as_bytes()).is_err(),
            "{name}"
        );
    }
    assert!(Tokenizer::from_json_bytes(b"").is_err());
    assert!(Tokenizer::from_json_bytes(b"\xff\xfe").is_err());
}

#[test]
fn truncation_and_padding_of_the_file_are_ignored() {
    let mut file: Value = serde_json::from_slice(&storyteller_json()).unwrap();
    file["truncation"] =
        json!({ "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0 });
    file["padding"] = json!({ "strategy": { "Fixed": 4_000_000_000u64 }, "direction": "Right",
        "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>" });
    let tokenizer = Tokenizer::from_json_bytes(file.to_string().as_bytes()).unwrap();
    let text = "Once upon a time there was a fox";
    assert_eq!(
        tokenizer.encode(text, true).unwrap(),
        storyteller().encode(text, true).unwrap()
    );
}

/// SentencePiece by its definition: join the neighbours whose whole has the best score, leftmost first.
fn join_by_score(metadata: &GgufTokenizer, text: &str) -> Vec<u32> {
    let find = |piece: &str| metadata.tokens.iter().position(|token| token == piece);
    let marked = format!("\u{2581}{}", text.replace(' ', "\u{2581}"));
    let mut pieces: Vec<String> = marked.chars().map(String::from).collect();
    loop {
        let joined = |at: usize| find(&format!("{}{}", pieces[at], pieces[at + 1]));
        let candidates =
            (0..pieces.len() - 1).filter_map(|at| joined(at).map(|id| (at, metadata.scores[id])));
        let best = candidates.min_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let Some((at, _)) = best else { break };
        let right = pieces.remove(at + 1);
        pieces[at].push_str(&right);
    }
    let ids = pieces.iter().flat_map(|piece| match find(piece) {
        Some(id) => vec![id as u32],
        None => piece.bytes().map(|byte| 3 + u32::from(byte)).collect(),
    });
    std::iter::once(1).chain(ids).collect()
}

#[test]
fn sentence_piece_falls_back_to_bytes_and_begins_the_text() {
    let tokenizer = Tokenizer::from_gguf(sentence_piece()).unwrap();
    for text in TEXTS.iter().filter(|text| !text.is_empty()) {
        let tokens = tokenizer.encode(text, true).unwrap();
        assert_eq!(tokens[0], 1);
        assert_eq!(tokenizer.decode(&tokens, true).unwrap(), *text);
    }
    let without = GgufTokenizer {
        add_bos: Some(false),
        add_space_prefix: Some(false),
        ..sentence_piece()
    };
    let tokenizer = Tokenizer::from_gguf(without).unwrap();
    let tokens = tokenizer.encode("ab 你", true).unwrap();
    assert_eq!(tokenizer.id_to_token(tokens[0]).as_deref(), Some("ab"));
    assert_eq!(tokenizer.decode(&tokens, true).unwrap(), "ab 你");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damaged_files_never_panic(at in any::<prop::sample::Index>(), cut in 0usize..40, put in "[\\[\\]{}\",:a1-]{0,3}") {
        let mut file = storyteller_json();
        // The vocabulary is nearly all of the file; the damage goes where the structure is.
        let structure = file.len().min(2_000);
        let start = at.index(structure);
        file.splice(start..start + cut, put.bytes());
        if let Ok(tokenizer) = Tokenizer::from_json_bytes(&file) {
            let _ = tokenizer.encode("Once upon a time", true);
        }
    }
}

proptest! {
    #[test]
    fn decoding_agrees_with_the_library(tokens in prop::collection::vec(0u32..4096, 0..60), skip: bool) {
        thread_local! {
            static BOTH: (Tokenizer, tokenizers::Tokenizer) =
                (storyteller(), tokenizers::Tokenizer::from_bytes(storyteller_json()).unwrap());
        }
        BOTH.with(|(ours, library)| {
            prop_assert_eq!(ours.decode(&tokens, skip).unwrap(), library.decode(&tokens, skip).unwrap());
            Ok(())
        })?;
    }

    #[test]
    fn sentence_piece_joins_the_best_scores_first(text in "[abcdé ]{1,24}") {
        let metadata = sentence_piece();
        let expected = join_by_score(&metadata, &text);
        prop_assert_eq!(Tokenizer::from_gguf(metadata).unwrap().encode(&text, true).unwrap(), expected);
    }
}
