//! Where each pre-tokenizer cuts, and what a bad vocabulary gives.

use super::*;
use crate::Tokenizer;

/// A vocabulary of single bytes and no merges: the tokens of a text are its bytes.
fn bytes_only(pre: &str) -> GgufTokenizer {
    let alphabet = (0u8..=255).map(|byte| match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        0..=0x20 => char::from_u32(0x100 + u32::from(byte)).unwrap(),
        0x7F..=0xA0 => char::from_u32(0x121 + u32::from(byte) - 0x7F).unwrap(),
        0xAD => '\u{143}',
    });
    GgufTokenizer {
        model: "gpt2".to_owned(),
        pre: pre.to_owned(),
        tokens: alphabet.map(String::from).collect(),
        ..GgufTokenizer::default()
    }
}

/// The pieces a pre-tokenizer cuts a text into.
fn cut(pre: &str, text: &str) -> Vec<String> {
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, PreTokenizerWrapper};
    let steps: PreTokenizerWrapper = serde_json::from_value(pipeline(pre).unwrap().pre_tokenizer).unwrap();
    let mut pieces = PreTokenizedString::from(text);
    steps.pre_tokenize(&mut pieces).unwrap();
    let spans = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
    spans
        .into_iter()
        .map(|(_, (start, end), _)| text[start..end].to_owned())
        .collect()
}

#[test]
fn gpt2_keeps_digit_runs_and_lower_case_contractions() {
    for pre in ["", "default", "gpt-2"] {
        assert_eq!(
            cut(pre, "I'll go, it'S 2024!"),
            ["I", "'ll", " go", ",", " it", "'", "S", " 2024", "!"]
        );
        assert_eq!(cut(pre, "a  b\n\n c"), ["a", " ", " b", "\n\n", " c"]);
        assert_eq!(cut(pre, "你好，世界"), ["你好", "，", "世界"]);
    }
}

#[test]
fn smollm_cuts_every_digit() {
    assert_eq!(
        cut("smollm", "in 2024, x=10"),
        ["in", " ", "2", "0", "2", "4", ",", " x", "=", "1", "0"]
    );
    assert_eq!(cut("smollm", "don't\n\nstop"), ["don", "'t", "\n", "\n", "stop"]);
}

#[test]
fn llama3_groups_up_to_three_digits() {
    for pre in ["llama-bpe", "llama3", "llama-v3"] {
        assert_eq!(cut(pre, "1234567 it'S"), ["123", "456", "7", " it", "'S"]);
        assert_eq!(
            cut(pre, "end.\n\n  next(x)"),
            ["end", ".\n\n", " ", " next", "(x", ")"]
        );
        assert_eq!(cut(pre, "a \n \n b  "), ["a", " \n \n", " b", "  "]);
        assert_eq!(cut(pre, "你好，世界"), ["你好", "，世界"]);
    }
}

#[test]
fn qwen2_cuts_every_digit_and_leaves_combining_marks_out_of_words() {
    for pre in ["qwen2", "deepseek-r1-qwen"] {
        assert_eq!(
            cut(pre, " 2024年 I'VE"),
            [" ", "2", "0", "2", "4", "年", " I", "'VE"]
        );
        assert_eq!(cut(pre, "if x:\n\treturn"), ["if", " x", ":\n", "\treturn"]);
        assert_eq!(cut(pre, "กำ่x"), ["กำ", "่x"]);
    }
}

#[test]
fn qwen35_keeps_combining_marks_in_words() {
    assert_eq!(cut("qwen35", "กำ่x 12"), ["กำ่x", " ", "1", "2"]);
    assert_eq!(cut("qwen35", "e\u{301}a!"), ["e\u{301}a", "!"]);
}

#[test]
fn unknown_kinds_are_named_in_the_error() {
    let error = Tokenizer::from_gguf(bytes_only("viking")).unwrap_err();
    assert!(error.to_string().contains("\"viking\""), "{error}");
    let error = Tokenizer::from_gguf(GgufTokenizer {
        model: "t5".to_owned(),
        ..bytes_only("gpt-2")
    });
    assert!(matches!(error, Err(TextError::UnsupportedGgufModel(model)) if model == "t5"));
}

#[test]
fn contradictory_vocabularies_are_errors() {
    type Change = fn(&mut GgufTokenizer);
    let changes: [(&str, Change); 8] = [
        ("no tokens", |g| g.tokens.clear()),
        ("a token twice", |g| g.tokens[1] = g.tokens[0].clone()),
        ("too few types", |g| g.token_types = vec![1; 3]),
        ("half a merge", |g| g.merges.push("a".to_owned())),
        ("a merge of unknown tokens", |g| {
            g.merges.push("xx yyyyyyyyyyyyyyyyyyyyyyyyyyy".to_owned());
        }),
        ("a merge into an unknown token", |g| {
            g.merges.push("a b".to_owned());
        }),
        ("an unknown begin token", |g| {
            (g.bos, g.add_bos) = (Some(999), Some(true));
        }),
        ("no scores", |g| g.model = "llama".to_owned()),
    ];
    for (name, change) in changes {
        let mut metadata = bytes_only("gpt-2");
        change(&mut metadata);
        assert!(Tokenizer::from_gguf(metadata).is_err(), "{name}");
    }
}

#[test]
fn control_tokens_are_special_and_user_tokens_are_text() {
    let mut metadata = bytes_only("llama-bpe");
    metadata.token_types = vec![1; 256];
    for (token, kind) in [("<|begin|>", 3), ("<note>", 4), ("[PAD]", 5)] {
        metadata.tokens.push(token.to_owned());
        metadata.token_types.push(kind);
    }
    (metadata.bos, metadata.eos, metadata.eot) = (Some(256), Some(999), Some(257));
    let tokenizer = Tokenizer::from_gguf(metadata).unwrap();
    let ids = tokenizer.encode("<note>a<|begin|>", true).unwrap();
    assert_eq!(ids, [256, 257, 97, 256]);
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "<note>a");
    assert_eq!(
        tokenizer.decode(&ids, false).unwrap(),
        "<|begin|><note>a<|begin|>"
    );
    assert_eq!(tokenizer.encode("[PAD]", false).unwrap().len(), 5);
    assert_eq!(
        (tokenizer.bos_id(), tokenizer.eos_id(), tokenizer.eot_id()),
        (Some(256), None, Some(257))
    );
    assert!(tokenizer.is_special(256) && !tokenizer.is_special(257));
}
