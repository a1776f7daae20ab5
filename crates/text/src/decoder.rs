//! From the tokens of one text to what is shown of it: detokenizer, then stop strings.

use crate::{Detokenizer, StopStrings, Tokenizer};
use paceline_types::{TokenId, TokenLogprobs};
use std::collections::VecDeque;
use std::sync::Arc;

/// How tokens become text.
#[derive(Clone, Debug, Default)]
pub struct DecodeOptions {
    /// The text ends before any of these.
    pub stop: Arc<[String]>,
    /// Let the text end with the stop string that was found.
    pub include_stop: bool,
    /// Show special tokens as text.
    pub show_special: bool,
    /// The text goes on where the prompt ended; otherwise it is a text of its own, such as an answer.
    pub continues: bool,
    /// Stop strings do not count within this many tokens.
    pub min_tokens: usize,
    /// Tell what each token adds to the text.
    pub token_texts: bool,
}

/// More of a text. Tokens and text keep step: a token comes with the last of its text, and text with the last of its
/// tokens, so nothing of a stop string shows, and the tokens so far are all it takes to go on with the text elsewhere.
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

    /// Adds what comes next.
    pub fn append(&mut self, other: Self) {
        self.text.push_str(&other.text);
        self.tokens.extend(other.tokens);
    }
}

/// A token of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratedToken {
    /// Id in the vocabulary.
    pub id: TokenId,
    /// How likely it and others were, if asked for.
    pub logprobs: Option<TokenLogprobs>,
    /// What it adds to the text, if asked for; one that is part of a character adds nothing, and the last part
    /// all of it.
    pub text: String,
}

/// A token whose text is not certain yet, and where in the whole text that lies.
#[derive(Clone, Debug)]
struct Held {
    token: GeneratedToken,
    start: usize,
    end: usize,
}

/// One text while it comes.
#[derive(Clone, Debug)]
pub struct TextDecoder {
    /// Absent for models without a tokenizer: there are tokens and no text.
    detokenizer: Option<Detokenizer>,
    stops: StopStrings,
    options: DecodeOptions,
    held: VecDeque<Held>,
    /// Bytes of text so far.
    decoded: usize,
    /// Bytes of text that are certain.
    certain: usize,
    /// Bytes of text that have been shown, here or elsewhere.
    shown: usize,
    /// Text behind those that is certain: the beginning of a token's text.
    begun: String,
    /// Tokens so far.
    tokens: usize,
    /// The stop string that was found.
    stopped: Option<usize>,
}

impl TextDecoder {
    /// Of a text that has not begun.
    pub fn new(tokenizer: Option<&Tokenizer>, options: DecodeOptions) -> Self {
        let detokenizer = tokenizer.map(|tokenizer| {
            let detokenizer = Detokenizer::new(tokenizer, !options.show_special);
            if options.continues {
                detokenizer.continuing()
            } else {
                detokenizer
            }
        });
        Self {
            detokenizer,
            stops: StopStrings::new(options.stop.to_vec()),
            options,
            held: VecDeque::new(),
            decoded: 0,
            certain: 0,
            shown: 0,
            begun: String::new(),
            tokens: 0,
            stopped: None,
        }
    }

    /// Goes on with a text whose first tokens were shown elsewhere, with all of their text, which is returned. `None` if
    /// they complete a stop string: there is nothing to go on with.
    pub fn resume(&mut self, tokens: &[TokenId]) -> Option<String> {
        let mut text = String::new();
        for id in tokens {
            let piece = self.push_all(vec![*id], Vec::new());
            text.push_str(&piece.text);
        }
        if self.stopped.is_some() {
            return None;
        }
        // A stop string may have begun, and did not go on: its text has been shown.
        text.push_str(&self.begun);
        text.push_str(self.stops.held());
        self.held.clear();
        self.begun.clear();
        self.shown = self.decoded;
        Some(text)
    }

