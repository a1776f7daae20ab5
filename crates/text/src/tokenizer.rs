//! The tokenizer: text to tokens and back.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use paceline_types::TokenId;
use serde_json::Value;
use tokenizers::{DecoderWrapper, PostProcessorWrapper, TokenizerImpl};

use crate::bounded::{self, BoundedNormalizer, Splitter, TimedModel};
use crate::config::TokenizerConfig;
use crate::detokenizer::Detokenizer;
use crate::error::{Result, TextError};
use crate::gguf::{self, GgufTokenizer};
use crate::pieces::{Entry, Pieces};

/// Bytes of the pieces in which a long text is measured before it is encoded.
const PIECE: usize = 32 << 10;

/// A text of fewer bytes per token that it may have is encoded without measuring: ordinary text has about as many.
const ORDINARY: usize = 4;

/// What bounds the work on a text.
pub struct EncodeLimit<'a> {
    /// Most tokens that are of use.
    pub tokens: usize,
    /// Whether the caller has lost interest; asked before each piece of a long text.
    pub given_up: &'a dyn Fn() -> bool,
}

impl EncodeLimit<'_> {
    fn expect(&self, at_least: usize) -> Result<()> {
        if at_least > self.tokens {
            let limit = self.tokens;
            return Err(TextError::TooLong { at_least, limit });
        }
        Ok(())
    }
}

/// A model's tokenizer. Clones share one vocabulary.
#[derive(Clone)]
pub struct Tokenizer {
    shared: Arc<Shared>,
    bos: Option<TokenId>,
    eos: Option<TokenId>,
    eot: Option<TokenId>,
}

type Pipeline = TokenizerImpl<TimedModel, BoundedNormalizer, Splitter, PostProcessorWrapper, DecoderWrapper>;

