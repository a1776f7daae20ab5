//! The bytes of every token.
//!
//! A decoder of a `tokenizer.json` maps token strings to text. For the kinds language models use, that map is a
//! table from token to bytes followed by one UTF-8 decoding, which is what makes streaming exact and cheap. A
//! decoder that is no such table is refused.

use paceline_types::TokenId;
use serde_json::Value;

use crate::error::{Result, TextError};

/// Largest id a file may use: bounds the table whatever the file says.
const MAX_TOKENS: usize = 1 << 22;

/// One entry of a vocabulary.
pub(crate) struct Entry {
    pub(crate) id: TokenId,
    pub(crate) text: String,
    /// Written as is rather than through the decoder.
    pub(crate) added: bool,
    pub(crate) special: bool,
}

#[derive(Clone, Copy, Default)]
struct Piece {
    start: u32,
    end: u32,
    present: bool,
    special: bool,
}

/// The table, with what the decoder does at the start of a text.
pub(crate) struct Pieces {
    table: Vec<Piece>,
    bytes: Vec<u8>,
    /// Spaces dropped at the start of a text.
    pub(crate) leading_spaces: usize,
}

impl Pieces {
    /// Builds the table of `entries` as `decoder` (the value in `tokenizer.json`) would write them.
    pub(crate) fn new(entries: &[Entry], decoder: &Value) -> Result<Self> {
        let scheme = Scheme::parse(decoder)?;
        let len = entries
            .iter()
            .map(|entry| entry.id as usize + 1)
            .max()
            .unwrap_or(0);
        if len == 0 || len > MAX_TOKENS {
            return Err(TextError::InvalidTokenizer(format!(
                "the vocabulary has ids up to {len}; 1 to {MAX_TOKENS} are possible"
            )));
        }
        let mut table = vec![Piece::default(); len];
        let mut bytes = Vec::new();
        let position = |len: usize| {
            u32::try_from(len).map_err(|_| TextError::InvalidTokenizer(format!("{len} bytes of token text")))
        };
        for entry in entries {
            let start = position(bytes.len())?;
            if entry.added {
                bytes.extend_from_slice(entry.text.as_bytes());
            } else {
                scheme.write(&entry.text, &mut bytes);
            }
            table[entry.id as usize] = Piece {
                start,
                end: position(bytes.len())?,
                present: true,
                special: entry.special,
            };
        }
        Ok(Self {
            table,
            bytes,
            leading_spaces: scheme.leading_spaces,
        })
    }

    /// Bytes of the longest token.
    pub(crate) fn longest(&self) -> usize {
        let lengths = self.table.iter().map(|piece| piece.end - piece.start);
        lengths.max().unwrap_or(0) as usize
    }

    /// One past the largest id.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// The bytes of a token and whether it is special.
    pub(crate) fn get(&self, id: TokenId) -> Result<(&[u8], bool)> {
        match self.table.get(id as usize) {
            Some(piece) if piece.present => Ok((
                &self.bytes[piece.start as usize..piece.end as usize],
                piece.special,
            )),
            _ => Err(TextError::UnknownToken {
                id,
                vocab_size: self.table.len(),
            }),
        }
    }
}

/// A decoder reduced to a rewriting of single tokens.
#[derive(Default)]
struct Scheme {
    byte_level: bool,
    byte_fallback: bool,
    replacements: Vec<(String, String)>,
    leading_spaces: usize,
}

impl Scheme {
    fn parse(decoder: &Value) -> Result<Self> {
        let mut scheme = Self::default();
        scheme.add(decoder)?;
        Ok(scheme)
    }

    fn add(&mut self, decoder: &Value) -> Result<()> {
        let unsupported = || TextError::UnsupportedDecoder(decoder.to_string());
        let number = |key: &str| decoder[key].as_u64().unwrap_or(0) as usize;
        match decoder["type"].as_str().ok_or_else(unsupported)? {
            "ByteLevel" => self.byte_level = true,
            "ByteFallback" => self.byte_fallback = true,
            "Fuse" => {}
            "Sequence" => {
                for step in decoder["decoders"].as_array().ok_or_else(unsupported)? {
                    self.add(step)?;
                }
            }
            "Replace" => {
                let from = decoder["pattern"]["String"].as_str().ok_or_else(unsupported)?;
                let to = decoder["content"].as_str().ok_or_else(unsupported)?;
                self.replacements.push((from.to_owned(), to.to_owned()));
            }
            "Strip" if decoder["content"] == " " && number("stop") == 0 => {
                self.leading_spaces += number("start");
            }
            "Metaspace" => {
                let mark = decoder["replacement"].as_str().ok_or_else(unsupported)?;
                self.replacements.push((mark.to_owned(), " ".to_owned()));
                self.leading_spaces += usize::from(decoder["prepend_scheme"] != "never");
            }
            _ => return Err(unsupported()),
        }
        Ok(())
    }

    fn write(&self, token: &str, out: &mut Vec<u8>) {
        if self.byte_level {
            let start = out.len();
            for c in token.chars() {
                if let Some(byte) = byte_of(c) {
                    out.push(byte);
                } else {
                    // A token outside the byte alphabet stands for itself.
                    out.truncate(start);
                    out.extend_from_slice(token.as_bytes());
                    return;
                }
            }
        } else if let Some(byte) = self.byte_fallback.then(|| fallback_byte(token)).flatten() {
            out.push(byte);
        } else if self.replacements.is_empty() {
            out.extend_from_slice(token.as_bytes());
        } else {
            let text = self
                .replacements
                .iter()
                .fold(token.to_owned(), |text, (from, to)| {
                    text.replace(from.as_str(), to)
                });
            out.extend_from_slice(text.as_bytes());
        }
    }
}

/// Whether a byte stands for itself in the byte-level alphabet.
const fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The byte a character of the byte-level alphabet stands for: printable bytes are themselves, the others are
/// numbered from U+0100 on.
fn byte_of(c: char) -> Option<u8> {
    let code = u32::from(c);
    match u8::try_from(code) {
        Ok(byte) => is_printable(byte).then_some(byte),
        Err(_) => match code - 0x100 {
            n @ 0..=0x20 => Some(n as u8),
            n @ 0x21..=0x42 => Some((n - 0x21 + 0x7F) as u8),
            0x43 => Some(0xAD),
            _ => None,
        },
    }
}

/// The byte of a fallback token such as `<0x0A>`.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let hexadecimal = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    hexadecimal.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_alphabet_covers_every_byte_once() {
        let mut seen = [false; 256];
        for c in (0..0x200).filter_map(char::from_u32) {
            if let Some(byte) = byte_of(c) {
                assert!(!std::mem::replace(&mut seen[byte as usize], true), "{byte} twice");
            }
        }
        assert!(seen.iter().all(|&seen| seen));
        assert_eq!(byte_of('Ġ'), Some(b' '));
        assert_eq!(byte_of('Ċ'), Some(b'\n'));
        assert_eq!(byte_of('你'), None);
    }

    #[test]
    fn only_two_hexadecimal_digits_are_a_byte_token() {
        assert_eq!(fallback_byte("<0x0A>"), Some(10));
        assert_eq!(fallback_byte("<0x+A>"), None);
        assert_eq!(fallback_byte("<0x0AB>"), None);
    }
}
