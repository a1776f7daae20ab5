//! Tokenizers described by GGUF metadata.
//!
//! A GGUF file keeps the vocabulary of the original tokenizer and a name for the rest of it. The rest is put
//! back here, in the form of the `tokenizer.json` the file was made from.

use std::collections::HashMap;

use paceline_types::TokenId;
use serde_json::{Map, Value, json};

use crate::error::{Result, TextError};

/// The `tokenizer.ggml.*` values of a GGUF file, as they are in the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufTokenizer {
    /// `model`: "gpt2" for byte-level BPE, "llama" for SentencePiece BPE.
    pub model: String,
    /// `pre`: how text is cut before merging; empty when absent.
    pub pre: String,
    /// `tokens`, by id.
    pub tokens: Vec<String>,
    /// `token_type`, by id: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte; may be empty.
    pub token_types: Vec<i32>,
    /// `merges`, best first, each two tokens with a space between.
    pub merges: Vec<String>,
    /// `scores`, by id; SentencePiece joins the pair with the best score first.
    pub scores: Vec<f32>,
    /// `bos_token_id`.
    pub bos: Option<TokenId>,
    /// `eos_token_id`.
    pub eos: Option<TokenId>,
    /// `eot_token_id`.
    pub eot: Option<TokenId>,
    /// `padding_token_id`.
    pub padding: Option<TokenId>,
    /// `unknown_token_id`.
    pub unknown: Option<TokenId>,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
}

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// Longest token, in characters, that merging can produce: bounds the search for its halves.
const MAX_MERGED_CHARS: usize = 256;

/// The mark SentencePiece writes for a space.
const SPACE_MARK: &str = "\u{2581}";

/// The `tokenizer.json` a GGUF file was made from.
pub(crate) fn tokenizer_json(metadata: GgufTokenizer) -> Result<Value> {
    let mut ids = HashMap::with_capacity(metadata.tokens.len());
    for (id, token) in metadata.tokens.iter().enumerate() {
        if let Some(first) = ids.insert(token.as_str(), id) {
            return Err(inconsistent(format!(
                "tokens {first} and {id} are both {token:?}"
            )));
        }
    }
    let types = metadata.token_types.len();
    if metadata.tokens.is_empty() || (types != 0 && types != metadata.tokens.len()) {
        return Err(inconsistent(format!(
            "{} tokens, {types} token types",
            metadata.tokens.len()
        )));
    }
    let mut file = match metadata.model.as_str() {
        "gpt2" => byte_level(&metadata)?,
        "llama" => sentence_piece(&metadata, &ids)?,
        other => return Err(TextError::UnsupportedGgufModel(other.to_owned())),
    };
    drop(ids);
    file["version"] = "1.0".into();
    file["added_tokens"] = added_tokens(&metadata);
    let adds_bos = metadata
        .add_bos
        .unwrap_or(metadata.model == "llama" || is_llama3(&metadata.pre));
    if let Some(bos) = metadata.bos.filter(|_| adds_bos) {
        file["post_processor"] = begin_with(bos, &metadata)?;
    }
    let vocab = metadata
        .tokens
        .into_iter()
        .zip(0u32..)
        .map(|(token, id)| (token, id.into()));
    file["model"]["vocab"] = Value::Object(vocab.collect::<Map<_, _>>());
    Ok(file)
}

fn inconsistent(reason: String) -> TextError {
    TextError::InvalidGgufVocabulary(reason)
}

fn byte_level(metadata: &GgufTokenizer) -> Result<Value> {
    let merges = metadata
        .merges
        .iter()
        .map(|merge| split_merge(merge))
        .collect::<Result<Vec<_>>>()?;
    let Pipeline {
        normalizer,
        pre_tokenizer,
    } = pipeline(&metadata.pre)?;
    Ok(json!({
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "decoder": byte_level_step(false),
        "model": { "type": "BPE", "merges": merges, "ignore_merges": is_llama3(&metadata.pre) },
    }))
}

/// The two tokens of a merge. A token is never empty, so a space at the very start belongs to the first one.
fn split_merge(merge: &str) -> Result<(&str, &str)> {
    let gap = merge.char_indices().skip(1).find(|&(_, c)| c == ' ');
    let (left, right) = gap
        .map(|(position, _)| (&merge[..position], &merge[position + 1..]))
        .ok_or_else(|| inconsistent(format!("the merge {merge:?} is not two tokens")))?;
    Ok((left, right))
}

