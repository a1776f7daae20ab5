//! Tokenizers the tests share.

use std::path::Path;

use paceline_text::{GgufTokenizer, Tokenizer};
use serde_json::Value;

/// Texts in many scripts, with code, digits, marks, controls and white space of all kinds.
pub(crate) const TEXTS: &[&str] = &[
    "",
    " ",
    "Once upon a time, there was a little fox who couldn't sleep.",
    "  leading and trailing  ",
    "It's 2024-11-15; we'LL see 1234567 items (50%) at $3.99!\n\n\tif x == 10:\r\n\t\treturn \"ok\"\n   \n",
    "Ça va? Größe, naïve, Łódź, İstanbul, e\u{301}",
    "你好，世界！こんにちは。안녕하세요",
    "नमस्ते दुनिया สวัสดีครับ שלום مرحبا بالعالم",
    "😀👩‍👩‍👧‍👦🏳️‍🌈 and 🇫🇷",
    "zero\u{0}byte, bell\u{7}, nbsp\u{a0}here, \u{feff}bom, \u{fffd} itself",
    "<|im_start|>user\nHi<|im_end|>\n",
    "<|endoftext|><|im_start|><|im_end|>",
];

/// The bytes of the default model's tokenizer file.
pub(crate) fn storyteller_json() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/storyteller/tokenizer.json");
    std::fs::read(path).unwrap()
}

/// The default model's tokenizer.
pub(crate) fn storyteller() -> Tokenizer {
    Tokenizer::from_json_bytes(&storyteller_json()).unwrap()
}

/// The default model's tokenizer as a GGUF file would describe it.
pub(crate) fn storyteller_gguf() -> GgufTokenizer {
    let file: Value = serde_json::from_slice(&storyteller_json()).unwrap();
    let vocab = file["model"]["vocab"].as_object().unwrap();
    let mut tokens = vec![String::new(); vocab.len()];
    for (token, id) in vocab {
        tokens[id.as_u64().unwrap() as usize].clone_from(token);
    }
    let mut token_types = vec![1; tokens.len()];
    for added in file["added_tokens"].as_array().unwrap() {
        token_types[added["id"].as_u64().unwrap() as usize] = 3;
    }
    let merges = file["model"]["merges"].as_array().unwrap();
    let merges = merges
        .iter()
        .map(|pair| format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()));
    GgufTokenizer {
        model: "gpt2".to_owned(),
        pre: "gpt-2".to_owned(),
        merges: merges.collect(),
        tokens,
        token_types,
        bos: Some(0),
        eos: Some(2),
        add_bos: Some(false),
        ..GgufTokenizer::default()
    }
}

/// Words of the made-up SentencePiece vocabulary, best first.
const WORDS: &[&str] = &[
    "\u{2581}a",
    "ab",
    "\u{2581}b",
    "ba",
    "\u{2581}ab",
    "bab",
    "\u{2581}\u{2581}",
    "cab",
    "ca",
    "\u{2581}ca",
    "abc",
    "é",
];

/// A made-up SentencePiece vocabulary: three control tokens, the bytes, words, letters.
pub(crate) fn sentence_piece() -> GgufTokenizer {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).into();
    let mut token_types = vec![2, 3, 3];
    tokens.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
    token_types.resize(tokens.len(), 6);
    let letters = ["\u{2581}", "a", "b", "c", "d"];
    tokens.extend(WORDS.iter().chain(&letters).map(|&word| word.to_owned()));
    token_types.resize(tokens.len(), 1);
    let scores = (0..tokens.len())
        .map(|id| if id < 259 { 0.0 } else { 259.0 - id as f32 })
        .collect();
    GgufTokenizer {
        model: "llama".to_owned(),
        tokens,
        token_types,
        scores,
        bos: Some(1),
        eos: Some(2),
        unknown: Some(0),
        ..GgufTokenizer::default()
    }
}
