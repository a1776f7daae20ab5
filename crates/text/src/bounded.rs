//! The parts of a tokenizer that a file can make arbitrarily slow or large, with bounds.
//!
//! A `tokenizer.json` brings regular expressions that split and replace text. They are checked when they are read, and
//! while a text is encoded there is a limit on the time, looked at between matches and between pieces of the text. One
//! match takes bounded time by itself: patterns without look-around are searched in linear time; the others are tried at
//! one position at a time, and may go back a limited number of times.

use std::cell::Cell;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fancy_regex::{Expr, Regex, RegexBuilder};
use serde::de::{Deserialize, Deserializer, Error as _};
use serde_json::Value;
use tokenizers::models::{ModelWrapper, TrainerWrapper};
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pattern::{Invert, Pattern};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{
    Model, NormalizedString, Normalizer, Offsets, PreTokenizedString, PreTokenizer, Result,
    SplitDelimiterBehavior, Token,
};

/// Longest pattern, and longest text that a file puts in the place of a match.
const MAX_PATTERN: usize = 16 << 10;
const MAX_REPLACEMENT: usize = 256;

/// Most times that a pattern with look-around may go back at one position. Real ones do it once for each space of a run.
const MAX_BACKTRACKS: usize = 1_000_000;

/// How much longer normalization may make a text: for each byte, and in all.
const MAX_GROWTH: usize = 32;
const MIN_GROWTH: usize = 4096;

/// Longest token of a unigram model and longest word of a word-piece model: they try every length at every position.
const MAX_TOKEN: usize = 4096;

/// Time to encode a text: a constant, and an allowance for each byte. Real tokenizers take a tenth of that on slow machines.
const BASE_TIME: Duration = Duration::from_secs(10);
const TIME_PER_BYTE: Duration = Duration::from_micros(10);

