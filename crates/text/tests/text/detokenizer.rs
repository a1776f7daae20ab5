//! Streaming gives the same text as decoding at once, and never half a character.

use crate::common::{TEXTS, sentence_piece, storyteller, storyteller_gguf};
use paceline_text::{Detokenizer, GgufTokenizer, Tokenizer};
use proptest::prelude::*;

/// Byte-level, byte-level from GGUF, SentencePiece with and without the leading space.
fn tokenizers() -> Vec<Tokenizer> {
    let bare = GgufTokenizer {
        add_space_prefix: Some(false),
        ..sentence_piece()
    };
    let gguf =
        [storyteller_gguf(), sentence_piece(), bare].map(|metadata| Tokenizer::from_gguf(metadata).unwrap());
    std::iter::once(storyteller()).chain(gguf).collect()
}

thread_local! {
    static TOKENIZERS: Vec<Tokenizer> = tokenizers();
}

fn stream(mut detokenizer: Detokenizer, tokens: &[u32]) -> (Vec<String>, String) {
    let pieces = tokens
        .iter()
        .map(|&token| detokenizer.push(token).unwrap())
        .collect();
    (pieces, detokenizer.finish())
}

#[test]
fn text_of_many_scripts_comes_out_whole() {
    for tokenizer in tokenizers() {
        for text in TEXTS {
            let tokens = tokenizer.encode(text, false).unwrap();
            let (pieces, rest) = stream(Detokenizer::new(&tokenizer, false), &tokens);
            assert_eq!(pieces.concat(), *text);
            assert_eq!(rest, "");
        }
    }
}

#[test]
fn a_character_comes_out_with_its_last_byte() {
    let tokenizer = Tokenizer::from_gguf(sentence_piece()).unwrap();
    let bytes: Vec<u32> = "😀".bytes().map(|byte| 3 + u32::from(byte)).collect();
    let (pieces, rest) = stream(Detokenizer::new(&tokenizer, true), &bytes);
    assert_eq!(pieces, ["", "", "", "😀"]);
    assert_eq!(rest, "");
}

#[test]
fn a_character_cut_short_becomes_one_replacement_character() {
    let tokenizer = Tokenizer::from_gguf(sentence_piece()).unwrap();
    let bytes: Vec<u32> = "😀".bytes().take(3).map(|byte| 3 + u32::from(byte)).collect();
    let (pieces, rest) = stream(Detokenizer::new(&tokenizer, true), &bytes);
    assert_eq!((pieces.concat().as_str(), rest.as_str()), ("", "\u{fffd}"));
    let letter = tokenizer.token_to_id("a").unwrap();
    let (pieces, rest) = stream(Detokenizer::new(&tokenizer, true), &[bytes[0], letter]);
    assert_eq!((pieces.concat().as_str(), rest.as_str()), ("\u{fffd}a", ""));
}

#[test]
fn special_tokens_do_not_break_a_character() {
    let tokenizer = Tokenizer::from_gguf(sentence_piece()).unwrap();
    let tokens = [3 + 0xC3, 2, 3 + 0xA9];
    assert_eq!(
        stream(Detokenizer::new(&tokenizer, true), &tokens).0,
        ["", "", "é"]
    );
}

#[test]
fn a_continuation_keeps_its_leading_space() {
    let tokenizer = Tokenizer::from_gguf(sentence_piece()).unwrap();
    let word = tokenizer.token_to_id("\u{2581}ab").unwrap();
    assert_eq!(
        stream(Detokenizer::new(&tokenizer, true), &[word, word]).0,
        ["ab", " ab"]
    );
    assert_eq!(
        stream(Detokenizer::new(&tokenizer, true).continuing(), &[word]).0,
        [" ab"]
    );
}

#[test]
fn an_unknown_id_leaves_the_state_as_it_was() {
    let tokenizer = Tokenizer::from_gguf(sentence_piece()).unwrap();
    let mut detokenizer = Detokenizer::new(&tokenizer, true);
    assert_eq!(detokenizer.push(3 + 0xC3).unwrap(), "");
    assert!(detokenizer.push(1_000_000).is_err());
    assert_eq!(detokenizer.push(3 + 0xA9).unwrap(), "é");
}

#[test]
fn a_tokenizer_can_be_shared_between_threads() {
    fn shared<T: Clone + Send + Sync + 'static>(_: &T) {}
    shared(&storyteller());
}

proptest! {
    #[test]
    fn pieces_join_to_the_decoded_text(
        seeds in prop::collection::vec(any::<u32>(), 0..50),
        which in 0usize..4,
        skip: bool,
    ) {
        TOKENIZERS.with(|tokenizers| {
            let tokenizer = &tokenizers[which];
            let tokens: Vec<u32> = seeds.iter().map(|seed| seed % tokenizer.vocab_size() as u32).collect();
            let (pieces, rest) = stream(Detokenizer::new(tokenizer, skip), &tokens);
            prop_assert_eq!(pieces.concat() + &rest, tokenizer.decode(&tokens, skip).unwrap());
            // The definition: the bytes of all tokens, decoded once, less the dropped leading space.
            let kept = tokens.iter().filter(|&&token| !skip || !tokenizer.is_special(token));
            let bytes: Vec<u8> = kept.flat_map(|&token| tokenizer.token_bytes(token).unwrap()).copied().collect();
            let whole = String::from_utf8_lossy(&bytes);
            let whole = if which == 2 { whole.strip_prefix(' ').unwrap_or(&whole) } else { &whole };
            prop_assert_eq!(tokenizer.decode(&tokens, skip).unwrap(), whole);
            Ok(())
        })?;
    }

    #[test]
    fn any_text_survives_the_round_trip(text in "\\PC{0,40}", which in 0usize..4) {
        TOKENIZERS.with(|tokenizers| {
            let tokenizer = &tokenizers[which];
            let tokens = tokenizer.encode(&text, false).unwrap();
            let (pieces, rest) = stream(Detokenizer::new(tokenizer, false), &tokens);
            prop_assert_eq!(pieces.concat() + &rest, text);
            Ok(())
        })?;
    }
}
