//! From tokens to the text that is shown: detokenizer, then stop strings.

use super::prompts::Job;
use paceline_text::{Detokenizer, StopStrings, Tokenizer};
use paceline_types::TokenId;

/// What became certain by one more token.
#[derive(Debug, Default)]
pub(super) struct Piece {
    /// Text to show.
    pub(super) text: String,
    /// A stop string was found; the text ends before it.
    pub(super) stopped: bool,
}

/// Text of one generation. Without a tokenizer the ids are the text.
pub(super) enum TextStream {
    Decoded {
        detokenizer: Box<Detokenizer>,
        stops: StopStrings,
    },
    Ids {
        first: bool,
    },
}

impl TextStream {
    pub(super) fn new(tokenizer: Option<&Tokenizer>, job: &Job) -> Self {
        let Some(tokenizer) = tokenizer else {
            return Self::Ids { first: true };
        };
        let detokenizer = Detokenizer::new(tokenizer, true);
        // An answer is a text of its own, anything else goes on where the prompt ended.
        let detokenizer = if job.chat {
            detokenizer
        } else {
            detokenizer.continuing()
        };
        Self::Decoded {
            detokenizer: Box::new(detokenizer),
            stops: StopStrings::new(job.stop.clone()),
        }
    }

    /// Takes the next token.
    pub(super) fn push(&mut self, token: TokenId) -> Piece {
        match self {
            Self::Decoded { detokenizer, stops } => {
                // A model's vocabulary may be padded beyond its tokenizer's: such ids have no text.
                let outcome = stops.push(&detokenizer.push(token).unwrap_or_default());
                Piece {
                    text: outcome.text,
                    stopped: outcome.matched.is_some(),
                }
            }
            Self::Ids { first } => {
                let gap = if std::mem::take(first) { "" } else { " " };
                Piece {
                    text: format!("{gap}{token}"),
                    stopped: false,
                }
            }
        }
    }

    /// Ends the text and returns what was held back.
    pub(super) fn finish(self) -> Piece {
        match self {
            Self::Decoded {
                detokenizer,
                mut stops,
            } => {
                let before = stops.push(&detokenizer.finish());
                let rest = stops.finish();
                Piece {
                    text: before.text + &rest.text,
                    stopped: rest.matched.is_some(),
                }
            }
            Self::Ids { .. } => Piece::default(),
        }
    }
}
