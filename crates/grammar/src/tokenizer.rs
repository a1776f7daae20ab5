//! A model's vocabulary as grammars need it.

use crate::error::GrammarError;
use crate::limits::GrammarLimits;
use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{
    INVALID_TOKEN, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie, TokenizerEnv,
};
use paceline_text::Tokenizer;
use paceline_types::TokenId;
use std::fmt;
use std::sync::Arc;

/// The tokens of a model as bytes, which of them end a text, and tables that make masks fast. Made once per model;
/// clones share it.
#[derive(Clone)]
pub struct TokenizerInfo {
    shared: Arc<Shared>,
}

struct Shared {
    factory: ParserFactory,
    tokenizer: Tokenizer,
    ends: Vec<TokenId>,
    special: SimpleVob,
    limits: GrammarLimits,
}

impl TokenizerInfo {
    /// For a tokenizer whose model ends texts with `ends`; there may be none. Takes tens of milliseconds for a large
    /// vocabulary.
    pub fn new(tokenizer: &Tokenizer, ends: &[TokenId], limits: GrammarLimits) -> Result<Self, GrammarError> {
        let vocabulary = tokenizer.vocab_size();
        if let Some(id) = ends.iter().find(|id| **id as usize >= vocabulary) {
            return Err(GrammarError::UnknownEnd { id: *id, vocabulary });
        }
        let words = words(tokenizer, ends);
        let info = TokRxInfo {
            vocab_size: vocabulary as u32,
            tok_eos: ends.first().copied().unwrap_or(INVALID_TOKEN),
            tok_bos: None,
            tok_pad: None,
            tok_unk: None,
            tok_end_of_turn: None,
        };
        let built = llguidance::panic_utils::catch_unwind(|| {
            let mut trie = TokTrie::from(&info, &words);
            if !ends.is_empty() {
                trie = trie.with_eos_tokens(ends);
            }
            let env: TokEnv = Arc::new(Env {
                trie,
                tokenizer: tokenizer.clone(),
            });
            let capabilities = InferenceCapabilities {
                ff_tokens: true,
                ..InferenceCapabilities::default()
            };
            ParserFactory::new(&env, capabilities, &SlicedBiasComputer::general_slices())
        });
        let mut factory = built.map_err(|error| GrammarError::Tokenizer(first_line(&error)))?;
        factory.quiet();
        *factory.limits_mut() = limits.parser();
        let special = (0..vocabulary as TokenId).filter(|id| tokenizer.is_special(*id) && !ends.contains(id));
        let mut set = SimpleVob::alloc(vocabulary);
        special.for_each(|id| set.allow_token(id));
        Ok(Self {
            shared: Arc::new(Shared {
                factory,
                tokenizer: tokenizer.clone(),
                ends: ends.to_vec(),
                special: set,
                limits,
            }),
        })
    }

    /// One past the largest token.
    pub fn vocabulary(&self) -> usize {
        self.shared.tokenizer.vocab_size()
    }

    /// Tokens that end a text.
    pub fn ends(&self) -> &[TokenId] {
        &self.shared.ends
    }

    /// The bounds on grammars.
    pub fn limits(&self) -> &GrammarLimits {
        &self.shared.limits
    }

    pub(crate) fn factory(&self) -> &ParserFactory {
        &self.shared.factory
    }

    /// Tokens that mark structure and end nothing.
    pub(crate) fn special(&self) -> &SimpleVob {
        &self.shared.special
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.shared.tokenizer
    }
}

impl fmt::Debug for TokenizerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenizerInfo")
            .field("vocabulary", &self.vocabulary())
            .field("ends", &self.shared.ends)
            .finish_non_exhaustive()
    }
}

/// The bytes of every token. Special tokens and those that end a text are no text: their bytes begin with a mark that
/// no text has.
fn words(tokenizer: &Tokenizer, ends: &[TokenId]) -> Vec<Vec<u8>> {
    let word = |id: TokenId| {
        let bytes = tokenizer.token_bytes(id).unwrap_or_default();
        if !tokenizer.is_special(id) && !ends.contains(&id) {
            return bytes.to_vec();
        }
        let mut marked = vec![TokTrie::SPECIAL_TOKEN_MARKER];
        marked.extend_from_slice(bytes);
        marked
    };
    (0..tokenizer.vocab_size() as TokenId).map(word).collect()
}

