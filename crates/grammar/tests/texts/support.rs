//! The default model's tokenizer, and random walks through masks.

use paceline_grammar::{Grammar, GrammarLimits, GrammarSpec, TokenizerInfo};
use paceline_text::Tokenizer;
use paceline_types::{Constraint, TokenId};
use std::path::Path;
use std::sync::OnceLock;

pub(crate) const ENDS: [TokenId; 2] = [2, 0];

pub(crate) fn tokenizer() -> &'static Tokenizer {
    static SHARED: OnceLock<Tokenizer> = OnceLock::new();
    SHARED.get_or_init(|| {
        let path = Path::new(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../assets/storyteller/tokenizer.json"
        ));
        Tokenizer::from_json_bytes(&std::fs::read(path).unwrap()).unwrap()
    })
}

pub(crate) fn info() -> &'static TokenizerInfo {
    static SHARED: OnceLock<TokenizerInfo> = OnceLock::new();
    SHARED.get_or_init(|| TokenizerInfo::new(tokenizer(), &ENDS, GrammarLimits::default()).unwrap())
}

pub(crate) fn compile(spec: &GrammarSpec) -> Grammar {
    Grammar::new(info(), spec).unwrap_or_else(|error| panic!("{spec:?}: {error}"))
}

pub(crate) fn refusal(spec: &GrammarSpec) -> String {
    match Grammar::new(info(), spec) {
        Ok(_) => panic!("{spec:?} was taken"),
        Err(error) => error.to_string(),
    }
}

/// One of two numbers: for every run, and for the long one.
pub(crate) fn rounds(short: u64, long: u64) -> u64 {
    if std::env::var_os("PACELINE_TEST_LONG").is_some() {
        long
    } else {
        short
    }
}

/// Numbers from a seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % bound as u64) as usize
    }
}

/// A text drawn evenly from the masks, without the token that ended it; `None` if it is not done after `most` tokens.
/// Ends are preferred as soon as they may come.
pub(crate) fn walk(grammar: &Grammar, seed: u64, most: usize) -> Option<Vec<TokenId>> {
    let mut random = Random(seed);
    let mut matcher = grammar.matcher();
    let mut text = Vec::new();
    while text.len() < most {
        let mask = matcher.masks(&[]).unwrap().remove(0);
        if ENDS.iter().any(|end| mask.allows(*end)) && (mask.count() <= ENDS.len() || random.below(3) == 0) {
            return Some(text);
        }
        let choice = random.below(mask.count());
        let token = mask.tokens().nth(choice).unwrap();
        if ENDS.contains(&token) {
            return Some(text);
        }
        matcher.commit(&[token]).unwrap();
        text.push(token);
        if matcher.is_finished() {
            return Some(text);
        }
    }
    None
}

pub(crate) fn text(tokens: &[TokenId]) -> String {
    tokenizer().decode(tokens, false).unwrap()
}

/// Whether the grammar takes a text and may end behind it.
pub(crate) fn accepts(grammar: &Grammar, text: &str) -> bool {
    let mut matcher = grammar.matcher();
    let mut rest = text.as_bytes();
    // The longest token that is allowed, each time: forced tokens allow no other.
    while !rest.is_empty() {
        let Ok(masks) = matcher.masks(&[]) else {
            return false;
        };
        let fits = |token: &TokenId| {
            let bytes = tokenizer().token_bytes(*token).unwrap_or_default();
            !tokenizer().is_special(*token) && !bytes.is_empty() && rest.starts_with(bytes)
        };
        let longest = masks[0]
            .tokens()
            .filter(fits)
            .max_by_key(|token| tokenizer().token_bytes(*token).unwrap().len());
        let Some(token) = longest else {
            return false;
        };
        if matcher.commit(&[token]).is_err() {
            return false;
        }
        rest = &rest[tokenizer().token_bytes(token).unwrap().len()..];
    }
    matcher.is_finished() || matcher.masks(&[]).is_ok_and(|masks| masks[0].allows(ENDS[0]))
}

pub(crate) fn check(spec: &GrammarSpec, good: &[&str], bad: &[&str]) {
    let grammar = compile(spec);
    for text in good {
        assert!(accepts(&grammar, text), "{spec:?} refuses {text:?}");
    }
    for text in bad {
        assert!(!accepts(&grammar, text), "{spec:?} takes {text:?}");
    }
}