fn sentence_piece(metadata: &GgufTokenizer, ids: &HashMap<&str, usize>) -> Result<Value> {
    let merges = if metadata.scores.len() == metadata.tokens.len() {
        let merges = merges_by_score(metadata, ids);
        merges
            .into_iter()
            .map(|(left, right)| json!([left, right]))
            .collect()
    } else if !metadata.merges.is_empty() {
        let merges = metadata
            .merges
            .iter()
            .map(|merge| split_merge(merge).map(|merge| json!(merge)));
        merges.collect::<Result<Vec<_>>>()?
    } else {
        let (scores, tokens) = (metadata.scores.len(), metadata.tokens.len());
        return Err(inconsistent(format!(
            "{scores} scores for {tokens} tokens and no merges"
        )));
    };
    let unknown = metadata.unknown.map(|id| token(metadata, id)).transpose()?;
    let of_type = |kind| (0..metadata.tokens.len()).find(|&id| kind_of(metadata, id) == kind);
    let unknown = unknown.or_else(|| of_type(UNKNOWN).map(|id| metadata.tokens[id].as_str()));
    let prefix = metadata.add_space_prefix.unwrap_or(true);
    let mut normalizers = vec![json!({
        "type": "Replace", "pattern": { "String": " " }, "content": SPACE_MARK,
    })];
    let mut decoders = vec![
        json!({ "type": "Replace", "pattern": { "String": SPACE_MARK }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if prefix {
        normalizers.insert(0, json!({ "type": "Prepend", "prepend": SPACE_MARK }));
        decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    Ok(json!({
        "normalizer": { "type": "Sequence", "normalizers": normalizers },
        "decoder": { "type": "Sequence", "decoders": decoders },
        "model": {
            "type": "BPE", "merges": merges, "unk_token": unknown, "fuse_unk": true, "byte_fallback": true,
        },
    }))
}

/// Every way to make a token of two others, the token with the best score first.
fn merges_by_score<'a>(metadata: &'a GgufTokenizer, ids: &HashMap<&str, usize>) -> Vec<(&'a str, &'a str)> {
    let mergeable = |id: usize| matches!(kind_of(metadata, id), NORMAL | USER_DEFINED);
    let mut merges = Vec::new();
    for (id, token) in metadata
        .tokens
        .iter()
        .enumerate()
        .filter(|&(id, _)| mergeable(id))
    {
        if token.chars().nth(MAX_MERGED_CHARS).is_some() {
            continue;
        }
        for (position, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(position);
            if let (Some(&first), Some(&second)) = (ids.get(left), ids.get(right))
                && mergeable(first)
                && mergeable(second)
            {
                merges.push((metadata.scores[id], (first, second), (left, right)));
            }
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    merges.into_iter().map(|(_, _, pair)| pair).collect()
}

fn kind_of(metadata: &GgufTokenizer, id: usize) -> i32 {
    metadata.token_types.get(id).copied().unwrap_or(NORMAL)
}

fn token(metadata: &GgufTokenizer, id: TokenId) -> Result<&str> {
    let found = metadata.tokens.get(id as usize).map(String::as_str);
    found.ok_or_else(|| inconsistent(format!("token {id} of {} tokens", metadata.tokens.len())))
}

fn added_tokens(metadata: &GgufTokenizer) -> Value {
    let mut added = Vec::new();
    for (id, content) in metadata.tokens.iter().enumerate() {
        let kind = kind_of(metadata, id);
        if matches!(kind, UNKNOWN | CONTROL | USER_DEFINED) && !content.is_empty() {
            added.push(json!({
                "id": id, "content": content, "special": kind != USER_DEFINED,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            }));
        }
    }
    added.into()
}

fn begin_with(bos: TokenId, metadata: &GgufTokenizer) -> Result<Value> {
    let name = token(metadata, bos)?;
    let part = |id: &str| json!({ "Sequence": { "id": id, "type_id": 0 } });
    let begin = json!({ "SpecialToken": { "id": name, "type_id": 0 } });
    let mut special = Map::new();
    special.insert(
        name.to_owned(),
        json!({ "id": name, "ids": [bos], "tokens": [name] }),
    );
    Ok(json!({
        "type": "TemplateProcessing",
        "single": [begin, part("A")],
        "pair": [begin, part("A"), part("B")],
        "special_tokens": special,
    }))
}

/// The steps before merging.
struct Pipeline {
    normalizer: Value,
    pre_tokenizer: Value,
}

/// The names of the Llama 3 kind, which takes a word that is a token as it is and begins every text.
fn is_llama3(pre: &str) -> bool {
    matches!(pre, "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "falcon-h1")
}

fn pipeline(pre: &str) -> Result<Pipeline> {
    let nfc = json!({ "type": "NFC" });
    let (normalizer, steps) = match pre {
        "" | "default" | "gpt-2" => (Value::Null, vec![byte_level_step(true)]),
        "smollm" => {
            let digits = json!({ "type": "Digits", "individual_digits": true });
            (Value::Null, vec![digits, byte_level_step(true)])
        }
        _ if is_llama3(pre) => (
            Value::Null,
            vec![words(r"\p{L}", r"\p{N}{1,3}"), byte_level_step(false)],
        ),
        "qwen2" | "deepseek-r1-qwen" => (nfc, vec![words(r"\p{L}", r"\p{N}"), byte_level_step(false)]),
        "qwen35" => (nfc, vec![words(r"\p{L}\p{M}", r"\p{N}"), byte_level_step(false)]),
        other => return Err(TextError::UnsupportedPreTokenizer(other.to_owned())),
    };
    Ok(Pipeline {
        normalizer,
        pre_tokenizer: json!({ "type": "Sequence", "pretokenizers": steps }),
    })
}

/// Maps bytes to the byte-level alphabet, after cutting by the GPT-2 rule if `cut`.
fn byte_level_step(cut: bool) -> Value {
    json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": cut })
}

/// Cuts text into contractions, words of `letters` with one character before them, `number`s, punctuation
/// with the line ends after it, and white space.
fn words(letters: &str, number: &str) -> Value {
    let contraction = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
    let word = format!(r"[^\r\n\p{{L}}\p{{N}}]?[{letters}]+");
    let punctuation = format!(r" ?[^\s{letters}\p{{N}}]+[\r\n]*");
    let space = r"\s*[\r\n]+|\s+(?!\S)|\s+";
    let pattern = format!("{contraction}|{word}|{number}|{punctuation}|{space}");
    json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false })
}

#[cfg(test)]
mod tests;