    /// Tokens so far, those of a stop string included.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The stop string that ended the text.
    pub fn stopped(&self) -> Option<&str> {
        let stop = self.options.stop.get(self.stopped?);
        stop.map(String::as_str)
    }

    /// Takes tokens up to the one that completes a stop string.
    pub fn push(&mut self, tokens: impl IntoIterator<Item = GeneratedToken>) -> Piece {
        let mut piece = Piece::default();
        for token in tokens {
            if self.stopped.is_some() {
                break;
            }
            piece.append(self.push_one(token));
        }
        piece
    }

    /// The same for tokens as the engine gives them, with one entry of log-probabilities each or none at all.
    pub fn push_all(&mut self, tokens: Vec<TokenId>, logprobs: Vec<TokenLogprobs>) -> Piece {
        let mut logprobs = logprobs.into_iter();
        self.push(tokens.into_iter().map(|id| GeneratedToken {
            id,
            logprobs: logprobs.next(),
            text: String::new(),
        }))
    }

    fn push_one(&mut self, mut token: GeneratedToken) -> Piece {
        self.tokens += 1;
        // A model's vocabulary may be padded beyond its tokenizer's: such ids have no text.
        let text = match &mut self.detokenizer {
            Some(detokenizer) => detokenizer.push(token.id).unwrap_or_default(),
            None => String::new(),
        };
        if self.options.token_texts {
            token.text.clone_from(&text);
        }
        let start = self.decoded;
        self.decoded += text.len();
        self.held.push_back(Held {
            token,
            start,
            end: self.decoded,
        });
        if self.tokens <= self.options.min_tokens {
            return self.release(&text);
        }
        let outcome = self.stops.push(&text);
        self.take(&outcome.text, outcome.matched)
    }

    /// Ends the text and returns what was held back.
    pub fn finish(&mut self) -> Piece {
        let mut piece = Piece::default();
        if self.stopped.is_none() {
            let rest = self.detokenizer.take().map(Detokenizer::finish);
            let rest = rest.unwrap_or_default();
            self.decoded += rest.len();
            let outcome = self.stops.push(&rest);
            piece = self.take(&outcome.text, outcome.matched);
        }
        if self.stopped.is_none() {
            let stops = std::mem::replace(&mut self.stops, StopStrings::new(Vec::new()));
            let outcome = stops.finish();
            piece.append(self.take(&outcome.text, outcome.matched));
        }
        if self.stopped.is_none() {
            piece.text.push_str(&std::mem::take(&mut self.begun));
            piece.tokens.extend(self.held.drain(..).map(|held| held.token));
        }
        piece
    }

    fn take(&mut self, text: &str, matched: Option<usize>) -> Piece {
        let mut piece = self.release(text);
        self.stopped = matched;
        let Some(stop) = matched.and_then(|index| self.options.stop.get(index)) else {
            return piece;
        };
        piece.text.push_str(&std::mem::take(&mut self.begun));
        let mut cut = self.certain;
        if self.options.include_stop {
            piece.text.push_str(stop);
            cut += stop.len();
        }
        // A token that reaches into the stop string has text before it too.
        let kept = self.held.drain(..).take_while(|held| held.start < cut);
        piece.tokens.extend(kept.map(|mut held| {
            held.token.text.truncate(cut - held.start);
            held.token
        }));
        piece
    }

    /// This text is certain, and so are the tokens that end in it.
    fn release(&mut self, text: &str) -> Piece {
        let shown = self.shown.saturating_sub(self.certain).min(text.len());
        self.begun.push_str(&text[shown..]);
        self.certain += text.len();
        let mut tokens = Vec::new();
        while let Some(held) = self.held.pop_front_if(|held| held.end <= self.certain) {
            tokens.push(held.token);
        }
        let whole = self
            .held
            .front()
            .map_or(self.certain, |held| held.start.min(self.certain));
        let text = self.begun.drain(..whole.saturating_sub(self.shown)).collect();
        self.shown = self.shown.max(whole);
        Piece { text, tokens }
    }
}