struct Shared {
    pipeline: Pipeline,
    pieces: Pieces,
    /// Bytes of the longest token.
    longest: usize,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`. That file does not say which tokens begin and end a text: see
    /// [`with_config`](Self::with_config).
    pub fn from_json_bytes(bytes: &[u8]) -> Result<Self> {
        let file = serde_json::from_slice(bytes).map_err(|error| invalid(&error))?;
        Self::from_json(file)
    }

    /// Builds the tokenizer a GGUF file describes.
    pub fn from_gguf(metadata: GgufTokenizer) -> Result<Self> {
        let (bos, eos, eot) = (metadata.bos, metadata.eos, metadata.eot);
        let tokenizer = Self::from_json(gguf::tokenizer_json(metadata)?)?;
        let known = |id: Option<TokenId>| id.filter(|&id| tokenizer.pieces().get(id).is_ok());
        Ok(Self {
            bos: known(bos),
            eos: known(eos),
            eot: known(eot),
            ..tokenizer
        })
    }

    /// Takes the tokens that begin and end a text from the tokenizer's configuration.
    #[must_use]
    pub fn with_config(self, config: &TokenizerConfig) -> Self {
        let find = |name: &Option<String>| name.as_deref().and_then(|name| self.token_to_id(name));
        let (bos, eos) = (find(&config.bos_token), find(&config.eos_token));
        Self {
            bos: bos.or(self.bos),
            eos: eos.or(self.eos),
            ..self
        }
    }

    fn from_json(mut file: Value) -> Result<Self> {
        // Truncation and padding are the caller's business, and a file could ask for any length.
        if let Some(file) = file.as_object_mut() {
            file.shift_remove("truncation");
            file.shift_remove("padding");
        }
        check_merges(&file["model"])?;
        bounded::check(&file).map_err(TextError::InvalidTokenizer)?;
        let decoder = file["decoder"].clone();
        // A malformed file can break an assertion inside the library; nothing outlives the attempt.
        let built = catch_unwind(AssertUnwindSafe(|| {
            serde_json::from_value::<Pipeline>(file).map_err(|error| invalid(&error))
        }));
        let pipeline =
            built.unwrap_or_else(|_| Err(TextError::InvalidTokenizer("inconsistent contents".to_owned())))?;
        let pieces = Pieces::new(&entries(&pipeline), &decoder)?;
        Ok(Self {
            shared: Arc::new(Shared {
                longest: pieces.longest().max(1),
                pipeline,
                pieces,
            }),
            bos: None,
            eos: None,
            eot: None,
        })
    }

    /// The tokens of `text`. Special tokens written out in the text are recognised; `add_special` adds those
    /// the tokenizer puts around a text (such as a begin token). A text that takes the tokenizer too long is an error.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<TokenId>> {
        let encode = || self.shared.pipeline.encode_fast(text, add_special);
        // A malformed file can break an assertion inside the library; nothing outlives the attempt.
        let encoding = catch_unwind(AssertUnwindSafe(|| bounded::within_time(text.len(), encode)));
        let encoding = encoding.unwrap_or_else(|_| Err("inconsistent tokenizer".into()));
        let encoding = encoding.map_err(|error| TextError::Encode {
            bytes: text.len(),
            reason: error.to_string(),
        })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The same for a text of any length from outside: what surely has more tokens than the limit is an error, found out
    /// at a cost that follows the limit and not the text. A result may still have somewhat more tokens.
    pub fn encode_within(
        &self,
        text: &str,
        add_special: bool,
        limit: &EncodeLimit<'_>,
    ) -> Result<Vec<TokenId>> {
        let at_least = text.len().div_ceil(self.shared.longest);
        limit.expect(at_least)?;
        if text.len() > (ORDINARY * limit.tokens).max(PIECE) {
            self.measure(text, limit)?;
        }
        if (limit.given_up)() {
            return Err(TextError::GivenUp);
        }
        self.encode(text, add_special)
    }

    /// Counts the tokens of a text piece by piece, until they are too many.
    fn measure(&self, mut text: &str, limit: &EncodeLimit<'_>) -> Result<()> {
        let mut counted = 0;
        while !text.is_empty() {
            if (limit.given_up)() {
                return Err(TextError::GivenUp);
            }
            let (piece, rest) = text.split_at(text.floor_char_boundary(PIECE));
            counted += self.encode(piece, false)?.len();
            // A cut changes the tokens beside it: a few of the thousands in a piece. Half of them is beyond doubt.
            limit.expect(counted / 2)?;
            text = rest;
        }
        Ok(())
    }

    /// The tokens of a word at the start of a text and after a space, which most tokenizers spell differently.
    pub fn spellings(&self, word: &str) -> Result<Vec<Vec<TokenId>>> {
        let after_space = format!(" {}", word.trim_start());
        let mut spellings = vec![self.encode(word, false)?, self.encode(&after_space, false)?];
        spellings.dedup();
        Ok(spellings)
    }

    /// The text of `tokens`, without special tokens if `skip_special`. Bytes that are no UTF-8 become
    /// replacement characters.
    pub fn decode(&self, tokens: &[TokenId], skip_special: bool) -> Result<String> {
        let mut detokenizer = Detokenizer::new(self, skip_special);
        let mut text = String::new();
        for &token in tokens {
            text.push_str(&detokenizer.push(token)?);
        }
        text.push_str(&detokenizer.finish());
        Ok(text)
    }

    /// One past the largest token id.
    pub fn vocab_size(&self) -> usize {
        self.pieces().len()
    }

    /// The id of a token as spelled in the vocabulary.
    pub fn token_to_id(&self, token: &str) -> Option<TokenId> {
        self.shared.pipeline.token_to_id(token)
    }

    /// A token as spelled in the vocabulary.
    pub fn id_to_token(&self, id: TokenId) -> Option<String> {
        self.shared.pipeline.id_to_token(id)
    }

    /// The bytes a token contributes to a text; they need not be UTF-8 by themselves.
    pub fn token_bytes(&self, id: TokenId) -> Result<&[u8]> {
        Ok(self.pieces().get(id)?.0)
    }

    /// Whether a token is special: it marks structure and is no text.
    pub fn is_special(&self, id: TokenId) -> bool {
        matches!(self.pieces().get(id), Ok((_, true)))
    }

    /// The token that begins a text.
    pub fn bos_id(&self) -> Option<TokenId> {
        self.bos
    }

    /// The token that ends a text.
    pub fn eos_id(&self) -> Option<TokenId> {
        self.eos
    }

    /// The token that ends a turn, where a GGUF file names one.
    pub fn eot_id(&self) -> Option<TokenId> {
        self.eot
    }

    pub(crate) fn pieces(&self) -> &Pieces {
        &self.shared.pieces
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("bos", &self.bos)
            .field("eos", &self.eos)
            .field("eot", &self.eot)
            .finish_non_exhaustive()
    }
}

fn invalid(error: &dyn fmt::Display) -> TextError {
    TextError::InvalidTokenizer(error.to_string())
}

fn entries(pipeline: &Pipeline) -> Vec<Entry> {
    let plain = pipeline.get_vocab(false).into_iter().map(|(text, id)| Entry {
        id,
        text,
        added: false,
        special: false,
    });
    let added = pipeline
        .get_added_tokens_decoder()
        .into_iter()
        .map(|(id, token)| Entry {
            id,
            special: token.special,
            text: token.content,
            added: true,
        });
    // Added tokens come last: one that is in the vocabulary too counts as added.
    plain.chain(added).collect()
}

/// Checks that every merge of a BPE model joins two tokens into a third, which the library takes for granted.
fn check_merges(model: &Value) -> Result<()> {
    let (Some(vocab), Some(merges)) = (model["vocab"].as_object(), model["merges"].as_array()) else {
        return Ok(());
    };
    let prefix = model["continuing_subword_prefix"].as_str().unwrap_or("");
    for merge in merges {
        let pair = match merge {
            Value::String(merge) => merge.split_once(' '),
            Value::Array(pair) => match pair.as_slice() {
                [Value::String(left), Value::String(right)] => Some((left.as_str(), right.as_str())),
                _ => None,
            },
            _ => None,
        };
        let joined = pair.and_then(|(left, right)| {
            let both = vocab.contains_key(left) && vocab.contains_key(right);
            both.then(|| right.strip_prefix(prefix).map(|right| format!("{left}{right}")))
                .flatten()
        });
        if !joined.is_some_and(|joined| vocab.contains_key(&joined)) {
            return Err(TextError::InvalidTokenizer(format!(
                "the merge {merge} names unknown tokens"
            )));
        }
    }
    Ok(())
}
