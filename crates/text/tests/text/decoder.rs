//! Tokens and text keep step, so a text can go on elsewhere behind the tokens that have been shown.

use crate::common::{TEXTS, sentence_piece, storyteller, storyteller_gguf};
use paceline_text::{DecodeOptions, Piece, TextDecoder, Tokenizer};
use paceline_types::TokenId;
use proptest::prelude::*;

thread_local! {
    static TOKENIZERS: [Tokenizer; 2] = [storyteller(), Tokenizer::from_gguf(sentence_piece()).unwrap()];
}

/// Everything that comes of these tokens, in order.
fn pieces(decoder: &mut TextDecoder, tokens: &[TokenId]) -> Vec<Piece> {
    let push = |token: &TokenId| decoder.push_all(vec![*token], Vec::new());
    let mut pieces: Vec<Piece> = tokens.iter().map(push).collect();
    pieces.push(decoder.finish());
    pieces
}

fn joined(pieces: &[Piece]) -> (String, Vec<TokenId>) {
    let mut all = Piece::default();
    for piece in pieces {
        all.append(piece.clone());
    }
    (all.text, all.tokens.iter().map(|token| token.id).collect())
}

/// Cuts the text behind every piece and goes on with a decoder that has seen nothing.
fn check(tokenizer: &Tokenizer, tokens: &[TokenId], options: &DecodeOptions) {
    let new = || TextDecoder::new(Some(tokenizer), options.clone());
    let mut undisturbed = new();
    let all = pieces(&mut undisturbed, tokens);
    let (text, ids) = joined(&all);
    for cut in 0..all.len() - 1 {
        let (begun, given_out) = joined(&all[..cut]);
        let mut decoder = new();
        let known = decoder.resume(&given_out);
        if given_out.len() == ids.len() && undisturbed.stopped().is_some() {
            continue;
        }
        assert_eq!(known.as_deref(), Some(begun.as_str()), "{options:?}");
        let (rest, more) = joined(&pieces(&mut decoder, &tokens[given_out.len()..]));
        assert_eq!(
            begun + &rest,
            text,
            "cut behind {cut} of {tokens:?} with {options:?}"
        );
        assert_eq!([given_out, more].concat(), ids);
        assert_eq!(decoder.stopped(), undisturbed.stopped());
        assert_eq!(decoder.tokens(), undisturbed.tokens());
    }
}

proptest! {
    #[test]
    fn a_text_goes_on_behind_any_of_its_pieces(
        text in prop::sample::select(TEXTS),
        stops in prop::collection::vec((0usize..40, 1usize..9), 0..3),
        include_stop in any::<bool>(),
        min_tokens in 0usize..6,
        continues in any::<bool>(),
    ) {
        let letters: Vec<char> = text.chars().collect();
        let stop = |(start, length): &(usize, usize)| letters.iter().skip(*start).take(*length).collect();
        let options = DecodeOptions {
            stop: stops.iter().map(stop).collect::<Vec<String>>().into(),
            include_stop,
            min_tokens,
            continues,
            ..DecodeOptions::default()
        };
        TOKENIZERS.with(|tokenizers| {
            for tokenizer in tokenizers {
                check(tokenizer, &tokenizer.encode(text, false).unwrap(), &options);
            }
        });
    }
}

#[test]
fn a_token_and_all_of_its_text_come_together() {
    let tokenizer = Tokenizer::from_gguf(storyteller_gguf()).unwrap();
    let tokens = tokenizer.encode("Once upon a time, there was", false).unwrap();
    let options = DecodeOptions {
        stop: vec!["n a tree".to_owned(), "re wasp".to_owned()].into(),
        continues: true,
        ..DecodeOptions::default()
    };
    let mut decoder = TextDecoder::new(Some(&tokenizer), options);
    let mut shown = 0;
    for piece in pieces(&mut decoder, &tokens) {
        let whole = tokenizer.decode(&tokens[shown..shown + piece.tokens.len()], false);
        shown += piece.tokens.len();
        assert_eq!(piece.text, whole.unwrap());
    }
    assert_eq!(shown, tokens.len());
}

#[test]
fn what_ends_with_a_stop_string_does_not_go_on() {
    let tokenizer = storyteller();
    let tokens = tokenizer.encode("Once upon a time", false).unwrap();
    let options = DecodeOptions {
        stop: vec![" a".to_owned()].into(),
        ..DecodeOptions::default()
    };
    assert_eq!(TextDecoder::new(Some(&tokenizer), options).resume(&tokens), None);
}
