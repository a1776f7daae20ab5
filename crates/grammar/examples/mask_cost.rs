//! What grammars cost: compilation, a matcher, a mask per position, and a window of masks, by size of the vocabulary.
//!
//! `cargo run --release -p paceline-grammar --example mask_cost`

#![allow(clippy::unwrap_used, reason = "an instrument, not a library")]
#![allow(clippy::print_stdout, reason = "it reports")]

use paceline_grammar::{Grammar, GrammarLimits, GrammarSpec, TokenizerInfo};
use paceline_testkit::random_schema;
use paceline_text::Tokenizer;
use paceline_types::{Constraint, TokenId};
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

/// The default model's tokenizer, with made-up tokens behind its own up to this size.
fn tokenizer(size: usize) -> Tokenizer {
    let path = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../assets/storyteller/tokenizer.json"
    ));
    let mut file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let vocabulary = file["model"]["vocab"].as_object_mut().unwrap();
    let words: Vec<String> = vocabulary.keys().cloned().collect();
    let mut state = 1_u64;
    while vocabulary.len() < size {
        let mut word = String::new();
        for _ in 0..2 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            word.push_str(&words[(state >> 33) as usize % words.len()]);
        }
        let id = vocabulary.len();
        vocabulary.entry(word).or_insert_with(|| json!(id));
    }
    Tokenizer::from_json_bytes(&serde_json::to_vec(&file).unwrap()).unwrap()
}

fn specs() -> Vec<(&'static str, Vec<GrammarSpec>)> {
    let schemas = (0..40)
        .map(|seed| GrammarSpec::JsonSchema(random_schema(seed)))
        .collect();
    let sum = "start: term (\"+\" term)*\nterm: NUMBER | \"(\" start \")\"\nNUMBER: /[0-9]+/";
    vec![
        ("random schemas", schemas),
        ("any object", vec![GrammarSpec::JsonObject]),
        (
            "regex",
            vec![GrammarSpec::Regex(
                "[A-Z][a-z]{1,12}( [a-z]{1,12}){2,30}[.!?]".to_owned(),
            )],
        ),
        ("lark", vec![GrammarSpec::Lark(sum.to_owned())]),
    ]
}

/// Times of one kind, for a line of the report.
#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let value = work();
        self.0.push(begin.elapsed());
        value
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = |share: f64| sorted[((sorted.len() - 1) as f64 * share) as usize].as_micros();
        let mean = sorted.iter().sum::<Duration>().as_micros() / sorted.len() as u128;
        write!(f, "{mean:>6} {:>6} {:>6} {:>6}", at(0.5), at(0.99), at(1.0))
    }
}

fn measure(info: &TokenizerInfo, specs: &[GrammarSpec]) -> [Times; 5] {
    let [mut compile, mut matcher, mut mask, mut commit, mut window] = <[Times; 5]>::default();
    for (seed, spec) in specs.iter().enumerate() {
        let grammar = compile.time(|| Grammar::new(info, spec)).unwrap();
        let mut follower = matcher.time(|| grammar.matcher());
        let mut state = seed as u64 + 1;
        let mut text: Vec<TokenId> = Vec::new();
        while text.len() < 300 {
            let Ok(masks) = mask.time(|| follower.masks(&[])) else {
                break;
            };
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let token = masks[0]
                .tokens()
                .nth((state >> 33) as usize % masks[0].count())
                .unwrap();
            if info.ends().contains(&token) {
                break;
            }
            commit.time(|| follower.commit(&[token])).unwrap();
            text.push(token);
        }
        // The same text in windows of seven drafts.
        let mut follower = grammar.matcher();
        for drafts in text.chunks(8) {
            window
                .time(|| follower.masks(&drafts[..drafts.len() - 1]))
                .unwrap();
            follower.commit(drafts).unwrap();
        }
    }
    [compile, matcher, mask, commit, window]
}

fn main() {
    println!("microseconds: mean, median, 99 %, worst");
    for size in [4096, 151_000] {
        let tokenizer = tokenizer(size);
        let begin = Instant::now();
        let info = TokenizerInfo::new(&tokenizer, &[2, 0], GrammarLimits::default()).unwrap();
        println!("{size} tokens, prepared in {:?}", begin.elapsed());
        for (name, specs) in specs() {
            let times = measure(&info, &specs);
            let kinds = ["compile", "matcher", "mask", "commit", "window of 7"];
            for (kind, times) in kinds.iter().zip(times) {
                if !times.0.is_empty() {
                    println!("  {name:<15} {kind:<12} {times}");
                }
            }
        }
    }
}
