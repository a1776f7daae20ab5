//! From the tokens of one choice to its text: detokenizer, then stop strings.

use super::GenerationTask;
use paceline_text::{Detokenizer, StopStrings, Tokenizer};
use paceline_types::{TokenId, TokenLogprobs};
use std::collections::VecDeque;

/// More of a choice. A token comes no earlier than its text, so nothing of a stop string shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// Text that is certain.
    pub text: String,
    /// Tokens that are certain.
    pub tokens: Vec<GeneratedToken>,
}

impl Piece {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.tokens.is_empty()
    }

    fn append(&mut self, other: Self) {
        self.text.push_str(&other.text);
        self.tokens.extend(other.tokens);
    }
}

/// A token of a choice.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratedToken {
    /// Id in the vocabulary.
    pub id: TokenId,
    /// How likely it and others were, if asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// A token whose text is not certain yet, and where in the choice that text lies.
struct Held {
    token: GeneratedToken,
    start: usize,
    end: usize,
}

/// The text of one choice while it comes.
pub(super) struct ChoiceText {
    /// Absent for models without a tokenizer: there are tokens and no text.
    decoder: Option<Detokenizer>,
    stops: StopStrings,
    stop_strings: Vec<String>,
    include_stop: bool,
    /// Tokens at the start in which stop strings do not count.
    min_tokens: usize,
    held: VecDeque<Held>,
    /// Bytes of text so far.
    decoded: usize,
    /// Bytes of text that are certain.
    certain: usize,
    /// Tokens so far.
    tokens: usize,
    /// The stop string that was found.
    stopped: Option<usize>,
}

impl ChoiceText {
    pub(super) fn new(tokenizer: Option<&Tokenizer>, task: &GenerationTask) -> Self {
        let decoder = tokenizer.map(|tokenizer| {
            let decoder = Detokenizer::new(tokenizer, task.skip_special);
            if task.continues {
                decoder.continuing()
            } else {
                decoder
            }
        });
        Self {
            decoder,
            stops: StopStrings::new(task.stop.clone()),
            stop_strings: task.stop.clone(),
            include_stop: task.include_stop,
            min_tokens: task.sampling.min_tokens,
            held: VecDeque::new(),
            decoded: 0,
            certain: 0,
            tokens: 0,
            stopped: None,
        }
    }

    /// Tokens so far, those of a stop string included.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// The stop string that ended the text.
    pub(super) fn stopped(&self) -> Option<&str> {
        let index = self.stopped?;
        self.stop_strings.get(index).map(String::as_str)
    }

    /// Takes tokens up to the one that completes a stop string.
    pub(super) fn push(&mut self, tokens: impl Iterator<Item = GeneratedToken>) -> Piece {
        let mut piece = Piece::default();
        for token in tokens {
            if self.stopped.is_some() {
                break;
            }
            piece.append(self.push_one(token));
        }
        piece
    }

    fn push_one(&mut self, token: GeneratedToken) -> Piece {
        self.tokens += 1;
        // A model's vocabulary may be padded beyond its tokenizer's: such ids have no text.
        let decoder = self.decoder.as_mut();
        let text = decoder.map_or_else(String::new, |decoder| decoder.push(token.id).unwrap_or_default());
        let start = self.decoded;
        self.decoded += text.len();
        self.held.push_back(Held {
            token,
            start,
            end: self.decoded,
        });
        if self.tokens <= self.min_tokens {
            return self.release(text);
        }
        let outcome = self.stops.push(&text);
        self.take(outcome.text, outcome.matched)
    }

    /// Ends the text and returns what was held back.
    pub(super) fn finish(&mut self) -> Piece {
        let mut piece = Piece::default();
        if self.stopped.is_none() {
            let rest = self.decoder.take().map(Detokenizer::finish).unwrap_or_default();
            self.decoded += rest.len();
            let outcome = self.stops.push(&rest);
            piece = self.take(outcome.text, outcome.matched);
        }
        if self.stopped.is_none() {
            let stops = std::mem::replace(&mut self.stops, StopStrings::new(Vec::new()));
            let outcome = stops.finish();
            piece.append(self.take(outcome.text, outcome.matched));
        }
        if self.stopped.is_none() {
            piece.tokens.extend(self.held.drain(..).map(|held| held.token));
        }
        piece
    }

    fn take(&mut self, text: String, matched: Option<usize>) -> Piece {
        let mut piece = self.release(text);
        self.stopped = matched;
        let Some(stop) = matched.and_then(|index| self.stop_strings.get(index)) else {
            return piece;
        };
        let mut cut = self.certain;
        if self.include_stop {
            piece.text.push_str(stop);
            cut += stop.len();
        }
        // A token that reaches into the stop string has text before it too.
        let kept = self.held.drain(..).take_while(|held| held.start < cut);
        piece.tokens.extend(kept.map(|held| held.token));
        piece
    }

    /// This text is certain, and so are the tokens that end in it.
    fn release(&mut self, text: String) -> Piece {
        self.certain += text.len();
        let mut tokens = Vec::new();
        while let Some(held) = self.held.pop_front_if(|held| held.end <= self.certain) {
            tokens.push(held.token);
        }
        Piece { text, tokens }
    }
}