struct Env {
    trie: TokTrie,
    tokenizer: Tokenizer,
}

impl Env {
    /// The tokens that the model is used to for a piece of text inside a text. The tokenizer's own, if they stand for
    /// exactly these bytes: it may see a special token in the text, or put a space before it.
    fn encode(&self, text: &str) -> Vec<TokenId> {
        // Behind a character that nothing joins, a tokenizer that begins texts with a space does not.
        const ANCHOR: &str = "\u{2}";
        let plain = self.tokenizer.encode(text, false).unwrap_or_default();
        if self.stands_for(&plain, text) {
            return plain;
        }
        let anchor = self.tokenizer.encode(ANCHOR, false).unwrap_or_default();
        let anchored = self
            .tokenizer
            .encode(&format!("{ANCHOR}{text}"), false)
            .unwrap_or_default();
        match anchored.strip_prefix(anchor.as_slice()) {
            Some(behind) if self.stands_for(behind, text) => behind.to_vec(),
            _ => self.trie.greedy_tokenize(text.as_bytes()),
        }
    }

    fn stands_for(&self, tokens: &[TokenId], text: &str) -> bool {
        let mut rest = text.as_bytes();
        for token in tokens {
            let bytes = self.trie.token(*token);
            match rest.strip_prefix(bytes) {
                Some(behind) if !bytes.is_empty() => rest = behind,
                _ => return false,
            }
        }
        rest.is_empty()
    }
}

impl TokenizerEnv for Env {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        Plain(self).tokenize_bytes(bytes)
    }

    /// What a grammar forces may be as long as it likes and is looked at for every token: of a long text, this gives
    /// the beginning.
    fn tokenize_bytes_marker(&self, bytes: &[u8]) -> (Vec<TokenId>, usize) {
        const MARK: usize = 128;
        /// Tokens at the end that would be others in the whole text.
        const UNSURE: usize = 4;
        // Enough tokens are left, whatever their length, that the library cannot take all of them back.
        let most = 1024.max(16 * self.trie.max_token_len());
        if bytes.len() <= most {
            return Plain(self).tokenize_bytes_marker(bytes);
        }
        let begins = |byte: &u8| byte & 0b1100_0000 != 0b1000_0000;
        let cut = bytes[..=most].iter().rposition(begins).unwrap_or(most);
        let near = cut.saturating_sub(MARK);
        let mark = bytes[near..cut]
            .iter()
            .position(|byte| *byte == TokTrie::SPECIAL_TOKEN_MARKER);
        let cut = mark.map_or(cut, |mark| near + mark);
        let (mut tokens, fixed) = Plain(self).tokenize_bytes_marker(&bytes[..cut]);
        tokens.truncate(tokens.len().saturating_sub(UNSURE).max(1));
        let fixed = fixed.min(tokens.len());
        (tokens, fixed)
    }
}

/// The tokenizer for texts of any length.
struct Plain<'a>(&'a Env);

impl TokenizerEnv for Plain<'_> {
    fn tok_trie(&self) -> &TokTrie {
        &self.0.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let tokens = |text: &str| self.0.encode(text);
        self.0.trie.tokenize_with_greedy_fallback(bytes, tokens)
    }
}

/// Errors of the library come with states and traces behind the first line, and may repeat what they are about.
pub(crate) fn first_line(error: &dyn fmt::Display) -> String {
    let text = error.to_string();
    let mut lines = text.lines();
    let first = clipped(lines.next().unwrap_or_default());
    // A regular expression is shown line by line, and what is wrong with it comes last.
    match lines.find_map(|line| line.trim_start().strip_prefix("error: ")) {
        Some(cause) => format!("{first} {}", clipped(cause)),
        None => first,
    }
}

/// The start of a message, short enough for an error.
pub(crate) fn clipped(text: &str) -> String {
    const SHOWN: usize = 600;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
