//! Text from tokens, one token at a time.

use paceline_types::TokenId;

use crate::error::Result;
use crate::tokenizer::Tokenizer;

/// Turns a stream of tokens into a stream of text.
///
/// The pieces returned, joined, are [`Tokenizer::decode`] of all the tokens. A character whose bytes are spread
/// over several tokens comes out with the last of them. The work for a token is proportional to its length.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special: bool,
    /// The start of a character: a proper prefix of a UTF-8 sequence, so at most three bytes between calls.
    pending: Vec<u8>,
    /// Spaces still to be dropped at the start of the text.
    leading_spaces: usize,
}

impl Detokenizer {
    /// Starts a text; special tokens give no text when `skip_special`.
    pub fn new(tokenizer: &Tokenizer, skip_special: bool) -> Self {
        Self {
            tokenizer: tokenizer.clone(),
            skip_special,
            pending: Vec::new(),
            leading_spaces: tokenizer.pieces().leading_spaces,
        }
    }

    /// Makes the text the continuation of another: the leading space a SentencePiece tokenizer drops at the
    /// start of a text stays.
    #[must_use]
    pub fn continuing(mut self) -> Self {
        self.leading_spaces = 0;
        self
    }

    /// Takes the next token and returns the text it completes, possibly none.
    ///
    /// An id outside the vocabulary is an error and leaves the state as it was.
    pub fn push(&mut self, token: TokenId) -> Result<String> {
        let (mut bytes, special) = self.tokenizer.pieces().get(token)?;
        if special && self.skip_special {
            return Ok(String::new());
        }
        while let (1.., [b' ', rest @ ..]) = (self.leading_spaces, bytes) {
            self.leading_spaces -= 1;
            bytes = rest;
        }
        if !bytes.is_empty() {
            self.leading_spaces = 0;
        }
        self.pending.extend_from_slice(bytes);
        Ok(self.take_characters())
    }

    /// Ends the text and returns what was held back: a replacement character if a character was cut short.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }

    /// Moves out everything but the start of an unfinished character. Bytes that can be part of no character
    /// become replacement characters, as `String::from_utf8_lossy` of the whole text would make them.
    fn take_characters(&mut self) -> String {
        let mut text = String::with_capacity(self.pending.len());
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    rest = after;
                    let Some(invalid) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[invalid..];
                }
            }
        }
        let consumed = self.pending.len() - rest.len();
        self.pending.drain(..consumed);
        text
    }
}