thread_local! {
    /// When the encoding that this thread is at has to be done. The library passes nothing of the caller's along.
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Runs an encoding of `bytes` bytes of text under the limit on its time.
pub(crate) fn within_time<T>(bytes: usize, encode: impl FnOnce() -> T) -> T {
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    until(Instant::now() + BASE_TIME + TIME_PER_BYTE * bytes, encode)
}

fn until<T>(deadline: Instant, encode: impl FnOnce() -> T) -> T {
    DEADLINE.set(Some(deadline));
    let encoded = encode();
    DEADLINE.set(None);
    encoded
}

fn check_time() -> Result<()> {
    match DEADLINE.get() {
        Some(deadline) if Instant::now() > deadline => Err("it takes too long".into()),
        _ => Ok(()),
    }
}

/// Checks what a file says outside of patterns.
pub(crate) fn check(file: &Value) -> std::result::Result<(), String> {
    let model = &file["model"];
    if model["max_input_chars_per_word"].as_u64() > Some(MAX_TOKEN as u64) {
        return Err(format!("words of more than {MAX_TOKEN} characters"));
    }
    let tokens = model["vocab"].as_array().into_iter().flatten();
    let longest = tokens.filter_map(|token| token[0].as_str().map(str::len)).max();
    if longest > Some(MAX_TOKEN) {
        return Err(format!("a token of more than {MAX_TOKEN} bytes"));
    }
    check_replacements(&file["normalizer"])
}

fn check_replacements(normalizer: &Value) -> std::result::Result<(), String> {
    for key in ["content", "prepend"] {
        if normalizer[key]
            .as_str()
            .is_some_and(|text| text.len() > MAX_REPLACEMENT)
        {
            return Err(format!(
                "a normalizer that adds more than {MAX_REPLACEMENT} bytes"
            ));
        }
    }
    let mut parts = normalizer["normalizers"].as_array().into_iter().flatten();
    parts.try_for_each(check_replacements)
}

/// A regular expression, or a text to look for.
#[derive(Debug)]
struct BoundedPattern {
    regex: Regex,
    /// Matches are looked for at one position at a time.
    anchored: bool,
}

impl BoundedPattern {
    fn new(json: &Value) -> std::result::Result<Self, String> {
        let (pattern, expression) = match (json["Regex"].as_str(), json["String"].as_str()) {
            (Some(pattern), _) => (pattern.to_owned(), true),
            (None, Some(text)) => (fancy_regex::escape(text).into_owned(), false),
            (None, None) => return Err("a pattern is neither a Regex nor a String".to_owned()),
        };
        if pattern.len() > MAX_PATTERN {
            return Err(format!("a pattern of more than {MAX_PATTERN} bytes"));
        }
        let failed = |error: fancy_regex::Error| error.to_string();
        let tree = Expr::parse_tree(&pattern).map_err(failed)?.expr;
        let anchored = expression && looks_around(&tree);
        if anchored && is_catastrophic(&tree) {
            return Err(format!("a pattern that can take forever: {pattern}"));
        }
        let pattern = if anchored {
            format!(r"\G(?:{pattern})")
        } else {
            pattern
        };
        let regex = RegexBuilder::new(&pattern)
            .backtrack_limit(MAX_BACKTRACKS)
            .build();
        Ok(Self {
            regex: regex.map_err(failed)?,
            anchored,
        })
    }

    /// The first match that begins at `from` or later.
    fn find(&self, text: &str, mut from: usize) -> Result<Option<Offsets>> {
        loop {
            check_time()?;
            let found = self.regex.find_from_pos(text, from)?;
            if let Some(found) = found {
                return Ok(Some((found.start(), found.end())));
            }
            match text[from..].chars().next() {
                Some(c) if self.anchored => from += c.len_utf8(),
                _ => return Ok(None),
            }
        }
    }
}

impl Pattern for &BoundedPattern {
    fn find_matches(&self, inside: &str) -> Result<Vec<(Offsets, bool)>> {
        if inside.is_empty() {
            return Ok(vec![((0, 0), false)]);
        }
        let (mut parts, mut done, mut from) = (Vec::new(), 0, 0);
        let mut last = None;
        while from <= inside.len() {
            let Some((start, end)) = self.find(inside, from)? else {
                break;
            };
            let next = inside[end..].chars().next().map_or(1, char::len_utf8);
            from = if start == end { end + next } else { end };
            // An empty match right behind another one is no match.
            if start == end && last == Some(end) {
                continue;
            }
            last = Some(end);
            if done != start {
                parts.push(((done, start), false));
            }
            parts.push(((start, end), true));
            done = end;
        }
        if done != inside.len() {
            parts.push(((done, inside.len()), false));
        }
        Ok(parts)
    }
}

/// Matches that are known already.
struct Found(Vec<(Offsets, bool)>);

impl Pattern for Found {
    fn find_matches(&self, _: &str) -> Result<Vec<(Offsets, bool)>> {
        Ok(self.0.clone())
    }
}

fn children(expr: &Expr) -> Vec<&Expr> {
    match expr {
        Expr::Concat(parts) | Expr::Alt(parts) => parts.iter().collect(),
        Expr::Group(child)
        | Expr::LookAround(child, _)
        | Expr::AtomicGroup(child)
        | Expr::Repeat { child, .. } => vec![child],
        Expr::Conditional {
            condition,
            true_branch,
            false_branch,
        } => vec![condition, true_branch, false_branch],
        _ => Vec::new(),
    }
}

fn any(expr: &Expr, holds: &dyn Fn(&Expr) -> bool) -> bool {
    holds(expr) || children(expr).into_iter().any(|child| any(child, holds))
}

/// Whether the expression is more than a regular language, so that matching it may go back and forth.
fn looks_around(expr: &Expr) -> bool {
    any(expr, &|part| {
        let plain = matches!(
            part,
            Expr::Empty
                | Expr::Any { .. }
                | Expr::Literal { .. }
                | Expr::Concat(_)
                | Expr::Alt(_)
                | Expr::Group(_)
                | Expr::Repeat { .. }
                | Expr::Delegate { .. }
        );
        !plain
    })
}

/// Whether one attempt at one position can take more than linear time without ever going back: the text is looked at
/// again by every round of a repetition. Back references and recursion count as well.
fn is_catastrophic(expr: &Expr) -> bool {
    let endless = |part: &Expr| matches!(part, Expr::Repeat { hi, .. } if *hi > MAX_ROUNDS);
    any(expr, &|part| match part {
        Expr::Repeat { child, .. } if endless(part) => looks_around(child) && any(child, &endless),
        Expr::Backref { .. }
        | Expr::BackrefWithRelativeRecursionLevel { .. }
        | Expr::BackrefExistsCondition(_)
        | Expr::Conditional { .. }
        | Expr::SubroutineCall(_)
        | Expr::UnresolvedNamedSubroutineCall { .. } => true,
        _ => false,
    })
}

/// Repetitions of more rounds count as endless.
const MAX_ROUNDS: usize = 16;

/// What cuts a text into pieces.
#[derive(Debug)]
pub(crate) enum Splitter {
    Sequence(Vec<Splitter>),
    Split(BoundedSplit),
    Other(PreTokenizerWrapper),
}

/// A split by a pattern.
#[derive(Debug)]
pub(crate) struct BoundedSplit {
    pattern: BoundedPattern,
    behavior: SplitDelimiterBehavior,
    invert: bool,
}

impl Splitter {
    fn new(json: &Value) -> std::result::Result<Self, String> {
        let message = |error: serde_json::Error| error.to_string();
        match json["type"].as_str() {
            Some("Sequence") => {
                let parts = json["pretokenizers"].as_array().into_iter().flatten();
                parts
                    .map(Self::new)
                    .collect::<std::result::Result<_, _>>()
                    .map(Self::Sequence)
            }
            Some("Split") => {
                let pattern = BoundedPattern::new(&json["pattern"])?;
                let behavior = serde_json::from_value(json["behavior"].clone()).map_err(message)?;
                let invert = json["invert"].as_bool().unwrap_or(false);
                Ok(Self::Split(BoundedSplit {
                    pattern,
                    behavior,
                    invert,
                }))
            }
            _ => serde_json::from_value(json.clone())
                .map(Self::Other)
                .map_err(message),
        }
    }
}

impl PreTokenizer for Splitter {
    fn pre_tokenize(&self, text: &mut PreTokenizedString) -> Result<()> {
        check_time()?;
        match self {
            Self::Sequence(parts) => parts.iter().try_for_each(|part| part.pre_tokenize(text)),
            Self::Split(BoundedSplit {
                pattern,
                behavior,
                invert,
            }) => text.split(|_, piece| match invert {
                true => piece.split(Invert(pattern), *behavior),
                false => piece.split(pattern, *behavior),
            }),
            Self::Other(part) => part.pre_tokenize(text),
        }
    }
}

/// What changes a text before it is cut.
#[derive(Debug)]
pub(crate) enum BoundedNormalizer {
    Sequence(Vec<BoundedNormalizer>),
    Replace(Replacement),
    Other(NormalizerWrapper),
}

/// A replacement of what a pattern matches.
#[derive(Debug)]
pub(crate) struct Replacement {
    pattern: BoundedPattern,
    content: String,
}

impl BoundedNormalizer {
    fn new(json: &Value) -> std::result::Result<Self, String> {
        match json["type"].as_str() {
            Some("Sequence") => {
                let parts = json["normalizers"].as_array().into_iter().flatten();
                parts
                    .map(Self::new)
                    .collect::<std::result::Result<_, _>>()
                    .map(Self::Sequence)
            }
            Some("Replace") => {
                let content = json["content"]
                    .as_str()
                    .ok_or("a replacement without content")?
                    .to_owned();
                let pattern = BoundedPattern::new(&json["pattern"])?;
                Ok(Self::Replace(Replacement { pattern, content }))
            }
            _ => serde_json::from_value(json.clone())
                .map(Self::Other)
                .map_err(|error| error.to_string()),
        }
    }
}

impl Normalizer for BoundedNormalizer {
    fn normalize(&self, text: &mut NormalizedString) -> Result<()> {
        check_time()?;
        let limit = text.get_original().len().saturating_mul(MAX_GROWTH) + MIN_GROWTH;
        match self {
            Self::Sequence(parts) => parts.iter().try_for_each(|part| part.normalize(text))?,
            Self::Replace(Replacement { pattern, content }) => {
                let found = pattern.find_matches(text.get())?;
                let added = found.iter().filter(|(_, matched)| *matched).count() * content.len();
                if text.get().len() + added > limit {
                    return Err("normalization makes the text too long".into());
                }
                text.replace(Found(found), content)?;
            }
            Self::Other(part) => part.normalize(text)?,
        }
        if text.get().len() > limit {
            return Err("normalization makes the text too long".into());
        }
        Ok(())
    }
}

/// A model that looks at the time before each piece.
#[derive(Debug)]
pub(crate) struct TimedModel(ModelWrapper);

impl Model for TimedModel {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, piece: &str) -> Result<Vec<Token>> {
        check_time()?;
        self.0.tokenize(piece)
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.token_to_id(token)
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.0.id_to_token(id)
    }

    fn get_vocab(&self) -> std::collections::HashMap<String, u32> {
        self.0.get_vocab()
    }

    fn get_vocab_size(&self) -> usize {
        self.0.get_vocab_size()
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> Result<Vec<PathBuf>> {
        self.0.save(folder, prefix)
    }

    fn get_trainer(&self) -> TrainerWrapper {
        self.0.get_trainer()
    }
}

fn from_json<'de, D: Deserializer<'de>, T, E: fmt::Display>(
    deserializer: D,
    build: impl FnOnce(&Value) -> std::result::Result<T, E>,
) -> std::result::Result<T, D::Error> {
    build(&Value::deserialize(deserializer)?).map_err(D::Error::custom)
}

impl<'de> Deserialize<'de> for Splitter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        from_json(deserializer, Self::new)
    }
}

impl<'de> Deserialize<'de> for BoundedNormalizer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        from_json(deserializer, Self::new)
    }
}

impl<'de> Deserialize<'de> for TimedModel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        ModelWrapper::deserialize(deserializer).map(Self)
    }
}

#[cfg(test)]
mod tests;
