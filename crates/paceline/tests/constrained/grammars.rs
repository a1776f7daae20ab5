//! Grammars for the default model, and what their texts must be.

use paceline_grammar::{Grammar, GrammarLimits, GrammarSpec, TokenizerInfo};
use paceline_text::Tokenizer;
use paceline_types::{Constraint, TokenId};
use serde_json::Value;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Tokens that end the default model's texts.
pub(crate) const ENDS: [TokenId; 2] = [0, 2];

pub(crate) fn tokenizer() -> &'static Tokenizer {
    static SHARED: OnceLock<Tokenizer> = OnceLock::new();
    SHARED.get_or_init(|| {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/storyteller");
        let bytes = std::fs::read(Path::new(folder).join("tokenizer.json")).expect("the default model");
        Tokenizer::from_json_bytes(&bytes).expect("its tokenizer")
    })
}

pub(crate) fn info() -> &'static TokenizerInfo {
    static SHARED: OnceLock<TokenizerInfo> = OnceLock::new();
    let make = || TokenizerInfo::new(tokenizer(), &ENDS, GrammarLimits::default()).expect("a vocabulary");
    SHARED.get_or_init(make)
}

pub(crate) fn prompt(text: &str) -> Vec<TokenId> {
    tokenizer().encode(text, false).expect("text")
}

/// A constraint with its name.
pub(crate) fn named(spec: &GrammarSpec) -> (String, Arc<dyn Constraint>) {
    let grammar = Grammar::new(info(), spec).unwrap_or_else(|error| panic!("{spec:?}: {error}"));
    (format!("{spec:?}"), Arc::new(grammar))
}

pub(crate) fn text(tokens: &[TokenId]) -> String {
    tokenizer().decode(tokens, true).expect("known tokens")
}

/// The text without the token that ended it, if one did.
pub(crate) fn finished(tokens: &[TokenId]) -> Option<String> {
    match tokens.split_last() {
        Some((last, before)) if ENDS.contains(last) => Some(text(before)),
        _ => None,
    }
}

pub(crate) fn assert_valid(schema: &Value, text: &str) {
    let value: Value =
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{schema}: {text:?}: {error}"));
    let validator = jsonschema::validator_for(schema).expect("a schema");
    assert!(validator.is_valid(&value), "{schema}: {text}");
}
